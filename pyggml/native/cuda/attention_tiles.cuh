// What a block of attention works on, and which tiles of the cache's rows its warps read.
#pragma once

#include "attention.h"

#include <cuda_runtime.h>

constexpr int N_ATTENTION_WARPS = 4;
constexpr int NO_TILE = -1;

// What a block works on.
struct attention_block {
    int kv_head, seq, first_query, n_queries, group;

    __device__ __forceinline__ explicit attention_block(const attention & p) {
        const int n_group_heads = p.n_head / p.n_head_kv;
        kv_head = blockIdx.y % p.n_head_kv;
        seq = blockIdx.z;
        first_query = blockIdx.y / p.n_head_kv * ATTENTION_QUERIES;
        n_queries = min(ATTENTION_QUERIES, n_group_heads * p.n_tokens - first_query);
        group = blockIdx.y + gridDim.y * blockIdx.z;
    }

    __device__ __forceinline__ int token_of(const attention & p, int query) const {
        return (first_query + query) / (p.n_head / p.n_head_kv);
    }

    __device__ __forceinline__ int head_of(const attention & p, int query) const {
        const int n_group_heads = p.n_head / p.n_head_kv;
        return kv_head * n_group_heads + (first_query + query) % n_group_heads;
    }

    __device__ __forceinline__ const uint16_t * mask_of(const attention & p, int token) const {
        return p.mask + seq % p.n_mask_seq * p.mask_seq + token * p.mask_row;
    }
};

// The tiles of a warp that any of the block's tokens sees, in order; looked for 32 at a time. The first is taken unseen.
struct tile_walk {
    int first, base, ahead, stride, n_tiles;
    uint32_t bits = 0;

    __device__ __forceinline__ explicit tile_walk(const attention & p) {
        first = base = ahead = threadIdx.x / 32 * gridDim.x + blockIdx.x;
        stride = N_ATTENTION_WARPS * gridDim.x;
        n_tiles = (p.n_kv + ATTENTION_TILE - 1) / ATTENTION_TILE;
    }

    __device__ __forceinline__ bool is_seen(const attention & p, const attention_block & block, int tile) const {
        if (tile >= n_tiles || !p.can_skip) {
            return tile < n_tiles;
        }
        constexpr uint32_t HIDDEN = 0xfc00fc00;
        uint32_t other = 0;
        const int last = block.token_of(p, block.n_queries - 1);
        for (int token = block.token_of(p, 0); token <= last; token++) {
            const auto * row = reinterpret_cast<const uint4 *>(block.mask_of(p, token) + tile * ATTENTION_TILE);
            const uint4 a = __ldcg(row), b = __ldcg(row + 1);
            other |= (a.x ^ HIDDEN) | (a.y ^ HIDDEN) | (a.z ^ HIDDEN) | (a.w ^ HIDDEN);
            other |= (b.x ^ HIDDEN) | (b.y ^ HIDDEN) | (b.z ^ HIDDEN) | (b.w ^ HIDDEN);
        }
        return other != 0;
    }

    __device__ __forceinline__ int next(const attention & p, const attention_block & block) {
        while (bits == 0) {
            if (ahead >= n_tiles) {
                return NO_TILE;
            }
            base = ahead;
            bits = __ballot_sync(0xffffffff, is_seen(p, block, base + static_cast<int>(threadIdx.x) % 32 * stride));
            bits &= base == first ? ~1u : ~0u;
            ahead += 32 * stride;
        }
        const int place = __ffs(static_cast<int>(bits)) - 1;
        bits &= bits - 1;
        return base + place * stride;
    }
};
