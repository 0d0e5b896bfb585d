// Activations in 8 bits by groups of 32 columns, x = scale * code, and how a group's sum of products becomes a float.
//
// Such a sum is an integer below 2^22. It begins at BIAS, the bits of the float 1.5 * 2^23, so that what it has become
// is, taken for a float, the sum plus 1.5 * 2^23; and one multiply-add scales it and takes the bias away.

#pragma once

#include "lanes.h"
#include "panels.h"
#include "scratch.h"

#include <algorithm>

constexpr int32_t BIAS = 0x4b400000;

// Rows stand in tiles, which are multiplied together. A tile of R rows has, for each group, R times 32 codes, and R of
// each of the numbers.
struct Rounded {
    int8_t* codes;
    float* scales;
    float* biases;    // -1.5 * 2^23 * scale
    float* totals;    // the sum of the rounded activations
    int32_t* starts;  // BIAS - 128 * the sum of the codes: for weights whose codes are 128 too large

    // Memory of the calling thread.
    static Rounded room_for(int64_t rows, int64_t groups) {
        static thread_local Scratch scratch;
        const int64_t count = rows * groups;
        char* bytes = scratch.of(count * (GROUP + 4 * sizeof(float)));
        float* numbers = reinterpret_cast<float*>(bytes + count * GROUP);
        return {reinterpret_cast<int8_t*>(bytes), numbers, numbers + count, numbers + 2 * count,
                reinterpret_cast<int32_t*>(numbers + 3 * count)};
    }

    // Behind so many groups.
    Rounded from(int64_t groups) const {
        return {codes + groups * GROUP, scales + groups, biases + groups, totals + groups, starts + groups};
    }
};

// A tile, 16 groups at a time, so that their numbers are computed side by side.
template <typename Scalar>
void round_tile(const Scalar* x, const Rounded& to, int64_t rows, int64_t groups) {
    int64_t row = 0, group = 0;
    for (int64_t at = 0; at < rows * groups; at += LANES) {
        const Scalar* from[LANES];
        int8_t* codes[LANES];
        floats magnitudes[LANES];
        for (int i = 0; i < LANES; i++) {
            from[i] = x + (row * groups + group) * GROUP;
            codes[i] = to.codes + (group * rows + row) * GROUP;
            magnitudes[i] = maximum(magnitude(load(from[i])), magnitude(load(from[i] + LANES)));
            __builtin_prefetch(from[i] + rows * groups * GROUP);
            // Behind the last group comes the last group again.
            if (at + i + 1 >= rows * groups) continue;
            if (++row == rows) row = 0, group++;
        }
        const floats most = largest_of_each(magnitudes);
        float inverses[LANES];
        store(inverses, most > 0.0f ? 127.0f / most : floats{});
        ints sums[LANES];
        for (int i = 0; i < LANES; i++) {
            // What rounding leaves in the low bits is the code; the bits above it are those of BIAS.
            const ints low = bit_cast<ints>(load(from[i]) * inverses[i] + ROUNDER);
            const ints high = bit_cast<ints>(load(from[i] + LANES) * inverses[i] + ROUNDER);
            store_low_bytes(codes[i], low);
            store_low_bytes(codes[i] + LANES, high);
            sums[i] = (low - BIAS) + (high - BIAS);
        }
        const ints totals = sum_of_each(sums), starts = BIAS - 128 * totals;
        // Two bits less than a float has, so that the bias is exact.
        const floats scales = bit_cast<floats>(bit_cast<ints>(most * (1.0f / 127.0f)) & ~3);
        const floats biases = -ROUNDER * scales, scaled_totals = __builtin_convertvector(totals, floats) * scales;
        const auto keep = [&](void* numbers, const void* lanes) {
            const int64_t left = rows * groups - at;
            if (left >= LANES)
                std::memcpy(static_cast<int32_t*>(numbers) + at, lanes, sizeof(floats));
            else
                std::memcpy(static_cast<int32_t*>(numbers) + at, lanes, left * sizeof(int32_t));
        };
        keep(to.scales, &scales), keep(to.biases, &biases), keep(to.totals, &scaled_totals), keep(to.starts, &starts);
    }
}

inline floats scaled(ints sum, float scale, float bias) { return bit_cast<floats>(sum) * scale + bias; }
