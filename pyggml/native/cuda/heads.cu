// Q and K normed by head and rotated, K and V rounded to float16 and stored in the cache: a warp a head and token.
// Angles are computed before the earlier kernels have ended.

#include "head_turns.cuh"
#include "heads_launch.h"
#include "launch_order.cuh"
#include "warp_sums.cuh"

namespace {

constexpr int N_WARPS = 4;
constexpr int MAX_PAIRS = 4;  // a lane: heads of up to 256

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
    head_turn turns[MAX_PAIRS];
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
        factor = rsqrtf(warp_sum(squares) / h.head_dim + h.eps);
    }
#pragma unroll
    for (int k = 0; k < MAX_PAIRS; k++) {
        const int i = lane + 32 * k;
        const int2 at = pair_at(h, i);
        const float2 y = turned(make_float2(x[k].x * factor * weights[k].x, x[k].y * factor * weights[k].y), turns[k]);
        if (i < h.head_dim / 2 && start + at.x < of.n_rows) {
            store(h, part, token, row, start + at.x, y.x);
        }
        if (i < h.head_dim / 2 && start + at.y < of.n_rows) {
            store(h, part, token, row, start + at.y, y.y);
        }
    }
}

}  // namespace

cudaError_t launch_heads(const heads & h, cudaStream_t stream) {
    const int n_heads = h.q.n_rows / h.head_dim + h.k.n_rows / h.head_dim + (h.v.n_rows + h.head_dim - 1) / h.head_dim;
    return launch_in_order(store_heads, dim3((n_heads + N_WARPS - 1) / N_WARPS, h.n_tokens), dim3(32 * N_WARPS), 0, stream, h);
}
