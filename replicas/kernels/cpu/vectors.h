// Vectors of 16 lanes in the compilers' own notation, which becomes AVX-512, pairs of AVX2 registers or Neon as the
// target has it, and the two types that activations have in memory: float and bfloat16.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

constexpr int LANES = 16;

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));

struct bfloat16 {
    uint16_t bits;
};

template <typename To, typename From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

inline floats broadcast(float value) { return value - floats{}; }
inline ints broadcast(int32_t value) { return value - ints{}; }

inline floats load(const float* from) {
    floats to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

inline floats load(const bfloat16* from) {
    halves bits;
    std::memcpy(&bits, from, sizeof bits);
#if defined(__AVX512F__)
    return bit_cast<floats>(bit_cast<words>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(bits))) << 16);
#else
    return bit_cast<floats>(__builtin_convertvector(bits, words) << 16);
#endif
}

inline void store(float* to, floats from) { std::memcpy(to, &from, sizeof from); }

// The upper halves become the nearest bfloat16, ties to even.
inline words rounded_to_upper(floats from) {
    const words bits = bit_cast<words>(from);
    return bits + 0x7fff + ((bits >> 16) & 1);
}

inline void store(bfloat16* to, floats from) {
    halves upper = __builtin_convertvector(rounded_to_upper(from) >> 16, halves);
    std::memcpy(to, &upper, sizeof upper);
}

// The lowest byte of each lane.
inline void store_low_bytes(int8_t* to, ints from) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(bit_cast<__m512i>(from)));
#else
    for (int i = 0; i < LANES; i++) to[i] = static_cast<int8_t>(from[i]);
#endif
}

// 32 numbers as two vectors, in whichever order the type makes cheap: halves of floats, but bfloat16 at even and at odd
// places, which are the lower and the upper halves of 32-bit words.
struct Pair {
    floats first, second;
};

inline Pair load_pair(const float* from) { return {load(from), load(from + LANES)}; }

inline Pair load_pair(const bfloat16* from) {
    words bits;
    std::memcpy(&bits, from, sizeof bits);
    return {bit_cast<floats>(bits << 16), bit_cast<floats>(bits & 0xffff0000u)};
}

inline void store_pair(float* to, Pair from) {
    store(to, from.first);
    store(to + LANES, from.second);
}

inline void store_pair(bfloat16* to, Pair from) {
    const words bits = rounded_to_upper(from.first) >> 16 | (rounded_to_upper(from.second) & 0xffff0000u);
    std::memcpy(to, &bits, sizeof bits);
}

// Sixteen IEEE half-precision numbers.
inline floats load_half(const void* from) {
#if defined(__AVX512F__)
    return bit_cast<floats>(_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))));
#else
    floats to;
    for (int i = 0; i < LANES; i++) {
        _Float16 half;
        std::memcpy(&half, static_cast<const char*>(from) + 2 * i, sizeof half);
        to[i] = static_cast<float>(half);
    }
    return to;
#endif
}

inline floats maximum(floats a, floats b) { return a > b ? a : b; }
inline floats magnitude(floats x) { return bit_cast<floats>(bit_cast<words>(x) & 0x7fffffffu); }

#if defined(__AVX512F__)
inline float sum(floats x) { return _mm512_reduce_add_ps(bit_cast<__m512>(x)); }
inline int32_t sum(ints x) { return _mm512_reduce_add_epi32(bit_cast<__m512i>(x)); }
inline float largest(floats x) { return _mm512_reduce_max_ps(bit_cast<__m512>(x)); }
inline bool any(ints x) { return _mm512_test_epi32_mask(bit_cast<__m512i>(x), bit_cast<__m512i>(x)); }
#else
template <typename Vector>
inline auto sum(Vector x) {
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}

inline float largest(floats x) {
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
}

inline bool any(ints x) {
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] |= x[i + width];
    return x[0];
}
#endif

// To the nearest integer, for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
constexpr float ROUNDER = 12582912.0f;
inline floats rounded(floats x) { return (x + ROUNDER) - ROUNDER; }
inline ints to_ints(floats x) { return bit_cast<ints>(x + ROUNDER) - 0x4b400000; }

// e^x for x <= 88, to about 2e-7 of its value: 2^n times a polynomial for the fraction, |f| <= ln(2) / 2.
inline floats exponential(floats x) {
    x = maximum(x, broadcast(-87.0f));
    floats n = rounded(x * 1.44269504f);
    floats f = x - n * 0.693359375f + n * 2.12194440e-4f;
    floats y = broadcast(1.9875691500e-4f);
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * f * f + f + 1.0f;
    return y * bit_cast<floats>((to_ints(n) + 127) << 23);
}

inline floats silu(floats x) { return x / (1.0f + exponential(-maximum(x, broadcast(-87.0f)))); }

// 2^x for x <= 127, to about 2e-7 of its value, and 0 below -126: a polynomial for what rounding x leaves.
inline floats power_of_two(floats x) {
#if defined(__AVX512DQ__)
    const floats f = bit_cast<floats>(_mm512_reduce_ps(bit_cast<__m512>(x), 0)), n = x - f;
#else
    const floats seen = maximum(x, broadcast(-127.0f)), n = rounded(seen), f = seen - n;
#endif
    floats y = broadcast(1.326472606e-3f);
    y = y * f + 9.671513045e-3f;
    y = y * f + 5.55073375e-2f;
    y = y * f + 2.402224208e-1f;
    y = y * f + 6.931469776e-1f;
    y = y * f + 1.0f;
#if defined(__AVX512DQ__)
    return bit_cast<floats>(_mm512_scalef_ps(bit_cast<__m512>(y), bit_cast<__m512>(n)));
#else
    return n > -127.0f ? y * bit_cast<floats>((to_ints(n) + 127) << 23) : floats{};
#endif
}
