// Q and K normed by head and rotated, K and V rounded to float16 and stored in the cache: a warp a head and token.
// The rotation is ggml's (YaRN included). Angles are computed before the earlier kernels have ended.

#include "heads_launch.h"

#include "launch_order.cuh"

#include <cuda_fp16.h>

namespace {

constexpr int N_WARPS = 4;
constexpr int MAX_PAIRS = 4;  // a lane: heads of up to 256

struct turn {
    float cosine, sine;
};

// Which two elements of a head pair `i` has.
__device__ int2 pair_at(const heads & h, int i) {
    if (!h.is_neox || i >= h.n_dims / 2) {
        return make_int2(2 * i, 2 * i + 1);
    }
    return make_int2(i, i + h.n_dims / 2);
}

__device__ turn turn_of(const heads & h, int pair, int position) {
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
    turn t;
    sincosf(theta, &t.sine, &t.cosine);
    t.sine *= size;
    t.cosine *= size;
    return t;
}

__device__ void store(const heads & h, int part, int token, int64_t row, int at, float value) {
    if (part == 0) {
        h.q_out[static_cast<int64_t>(token) * h.q.n_rows + at] = value;
    } else {
        uint16_t * cache = part == 1 ? h.k_cache + row * h.k_stride : h.v_cache + row * h.v_stride;
        cache[at] = __half_as_ushort(__float2half(value));
    }
}

__global__ void __launch_bounds__(32 * N_WARPS) store_heads(const __grid_constant__ heads h) {
    if (h.lets_next_start) {
        let_next_start();
    }
    const int lane = threadIdx.x % 32, token = blockIdx.y;
    const int n_heads[2] = {h.q.n_rows / h.head_dim, h.k.n_rows / h.head_dim};
    int head = blockIdx.x * N_WARPS + threadIdx.x / 32;
    const int part = head < n_heads[0] ? 0 : head < n_heads[0] + n_heads[1] ? 1 : 2;
    head -= part == 0 ? 0 : part == 1 ? n_heads[0] : n_heads[0] + n_heads[1];
    const head_part of = part == 0 ? h.q : part == 1 ? h.k : h.v;
    const int start = head * h.head_dim;
    const int64_t row = h.rows[token];
    turn turns[MAX_PAIRS];
    float2 weights[MAX_PAIRS];
#pragma unroll
    for (int k = 0; k < MAX_PAIRS; k++) {
        const int i = lane + 32 * k;
        turns[k] = {1, 0};
        weights[k] = make_float2(1, 1);
        if (i < h.head_dim / 2 && part < 2) {
            turns[k] = turn_of(h, i, h.positions[token]);
            if (of.norm) {
                weights[k] = make_float2(of.norm[pair_at(h, i).x], of.norm[pair_at(h, i).y]);
            }
        }
    }
    wait_for_earlier();
    if (start >= of.n_rows) {
        return;
    }
    const float * from = of.from + static_cast<int64_t>(token) * of.n_rows + start;
    float2 x[MAX_PAIRS];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < MAX_PAIRS; k++) {
        const int i = lane + 32 * k;
        const int2 at = pair_at(h, i);
        const bool is_there = i < h.head_dim / 2;
        x[k].x = is_there && start + at.x < of.n_rows ? __ldcg(from + at.x) : 0;
        x[k].y = is_there && start + at.y < of.n_rows ? __ldcg(from + at.y) : 0;
        squares += x[k].x * x[k].x + x[k].y * x[k].y;
    }
    float factor = 1;
    if (of.norm) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            squares += __shfl_xor_sync(0xffffffff, squares, offset);
        }
        factor = rsqrtf(squares / h.head_dim + h.eps);
    }
#pragma unroll
    for (int k = 0; k < MAX_PAIRS; k++) {
        const int i = lane + 32 * k;
        const int2 at = pair_at(h, i);
        const float a = x[k].x * factor * weights[k].x, b = x[k].y * factor * weights[k].y;
        if (i < h.head_dim / 2 && start + at.x < of.n_rows) {
            store(h, part, token, row, start + at.x, a * turns[k].cosine - b * turns[k].sine);
        }
        if (i < h.head_dim / 2 && start + at.y < of.n_rows) {
            store(h, part, token, row, start + at.y, a * turns[k].sine + b * turns[k].cosine);
        }
    }
}

}  // namespace

cudaError_t launch_heads(const heads & h, cudaStream_t stream) {
    const int n_heads = h.q.n_rows / h.head_dim + h.k.n_rows / h.head_dim + (h.v.n_rows + h.head_dim - 1) / h.head_dim;
    return launch_in_order(store_heads, dim3((n_heads + N_WARPS - 1) / N_WARPS, h.n_tokens), dim3(32 * N_WARPS), 0, stream, h);
}
