// How a matrix product leaves the registers: bias and residual are added, and the type is that of the output.

#pragma once

#include "vectors.h"

// y_TO and residual_TO have `outputs` columns; bias and residual may be null.
template <typename Scalar, typename Out>
struct Output {
    const Scalar* bias;
    const Scalar* residual;
    Out* y;
    int64_t outputs;

    // Columns [first, first + 16) of a row, or as many of them as there are.
    void put(int64_t row, int64_t first, floats sums) const {
        const int64_t at = row * outputs + first, width = outputs - first;
        if (width >= LANES) {
            if (bias) sums += load(bias + first);
            if (residual) sums += load(residual + at);
            store(y + at, sums);
            return;
        }
        if (bias) sums += load_some(bias + first, width);
        if (residual) sums += load_some(residual + at, width);
        Out last[LANES];
        store(last, sums);
        std::memcpy(y + at, last, width * sizeof(Out));
    }

    // Without so many rows.
    Output from(int64_t row) const {
        return {bias, residual ? residual + row * outputs : nullptr, y + row * outputs, outputs};
    }

private:
    static floats load_some(const Scalar* from, int64_t width) {
        Scalar lanes[LANES] = {};
        std::memcpy(lanes, from, width * sizeof(Scalar));
        return load(lanes);
    }
};
