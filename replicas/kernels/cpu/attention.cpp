// Causal attention over the paged KV cache, reading keys and values where they lie.
//
// Work is cut into tasks of one KV head and a tile of one sequence's queries: the query heads that share the KV head
// times up to QUERY_TILE tokens are the task's rows. A task walks the visible context in tiles of 64 tokens and keeps
// a running maximum and sum for each row (the online softmax of Milakov and Gimelshein, 2018), so no score is ever
// stored for longer than a tile. Scores and sums are float. With few rows each key is read once and multiplied with
// all of them; with many it pays to turn the tile's keys first, so that scores of 16 tokens lie side by side.

#include "arguments.h"
#include "scratch.h"

#include <cmath>

namespace {

constexpr int64_t CONTEXT_TILE = 64;
constexpr int64_t QUERY_TILE = 32;
constexpr int TOKEN_VECTORS = CONTEXT_TILE / LANES;
constexpr int64_t MANY_ROWS = 8;
constexpr float NEVER = -1e30f;

template <typename Scalar>
struct Step {
    const Scalar* query;  // rows of `query_stride` elements, query heads first
    const Scalar *keys, *values;  // [block][token in block][KV head][head_dim]
    const int64_t* block_tables;  // [sequence][table_width]
    const int32_t *query_starts, *context_lens;
    Scalar* out;  // [token][query head][head_dim]
    int64_t sequences, table_width, block_size, query_stride, kv_heads, group, head_dim, window;
};

struct Task {
    int32_t sequence, kv_head, first, count;  // queries [first, first + count) of the sequence
};

// One task's rows and the tile they look at, as floats.
struct Room {
    float *query, *keys, *values, *scores, *sums, *most, *total;

    Room(Scratch& scratch, int64_t rows, int64_t head_dim) {
        const int64_t tile = CONTEXT_TILE * head_dim;
        float* next = reinterpret_cast<float*>(
            scratch.of((2 * rows * head_dim + 2 * tile + rows * (CONTEXT_TILE + 2)) * sizeof(float)));
        query = next, next += rows * head_dim;
        sums = next, next += rows * head_dim;
        keys = next, next += tile;
        values = next, next += tile;
        scores = next, next += rows * CONTEXT_TILE;
        most = next, next += rows;
        total = next;
    }
};

// Lane l of the first: of a if bit w of l is unset, else of b from w lanes below; of the second: the other halves.
template <int W>
inline void exchange(floats& a, floats& b) {
    ints low = {}, high = {};
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) {
        low[l] = l & W ? LANES + l - W : l;
        high[l] = l & W ? LANES + l : l + W;
    }
    const floats first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(a, b, high);
    a = first, b = second;
}

// The sums of 16 vectors, side by side.
inline floats sum_each(floats* x) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) exchange<8>(x[i], x[i + 8]), x[i] += x[i + 8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) exchange<4>(x[i], x[i + 4]), x[i] += x[i + 4];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) exchange<2>(x[i], x[i + 2]), x[i] += x[i + 2];
    exchange<1>(x[0], x[1]);
    return x[0] + x[1];
}

// Turns 16 rows of 16 into columns (Eklundh, 1972).
inline void transpose(floats* x) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & 8)) exchange<8>(x[i], x[i + 8]);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & 4)) exchange<4>(x[i], x[i + 4]);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & 2)) exchange<2>(x[i], x[i + 2]);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & 1)) exchange<1>(x[i], x[i + 1]);
}

// out[r][64 columns] += x[r][depth] times m[depth][stride], for `rows` rows.
template <int ROWS>
void multiply_tile(const float* x, int64_t x_stride, const float* m, int64_t m_stride, int64_t depth, float* out,
                   int64_t out_stride, bool add) {
    floats acc[ROWS][TOKEN_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < TOKEN_VECTORS; c++) acc[r][c] = add ? load(out + r * out_stride + c * LANES) : floats{};
    for (int64_t d = 0; d < depth; d++) {
        floats columns[TOKEN_VECTORS];
#pragma GCC unroll 4
        for (int c = 0; c < TOKEN_VECTORS; c++) columns[c] = load(m + d * m_stride + c * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const floats factor = broadcast(x[r * x_stride + d]);
#pragma GCC unroll 4
            for (int c = 0; c < TOKEN_VECTORS; c++) acc[r][c] += columns[c] * factor;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < TOKEN_VECTORS; c++) store(out + r * out_stride + c * LANES, acc[r][c]);
}

void multiply(const float* x, int64_t x_stride, const float* m, int64_t m_stride, int64_t depth, float* out,
              int64_t out_stride, int64_t rows, bool add) {
    int64_t row = 0;
    for (; row + 6 <= rows; row += 6)
        multiply_tile<6>(x + row * x_stride, x_stride, m, m_stride, depth, out + row * out_stride, out_stride, add);
    for (; row + 3 <= rows; row += 3)
        multiply_tile<3>(x + row * x_stride, x_stride, m, m_stride, depth, out + row * out_stride, out_stride, add);
    for (; row < rows; row++)
        multiply_tile<1>(x + row * x_stride, x_stride, m, m_stride, depth, out + row * out_stride, out_stride, add);
}

// A tile of one KV head's context: where each token's keys and values are. Beyond the end the last one is repeated.
template <typename Scalar>
struct Tile {
    const Scalar *keys[CONTEXT_TILE], *values[CONTEXT_TILE];
    int64_t count;

    Tile(const Step<Scalar>& step, const Task& task, int64_t start, int64_t stop) {
        const int64_t* table = step.block_tables + task.sequence * step.table_width;
        count = stop - start < CONTEXT_TILE ? stop - start : CONTEXT_TILE;
        int64_t block = start / step.block_size, within = start % step.block_size, offset = 0;
        for (int64_t t = 0; t < CONTEXT_TILE; t++) {
            if (t < count) {
                offset = ((table[block] * step.block_size + within) * step.kv_heads + task.kv_head) * step.head_dim;
                if (++within == step.block_size) block++, within = 0;
            }
            keys[t] = step.keys + offset;
            values[t] = step.values + offset;
        }
    }
};

// Few rows: each key and each value is read once, and used for all rows as it is read.
template <int VECTORS, typename Scalar>
void score_few(const Tile<Scalar>& tile, const Room& room, int64_t rows) {
    constexpr int64_t SIZE = VECTORS * LANES;
    for (int64_t first = 0; first < tile.count; first += LANES) {
        floats products[MANY_ROWS][LANES];
        for (int64_t t = 0; t < LANES; t++) {
            floats key[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) key[v] = load(tile.keys[first + t] + v * LANES);
            for (int64_t row = 0; row < rows; row++) {
                floats product = key[0] * load(room.query + row * SIZE);
#pragma GCC unroll 8
                for (int v = 1; v < VECTORS; v++) product += key[v] * load(room.query + row * SIZE + v * LANES);
                products[row][t] = product;
            }
        }
        for (int64_t row = 0; row < rows; row++)
            store(room.scores + row * CONTEXT_TILE + first, sum_each(products[row]));
    }
}

template <int ROWS, int VECTORS, typename Scalar>
void add_values_to(const Tile<Scalar>& tile, const Room& room, int64_t row) {
    constexpr int64_t SIZE = VECTORS * LANES;
    for (int64_t d = 0; d < SIZE; d += CONTEXT_TILE) {
        floats acc[ROWS][TOKEN_VECTORS];
        float *sums = room.sums + row * SIZE + d, *weights = room.scores + row * CONTEXT_TILE;
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int c = 0; c < TOKEN_VECTORS; c++) acc[r][c] = load(sums + r * SIZE + c * LANES);
        for (int64_t t = 0; t < tile.count; t++) {
            floats value[TOKEN_VECTORS];
#pragma GCC unroll 4
            for (int c = 0; c < TOKEN_VECTORS; c++) value[c] = load(tile.values[t] + d + c * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                const floats weight = broadcast(weights[r * CONTEXT_TILE + t]);
#pragma GCC unroll 4
                for (int c = 0; c < TOKEN_VECTORS; c++) acc[r][c] += value[c] * weight;
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int c = 0; c < TOKEN_VECTORS; c++) store(sums + r * SIZE + c * LANES, acc[r][c]);
    }
}

template <int VECTORS, typename Scalar>
void add_few(const Tile<Scalar>& tile, const Room& room, int64_t rows) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) add_values_to<4, VECTORS>(tile, room, row);
    if (rows - row == 3) add_values_to<3, VECTORS>(tile, room, row);
    if (rows - row == 2) add_values_to<2, VECTORS>(tile, room, row);
    if (rows - row == 1) add_values_to<1, VECTORS>(tile, room, row);
}

// Many rows: the tile becomes floats first, its keys turned to room.keys[d][token].
template <int VECTORS, typename Scalar>
void score_many(const Tile<Scalar>& tile, const Room& room, int64_t rows) {
    constexpr int64_t SIZE = VECTORS * LANES;
    for (int64_t first = 0; first < CONTEXT_TILE; first += LANES) {
        for (int64_t d = 0; d < SIZE; d += LANES) {
            floats square[LANES];
#pragma GCC unroll 16
            for (int t = 0; t < LANES; t++) square[t] = load(tile.keys[first + t] + d);
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) store(room.keys + (d + i) * CONTEXT_TILE + first, square[i]);
        }
    }
    multiply(room.query, SIZE, room.keys, CONTEXT_TILE, SIZE, room.scores, CONTEXT_TILE, rows, false);
}

template <int VECTORS, typename Scalar>
void add_many(const Tile<Scalar>& tile, const Room& room, int64_t rows) {
    constexpr int64_t SIZE = VECTORS * LANES;
    for (int64_t t = 0; t < tile.count; t++)
#pragma GCC unroll 8
        for (int64_t d = 0; d < SIZE; d += LANES) store(room.values + t * SIZE + d, load(tile.values[t] + d));
    for (int64_t d = 0; d < SIZE; d += CONTEXT_TILE)
        multiply(room.scores, CONTEXT_TILE, room.values + d, SIZE, tile.count, room.sums + d, SIZE, rows, true);
}

// Turns a row's scores into weights, for the tokens [0, visible) of the tile; the sums so far shrink accordingly.
inline void soften(const Room& room, int64_t row, int64_t hidden, int64_t visible, int64_t head_dim) {
    float* scores = room.scores + row * CONTEXT_TILE;
    const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats tile[TOKEN_VECTORS], most = broadcast(NEVER);
#pragma GCC unroll 4
    for (int c = 0; c < TOKEN_VECTORS; c++) {
        const ints token = lanes + c * LANES;
        const ints seen = (token >= int32_t(hidden)) & (token < int32_t(visible));
        tile[c] = seen ? load(scores + c * LANES) : broadcast(NEVER);
        most = maximum(most, tile[c]);
    }
    const float before = room.most[row], now = std::fmax(before, largest(most));
    floats total = {};
#pragma GCC unroll 4
    for (int c = 0; c < TOKEN_VECTORS; c++) {
        tile[c] = tile[c] > NEVER ? exponential(tile[c] - now) : floats{};
        total += tile[c];
        store(scores + c * LANES, tile[c]);
    }
    room.most[row] = now;
    if (now == before) {
        room.total[row] += sum(total);
        return;
    }
    const float kept = before == NEVER ? 0.0f : std::exp(before - now);
    room.total[row] = room.total[row] * kept + sum(total);
    float* sums = room.sums + row * head_dim;
    for (int64_t d = 0; d < head_dim; d += LANES) store(sums + d, load(sums + d) * kept);
}

template <int VECTORS, typename Scalar>
void attend(const Step<Scalar>& step, const Task& task, Scratch& scratch) {
    constexpr int64_t SIZE = VECTORS * LANES;
    const int64_t rows = task.count * step.group, num_queries = step.query_starts[task.sequence + 1] - step.query_starts[task.sequence];
    const int64_t first_position = step.context_lens[task.sequence] - num_queries + task.first;
    const int64_t first_token = step.query_starts[task.sequence] + task.first;
    const Room room(scratch, rows, SIZE);
    const float scale = 1.0f / std::sqrt(float(SIZE));
    for (int64_t row = 0; row < rows; row++) {
        const Scalar* query = step.query + (first_token + row / step.group) * step.query_stride +
                              (task.kv_head * step.group + row % step.group) * SIZE;
        for (int64_t d = 0; d < SIZE; d += LANES) {
            store(room.query + row * SIZE + d, load(query + d) * scale);
            store(room.sums + row * SIZE + d, floats{});
        }
        room.most[row] = NEVER;
        room.total[row] = 0;
    }
    const int64_t stop = first_position + task.count;
    int64_t start = step.window && first_position >= step.window ? first_position - step.window + 1 : 0;
    for (; start < stop; start += CONTEXT_TILE) {
        const Tile<Scalar> tile(step, task, start, stop);
        if (rows < MANY_ROWS)
            score_few<VECTORS>(tile, room, rows);
        else
            score_many<VECTORS>(tile, room, rows);
        for (int64_t row = 0; row < rows; row++) {
            const int64_t position = first_position + row / step.group;
            const int64_t hidden = step.window ? position - step.window + 1 - start : 0;
            soften(room, row, hidden, position + 1 - start, SIZE);
        }
        if (rows < MANY_ROWS)
            add_few<VECTORS>(tile, room, rows);
        else
            add_many<VECTORS>(tile, room, rows);
    }
    for (int64_t row = 0; row < rows; row++) {
        Scalar* out = step.out + (first_token + row / step.group) * step.kv_heads * step.group * SIZE +
                      (task.kv_head * step.group + row % step.group) * SIZE;
        for (int64_t d = 0; d < SIZE; d += LANES) store(out + d, load(room.sums + row * SIZE + d) / room.total[row]);
    }
}

template <typename Scalar>
void attend_all(const Step<Scalar>& step) {
    static thread_local Scratch list;
    int64_t count = 0, cost = 0;
    for (int64_t s = 0; s < step.sequences; s++) {
        const int64_t queries = step.query_starts[s + 1] - step.query_starts[s];
        count += (queries + QUERY_TILE - 1) / QUERY_TILE * step.kv_heads;
        cost += queries * step.context_lens[s] * step.kv_heads * step.group * step.head_dim;
    }
    Task *tasks = reinterpret_cast<Task*>(list.of(count * sizeof(Task))), *next = tasks;
    for (int32_t s = 0; s < step.sequences; s++) {
        const int32_t queries = step.query_starts[s + 1] - step.query_starts[s];
        for (int32_t last = queries; last > 0; last -= QUERY_TILE)
            for (int32_t head = 0; head < step.kv_heads; head++) {
                const int32_t first = last > QUERY_TILE ? last - QUERY_TILE : 0;
                *next++ = {s, head, first, last - first};
            }
    }
#pragma omp parallel for schedule(dynamic, 1) if (cost > 1 << 15)
    for (int64_t i = 0; i < count; i++) {
        static thread_local Scratch scratch;
        if (step.head_dim == 64)
            attend<4>(step, tasks[i], scratch);
        else
            attend<8>(step, tasks[i], scratch);
    }
}

template <typename Scalar>
Step<Scalar> step_of(const int64_t* a) {
    return {address<Scalar>(a[0]),  address<Scalar>(a[1]),  address<Scalar>(a[2]), address<int64_t>(a[3]),
            address<int32_t>(a[4]), address<int32_t>(a[5]), address<Scalar>(a[6]), a[7],
            a[8],                   a[9],                   a[10],                 a[11],
            a[12],                  a[13],                  a[14]};
}

}  // namespace

extern "C" {

// Attention of a step's queries over their sequences' caches, which already hold the step's own keys and values.
// Sequence s has the queries query_starts[s] to query_starts[s + 1]: the last of its context_lens[s] tokens. Query i
// sees key j when j <= i and, with a window, i - j < window. `head_dim` is 64 or 128. Arguments: query, keys, values,
// block_tables (64 bits), query_starts and context_lens (32 bits), out, sequences, table_width, block_size,
// query_stride, KV heads, query heads to a KV head, head_dim, window, is_bf16.
void mobula_attention(const int64_t* a) {
    if (a[15])
        attend_all(step_of<bfloat16>(a));
    else
        attend_all(step_of<float>(a));
}
}
