// The form of quantized weights in memory, and the processor's product of 8-bit integers.
//
// W_OI is cut into panels of 16 rows, whose lanes a vector register takes side by side. A panel holds its groups of 32
// columns one after the other; a group is eight quads of four columns, and of these come
//   4 bits: 256 bytes of codes (vector j: quad j in the low nibbles, quad j + 4 in the high ones; lane r is row r),
//           32 bytes of scales and 32 bytes of minima, IEEE half: w = scale * code + minimum
//   8 bits: 512 bytes of codes (vector j: quad j), 32 bytes of scales: w = scale * (code - 128)
// So a weight takes 5 or 8.5 bits in memory.

#pragma once

#include "vectors.h"

constexpr int GROUP = 32;
constexpr int QUADS = GROUP / 4;

template <int BITS>
constexpr int64_t CODE_BYTES = LANES * GROUP * BITS / 8;
template <int BITS>
constexpr int64_t GROUP_BYTES = CODE_BYTES<BITS> + (BITS == 4 ? 4 : 2) * LANES;

template <int BITS>
floats scales_of(const uint8_t* group) {
    return load_half(group + CODE_BYTES<BITS>);
}

inline floats minima_of(const uint8_t* group) { return load_half(group + CODE_BYTES<4> + 2 * LANES); }

inline ints load_codes(const uint8_t* from) {
    ints to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

inline ints low_nibbles(ints packed) { return packed & 0x0f0f0f0f; }
inline ints high_nibbles(ints packed) { return (packed >> 4) & 0x0f0f0f0f; }

// acc[r] += the dot product of four unsigned weights of row r with the four signed activations at `x`.
inline ints dot4(ints acc, ints weights, const int8_t* x) {
    int32_t quad;
    std::memcpy(&quad, x, sizeof quad);
#if defined(__AVX512VNNI__)
    return bit_cast<ints>(
        _mm512_dpbusd_epi32(bit_cast<__m512i>(acc), bit_cast<__m512i>(weights), _mm512_set1_epi32(quad)));
#else
    for (int k = 0; k < 4; k++) acc += ((weights >> (8 * k)) & 0xff) * int32_t(x[k]);
    return acc;
#endif
}
