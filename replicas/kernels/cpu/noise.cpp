// Draws from the softmax of logits: the largest sum of a logit and its Gumbel noise (see replicas/sampling/noise.py,
// which says what the noise is).
//
// Logarithms here are good to a few units in the last place and need not be torch's. So a row is left to the caller
// where another sum comes so close to the largest that such differences, or rounding, might decide. Tokens that no
// noise could lift to the largest sum are passed over.

#include "arguments.h"

#include <algorithm>
#include <cmath>

namespace {

typedef uint64_t longs __attribute__((vector_size(64)));

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15, MIX_1 = 0xBF58476D1CE4E5B9, MIX_2 = 0x94D049BB133111EB;
constexpr int UNIFORM_BITS = 23;
constexpr float LEAST_NOISE = -2.82f, MOST_NOISE = 16.64f;
constexpr int64_t UNSURE = -1;

// log(x) of positive, normal x (as in Cephes: Moshier, 1992).
inline floats logarithm(floats x) {
    constexpr int32_t ROOT_HALF = 0x3f3504f3;
    const ints bits = bit_cast<ints>(x), exponent = (bits - ROOT_HALF) >> 23;
    const floats f = bit_cast<floats>(bits - (exponent << 23)) - 1.0f, e = __builtin_convertvector(exponent, floats);
    floats y = broadcast(7.0376836292e-2f);
    y = y * f - 1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f - 1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f - 2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    y = y * f * f * f - e * 2.12194440e-4f - 0.5f * f * f;
    return f + y + e * 0.693359375f;
}

// The upper bits of mix(x), which its last step does not touch, in the lower halves of lanes.
inline words upper_bits(longs x) {
    x += GOLDEN;
    x = (x ^ x >> 30) * MIX_1;
    x = (x ^ x >> 27) * MIX_2;
    return bit_cast<words>(x >> (64 - UNIFORM_BITS));
}

// Of the tokens [first, first + 16).
inline floats noise(uint64_t key, int64_t first) {
    const longs counter = {1, 2, 3, 4, 5, 6, 7, 8};
    const longs low = (counter + uint64_t(first)) * GOLDEN + key;
    const ints even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const words bits = __builtin_shuffle(upper_bits(low), upper_bits(low + 8 * GOLDEN), even);
    const floats uniform = __builtin_convertvector(bit_cast<ints>(bits), floats) + 0.5f;
    return -logarithm(-logarithm(uniform * (1.0f / (1 << UNIFORM_BITS))));
}

// By how much the largest sum must exceed all others.
inline float margin(float sum) { return 1e-4f + std::fabs(sum) * 1e-6f; }

int64_t draw(const float* logits, uint64_t key, int64_t size) {
    floats largest_logit = broadcast(-INFINITY);
    for (int64_t i = 0; i < size; i += LANES) largest_logit = maximum(largest_logit, load(logits + i));
    float most = largest(largest_logit) + LEAST_NOISE, least = most - margin(most);
    const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats best = broadcast(-INFINITY), second = best;
    ints place = {};
    for (int64_t i = 0; i < size; i += LANES) {
        const floats logit = load(logits + i);
        if (!any(logit > least - MOST_NOISE)) continue;
        const floats sum = logit + noise(key, i);
        if (!any(sum > least)) continue;
        const ints better = sum > best;
        second = maximum(second, better ? best : sum);
        place = better ? lanes + int32_t(i) : place;
        best = better ? sum : best;
        most = std::max(most, largest(sum)), least = most - margin(most);
    }
    int winner = 0, close = 0;
    for (int l = 0; l < LANES; l++) {
        if (best[l] > best[winner]) winner = l;
        close += (best[l] >= least) + (second[l] >= least);
    }
    return close == 1 ? place[winner] : UNSURE;
}

}  // namespace

extern "C" {

// tokens_R (64 bits) drawn from logits_RV (float), or -1, with the noise of keys_R (64 bits). V is a multiple of 16.
// Arguments: logits, keys, tokens, R, V.
void mobula_draw(const int64_t* a) {
    const int64_t rows = a[3], size = a[4];
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (int64_t row = 0; row < rows; row++)
        address<int64_t>(a[2])[row] = draw(address<float>(a[0]) + row * size, address<uint64_t>(a[1])[row], size);
}
}
