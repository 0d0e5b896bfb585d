// What happens between the matrix products: norms, rotation, the gated activation, writing keys and values.
//
// T tokens, H hidden, F half a head (rotation) or the intermediate size (activation). Rows are contiguous unless a
// stride is given; strides count elements. Everything is computed in float. `is_bf16` tells the type of activations.

#include "vectors.h"

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
        for (int64_t i = 0; i < size; i += LANES) {
            floats x = load(gate + i);
            store(out + row * size + i, x / (1.0f + exponential(-maximum(x, broadcast(-87.0f)))) * load(up + i));
        }
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

// out_TH = x_TH / rms(x_TH) * weight_H. H is a multiple of 16.
void mobula_rms_norm(const void* x, const void* weight, void* out, int64_t rows, int64_t size, float eps, int is_bf16) {
    if (is_bf16)
        rms_norm((const bfloat16*)x, (const bfloat16*)weight, (bfloat16*)out, rows, size, eps);
    else
        rms_norm((const float*)x, (const float*)weight, (float*)out, rows, size, eps);
}

// out_TF = silu(gate_TF) * up_TF, where a row of gate_up holds its gate and then its up. F is a multiple of 16.
void mobula_silu_mul(const void* gate_up, void* out, int64_t rows, int64_t size, int is_bf16) {
    if (is_bf16)
        silu_mul((const bfloat16*)gate_up, (bfloat16*)out, rows, size);
    else
        silu_mul((const float*)gate_up, (float*)out, rows, size);
}

// Rotates the query and key heads of each row of qkv in place by cos_TF and sin_TF, then copies the row's keys and
// values to the token's slot of the cache. A row holds query heads, key heads, value heads, head_dim elements each,
// and head_dim / 2 is a multiple of 16.
void mobula_rotate_and_write(void* qkv, const float* cos, const float* sin, const int64_t* slots, void* keys,
                             void* values, int64_t tokens, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                             int is_bf16) {
    if (is_bf16)
        rotate_and_write((bfloat16*)qkv, cos, sin, slots, (bfloat16*)keys, (bfloat16*)values, tokens, query_heads,
                         kv_heads, head_dim);
    else
        rotate_and_write((float*)qkv, cos, sin, slots, (float*)keys, (float*)values, tokens, query_heads, kv_heads,
                         head_dim);
}
}
