// y_TO = x_TI W_OI^T with W in 4 or 8 bits by groups of 32 columns, as GGUF files hold them, and x rounded to 8 bits
// by the same groups when the product is computed. Integer products are exact; groups are summed in float.

#include "arguments.h"
#include "output.h"
#include "panels.h"
#include "rounded.h"
#include "scratch.h"

#include <algorithm>

#include <omp.h>

namespace {

// Rows of x that are multiplied with a panel at once: their integer and float sums take 24 registers.
constexpr int MOST_ROWS = 12;
// Panels whose products with a tile are written together: a cache line of bfloat16.
constexpr int64_t PANELS = 2;
// Rows that are rounded before they are multiplied: they stay in the second-level cache until all panels are through.
constexpr int64_t BLOCK_ROWS = 32 * MOST_ROWS;
// A thread with as many rows of its own as this needs no others to help it.
constexpr int64_t LEAST_ROWS = 16 * MOST_ROWS;
// With fewer rows than this every thread rounds all of x for itself rather than wait for the others.
constexpr int64_t FEW_ROWS = 2;
// Weights come from memory, which takes longer than multiplying them with a few rows does: they are called for this many
// bytes ahead, into the second-level cache, for which more of them can be on their way.
constexpr int64_t AHEAD = 8192;

// ROWS rows of x, a tile, times one panel: sums[row] has the panel's 16 outputs. All loops over rows and quads are
// unrolled, so that sums and codes stay in registers.
template <int BITS, int ROWS>
void multiply_tile(const uint8_t* panel, Rounded x, int64_t groups, floats* sums) {
    floats out[ROWS] = {};
    for (int64_t group = 0; group < groups; group++, panel += GROUP_BYTES<BITS>, x = x.from(ROWS)) {
        for (int64_t line = 0; line < GROUP_BYTES<BITS>; line += 64) __builtin_prefetch(panel + AHEAD + line, 0, 2);
        ints acc[ROWS];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) acc[r] = broadcast(BITS == 4 ? BIAS : x.starts[r]);
        if constexpr (BITS == 4) {
#pragma GCC unroll 4
            for (int j = 0; j < QUADS / 2; j++) {
                const ints packed = load_codes(panel + 64 * j), low = low_nibbles(packed), high = high_nibbles(packed);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) acc[r] = dot4(acc[r], low, x.codes + GROUP * r + 4 * j);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++)
                    acc[r] = dot4(acc[r], high, x.codes + GROUP * r + 4 * (j + QUADS / 2));
            }
        } else {
#pragma GCC unroll 8
            for (int j = 0; j < QUADS; j++) {
                const ints codes = load_codes(panel + 64 * j);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) acc[r] = dot4(acc[r], codes, x.codes + GROUP * r + 4 * j);
            }
        }
        const floats scale = scales_of<BITS>(panel);
        floats minimum = {};
        if constexpr (BITS == 4) minimum = minima_of(panel);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            out[r] += scaled(acc[r], x.scales[r], x.biases[r]) * scale;
            if constexpr (BITS == 4) out[r] += minimum * x.totals[r];
        }
    }
    for (int r = 0; r < ROWS; r++) sums[r] = out[r];
}

template <int BITS, int ROWS = MOST_ROWS>
void multiply_rows(int64_t rows, const uint8_t* panel, const Rounded& x, int64_t groups, floats* sums) {
    if (rows == ROWS) return multiply_tile<BITS, ROWS>(panel, x, groups, sums);
    if constexpr (ROWS > 1) multiply_rows<BITS, ROWS - 1>(rows, panel, x, groups, sums);
}

template <int BITS, typename Scalar, typename Out>
void multiply_block(const Scalar* x, const uint8_t* panels, const Output<Scalar, Out>& out, int64_t rows, int64_t inputs,
                    bool gated) {
    const int64_t groups = inputs / GROUP, panel_bytes = groups * GROUP_BYTES<BITS>;
    const int64_t num_panels = (out.outputs + LANES - 1) / LANES;
    const auto height = [=](int64_t row) { return std::min<int64_t>(MOST_ROWS, rows - row); };
    const Rounded shared = Rounded::room_for(rows, groups);
#pragma omp parallel
    {
        Rounded rounded = shared;
        if (rows < FEW_ROWS) {
            rounded = Rounded::room_for(rows, groups);
            round_tile(x, rounded, rows, groups);
        } else {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < rows; row += MOST_ROWS)
                round_tile(x + row * inputs, rounded.from(row * groups), height(row), groups);
        }
        const auto product = [&](int64_t panel, int64_t row, floats* sums) {
            multiply_rows<BITS>(height(row), panels + panel * panel_bytes, rounded.from(row * groups), groups, sums);
        };
#pragma omp for schedule(static) nowait
        for (int64_t first = 0; first < num_panels; first += PANELS) {
            const int64_t last = std::min(first + PANELS, num_panels);
            for (int64_t row = 0; row < rows; row += MOST_ROWS) {
                floats sums[PANELS][MOST_ROWS];
                for (int64_t panel = first; panel < last; panel++)
                    product(panel, row, sums[panel - first]);
                for (int64_t panel = first; gated && panel < last; panel++) {
                    floats ups[MOST_ROWS];
                    product(num_panels + panel, row, ups);
                    for (int64_t r = 0; r < height(row); r++)
                        sums[panel - first][r] = silu(sums[panel - first][r]) * ups[r];
                }
                for (int64_t r = 0; r < height(row); r++)
                    for (int64_t panel = first; panel < last; panel++)
                        out.put(row + r, panel * LANES, sums[panel - first][r]);
            }
        }
    }
}

constexpr int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// With rows enough, each thread takes blocks for itself, and none waits for another before the end. (A parallel region
// within another has one thread.)
template <int BITS, typename Scalar, typename Out>
void multiply(const Scalar* x, const uint8_t* panels, const Output<Scalar, Out>& out, int64_t rows, int64_t inputs,
              bool gated) {
    const int64_t threads = omp_get_max_threads(), blocks = parts_of(rows, BLOCK_ROWS);
    if (rows < threads * LEAST_ROWS) {
        for (int64_t row = 0; row < rows; row += BLOCK_ROWS)
            multiply_block<BITS>(x + row * inputs, panels, out.from(row), std::min(BLOCK_ROWS, rows - row), inputs,
                                 gated);
        return;
    }
    const int64_t height = parts_of(parts_of(rows, parts_of(blocks, threads) * threads), MOST_ROWS) * MOST_ROWS;
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < rows; row += height)
        multiply_block<BITS>(x + row * inputs, panels, out.from(row), std::min(height, rows - row), inputs, gated);
}

template <int BITS, typename Scalar, typename Out>
void multiply_any(const int64_t* a) {
    const Output<Scalar, Out> out{address<Scalar>(a[2]), address<Scalar>(a[3]), address<Out>(a[4]), a[6]};
    multiply<BITS>(address<Scalar>(a[0]), address<uint8_t>(a[1]), out, a[5], a[7], a[10]);
}

template <int BITS>
void multiply_bits(const int64_t* a) {
    const bool is_bf16 = a[9], float_output = a[11];
    if (!is_bf16)
        multiply_any<BITS, float, float>(a);
    else if (float_output)
        multiply_any<BITS, bfloat16, float>(a);
    else
        multiply_any<BITS, bfloat16, bfloat16>(a);
}

}  // namespace

extern "C" {

// y_TO = x_TI W^T (+ bias_O) (+ residual_TO), or, if `gated`, y_TO = silu(x_TI U^T) * x_TI V^T (+ ...) where W has the
// rows of U and then those of V, O each, and O is a multiple of 16. I is a multiple of 32; rows of W that fill up the last panel are not
// written. y has the type of x, or is float. `residual` may be y. Arguments: x, panels, bias, residual, y, T, O, I,
// bits, is_bf16, gated, float_output.
void mobula_matmul_quantized(const int64_t* a) {
    if (a[8] == 4)
        multiply_bits<4>(a);
    else
        multiply_bits<8>(a);
}
}
