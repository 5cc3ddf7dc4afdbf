// Rotation of a head's pairs by position: ggml's (YaRN included).
#pragma once

#include "heads.h"

#include <cuda_fp16.h>

struct head_turn {
    float cosine, sine;
};

// Which two elements of a head pair `i` has.
static __device__ __forceinline__ int2 pair_at(const heads & h, int i) {
    if (!h.is_neox || i >= h.n_dims / 2) {
        return make_int2(2 * i, 2 * i + 1);
    }
    return make_int2(i, i + h.n_dims / 2);
}

static __device__ __forceinline__ head_turn turn_of(const heads & h, int pair, int position) {
    if (2 * pair >= h.n_dims) {
        return {1, 0};
    }
    const float extrapolated = position * powf(h.theta_scale, pair) / (h.freq_factors ? h.freq_factors[pair] : 1.0f);
    float theta = h.freq_scale * extrapolated;
    float size = h.attn_factor;
    if (h.ext_factor != 0.0f) {
        const float at = (pair - h.low_dim) / fmaxf(0.001f, h.high_dim - h.low_dim);
        const float mix = (1.0f - fminf(1.0f, fmaxf(0.0f, at))) * h.ext_factor;
        theta = theta * (1 - mix) + extrapolated * mix;
        size *= 1.0f + 0.1f * logf(1.0f / h.freq_scale);
    }
    head_turn t;
    sincosf(theta, &t.sine, &t.cosine);
    t.sine *= size;
    t.cosine *= size;
    return t;
}

static __device__ __forceinline__ float2 turned(float2 x, head_turn by) {
    return make_float2(x.x * by.cosine - x.y * by.sine, x.x * by.sine + x.y * by.cosine);
}
