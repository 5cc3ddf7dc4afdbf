// Results of warps, then of blocks, added up: each has its own largest score, so each gets a weight.
#pragma once

#include "attention_tiles.cuh"

#include <cmath>

// Parts of softmax that are to be added: values [part][query][D], and the largest score and sum of weights of each.
template <bool IS_GLOBAL>
struct attention_parts {
    const float * values;
    const float2 * stats;
    int value_stride, stats_stride, n;

    __device__ __forceinline__ float2 stats_of(int part, int query) const {
        const float2 * from = stats + part * stats_stride + query;
        return IS_GLOBAL ? __ldcg(from) : *from;
    }

    __device__ __forceinline__ float4 value_of(int part, int at) const {
        const auto * from = reinterpret_cast<const float4 *>(values + part * value_stride + at);
        return IS_GLOBAL ? __ldcg(from) : *from;
    }
};

// In shared memory: [query][MAX_SPLITS] weights; of each query the largest score and the sum of weights.
struct parts_room {
    float * weights;
    float2 * totals;
};

// Statistics of blocks lie behind the values of all of them.
template <int D>
static __device__ __forceinline__ float2 * stats_in(const attention & p) {
    return reinterpret_cast<float2 *>(p.parts + static_cast<int64_t>(gridDim.x) * gridDim.y * gridDim.z * ATTENTION_QUERIES * D);
}

// The weight of each part of each query, and the largest score and sum of weights of all of them.
template <bool IS_GLOBAL>
static __device__ __forceinline__ void weigh_parts(const attention_block & block, const attention_parts<IS_GLOBAL> & parts,
                                                   const parts_room & room) {
    const int lane = threadIdx.x % 32;
    for (int query = threadIdx.x / 32; query < block.n_queries; query += N_ATTENTION_WARPS) {
        float most = -INFINITY, sum = 0;
        for (int i = lane; i < parts.n; i += 32) {
            most = fmaxf(most, parts.stats_of(i, query).x);
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, offset));
        }
        for (int i = lane; i < parts.n; i += 32) {
            const float2 of = parts.stats_of(i, query);
            const float weight = __expf(of.x - (most == -INFINITY ? 0.0f : most));
            room.weights[query * MAX_SPLITS + i] = weight;
            sum += weight * of.y;
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, offset);
        }
        if (lane == 0) {
            room.totals[query] = make_float2(most, sum);
        }
    }
    __syncthreads();
}

// The part of the whole that the values of a query make out; a sink is a score without a value.
static __device__ __forceinline__ float share_of(const attention & p, const attention_block & block, int query, float2 total) {
    float factor = 1;
    if (p.sinks) {
        const float sink = p.sinks[block.head_of(p, query)], top = fmaxf(sink, total.x);
        factor = __expf(total.x - top);
        total.y = total.y * factor + __expf(sink - top);
    }
    return total.y == 0.0f ? 0.0f : factor / total.y;
}

// Adds parts: to the result if they are all, else to what the group's last block adds.
template <int D, bool IS_GLOBAL>
static __device__ __forceinline__ void add_parts(const attention & p, const attention_block & block,
                                                 const attention_parts<IS_GLOBAL> & parts, bool is_all, const parts_room & room) {
    weigh_parts(block, parts, room);
    const int64_t own = static_cast<int64_t>(block.group) * gridDim.x + blockIdx.x;
    for (int i = threadIdx.x; i < block.n_queries * D / 4; i += 32 * N_ATTENTION_WARPS) {
        const int query = i / (D / 4), at = i % (D / 4) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int part = 0; part < parts.n; part++) {
            const float weight = room.weights[query * MAX_SPLITS + part];
            const float4 v = parts.value_of(part, query * D + at);
            sum = make_float4(sum.x + weight * v.x, sum.y + weight * v.y, sum.z + weight * v.z, sum.w + weight * v.w);
        }
        float * to = p.parts + own * ATTENTION_QUERIES * D + query * D;
        if (is_all) {
            const float share = share_of(p, block, query, room.totals[query]);
            sum = make_float4(sum.x * share, sum.y * share, sum.z * share, sum.w * share);
            const int64_t row = static_cast<int64_t>(block.seq) * p.n_tokens + block.token_of(p, query);
            to = p.out + (row * p.n_head + block.head_of(p, query)) * D;
        }
        reinterpret_cast<float4 *>(to)[at / 4] = sum;
    }
    if (!is_all && threadIdx.x < block.n_queries) {
        stats_in<D>(p)[own * ATTENTION_QUERIES + threadIdx.x] = room.totals[threadIdx.x];
    }
}
