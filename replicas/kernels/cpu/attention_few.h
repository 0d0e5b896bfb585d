// Attention of few queries, where reading keys and values is what takes time: each is read once for all rows, in the
// order in which they lie in memory, and fetched while the tile before is computed.

#pragma once

#include "attention_step.h"
#include "scratch.h"
#include "shuffles.h"

#include <type_traits>

constexpr int64_t FEW_TILE = 16;
constexpr int FEW_ROWS = 4;
constexpr int64_t CACHE_LINE = 64;

using FewTile = Tile<FEW_TILE>;

// Fetches a tile's keys, or values, into the cache.
template <typename Scalar>
struct Fetch {
    const Scalar* from;
    const FewTile& tile;
    int64_t token_size, token = 0, at = 0;

    void elements(int64_t count) {
        constexpr int64_t LINE = CACHE_LINE / sizeof(Scalar);
        for (int64_t i = 0; i < count; i += LINE) {
            __builtin_prefetch(from + tile.offsets[token] + at);
            at += LINE;
            if (at >= token_size) at = 0, token = std::min(token + 1, FEW_TILE - 1);
        }
    }
};

// scores[row][token] of ROWS queries, whose elements are in the order that `load_pair` gives.
template <int ROWS, int PAIRS, typename Scalar>
void score_few(const Scalar* keys, const FewTile& tile, Fetch<Scalar>& next, const float* query, float* scores) {
    constexpr int64_t SIZE = PAIRS * 2 * LANES;
    floats parts[ROWS][4];
#pragma GCC unroll 4
    for (int four = 0; four < 4; four++) {
        next.elements(4 * SIZE);
        floats products[ROWS][4];
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
            const Scalar* key = keys + tile.offsets[4 * four + t];
#pragma GCC unroll 4
            for (int p = 0; p < PAIRS; p++) {
                const Pair pair = load_pair(key + p * 2 * LANES);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    const float* q = query + r * SIZE + p * 2 * LANES;
                    const floats product = pair.first * load(q);
                    products[r][t] = (p ? products[r][t] + product : product) + pair.second * load(q + LANES);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) parts[r][four] = fold_four(products[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) store(scores + r * FEW_TILE, fold_rest(parts[r]));
}

// sums[row] += weights[row][token] times values[token], two pairs of columns at a time.
template <int ROWS, int PAIRS, typename Scalar>
void add_few(const Scalar* values, const FewTile& tile, Fetch<Scalar>& next, const float* weights, float* sums) {
    constexpr int64_t SIZE = PAIRS * 2 * LANES, WIDTH = 4 * LANES;
    for (int64_t d = 0; d < SIZE; d += WIDTH) {
        floats acc[ROWS][4];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) acc[r][v] = load(sums + r * SIZE + d + v * LANES);
        for (int64_t t = 0; t < tile.count; t++) {
            if (t % 4 == 0) next.elements(4 * WIDTH);
            const Scalar* value = values + tile.offsets[t] + d;
            const Pair left = load_pair(value), right = load_pair(value + 2 * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                const floats weight = broadcast(weights[r * FEW_TILE + t]);
                acc[r][0] += left.first * weight;
                acc[r][1] += left.second * weight;
                acc[r][2] += right.first * weight;
                acc[r][3] += right.second * weight;
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) store(sums + r * SIZE + d + v * LANES, acc[r][v]);
    }
}

// Calls `work` with each run of at most FEW_ROWS rows: their number, which the compiler knows, and the first.
template <typename Work>
inline void for_runs(int64_t rows, const Work& work) {
    int64_t row = 0;
    for (; row + FEW_ROWS <= rows; row += FEW_ROWS) work(std::integral_constant<int, FEW_ROWS>(), row);
    if (rows - row == 3) work(std::integral_constant<int, 3>(), row);
    if (rows - row == 2) work(std::integral_constant<int, 2>(), row);
    if (rows - row == 1) work(std::integral_constant<int, 1>(), row);
}

// All queries of a sequence over the tokens [start, stop), one of the parts of a whole. Its rows are KV heads, then
// queries, then the query heads that share the KV head.
struct FewTask {
    int64_t sequence, start, stop, whole;

    template <typename Scalar>
    int64_t rows(const Step<Scalar>& step) const {
        return step.kv_heads * step.num_queries(sequence) * step.group;
    }
};

// Calls `work` with each row of a task, its query and its query head.
template <typename Scalar, typename Work>
inline void for_rows(const Step<Scalar>& step, const FewTask& task, const Work& work) {
    int64_t row = 0;
    for (int64_t kv_head = 0; kv_head < step.kv_heads; kv_head++)
        for (int64_t query = 0; query < step.num_queries(task.sequence); query++)
            for (int64_t member = 0; member < step.group; member++) work(row++, query, kv_head * step.group + member);
}

// Computes what the task's rows see. `ahead` is what the thread computes next.
template <int PAIRS, typename Scalar>
void attend_few(const Step<Scalar>& step, const FewTask& task, const FewTask& ahead, const Seen& seen,
                Scratch& scratch) {
    constexpr int64_t SIZE = PAIRS * 2 * LANES;
    const int64_t all_rows = task.rows(step), rows = all_rows / step.kv_heads;
    float* queries = reinterpret_cast<float*>(scratch.of((all_rows * SIZE + rows * FEW_TILE) * sizeof(float)));
    float* scores = queries + all_rows * SIZE;
    for_rows(step, task, [&](int64_t row, int64_t query, int64_t head) {
        const Scalar* from = step.query(task.sequence, query, head);
        for (int64_t d = 0; d < SIZE; d += 2 * LANES) {
            const Pair pair = load_pair(from + d);
            store_pair(queries + row * SIZE + d, {pair.first * step.scale(), pair.second * step.scale()});
        }
    });
    seen.clear(all_rows, SIZE);
    FewTile tile(step, task.sequence, task.start, task.stop);
    for (int64_t start = task.start; start < task.stop; start += FEW_TILE) {
        const bool last = start + FEW_TILE >= task.stop;
        const FewTile next = last ? FewTile(step, ahead.sequence, ahead.start, ahead.stop)
                                  : FewTile(step, task.sequence, start + FEW_TILE, task.stop);
        Fetch<Scalar> next_keys{step.keys, next, step.kv_heads * SIZE};
        Fetch<Scalar> next_values{step.values, next, step.kv_heads * SIZE};
        for (int64_t kv_head = 0; kv_head < step.kv_heads; kv_head++) {
            const int64_t first = kv_head * rows;
            for_runs(rows, [&](auto count, int64_t row) {
                score_few<count(), PAIRS>(step.keys + kv_head * SIZE, tile, next_keys, queries + (first + row) * SIZE,
                                          scores + row * FEW_TILE);
            });
            for (int64_t row = 0; row < rows; row++) {
                const int64_t position = step.position(task.sequence, row / step.group);
                soften<1>(scores + row * FEW_TILE, step.first_seen(position) - start,
                          std::min(position + 1 - start, tile.count), seen, first + row, SIZE);
            }
            for_runs(rows, [&](auto count, int64_t row) {
                add_few<count(), PAIRS>(step.values + kv_head * SIZE, tile, next_values, scores + row * FEW_TILE,
                                        seen.sums + (first + row) * SIZE);
            });
        }
        tile = next;
    }
}

// A sequence's output from what was seen in each part of its context.
template <int PAIRS, typename Scalar>
void finish_few(const Step<Scalar>& step, const FewTask& task, const Seen* parts, int64_t count) {
    constexpr int64_t SIZE = PAIRS * 2 * LANES;
    for_rows(step, task, [&](int64_t row, int64_t query, int64_t head) {
        float most = NEVER, total = 0;
        for (int64_t p = 0; p < count; p++) most = std::max(most, parts[p].most[row]);
        floats sums[2 * PAIRS] = {};
        for (int64_t p = 0; p < count; p++) {
            const floats kept = power_of_two(broadcast(parts[p].most[row] - most));
            total += sum(load(parts[p].totals + row * LANES) * kept);
            for (int v = 0; v < 2 * PAIRS; v++) sums[v] += load(parts[p].sums + row * SIZE + v * LANES) * kept;
        }
        Scalar* out = step.output(task.sequence, query, head);
        for (int p = 0; p < PAIRS; p++)
            store_pair(out + p * 2 * LANES, {sums[2 * p] / total, sums[2 * p + 1] / total});
    });
}
