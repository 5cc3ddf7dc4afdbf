// Attention of one token of each sequence in one launch: Q normed and rotated, K and V stored, scores, softmax and sums.
// A cluster of blocks shares a window's rows, each warp for itself, and adds up the parts through each other's shared memory.
// K and V of earlier tokens are asked for before the earlier kernels have ended; the token's own row this launch makes.
//
// Eight heads of Q are the rows of tensor cores' products. Q and the softmax's weights count as two halves, the rounded and the
// rest, so that only K and V are as exact as halves are. A lane holds what its place in both products wants: of head
// lane / 4, or of row lane / 4 of K and V, 8 elements in each 32 from element lane % 4 * 8 on.
#pragma once

#include "attention.h"
#include "cluster_words.cuh"
#include "head_turns.cuh"
#include "launch_order.cuh"

#include <cfloat>

// D: head_dim. IS_ONCE: the window has no more rows than the cluster takes at once.
template <int D, bool IS_ONCE>
struct attention_kernel {
    static constexpr int N_WARPS = ATTENTION_WARPS, N_HEADS = ATTENTION_MAX_HEADS;
    static constexpr int WARP_ROWS = ATTENTION_ROWS / N_WARPS;
    static constexpr int N_PARTS = D / 32;  // of a lane, 8 elements each
    static constexpr int N_SHARES = ATTENTION_BLOCKS * N_WARPS;
    static_assert(WARP_ROWS == 8 && N_HEADS == 8 && N_SHARES == 32);

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

    // Shares of 32 elements of a head, an element a lane; lane i knows what share i counts. Then of the whole.
    struct joined {
        float sum = 0, largest, total;

        template <class SHARE>
        __device__ __forceinline__ joined(float2 size, int n_shares, const SHARE & share) {
            largest = max_of_warp(size.x);
            const float factor = __expf(size.x - largest);
            total = sum_of_warp(size.y * factor);
            constexpr int N_TOGETHER = 8;
            for (int first = 0; first < n_shares; first += N_TOGETHER) {
                float parts[N_TOGETHER];
#pragma unroll
                for (int i = 0; i < N_TOGETHER; i++) {
                    parts[i] = first + i < n_shares ? share(first + i) : 0;
                }
#pragma unroll
                for (int i = 0; i < N_TOGETHER; i++) {
                    sum += parts[i] * __shfl_sync(0xffffffff, factor, first + i);
                }
            }
        }
    };

    // 32 elements of a head a warp, from all warps of the cluster. Of several clusters the last to have found its part joins them.
    static __device__ __forceinline__ void add_up(const attention & a, int rank, int cluster, int first_head, int n_heads, int sequence,
                                                  const shared_memory & shared) {
        const int lane = threadIdx.x % 32;
        for (int unit = rank + threadIdx.x / 32 * ATTENTION_BLOCKS; unit < n_heads * N_PARTS; unit += N_SHARES) {
            const int head = unit / N_PARTS, element = unit % N_PARTS * 32 + lane;
            const int64_t row = static_cast<int64_t>(sequence) * a.n_head + first_head + head;
            const float2 size = of_block(&shared.sizes[lane / ATTENTION_BLOCKS][head], lane % ATTENTION_BLOCKS);
            joined found(size, N_SHARES, [&](int i) { return of_block(&shared.sums[i / ATTENTION_BLOCKS][head][element], i % ATTENTION_BLOCKS); });
            if (a.n_clusters > 1) {
                const int64_t slot = row * N_PARTS + unit % N_PARTS;
                float * of_slot = a.found + slot * a.n_clusters * ATTENTION_FOUND;
                float * to = of_slot + cluster * ATTENTION_FOUND;
                to[lane] = found.sum;
                if (lane == 0) {
                    to[32] = found.largest;
                    to[33] = found.total;
                }
                __threadfence();
                __syncwarp();
                const unsigned n_before = __shfl_sync(0xffffffff, lane == 0 ? atomicInc(a.n_found + slot, a.n_clusters - 1) : 0, 0);
                if (n_before != a.n_clusters - 1) {
                    continue;
                }
                __threadfence();
                const float * from = of_slot + lane * ATTENTION_FOUND;
                const float2 of_lane = lane < a.n_clusters ? make_float2(__ldcg(from + 32), __ldcg(from + 33)) : make_float2(-FLT_MAX, 0);
                found = joined(of_lane, a.n_clusters, [&](int i) { return __ldcg(of_slot + i * ATTENTION_FOUND + lane); });
            }
            float factor = 1;
            if (a.sinks) {
                const float sink = a.sinks[first_head + head], top = fmaxf(found.largest, sink);
                factor = __expf(found.largest - top);
                found.total = found.total * factor + __expf(sink - top);
            }
            a.out[row * D + element] = found.total > 0 ? found.sum * factor / found.total : 0;
        }
    }

    static __device__ __forceinline__ void prepare(const heads & h, int position, shared_memory & shared) {
        for (int i = threadIdx.x; i < D / 2; i += 32 * N_WARPS) {
            shared.turns[i] = turn_of(h, i, position);
        }
        for (int i = threadIdx.x; i < D; i += 32 * N_WARPS) {
            shared.norms[0][i] = h.q.norm ? h.q.norm[i] : 1;
            shared.norms[1][i] = h.k.norm ? h.k.norm[i] : 1;
        }
        __syncthreads();
    }

    // The token's row of K and V, which the warp has whose rows it is one of: pairs of elements a lane.
    struct own_row {
        static constexpr int N_PAIRS = D / 64;
        float2 k[N_PAIRS], v[N_PAIRS];

        __device__ __forceinline__ void load(const heads & h, int64_t from) {
#pragma unroll
            for (int i = 0; i < N_PAIRS; i++) {
                const int2 at = pair_at(h, threadIdx.x % 32 + 32 * i);
                k[i] = make_float2(__ldcg(h.k.from + from + at.x), __ldcg(h.k.from + from + at.y));
                v[i] = make_float2(__ldcg(h.v.from + from + at.x), __ldcg(h.v.from + from + at.y));
            }
        }

        // Into shared memory, where the rest of the warp sees it, and from `to` on in the caches, if it is told to.
        __device__ __forceinline__ void place(const heads & h, uint16_t * to_k, uint16_t * to_v, bool is_writer, shared_memory & shared) const {
            float factor = 1;
            if (h.k.norm) {
                float squares = 0;
#pragma unroll
                for (int i = 0; i < N_PAIRS; i++) {
                    squares += k[i].x * k[i].x + k[i].y * k[i].y;
                }
                factor = rsqrtf(sum_of_warp(squares) / D + h.eps);
            }
#pragma unroll
            for (int i = 0; i < N_PAIRS; i++) {
                const int pair = threadIdx.x % 32 + 32 * i;
                const int2 at = pair_at(h, pair);
                const float2 x = make_float2(k[i].x * factor * shared.norms[1][at.x], k[i].y * factor * shared.norms[1][at.y]);
                const float2 y = turned(x, shared.turns[pair]);
                put(y, at, to_k, is_writer, shared.own[0]);
                put(v[i], at, to_v, is_writer, shared.own[1]);
            }
            __syncwarp();
        }

        static __device__ __forceinline__ void put(float2 x, int2 at, uint16_t * to, bool is_writer, uint16_t * row) {
            const uint16_t low = __half_as_ushort(__float2half(x.x)), high = __half_as_ushort(__float2half(x.y));
            row[at.x] = low;
            row[at.y] = high;
            if (is_writer) {
                to[at.x] = low;
                to[at.y] = high;
            }
        }
    };

    static __device__ __forceinline__ float capped(float score, float cap) { return cap != 0 ? cap * tanhf(score) : score; }

    static __device__ __forceinline__ void run(const attention & a, shared_memory & shared) {
        const heads & h = a.from;
        const int rank = blockIdx.x % ATTENTION_BLOCKS, cluster = blockIdx.x / ATTENTION_BLOCKS, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, sequence = blockIdx.z;
        const int kv_head = blockIdx.y / a.n_parts, part = blockIdx.y % a.n_parts;
        const int first_head = kv_head * a.n_group + part * a.n_together, n_heads = min(a.n_together, a.n_group - part * a.n_together);
        const int64_t cache_row = h.rows[sequence], own = cache_row - a.first_row - sequence * a.sequence_rows;  // of the window
        const bool is_seen = own >= 0 && own < a.n_kv;
        // The clusters take rows in turns. The warp that has the token's own row takes it first.
        constexpr int CLUSTER_ROWS = ATTENTION_CLUSTER_ROWS;
        const int mine = cluster * CLUSTER_ROWS + (rank * N_WARPS + warp) * WARP_ROWS, turn = a.n_clusters * CLUSTER_ROWS;
        int row = mine + (is_seen ? static_cast<int>(own) / turn * turn : 0);
        row = row < a.n_kv ? row : mine;
        const bool is_owner = is_seen ? own >= row && own < row + WARP_ROWS : mine == 0;
        const uint16_t * k_from = a.k + sequence * a.k_sequence + kv_head * D + g * h.k_stride;
        const uint16_t * v_from = a.v + sequence * a.v_sequence + kv_head * D + g * h.v_stride;
        const uint16_t * mask = a.mask + sequence * a.mask_sequence + 2 * t;
        halves_of_row k, v;
        k.load(k_from + row * h.k_stride, t);
        v.load(v_from + row * h.v_stride, t);
        uint32_t hidden = *reinterpret_cast<const uint32_t *>(mask + row);
        prepare(h, h.positions[sequence], shared);
        if (h.lets_next_start) {
            let_next_start();
        }
        wait_for_earlier();

        queries q;
        part_of_row x;
        x.load(h.q.from + static_cast<int64_t>(sequence) * h.q.n_rows + (first_head + min(g, n_heads - 1)) * D, t);
        own_row fresh;
        if (is_owner) {
            fresh.load(h, static_cast<int64_t>(sequence) * h.k.n_rows + kv_head * D);
        }
        if (is_owner) {
            fresh.place(h, h.k_cache + cache_row * h.k_stride + kv_head * D, h.v_cache + cache_row * h.v_stride + kv_head * D, part == 0, shared);
            if (is_seen && g == own % WARP_ROWS) {
                k.copy(shared.own[0], t);
                v.copy(shared.own[1], t);
            }
        }
        if (h.q.norm) {
            x.norm(shared.norms[0], t, h.eps);
        }
        x.turn(h, shared.turns, t);
        q.take(x, a.scale);

        if constexpr (!IS_ONCE) {
            q.leave(shared);
        }
        softened all;
        const auto masked = [&](float2 scores) {
            const float2 off = floats_of(hidden);
            return make_float2(capped(scores.x, a.softcap) + off.x, capped(scores.y, a.softcap) + off.y);
        };
#pragma unroll 1
        for (int n_left = IS_ONCE ? 1 : (a.n_kv - cluster * CLUSTER_ROWS + turn - CLUSTER_ROWS) / turn; n_left > 1; n_left--) {
            const float2 scores = masked(q.scores(k, shared));
            row = row + turn < a.n_kv ? row + turn : mine;
            k.load(k_from + row * h.k_stride, t);
            hidden = *reinterpret_cast<const uint32_t *>(mask + row);
            all.add(scores, v);
            v.load(v_from + row * h.v_stride, t);
        }
        all.add(masked(q.scores(k, shared)), v);
        all.leave(shared);
        wait_for_cluster();
        add_up(a, rank, cluster, first_head, n_heads, sequence, shared);
        wait_for_cluster();  // nobody leaves while others read what it has
    }
};
