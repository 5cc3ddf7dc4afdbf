// Attention of one token of each sequence in one launch: Q normed and rotated, K and V stored, scores, softmax and sums.
// A cluster of blocks shares a window's rows, each warp for itself, and adds up the parts through each other's shared memory.
// K and V of earlier tokens are asked for before the earlier kernels have ended; the token's own row this launch makes.
#pragma once

#include "attention_rows.cuh"
#include "launch_order.cuh"
#include "warp_sums.cuh"

// D and IS_ONCE: see attention_rows.
template <int D, bool IS_ONCE>
struct attention_kernel {
    using rows = attention_rows<D, IS_ONCE>;
    using shared_memory = typename rows::shared_memory;
    static constexpr int N_WARPS = rows::N_WARPS, N_PARTS = rows::N_PARTS;
    static constexpr int WARP_ROWS = ATTENTION_ROWS / N_WARPS;
    static constexpr int N_SHARES = ATTENTION_BLOCKS * N_WARPS;
    static_assert(WARP_ROWS == 8 && rows::N_HEADS == 8 && N_SHARES == 32);

    // Shares of 32 elements of a head, an element a lane; lane i knows what share i counts. Then of the whole.
    struct joined {
        float sum = 0, largest, total;

        template <class SHARE>
        __device__ __forceinline__ joined(float2 size, int n_shares, const SHARE & share) {
            largest = warp_max(size.x);
            const float factor = __expf(size.x - largest);
            total = warp_sum(size.y * factor);
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
                factor = rsqrtf(warp_sum(squares) / D + h.eps);
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
        const int rank = blockIdx.x % ATTENTION_BLOCKS, cluster = blockIdx.x / ATTENTION_BLOCKS, sequence = blockIdx.z;
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
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
        typename rows::halves_of_row k, v;
        k.load(k_from + row * h.k_stride, t);
        v.load(v_from + row * h.v_stride, t);
        uint32_t hidden = *reinterpret_cast<const uint32_t *>(mask + row);
        prepare(h, h.positions[sequence], shared);
        if (h.lets_next_start) {
            let_next_start();
        }
        wait_for_earlier();

        typename rows::queries q;
        typename rows::part_of_row x;
        x.load(h.q.from + static_cast<int64_t>(sequence) * h.q.n_rows + (first_head + min(g, n_heads - 1)) * D, t);
        own_row fresh;
        if (is_owner) {
            fresh.load(h, static_cast<int64_t>(sequence) * h.k.n_rows + kv_head * D);
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
        typename rows::softened all;
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
