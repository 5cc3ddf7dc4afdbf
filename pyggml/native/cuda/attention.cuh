// Attention of few tokens: a block takes the queries of one head of the cache, a warp tiles of 16 of its rows, which
// stream through shared memory. Warps and blocks take tiles in turn, so that a sliding window is shared by all; tiles that
// the mask hides whole are left out. Softmax goes on tile by tile; parts are added by the last block of a group to end.
// Products are those of tensor cores with float32 sums. Q and the weights of V are two halves each (a value and what
// its rounding left), so that only K and V are float16.
#pragma once

#include "attention_parts.cuh"
#include "attention_softmax.cuh"
#include "launch_order.cuh"
#include "machine_words.cuh"

#include <cuda_fp16.h>

static __device__ __forceinline__ uint32_t halves_of(float low, float high) {
    return __half_as_ushort(__float2half(low)) | static_cast<uint32_t>(__half_as_ushort(__float2half(high))) << 16;
}

static __device__ __forceinline__ float left_of(float v) {
    return v - __half2float(__float2half(v));
}

template <int D>
struct attention_kernel {
    static constexpr int ROW_BYTES = 2 * D + 16;  // so that 8 rows lie in different banks
    static constexpr int TILE_BYTES = ATTENTION_TILE * ROW_BYTES;
    static constexpr int N_AHEAD = D > 128 ? 1 : D > 64 ? 2 : 4;  // tiles of a warp on their way
    static constexpr int WARP_BYTES = N_AHEAD * 2 * TILE_BYTES;
    static constexpr int N_THREADS = 32 * N_ATTENTION_WARPS;
    static_assert(WARP_BYTES >= 4 * D * ATTENTION_QUERIES, "a warp's results take the place of its tiles");

    // Parts of the block's shared memory.
    struct layout {
        static constexpr int Q = 0;  // two tiles
        static constexpr int TILES = 2 * TILE_BYTES;
        static constexpr int STATS = TILES + N_ATTENTION_WARPS * WARP_BYTES;
        static constexpr int WEIGHTS = STATS + 8 * N_ATTENTION_WARPS * ATTENTION_QUERIES;
        static constexpr int TOTALS = WEIGHTS + 4 * MAX_SPLITS * ATTENTION_QUERIES;
        static constexpr int SIZE = TOTALS + 8 * ATTENTION_QUERIES;
    };

    static __device__ __forceinline__ const char * start_of(const head_rows & of, const attention_block & block) {
        return of.data + block.seq * of.seq + block.kv_head * of.head;
    }

    // Asks for the rows of a tile; rows behind the last are the last.
    static __device__ __forceinline__ void issue(const attention & p, const head_rows & of, const char * start, int tile, uint32_t to) {
        constexpr int A_ROW = D / 8;
        if (tile != NO_TILE) {
#pragma unroll
            for (int k = 0; k < ATTENTION_TILE * A_ROW / 32; k++) {
                const int i = 32 * k + static_cast<int>(threadIdx.x) % 32, row = i / A_ROW, part = i % A_ROW;
                const int64_t from = min(tile * ATTENTION_TILE + row, p.n_kv - 1);
                copy_16(to + row * ROW_BYTES + 16 * part, start + from * of.row + 16 * part);
            }
        }
        commit_copies();
    }

    // Rows of the first tile come to L2 while the earlier kernels run; what these still write is seen later all the same.
    static __device__ __forceinline__ void warm(const attention & p, const head_rows & of, const char * start, const tile_walk & walk) {
        constexpr int LINE = 128, A_ROW = (2 * D + LINE - 1) / LINE;
        for (int i = threadIdx.x % 32; i < ATTENTION_TILE * A_ROW; i += 32) {
            const int64_t row = walk.first * ATTENTION_TILE + i / A_ROW;
            if (row < p.n_kv) {
                bring_to_l2(start + row * of.row + i % A_ROW * LINE);
            }
        }
    }

    // The block's queries, scaled, as halves and what these leave.
    static __device__ __forceinline__ void take_queries(const attention & p, const attention_block & block, char * to) {
        const float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale;
        for (int i = threadIdx.x; i < ATTENTION_QUERIES * D / 4; i += N_THREADS) {
            const int query = i / (D / 4), at = i % (D / 4) * 4;
            float4 q = make_float4(0, 0, 0, 0);
            if (query < block.n_queries) {
                const char * head = p.q.data + block.seq * p.q.seq + block.head_of(p, query) * p.q.head;
                q = __ldcg(reinterpret_cast<const float4 *>(head + block.token_of(p, query) * p.q.row) + at / 4);
            }
            q = make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale);
            auto * upper = reinterpret_cast<uint2 *>(to + query * ROW_BYTES + 2 * at);
            auto * lower = reinterpret_cast<uint2 *>(to + TILE_BYTES + query * ROW_BYTES + 2 * at);
            *upper = make_uint2(halves_of(q.x, q.y), halves_of(q.z, q.w));
            *lower = make_uint2(halves_of(left_of(q.x), left_of(q.y)), halves_of(left_of(q.z), left_of(q.w)));
        }
    }

    // The mask of a lane's scores: for each of its two queries four rows of the tile.
    static __device__ __forceinline__ void read_mask(const attention & p, const attention_block & block, int tile, uint16_t hidden[8]) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = min(g + 8 * r, block.n_queries - 1);
            const uint16_t * row = p.mask ? block.mask_of(p, block.token_of(p, query)) : nullptr;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = tile * ATTENTION_TILE + i / 2 * 8 + 2 * t + i % 2;
                hidden[4 * r + i] = 0xfc00;
                if (tile != NO_TILE && at < p.n_kv) {
                    hidden[4 * r + i] = row ? __ldcg(row + at) : static_cast<uint16_t>(0);
                }
            }
        }
    }

    // Scores of the tile's first and second 8 rows. A lane's address is of a row of one of four 8 x 8 matrices.
    static __device__ __forceinline__ void multiply_keys(uint32_t q, uint32_t k, float s[2][4]) {
        const int matrix = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
        const uint32_t of_q = q + (matrix % 2 * 8 + row) * ROW_BYTES + matrix / 2 * 16;
        const uint32_t of_k = k + (matrix / 2 * 8 + row) * ROW_BYTES + matrix % 2 * 16;
        float small[2][4] = {};
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t upper[4], lower[4], b[4];
            load_matrices(of_q + 32 * i, upper);
            load_matrices(of_q + TILE_BYTES + 32 * i, lower);
            load_matrices(of_k + 32 * i, b);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                multiply_halves(s[j], upper, b[2 * j], b[2 * j + 1]);
                multiply_halves(small[j], lower, b[2 * j], b[2 * j + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            s[i / 4][i % 4] += small[i / 4][i % 4];
        }
    }

    // Adds the tile's rows of V by their weights.
    static __device__ __forceinline__ void add_values(uint32_t v, const float s[2][4], const float factor[2], float o[D / 8][4]) {
        const int matrix = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
        const uint32_t of_v = v + (matrix % 2 * 8 + row) * ROW_BYTES + matrix / 2 * 16;
        uint32_t upper[4], lower[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float * pair = &s[i / 2][i % 2 * 2];
            upper[i] = halves_of(pair[0], pair[1]);
            lower[i] = halves_of(left_of(pair[0]), left_of(pair[1]));
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t b[4];
            load_transposed(of_v + 32 * i, b);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float * to = o[2 * i + j];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    to[c] *= factor[c / 2];
                }
                multiply_halves(to, upper, b[2 * j], b[2 * j + 1]);
                multiply_halves(to, lower, b[2 * j], b[2 * j + 1]);
            }
        }
    }

    // A warp's results to shared memory, in place of its tiles.
    static __device__ __forceinline__ void keep(running_softmax & softmax, const float o[D / 8][4], char * values, float2 * stats) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        wait_copies<0>();
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            softmax.sum[r] += __shfl_xor_sync(0xffffffff, softmax.sum[r], 1);
            softmax.sum[r] += __shfl_xor_sync(0xffffffff, softmax.sum[r], 2);
            if (t == 0) {
                stats[g + 8 * r] = make_float2(softmax.most[r], softmax.sum[r]);
            }
            auto * row = reinterpret_cast<float2 *>(values) + (g + 8 * r) * D / 2;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                row[4 * i + t] = make_float2(o[i][2 * r], o[i][2 * r + 1]);
            }
        }
    }

    // Streams the warp's tiles.
    static __device__ __forceinline__ void walk_tiles(const attention & p, const attention_block & block, char * memory) {
        const int warp = threadIdx.x / 32;
        const char * k = start_of(p.k, block);
        const char * v = start_of(p.v, block);
        tile_walk walk(p);
        warm(p, p.k, k, walk);
        warm(p, p.v, v, walk);
        wait_for_earlier();
        char * own = memory + layout::TILES + warp * WARP_BYTES;
        const uint32_t q = shared_address(memory + layout::Q), slots = shared_address(own);
        int queue[N_AHEAD + 1];  // tiles on their way, and one to come
#pragma unroll
        for (int i = 0; i < N_AHEAD; i++) {
            queue[i] = i > 0 ? walk.next(p, block) : walk.first < walk.n_tiles ? walk.first : NO_TILE;
            issue(p, p.k, k, queue[i], slots + 2 * i * TILE_BYTES);
            issue(p, p.v, v, queue[i], slots + (2 * i + 1) * TILE_BYTES);
        }
        uint16_t hidden[8];
        read_mask(p, block, queue[0], hidden);
        take_queries(p, block, memory + layout::Q);
        __syncthreads();
        running_softmax softmax;
        float o[D / 8][4] = {};
        for (int slot = 0; queue[0] != NO_TILE; slot = slot + 1 == N_AHEAD ? 0 : slot + 1) {
            const uint32_t of_k = slots + 2 * slot * TILE_BYTES, of_v = of_k + TILE_BYTES;
            float s[2][4] = {}, factor[2];
            wait_copies<2 * N_AHEAD - 1>();
            __syncwarp();
            multiply_keys(q, of_k, s);
            __syncwarp();
            queue[N_AHEAD] = walk.next(p, block);
            issue(p, p.k, k, queue[N_AHEAD], of_k);
            softmax.weigh(p, hidden, s, factor);
            read_mask(p, block, queue[1], hidden);
            wait_copies<2 * N_AHEAD - 1>();
            __syncwarp();
            add_values(of_v, s, factor, o);
            __syncwarp();
            issue(p, p.v, v, queue[N_AHEAD], of_v);
#pragma unroll
            for (int i = 0; i < N_AHEAD; i++) {
                queue[i] = queue[i + 1];
            }
        }
        keep(softmax, o, own, reinterpret_cast<float2 *>(memory + layout::STATS) + warp * ATTENTION_QUERIES);
    }

    static __device__ __forceinline__ void run(const attention & p, char * memory) {
        if (p.lets_next_start) {
            let_next_start();
        }
        const attention_block block(p);
        walk_tiles(p, block, memory);
        __syncthreads();
        const bool is_alone = gridDim.x == 1;
        const parts_room room = {reinterpret_cast<float *>(memory + layout::WEIGHTS), reinterpret_cast<float2 *>(memory + layout::TOTALS)};
        const attention_parts<false> warps = {reinterpret_cast<const float *>(memory + layout::TILES),
                                              reinterpret_cast<const float2 *>(memory + layout::STATS), WARP_BYTES / 4,
                                              ATTENTION_QUERIES, N_ATTENTION_WARPS};
        add_parts<D>(p, block, warps, is_alone, room);
        if (is_alone) {
            return;
        }
        __threadfence();
        __syncthreads();
        if (!__syncthreads_or(threadIdx.x == 0 && atomicInc(p.n_ended + block.group, gridDim.x - 1) == gridDim.x - 1)) {
            return;
        }
        __threadfence();
        const int64_t first = static_cast<int64_t>(block.group) * gridDim.x * ATTENTION_QUERIES;
        const attention_parts<true> blocks = {p.parts + first * D, stats_in<D>(p) + first, ATTENTION_QUERIES * D, ATTENTION_QUERIES,
                                              static_cast<int>(gridDim.x)};
        add_parts<D>(p, block, blocks, true, room);
    }
};

template <int D>
static __global__ void __launch_bounds__(32 * N_ATTENTION_WARPS, 2) attend(const __grid_constant__ attention p) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    attention_kernel<D>::run(p, memory);
#endif
}
