// What attention.cuh is made of: rows of Q, K and V as a warp's lanes hold them, products of theirs on tensor cores, and the
// softmax over rows as they come.
//
// Eight heads of Q are the rows of tensor cores' products. Q and the softmax's weights count as two halves, the rounded and the
// rest, so that only K and V are as exact as halves are. A lane holds what its place in both products wants: of head
// lane / 4, or of row lane / 4 of K and V, 8 elements in each 32 from element lane % 4 * 8 on.
#pragma once

#include "attention.h"
#include "cluster_words.cuh"
#include "head_turns.cuh"

#include <cfloat>

// D: head_dim. IS_ONCE: there are no more rows than the clusters take at once.
template <int D, bool IS_ONCE>
struct attention_rows {
    static constexpr int N_WARPS = ATTENTION_WARPS, N_HEADS = ATTENTION_MAX_HEADS;
    static constexpr int N_PARTS = D / 32;  // of a lane, 8 elements each

    struct shared_memory {
        head_turn turns[D / 2];
        float norms[2][D];    // of Q and K
        uint16_t own[2][D];   // the token's row of K and V, halves
        float sums[N_WARPS][N_HEADS][D];
        uint4 q[IS_ONCE ? 1 : N_PARTS][2][32];  // of a warp's lanes, rounded and the rest
        float2 sizes[N_WARPS][N_HEADS];  // the largest score, the sum of weights
    };

    // A lane's elements.
    struct part_of_row {
        float x[N_PARTS][8];

        __device__ __forceinline__ void load(const float * row, int t) {
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    const float4 v = __ldcg(reinterpret_cast<const float4 *>(row + 32 * j + 8 * t + i));
                    x[j][i] = v.x;
                    x[j][i + 1] = v.y;
                    x[j][i + 2] = v.z;
                    x[j][i + 3] = v.w;
                }
            }
        }

        __device__ __forceinline__ void norm(const float * weights, int t, float eps) {
            float squares = 0;
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    squares += x[j][i] * x[j][i];
                }
            }
            squares += __shfl_xor_sync(0xffffffff, squares, 1);
            squares += __shfl_xor_sync(0xffffffff, squares, 2);
            const float factor = rsqrtf(squares / D + eps);
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    x[j][i] *= factor * weights[32 * j + 8 * t + i];
                }
            }
        }

        // Pairs that lie apart do so by n_dims / 2, a multiple of 32: both are this lane's.
        __device__ __forceinline__ void turn(const heads & h, const head_turn * turns, int t) {
            if (!h.is_neox) {
#pragma unroll
                for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                    for (int i = 0; i < 8; i += 2) {
                        const float2 y = turned(make_float2(x[j][i], x[j][i + 1]), turns[16 * j + 4 * t + i / 2]);
                        x[j][i] = y.x;
                        x[j][i + 1] = y.y;
                    }
                }
                return;
            }
            const int apart = h.n_dims / 64;
#pragma unroll
            for (int distance = 1; distance <= N_PARTS / 2; distance++) {
                if (distance != apart) {
                    continue;
                }
#pragma unroll
                for (int j = 0; j < distance; j++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const float2 y = turned(make_float2(x[j][i], x[j + distance][i]), turns[32 * j + 8 * t + i]);
                        x[j][i] = y.x;
                        x[j + distance][i] = y.y;
                    }
                }
            }
        }
    };

    // As halves, two a word.
    struct halves_of_row {
        uint32_t x[N_PARTS][4];

        __device__ __forceinline__ void load(const uint16_t * row, int t) {
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
                const uint4 v = __ldcg(reinterpret_cast<const uint4 *>(row + 32 * j + 8 * t));
                x[j][0] = v.x;
                x[j][1] = v.y;
                x[j][2] = v.z;
                x[j][3] = v.w;
            }
        }

        __device__ __forceinline__ void copy(const uint16_t * row, int t) {
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
                const uint4 v = *reinterpret_cast<const uint4 *>(row + 32 * j + 8 * t);
                x[j][0] = v.x;
                x[j][1] = v.y;
                x[j][2] = v.z;
                x[j][3] = v.w;
            }
        }
    };

    // What rounding has left.
    static __device__ __forceinline__ uint32_t rest_of(float a, float b, uint32_t rounded) {
        const float2 v = floats_of(rounded);
        return halves_from(a - v.x, b - v.y);
    }

    struct queries {
        halves_of_row rounded, rest;

        __device__ __forceinline__ void take(const part_of_row & q, float scale) {
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float a = q.x[j][2 * i] * scale, b = q.x[j][2 * i + 1] * scale;
                    rounded.x[j][i] = halves_from(a, b);
                    rest.x[j][i] = rest_of(a, b, rounded.x[j][i]);
                }
            }
        }

        // All warps have the same, which is left for when it is needed again.
        __device__ __forceinline__ void leave(shared_memory & shared) const {
#pragma unroll
            for (int j = 0; j < N_PARTS && threadIdx.x < 32; j++) {
                shared.q[j][0][threadIdx.x] = make_uint4(rounded.x[j][0], rounded.x[j][1], rounded.x[j][2], rounded.x[j][3]);
                shared.q[j][1][threadIdx.x] = make_uint4(rest.x[j][0], rest.x[j][1], rest.x[j][2], rest.x[j][3]);
            }
            __syncthreads();
        }

        // Of head lane / 4 with rows lane % 4 * 2 and the next.
        __device__ __forceinline__ float2 scores(const halves_of_row & k, const shared_memory & shared) const {
            float sums[2][4] = {};
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
                uint4 r = {rounded.x[j][0], rounded.x[j][1], rounded.x[j][2], rounded.x[j][3]};
                uint4 s = {rest.x[j][0], rest.x[j][1], rest.x[j][2], rest.x[j][3]};
                if constexpr (!IS_ONCE) {
                    r = shared.q[j][0][threadIdx.x % 32];
                    s = shared.q[j][1][threadIdx.x % 32];
                }
                const uint32_t first[4] = {r.x, s.x, r.y, s.y}, second[4] = {r.z, s.z, r.w, s.w};
                multiply_halves(sums[0], first, k.x[j][0], k.x[j][1]);
                multiply_halves(sums[1], second, k.x[j][2], k.x[j][3]);
            }
            return make_float2((sums[0][0] + sums[1][0]) + (sums[0][2] + sums[1][2]), (sums[0][1] + sums[1][1]) + (sums[0][3] + sums[1][3]));
        }
    };

    // A warp's rows so far, for head lane / 4.
    struct softened {
        float largest = -FLT_MAX, total = 0;  // the total of this lane's rows
        part_of_row sums;

        __device__ __forceinline__ softened() {
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sums.x[j][i] = 0;
                }
            }
        }

        __device__ __forceinline__ void add(float2 scores, const halves_of_row & v) {
            float top = fmaxf(largest, fmaxf(scores.x, scores.y));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
            const float a = __expf(scores.x - top), b = __expf(scores.y - top), factor = __expf(largest - top);
            largest = top;
            total = total * factor + (a + b);
            const uint32_t rounded = halves_from(a, b);
            const uint32_t weights[4] = {rounded, 0, rest_of(a, b, rounded), 0};
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t rows = transposed(v.x[j][i]);
                    float c[4] = {sums.x[j][2 * i] * factor, sums.x[j][2 * i + 1] * factor, 0, 0};
                    multiply_halves(c, weights, rows, rows);
                    sums.x[j][2 * i] = c[0];
                    sums.x[j][2 * i + 1] = c[1];
                }
            }
        }

        __device__ __forceinline__ void leave(shared_memory & shared) {
            const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
            total += __shfl_xor_sync(0xffffffff, total, 1);
            total += __shfl_xor_sync(0xffffffff, total, 2);
            if (t == 0) {
                shared.sizes[warp][g] = make_float2(largest, total);
            }
            float * to = &shared.sums[warp][g][8 * t];
#pragma unroll
            for (int j = 0; j < N_PARTS; j++) {
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    *reinterpret_cast<float4 *>(to + 32 * j + i) = make_float4(sums.x[j][i], sums.x[j][i + 1], sums.x[j][i + 2], sums.x[j][i + 3]);
                }
            }
        }
    };
};
