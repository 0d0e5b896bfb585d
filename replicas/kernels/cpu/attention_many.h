// Attention of many queries, where computing is what takes time: a tile of the context becomes floats, with its keys
// turned so that scores of 16 tokens lie side by side, and is multiplied with six rows at a time.

#pragma once

#include "attention_step.h"
#include "scratch.h"
#include "shuffles.h"

constexpr int64_t MANY_TILE = 64;
constexpr int64_t QUERY_TILE = 64;
constexpr int MANY_ROWS = 6;

using ManyTile = Tile<MANY_TILE>;

// out[row][COLUMNS * 16] (+)= x[row][depth] times m[depth][stride], for ROWS rows.
template <int ROWS, int COLUMNS, bool ADD>
inline void multiply(const float* x, int64_t x_stride, const float* m, int64_t m_stride, int64_t depth, float* out,
                     int64_t out_stride) {
    floats acc[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) acc[r][c] = ADD ? load(out + r * out_stride + c * LANES) : floats{};
    for (int64_t d = 0; d < depth; d++) {
        floats columns[COLUMNS];
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) columns[c] = load(m + d * m_stride + c * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const floats factor = broadcast(x[r * x_stride + d]);
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) acc[r][c] += columns[c] * factor;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) store(out + r * out_stride + c * LANES, acc[r][c]);
}

// Some queries of a sequence, and one KV head. Its rows are queries, then the query heads that share the KV head.
struct ManyTask {
    int64_t sequence, first, count, kv_head;
};

struct ManyRoom {
    float *queries, *keys, *values, *scores;  // keys[d][token], values[token][d]
    Seen seen;

    static int64_t floats_of(int64_t rows, int64_t head_dim) {
        return rows * head_dim + 2 * MANY_TILE * head_dim + MANY_ROWS * MANY_TILE + Seen::floats_of(rows, head_dim);
    }

    ManyRoom(float* memory, int64_t rows, int64_t head_dim)
        : queries(memory),
          keys(queries + rows * head_dim),
          values(keys + MANY_TILE * head_dim),
          scores(values + MANY_TILE * head_dim),
          seen(scores + MANY_ROWS * MANY_TILE, rows, head_dim) {}
};

template <int SIZE>
void turn(const bfloat16* keys, const ManyTile& tile, float* turned) {
    for (int64_t first = 0; first < tile.count; first += LANES)
        for (int64_t d = 0; d < SIZE; d += 2 * LANES) {
            words square[LANES];
#pragma GCC unroll 16
            for (int t = 0; t < LANES; t++) std::memcpy(square + t, keys + tile.offsets[first + t] + d, sizeof(words));
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                store(turned + (d + 2 * i) * MANY_TILE + first, bit_cast<floats>(square[i] << 16));
                store(turned + (d + 2 * i + 1) * MANY_TILE + first, bit_cast<floats>(square[i] & 0xffff0000u));
            }
        }
}

template <int SIZE>
void turn(const float* keys, const ManyTile& tile, float* turned) {
    for (int64_t first = 0; first < tile.count; first += LANES)
        for (int64_t d = 0; d < SIZE; d += LANES) {
            floats square[LANES];
#pragma GCC unroll 16
            for (int t = 0; t < LANES; t++) square[t] = load(keys + tile.offsets[first + t] + d);
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(turned + (d + i) * MANY_TILE + first, square[i]);
        }
}

template <int SIZE, typename Scalar>
void widen(const Scalar* values, const ManyTile& tile, float* widened) {
    for (int64_t t = 0; t < tile.count; t++)
#pragma GCC unroll 8
        for (int64_t d = 0; d < SIZE; d += LANES) store(widened + t * SIZE + d, load(values + tile.offsets[t] + d));
}

// ROWS rows and the first COLUMNS * 16 tokens of a tile, of which the last row sees `visible`.
template <int ROWS, int COLUMNS, int SIZE, typename Scalar>
void see(const Step<Scalar>& step, const ManyTask& task, const ManyTile& tile, const ManyRoom& room, int64_t row,
         int64_t visible) {
    multiply<ROWS, COLUMNS, false>(room.queries + row * SIZE, SIZE, room.keys, MANY_TILE, SIZE, room.scores, MANY_TILE);
    for (int64_t r = 0; r < ROWS; r++) {
        const int64_t position = step.position(task.sequence, task.first + (row + r) / step.group);
        soften<COLUMNS>(room.scores + r * MANY_TILE, step.first_seen(position) - tile.start, position + 1 - tile.start,
                        room.seen, row + r, SIZE);
    }
    for (int64_t d = 0; d < SIZE; d += 4 * LANES)
        multiply<ROWS, 4, true>(room.scores, MANY_TILE, room.values + d, SIZE, visible,
                                room.seen.sums + row * SIZE + d, SIZE);
}

template <int ROWS, int SIZE, typename Scalar>
void see(const Step<Scalar>& step, const ManyTask& task, const ManyTile& tile, const ManyRoom& room, int64_t row) {
    const int64_t last = step.position(task.sequence, task.first + (row + ROWS - 1) / step.group);
    const int64_t visible = std::min(last + 1 - tile.start, tile.count);
    if (visible > 3 * LANES)
        see<ROWS, 4, SIZE>(step, task, tile, room, row, visible);
    else if (visible > 2 * LANES)
        see<ROWS, 3, SIZE>(step, task, tile, room, row, visible);
    else if (visible > LANES)
        see<ROWS, 2, SIZE>(step, task, tile, room, row, visible);
    else if (visible > 0)
        see<ROWS, 1, SIZE>(step, task, tile, room, row, visible);
}

template <int SIZE, typename Scalar>
void attend_many(const Step<Scalar>& step, const ManyTask& task, Scratch& scratch) {
    const int64_t rows = task.count * step.group, head = task.kv_head * step.group;
    const ManyRoom room(reinterpret_cast<float*>(scratch.of(ManyRoom::floats_of(rows, SIZE) * sizeof(float))), rows, SIZE);
    for (int64_t row = 0; row < rows; row++) {
        const Scalar* query = step.query(task.sequence, task.first + row / step.group, head + row % step.group);
        for (int64_t d = 0; d < SIZE; d += LANES) store(room.queries + row * SIZE + d, load(query + d) * step.scale());
    }
    room.seen.clear(rows, SIZE);
    const int64_t first = step.position(task.sequence, task.first), stop = first + task.count;
    for (int64_t start = step.first_seen(first); start < stop; start += MANY_TILE) {
        const ManyTile tile(step, task.sequence, start, stop);
        turn<SIZE>(step.keys + task.kv_head * SIZE, tile, room.keys);
        widen<SIZE>(step.values + task.kv_head * SIZE, tile, room.values);
        int64_t row = 0;
        for (; row + 6 <= rows; row += 6) see<6, SIZE>(step, task, tile, room, row);
        for (; row + 3 <= rows; row += 3) see<3, SIZE>(step, task, tile, room, row);
        for (; row < rows; row++) see<1, SIZE>(step, task, tile, room, row);
    }
    for (int64_t row = 0; row < rows; row++) {
        Scalar* out = step.output(task.sequence, task.first + row / step.group, head + row % step.group);
        const float scale = 1 / sum(load(room.seen.totals + row * LANES));
        for (int64_t d = 0; d < SIZE; d += LANES) store(out + d, load(room.seen.sums + row * SIZE + d) * scale);
    }
}
