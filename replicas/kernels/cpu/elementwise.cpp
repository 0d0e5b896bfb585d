// What happens between the matrix products: norms, rotation, the gated activation, writing keys and values.
//
// T tokens, H hidden, F half a head (rotation) or the intermediate size (activation). Rows are contiguous unless a
// stride is given; strides count elements. Everything is computed in float. `is_bf16` tells the type of activations.

#include "arguments.h"

#include <cmath>

namespace {

// Below this many elements, waking a thread costs more than it helps.
constexpr int64_t WORTH_SHARING = 1 << 14;

template <typename Scalar>
void rms_norm(const Scalar* x, const Scalar* weight, Scalar* out, int64_t rows, int64_t size, float eps) {
#pragma omp parallel for if (rows * size > WORTH_SHARING)
    for (int64_t row = 0; row < rows; row++) {
        const Scalar* in = x + row * size;
        floats squares = {};
        for (int64_t i = 0; i < size; i += LANES) {
            floats lanes = load(in + i);
            squares += lanes * lanes;
        }
        float scale = 1.0f / std::sqrt(sum(squares) / size + eps);
        for (int64_t i = 0; i < size; i += LANES) store(out + row * size + i, load(in + i) * scale * load(weight + i));
    }
}

template <typename Scalar>
void silu_mul(const Scalar* gate_up, Scalar* out, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > WORTH_SHARING)
    for (int64_t row = 0; row < rows; row++) {
        const Scalar *gate = gate_up + row * 2 * size, *up = gate + size;
        for (int64_t i = 0; i < size; i += LANES) store(out + row * size + i, silu(load(gate + i)) * load(up + i));
    }
}

template <typename Scalar>
void rotate(Scalar* head, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += LANES) {
        floats left = load(head + i), right = load(head + half + i), c = load(cos + i), s = load(sin + i);
        store(head + i, left * c - right * s);
        store(head + half + i, right * c + left * s);
    }
}

template <typename Scalar>
void rotate_and_write(Scalar* qkv, const float* cos, const float* sin, const int64_t* slots, Scalar* keys,
                      Scalar* values, int64_t tokens, int64_t query_heads, int64_t kv_heads, int64_t head_dim) {
    const int64_t row_size = (query_heads + 2 * kv_heads) * head_dim, kv_size = kv_heads * head_dim;
#pragma omp parallel for if (tokens * row_size > WORTH_SHARING)
    for (int64_t token = 0; token < tokens; token++) {
        Scalar* row = qkv + token * row_size;
        const int64_t half = head_dim / 2;
        for (int64_t head = 0; head < query_heads + kv_heads; head++)
            rotate(row + head * head_dim, cos + token * half, sin + token * half, half);
        const Scalar* key = row + query_heads * head_dim;
        std::memcpy(keys + slots[token] * kv_size, key, kv_size * sizeof(Scalar));
        std::memcpy(values + slots[token] * kv_size, key + kv_size, kv_size * sizeof(Scalar));
    }
}

}  // namespace

extern "C" {

// out_TH = x_TH / rms(x_TH) * weight_H. H is a multiple of 16. Arguments: x, weight, out, T, H, eps, is_bf16.
void mobula_rms_norm(const int64_t* a) {
    if (a[6])
        rms_norm(address<bfloat16>(a[0]), address<bfloat16>(a[1]), address<bfloat16>(a[2]), a[3], a[4], number(a[5]));
    else
        rms_norm(address<float>(a[0]), address<float>(a[1]), address<float>(a[2]), a[3], a[4], number(a[5]));
}

// out_TF = silu(gate_TF) * up_TF, where a row of gate_up holds its gate and then its up. F is a multiple of 16.
// Arguments: gate_up, out, T, F, is_bf16.
void mobula_silu_mul(const int64_t* a) {
    if (a[4])
        silu_mul(address<bfloat16>(a[0]), address<bfloat16>(a[1]), a[2], a[3]);
    else
        silu_mul(address<float>(a[0]), address<float>(a[1]), a[2], a[3]);
}

// Rotates the query and key heads of each row of qkv in place by cos_TF and sin_TF (float), then copies the row's keys
// and values to the token's slot (64 bits) of the cache. A row holds query heads, key heads, value heads, head_dim
// elements each, and head_dim / 2 is a multiple of 16. Arguments: qkv, cos, sin, slots, keys, values, T, query heads,
// KV heads, head_dim, is_bf16.
void mobula_rotate_and_write(const int64_t* a) {
    const float *cos = address<float>(a[1]), *sin = address<float>(a[2]);
    const int64_t* slots = address<int64_t>(a[3]);
    if (a[10])
        rotate_and_write(address<bfloat16>(a[0]), cos, sin, slots, address<bfloat16>(a[4]), address<bfloat16>(a[5]),
                         a[6], a[7], a[8], a[9]);
    else
        rotate_and_write(address<float>(a[0]), cos, sin, slots, address<float>(a[4]), address<float>(a[5]), a[6], a[7],
                         a[8], a[9]);
}
}
