// Products of several columns, whose activations were rounded by a launch of their own (rounded_input.h): blocks only copy
// them. Where shared memory holds them all they are copied once; else a unit of them comes with every unit of weights.
#pragma once

#include "products.cuh"

// How a type of weights wants its activations.
template <class W>
constexpr rounding rounding_for() {
    return W::IS_ROTATED ? ROUNDED_ROTATED : W::SUMS == sum_kind::of_quants ? ROUNDED_WITH_SUMS : ROUNDED_PLAIN;
}

template <class W, int N, bool IS_GATED, bool IS_LOOSE, bool IS_STREAMED>
struct wide_kernel {
    static constexpr int ROWS = 16;
    using product = product_kernel<W, N, ROWS, IS_GATED, IS_LOOSE>;
    using tile_place = typename product::tile_place;
    using addition = typename product::addition;
    using layout = typename product::layout;
    using ring = typename product::ring;

    // Four warps have a thread for each result of so many columns.
    static constexpr int PASS_COLUMNS = N < 128 / product::OUT_ROWS ? N : 128 / product::OUT_ROWS;
    static constexpr int N_PASSES = N / PASS_COLUMNS;

    template <int UNIT_BYTES>
    static __device__ __forceinline__ void copy_part(const void * from, int unit, void * to, int place) {
        const char * source = static_cast<const char *>(from) + static_cast<int64_t>(unit) * UNIT_BYTES;
        const uint32_t address = shared_address(to) + place * UNIT_BYTES;
#pragma unroll
        for (int i = 0; i < UNIT_BYTES; i += 512) {
            const int at = i + threadIdx.x % 32 * 16;
            if (i + 512 <= UNIT_BYTES || at < UNIT_BYTES) {
                copy_16(address + at, source + at);
            }
        }
    }

    // This warp copies a unit of activations to the place of another.
    static __device__ __forceinline__ void copy_unit(const products & p, int unit, const shared_input & to, int place) {
        copy_part<32 * UNIT_BLOCKS * N>(p.rounded.q, unit, to.q, place);
        copy_part<4 * UNIT_BLOCKS * N>(p.rounded.d, unit, to.d, place);
        if constexpr (W::SUMS != sum_kind::none) {
            copy_part<4 * UNIT_BLOCKS * N>(p.rounded.s, unit, to.s, place);
        }
    }

    // All of them. Ends with a barrier.
    static __device__ __forceinline__ void copy_all(const products & p, int n_units, const shared_input & to, uint32_t arrival) {
        for (int unit = threadIdx.x / 32; unit < n_units; unit += blockDim.x / 32) {
            copy_unit(p, unit, to, unit);
        }
        copies_arrive(arrival);
        wait_barrier(arrival, 0);
        __syncthreads();
    }

    static __device__ __forceinline__ tile_place pass_of(const products & p, tile_place tile, int pass) {
        tile.column = pass * PASS_COLUMNS;
        tile.n_columns = min(p.n_columns - tile.column, PASS_COLUMNS);
        return tile;
    }

    // A warp's units, tile after tile, as they are asked for.
    struct walk {
        int tile, unit, first_unit, n_units, n_groups;
        tile_place from;

        __device__ __forceinline__ void find(const products & p) {
            if (tile < p.n_tiles) {
                from = product::place_of(p, tile);
            }
        }
        __device__ __forceinline__ bool has_more(const products & p) const { return tile < p.n_tiles && first_unit < n_units; }

        __device__ __forceinline__ void fill(const products & p, ring & weights, int slot) const {
            const int64_t offset = static_cast<int64_t>(unit) * W::UNIT_BYTES;
            weights.fill(slot, from.data + offset, from.other + offset, product::unit_bytes(p, unit));
        }
        __device__ __forceinline__ void go_on(const products & p) {
            unit += p.n_group_warps;
            if (unit >= n_units) {
                unit = first_unit;
                tile += n_groups;
                find(p);
            }
        }
    };

    // Asks for as many units as there are slots: of weights at once, of activations when they are there.
    static __device__ __forceinline__ void start(const products & p, walk & ahead, ring & weights, const shared_input & x, int first_place) {
        walk early = ahead;
#pragma unroll 1
        for (int s = 0; s < p.n_slots && early.has_more(p); s++) {
            early.fill(p, weights, s);
            if constexpr (!IS_STREAMED) {
                weights.close();
            }
            early.go_on(p);
        }
        wait_for_earlier();
        if constexpr (IS_STREAMED) {
#pragma unroll 1
            for (int s = 0; s < p.n_slots && ahead.has_more(p); s++) {
                copy_unit(p, ahead.unit, x, first_place + s);
                weights.close();
                ahead.go_on(p);
            }
        } else {
            ahead = early;
        }
    }

    static __device__ __forceinline__ void run(const products & p, char * memory) {
        if (p.next != NEXT_AT_END) {
            let_next_start();
        }
        const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
        const int group = warp / p.n_group_warps, group_warp = warp % p.n_group_warps;
        const int n_groups = n_warps / p.n_group_warps * gridDim.x;
        const int n_units = (p.n_weights + UNIT_WEIGHTS - 1) / UNIT_WEIGHTS;
        const int first_place = warp * p.n_slots;  // of activations that come with the warp's weights
        const layout shared(p, IS_STREAMED ? n_warps * p.n_slots : n_units, memory);
        const uint32_t arrival = shared_address(shared.x.factors);
        if (!IS_STREAMED && threadIdx.x == 0) {
            init_barrier(arrival, blockDim.x);
        }
        ring weights(shared.slots + warp * p.n_slots * ring::shape::SLOT_BYTES, shared.barriers + 8 * warp * p.n_slots, p.n_slots,
                     p.row_bytes);
        int tile_number = static_cast<int>(blockIdx.x) + group * static_cast<int>(gridDim.x);
        walk ahead = {tile_number, group_warp, group_warp, n_units, n_groups, {}};
        ahead.find(p);
        start(p, ahead, weights, shared.x, first_place);
        if constexpr (!IS_STREAMED) {
            __syncthreads();  // the barrier is there
            copy_all(p, n_units, shared.x, arrival);
        }
        const typename product::lane_words words;
        for (int turn = 0; tile_number < p.n_tiles; tile_number += n_groups, turn ^= 1) {
            const tile_place tile = product::place_of(p, tile_number);
            addition add[N_PASSES];
#pragma unroll
            for (int pass = 0; pass < N_PASSES; pass++) {
                add[pass] = addition(p, pass_of(p, tile, pass));
            }
            lane_sums<N, ROWS> sums;
            for (int unit = group_warp; unit < n_units; unit += p.n_group_warps) {
                const int place = IS_STREAMED ? first_place + weights.taken : unit;
                const uint32_t slot = weights.take();
                product::multiply_unit(p, tile, unit, memory + (slot - shared_address(memory)), slot, shared, place, words, sums);
                weights.done();
                if (ahead.has_more(p)) {
                    const int next = weights.issued;
                    ahead.fill(p, weights, next);
                    if constexpr (IS_STREAMED) {
                        copy_unit(p, ahead.unit, shared.x, first_place + next);
                    }
                    weights.close();
                    ahead.go_on(p);
                }
            }
            product::keep_partial(sums, shared.partial + (turn * n_warps + warp) * ROWS * N);
            wait_for_group(group + 1, 32 * p.n_group_warps);
            const float * partial = shared.partial + (turn * n_warps + group * p.n_group_warps) * ROWS * N;
#pragma unroll
            for (int pass = 0; pass < N_PASSES; pass++) {
                product::finish(p, pass_of(p, tile, pass), add[pass], partial + pass * PASS_COLUMNS);
            }
        }
    }
};

template <class W, int N, bool IS_GATED, bool IS_LOOSE, bool IS_STREAMED>
static __global__ void PRODUCT_REGISTERS multiply_wide(const __grid_constant__ products p) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    wide_kernel<W, N, IS_GATED, IS_LOOSE, IS_STREAMED>::run(p, memory);
#endif
}
