// y_TO = x_TI W_OI^T with W in 4 or 8 bits by groups of 32 columns, as GGUF files hold them, and x rounded to 8 bits
// by the same groups when the product is computed. Integer products are exact; groups are summed in float.
//
// W is cut into panels of 16 rows, whose lanes a vector register takes side by side. A panel holds its groups one
// after the other; a group of 32 columns is eight quads of four, and of these come
//   4 bits: 256 bytes of codes (vector j: quad j in the low nibbles, quad j + 4 in the high ones; lane r is row r),
//           32 bytes of scales and 32 bytes of minima, IEEE half: w = scale * code + minimum
//   8 bits: 512 bytes of codes (vector j: quad j), 32 bytes of scales: w = scale * (code - 128)
// So a weight takes 5 or 8.5 bits in memory.

#include "arguments.h"
#include "output.h"
#include "scratch.h"

namespace {

constexpr int GROUP = 32;
constexpr int QUADS = GROUP / 4;
constexpr int MOST_ROWS = 12;
// With fewer rows than this every thread rounds all of x for itself rather than wait for the others.
constexpr int64_t FEW_ROWS = 2;
// With few rows the weights' way from memory is what takes time: they are called for this many bytes ahead.
constexpr int64_t AHEAD = 4096;

template <int BITS>
constexpr int64_t CODE_BYTES = LANES * GROUP * BITS / 8;
template <int BITS>
constexpr int64_t GROUP_BYTES = CODE_BYTES<BITS> + (BITS == 4 ? 4 : 2) * LANES;

// Activations in 8 bits: x = scale * code. `totals` are the sums of a group's codes, plain and scaled.
struct Rounded {
    int8_t* codes;
    float* scales;
    float* scaled_totals;
    int32_t* totals;
};

template <typename Scalar>
void round_row(const Scalar* x, const Rounded& to, int64_t row, int64_t groups) {
    for (int64_t group = 0; group < groups; group++) {
        floats low = load(x + group * GROUP), high = load(x + group * GROUP + LANES);
        float most = largest(maximum(maximum(low, -low), maximum(high, -high)));
        float inverse = most > 0 ? 127.0f / most : 0.0f;
        ints codes[2] = {to_ints(low * inverse), to_ints(high * inverse)};
        int8_t* out = to.codes + (row * groups + group) * GROUP;
        for (int half = 0; half < 2; half++) {
            typedef int8_t bytes __attribute__((vector_size(16)));
            bytes narrow = __builtin_convertvector(codes[half], bytes);
            std::memcpy(out + half * LANES, &narrow, sizeof narrow);
        }
        int32_t total = sum(codes[0] + codes[1]);
        int64_t at = row * groups + group;
        to.scales[at] = most / 127.0f;
        to.totals[at] = -128 * total;
        to.scaled_totals[at] = to.scales[at] * total;
    }
}

// acc[r] += the dot product of four unsigned weights of row r with the four signed activations at `x`.
inline ints dot4(ints acc, ints weights, const int8_t* x) {
    int32_t quad;
    std::memcpy(&quad, x, sizeof quad);
#if defined(__AVX512VNNI__)
    return bit_cast<ints>(_mm512_dpbusd_epi32(bit_cast<__m512i>(acc), bit_cast<__m512i>(weights), _mm512_set1_epi32(quad)));
#else
    for (int k = 0; k < 4; k++) acc += ((weights >> (8 * k)) & 0xff) * int32_t(x[k]);
    return acc;
#endif
}

inline ints load_codes(const uint8_t* from) {
    ints to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

// ROWS rows of x times one panel: sums[row] has the panel's 16 outputs. All loops over rows and quads are unrolled, so
// that sums and codes stay in registers.
template <int BITS, int ROWS>
void multiply_tile(const uint8_t* panel, const Rounded& x, int64_t row, int64_t groups, floats* sums) {
    const int8_t* quads = x.codes + row * groups * GROUP;
    const float *scales = x.scales + row * groups, *scaled_totals = x.scaled_totals + row * groups;
    const int32_t* totals = x.totals + row * groups;
    floats out[ROWS] = {};
    for (int64_t group = 0; group < groups; group++, panel += GROUP_BYTES<BITS>, quads += GROUP) {
        if (ROWS <= 2)
            for (int64_t line = 0; line < GROUP_BYTES<BITS>; line += 64) __builtin_prefetch(panel + AHEAD + line);
        ints acc[ROWS];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) acc[r] = BITS == 4 ? ints{} : broadcast(totals[r * groups + group]);
        if constexpr (BITS == 4) {
#pragma GCC unroll 4
            for (int j = 0; j < QUADS / 2; j++) {
                ints packed = load_codes(panel + 64 * j), low = packed & 0x0f0f0f0f, high = (packed >> 4) & 0x0f0f0f0f;
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) acc[r] = dot4(acc[r], low, quads + r * groups * GROUP + 4 * j);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++)
                    acc[r] = dot4(acc[r], high, quads + r * groups * GROUP + 4 * (j + QUADS / 2));
            }
        } else {
#pragma GCC unroll 12
            for (int j = 0; j < QUADS; j++) {
                ints codes = load_codes(panel + 64 * j);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) acc[r] = dot4(acc[r], codes, quads + r * groups * GROUP + 4 * j);
            }
        }
        floats scale = load_half(panel + CODE_BYTES<BITS>), minimum = {};
        if constexpr (BITS == 4) minimum = load_half(panel + CODE_BYTES<BITS> + 2 * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            out[r] += __builtin_convertvector(acc[r], floats) * (scale * scales[r * groups + group]);
            if constexpr (BITS == 4) out[r] += minimum * scaled_totals[r * groups + group];
        }
    }
    for (int r = 0; r < ROWS; r++) sums[r] = out[r];
}

template <int BITS>
int multiply_rows(const uint8_t* panel, const Rounded& x, int64_t row, int64_t left, int64_t groups, floats* sums) {
    if (left >= 12) return multiply_tile<BITS, 12>(panel, x, row, groups, sums), 12;
    if (left >= 8) return multiply_tile<BITS, 8>(panel, x, row, groups, sums), 8;
    if (left >= 4) return multiply_tile<BITS, 4>(panel, x, row, groups, sums), 4;
    if (left >= 2) return multiply_tile<BITS, 2>(panel, x, row, groups, sums), 2;
    return multiply_tile<BITS, 1>(panel, x, row, groups, sums), 1;
}

Rounded room_for(int64_t rows, int64_t groups) {
    static thread_local Scratch scratch;
    int64_t count = rows * groups;
    char* bytes = scratch.of(count * (GROUP + 12));
    float* numbers = reinterpret_cast<float*>(bytes + count * GROUP);
    return {reinterpret_cast<int8_t*>(bytes), numbers, numbers + count, reinterpret_cast<int32_t*>(numbers + 2 * count)};
}

template <int BITS, typename Scalar, typename Out>
void multiply(const Scalar* x, const uint8_t* panels, const Output<Scalar, Out>& out, int64_t rows, int64_t inputs) {
    const int64_t groups = inputs / GROUP, panel_bytes = groups * GROUP_BYTES<BITS>;
    const int64_t num_panels = (out.outputs + LANES - 1) / LANES;
    const Rounded shared = room_for(rows, groups);
#pragma omp parallel
    {
        Rounded rounded = shared;
        if (rows < FEW_ROWS) {
            rounded = room_for(rows, groups);
            for (int64_t row = 0; row < rows; row++) round_row(x + row * inputs, rounded, row, groups);
        } else {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < rows; row++) round_row(x + row * inputs, rounded, row, groups);
        }
#pragma omp for schedule(static) nowait
        for (int64_t panel = 0; panel < num_panels; panel++) {
            for (int64_t row = 0; row < rows;) {
                floats sums[MOST_ROWS];
                const uint8_t* weights = panels + panel * panel_bytes;
                int done = multiply_rows<BITS>(weights, rounded, row, rows - row, groups, sums);
                for (int r = 0; r < done; r++) out.put(row++, panel * LANES, sums[r]);
            }
        }
    }
}

template <int BITS, typename Scalar, typename Out>
void multiply_any(const int64_t* a) {
    const Output<Scalar, Out> out{address<Scalar>(a[2]), address<Scalar>(a[3]), address<Out>(a[4]), a[6]};
    multiply<BITS>(address<Scalar>(a[0]), address<uint8_t>(a[1]), out, a[5], a[7]);
}

template <int BITS>
void multiply_bits(const int64_t* a) {
    const bool is_bf16 = a[9], float_output = a[10];
    if (!is_bf16)
        multiply_any<BITS, float, float>(a);
    else if (float_output)
        multiply_any<BITS, bfloat16, float>(a);
    else
        multiply_any<BITS, bfloat16, bfloat16>(a);
}

}  // namespace

extern "C" {

// y_TO = x_TI W^T (+ bias_O) (+ residual_TO). I is a multiple of 32; rows of W that fill up the last panel are not
// written. y has the type of x, or is float. `residual` may be y. Arguments: x, panels, bias, residual, y, T, O, I,
// bits, is_bf16, float_output.
void mobula_matmul_quantized(const int64_t* a) {
    if (a[8] == 4)
        multiply_bits<4>(a);
    else
        multiply_bits<8>(a);
}
}
