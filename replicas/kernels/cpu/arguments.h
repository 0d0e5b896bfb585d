// All kernels are called in one way, with an array of 64-bit integers: addresses, sizes, flags, and the bits of a
// double. So a step's calls can be written down, and made again without anybody's help (see run.cpp).

#pragma once

#include "vectors.h"

template <typename T>
inline T* address(int64_t argument) {
    return reinterpret_cast<T*>(argument);
}

inline double number(int64_t argument) { return bit_cast<double>(argument); }
