// What a step's attention reads and writes, tiles of the paged cache, and the online softmax.

#pragma once

#include "vectors.h"

#include <algorithm>
#include <cmath>

constexpr float NEVER = -1e30f;
constexpr float LOG2_E = 1.44269504f;

template <typename Scalar>
struct Step {
    const Scalar* queries;  // [token][query head][head_dim], tokens `query_stride` elements apart
    const Scalar *keys, *values;  // [block][token in block][KV head][head_dim]
    const int64_t* block_tables;  // [sequence][table_width]
    const int32_t *query_starts, *context_lens;
    Scalar* out;  // [token][query head][head_dim]
    int64_t sequences, table_width, block_size, query_stride, kv_heads, group, head_dim, window;

    int64_t num_queries(int64_t sequence) const { return query_starts[sequence + 1] - query_starts[sequence]; }

    int64_t position(int64_t sequence, int64_t query) const {
        return context_lens[sequence] - num_queries(sequence) + query;
    }

    // The first token that a query at this position sees.
    int64_t first_seen(int64_t position) const { return window && position >= window ? position - window + 1 : 0; }

    const Scalar* query(int64_t sequence, int64_t query, int64_t head) const {
        return queries + (query_starts[sequence] + query) * query_stride + head * head_dim;
    }

    Scalar* output(int64_t sequence, int64_t query, int64_t head) const {
        return out + ((query_starts[sequence] + query) * kv_heads * group + head) * head_dim;
    }

    // Scores are to base 2.
    float scale() const { return LOG2_E / std::sqrt(float(head_dim)); }
};

// Where the keys and values of a sequence's tokens [start, stop) are, SIZE at most. Beyond the last, it is repeated.
template <int64_t SIZE>
struct Tile {
    int64_t start, count, offsets[SIZE];

    template <typename Scalar>
    Tile(const Step<Scalar>& step, int64_t sequence, int64_t start, int64_t stop)
        : start(start), count(std::min(stop - start, SIZE)) {
        const int64_t* table = step.block_tables + sequence * step.table_width;
        const int64_t token_size = step.kv_heads * step.head_dim;
        int64_t block = start / step.block_size, within = start % step.block_size, offset = 0;
        for (int64_t t = 0; t < SIZE; t++) {
            if (t < count) {
                offset = (table[block] * step.block_size + within) * token_size;
                if (++within == step.block_size) block++, within = 0;
            }
            offsets[t] = offset;
        }
    }
};

// What rows have seen so far: their largest score, and relative to it the total of the weights (in 16 lanes) and the
// weighted sums of values.
struct Seen {
    float *sums, *totals, *most;

    static int64_t floats_of(int64_t rows, int64_t head_dim) { return rows * (head_dim + 2 * LANES); }

    Seen(float* memory, int64_t rows, int64_t head_dim)
        : sums(memory), totals(sums + rows * head_dim), most(totals + rows * LANES) {}

    void clear(int64_t rows, int64_t head_dim) const {
        std::memset(sums, 0, rows * head_dim * sizeof(float));
        std::memset(totals, 0, rows * LANES * sizeof(float));
        std::fill(most, most + rows, NEVER);
    }
};

// Turns a row's scores of VECTORS * 16 tokens into weights, and adds these to what it has seen. Only the tokens
// [first, last) weigh anything.
template <int VECTORS>
inline void soften(float* scores, int64_t first, int64_t last, const Seen& seen, int64_t row, int64_t head_dim) {
    const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats tile[VECTORS], most = broadcast(NEVER);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) tile[v] = load(scores + v * LANES);
    if (first > 0 || last < VECTORS * LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const ints token = lanes + v * LANES;
            tile[v] = (token >= int32_t(first)) & (token < int32_t(last)) ? tile[v] : broadcast(2 * NEVER);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) most = maximum(most, tile[v]);
    const float before = seen.most[row], now = std::max(before, largest(most));
    floats total = {};
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        tile[v] = power_of_two(tile[v] - now);
        total += tile[v];
        store(scores + v * LANES, tile[v]);
    }
    float *totals = seen.totals + row * LANES, *sums = seen.sums + row * head_dim;
    if (now == before) {
        store(totals, load(totals) + total);
        return;
    }
    const floats kept = power_of_two(broadcast(before - now));
    seen.most[row] = now;
    store(totals, load(totals) * kept + total);
    for (int64_t d = 0; d < head_dim; d += LANES) store(sums + d, load(sums + d) * kept);
}
