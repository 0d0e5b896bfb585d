// y_TO = x_TI W_OI^T with x and W in bfloat16, summed in float.
//
// W is cut into panels of 16 rows, whose lanes a vector register takes side by side; a panel holds its columns in
// pairs, and 64 bytes have one pair of each of the 16 rows. That is the order that the processor's own bfloat16
// product takes. Where it has none, a pair becomes two vectors of floats by a shift and a mask.

#include "arguments.h"
#include "output.h"
#include "scratch.h"

namespace {

// A tile is 6 rows of x by 4 panels at once: 24 sums in registers, 4 vectors of weights, and 1 of activations.
constexpr int MOST_ROWS = 6;
constexpr int MOST_PANELS = 4;
// With few rows the weights' way from memory is what takes time: they are called for this many elements ahead.
constexpr int64_t AHEAD = 1024;

#if defined(__AVX512BF16__)
typedef bfloat16 Activation;

inline floats multiply_pair(floats acc, words weights, const bfloat16* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return bit_cast<floats>(_mm512_dpbf16_ps(bit_cast<__m512>(acc), bit_cast<__m512bh>(_mm512_set1_epi32(pair)),
                                             bit_cast<__m512bh>(weights)));
}
#else
typedef float Activation;

inline floats multiply_pair(floats acc, words weights, const float* x) {
    acc += bit_cast<floats>(weights << 16) * x[0];
    return acc + bit_cast<floats>(weights & 0xffff0000u) * x[1];
}
#endif

inline words load_pairs(const bfloat16* from) {
    words to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

template <int ROWS, int PANELS>
void multiply_tile(const bfloat16* panels, const Activation* x, int64_t inputs, floats* sums) {
    floats acc[ROWS * PANELS] = {};
    for (int64_t i = 0; i < inputs; i += 2) {
        if (ROWS <= 2)
            for (int p = 0; p < PANELS; p++) __builtin_prefetch(panels + (p * inputs + i) * LANES + AHEAD);
        words weights[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) weights[p] = load_pairs(panels + (p * inputs + i) * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; p++)
                acc[r * PANELS + p] = multiply_pair(acc[r * PANELS + p], weights[p], x + r * inputs + i);
    }
    for (int n = 0; n < ROWS * PANELS; n++) sums[n] = acc[n];
}

template <int PANELS>
int multiply_rows(const bfloat16* panels, const Activation* x, int64_t left, int64_t inputs, floats* sums) {
    if (left >= 6) return multiply_tile<6, PANELS>(panels, x, inputs, sums), 6;
    if (left >= 4) return multiply_tile<4, PANELS>(panels, x, inputs, sums), 4;
    if (left >= 2) return multiply_tile<2, PANELS>(panels, x, inputs, sums), 2;
    return multiply_tile<1, PANELS>(panels, x, inputs, sums), 1;
}

template <int PANELS, typename Out>
void multiply_panels(const bfloat16* panels, const Activation* x, const Output<bfloat16, Out>& out, int64_t panel,
                     int64_t rows, int64_t inputs) {
    for (int64_t row = 0; row < rows;) {
        floats sums[MOST_ROWS * PANELS];
        int done = multiply_rows<PANELS>(panels + panel * inputs * LANES, x + row * inputs, rows - row, inputs, sums);
        for (int r = 0; r < done; r++, row++)
            for (int p = 0; p < PANELS; p++) out.put(row, (panel + p) * LANES, sums[r * PANELS + p]);
    }
}

const Activation* prepared(const bfloat16* x, int64_t count) {
#if defined(__AVX512BF16__)
    (void)count;
    return x;
#else
    static thread_local Scratch scratch;
    float* to = reinterpret_cast<float*>(scratch.of(count * sizeof(float)));
    for (int64_t i = 0; i < count; i += LANES) store(to + i, load(x + i));
    return to;
#endif
}

template <typename Out>
void multiply(const bfloat16* x, const bfloat16* panels, const Output<bfloat16, Out>& out, int64_t rows,
              int64_t inputs) {
    const int64_t num_panels = (out.outputs + LANES - 1) / LANES, blocks = (num_panels + MOST_PANELS - 1) / MOST_PANELS;
    const Activation* activations = prepared(x, rows * inputs);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * MOST_PANELS;
        if (first + MOST_PANELS <= num_panels) {
            multiply_panels<MOST_PANELS>(panels, activations, out, first, rows, inputs);
            continue;
        }
        for (int64_t panel = first; panel < num_panels; panel++)
            multiply_panels<1>(panels, activations, out, panel, rows, inputs);
    }
}

}  // namespace

extern "C" {

// y_TO = x_TI W^T (+ bias_O) (+ residual_TO), all bfloat16 except y if `float_output`. I is a multiple of 16; rows of W
// that fill up the last panel are not written. `residual` may be y. Arguments: x, panels, bias, residual, y, T, O, I,
// float_output.
void mobula_matmul_bf16(const int64_t* a) {
    const bfloat16 *x = address<bfloat16>(a[0]), *panels = address<bfloat16>(a[1]), *bias = address<bfloat16>(a[2]),
                   *residual = address<bfloat16>(a[3]);
    if (a[8])
        multiply(x, panels, Output<bfloat16, float>{bias, residual, address<float>(a[4]), a[6]}, a[5], a[7]);
    else
        multiply(x, panels, Output<bfloat16, bfloat16>{bias, residual, address<bfloat16>(a[4]), a[6]}, a[5], a[7]);
}
}
