// Moving lanes between vectors: turning squares, and adding up the lanes of many vectors at once.

#pragma once

#include "vectors.h"

// Lane l of the first: of a if bit W of l is unset, else of b from W lanes below; of the second: the other halves.
template <int W, typename Vector>
inline void exchange(Vector& a, Vector& b) {
    ints low = {}, high = {};
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) {
        low[l] = l & W ? LANES + l - W : l;
        high[l] = l & W ? LANES + l : l + W;
    }
    const Vector first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(a, b, high);
    a = first, b = second;
}

template <int W, typename Vector>
inline void exchange_all(Vector* x) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & W)) exchange<W>(x[i], x[i + W]);
}

// Turns 16 rows of 16 into columns (Eklundh, 1972).
template <typename Vector>
inline void transpose(Vector* x) {
    exchange_all<8>(x);
    exchange_all<4>(x);
    exchange_all<2>(x);
    exchange_all<1>(x);
}

// Lane l: lanes l and l ^ W added up, of a if bit W of l is unset, else of b.
template <int W>
inline floats fold(floats a, floats b) {
    ints own = {}, other = {};
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) {
        own[l] = l & W ? LANES + l : l;
        other[l] = l & W ? LANES + l - W : l + W;
    }
    return __builtin_shuffle(a, b, own) + __builtin_shuffle(a, b, other);
}

// Four vectors in one: lanes l, l + 4, l + 8 and l + 12 add up to the sum of vector l.
inline floats fold_four(const floats* x) { return fold<2>(fold<1>(x[0], x[1]), fold<1>(x[2], x[3])); }

// The sums of 16 vectors side by side, from four results of `fold_four`.
inline floats fold_rest(const floats* x) { return fold<8>(fold<4>(x[0], x[1]), fold<4>(x[2], x[3])); }
