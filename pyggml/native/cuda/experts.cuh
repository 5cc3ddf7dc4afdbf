// Products of few tokens with the experts that each of them chose, made of the parts of products.cuh: every tile is of one
// expert (gated), or adds up one token's experts one behind the other, always in the same order.
// Nobody knows which weights are wanted before the router's kernel has ended. The gated launch waits for it, keeps a copy of
// the choice, and only then lets the next one start: that one reads the copy at once and asks for its weights while this
// one runs. Its results may lie where the choice was.
#pragma once

#include "experts.h"
#include "products.cuh"

template <class W, int ROWS, bool IS_GATED, bool IS_LOOSE>
struct expert_kernel {
    using product = product_kernel<W, 1, ROWS, IS_GATED, IS_LOOSE>;
    using tile_place = typename product::tile_place;
    using layout = typename product::layout;
    using ring = typename product::ring;
    using taker = input_taker<W, 1>;
    static constexpr int OUT_ROWS = product::OUT_ROWS;
    static constexpr int N_HELD = taker::N_HELD / 2;  // chunks

    // In shared memory.
    struct choice {
        int * expert;  // of each token and place
        float * weight;

        __device__ __forceinline__ choice(char * memory) :
            expert(reinterpret_cast<int *>(memory)), weight(reinterpret_cast<float *>(memory) + MAX_CHOSEN) {}

        // Ends with a barrier.
        __device__ __forceinline__ void learn(const expert_products & p) {
            const int i = threadIdx.x;
            if (i < p.n_columns * p.n_used) {
                const int token = i / p.n_used, place = i % p.n_used;
                expert[i] = __ldcg(p.ids + token * p.ids_stride + place);
                weight[i] = __ldcg(p.weights + token * p.weights_stride + place);
                if (IS_GATED && blockIdx.x == 0) {
                    p.kept_ids[i] = expert[i];
                    p.kept_weights[i] = weight[i];
                    __threadfence();
                }
            }
            __syncthreads();
        }
    };

    static __device__ __forceinline__ int rows_of_x(const expert_products & p) { return IS_GATED ? 1 : p.n_used; }  // a token's

    // A tile with the matrix of its row's expert number `place`; that of a gated one is fixed.
    static __device__ __forceinline__ tile_place place_of(const expert_products & p, const choice & chosen, int tile, int place) {
        tile_place at;
        at.matrix = 0;
        at.expert = chosen.expert[tile / p.n_result_tiles * rows_of_x(p) + place];
        at.column = tile / p.n_result_tiles;
        at.n_columns = 1;
        at.first_row = tile % p.n_result_tiles * OUT_ROWS;
        at.row = min(at.first_row, p.matrix[0].n_rows - OUT_ROWS);
        const int64_t offset = at.expert * p.expert_bytes + at.row * p.row_bytes;
        at.data = p.matrix[0].data + offset;
        at.other = IS_GATED ? p.matrix[1].data + offset : at.data + 8 * p.row_bytes;
        return at;
    }

    static __device__ __forceinline__ void load_values(float4 held[N_HELD], const expert_products & p, int token, int start) {
        taker::load(held, p.in.x + token * p.in.x_stride + start, rows_of_x(p) * p.n_weights - start);
    }

    // Rows of x in whole units, each times its expert's weight. `held` has the first values. Ends with a barrier.
    static __device__ __forceinline__ void take_input(float4 held[N_HELD], const expert_products & p, const choice & chosen,
                                                      const shared_input & to) {
        const int n_rows = rows_of_x(p), n_values = n_rows * p.n_weights;
        const int n_padded = (p.n_weights + UNIT_WEIGHTS - 1) / UNIT_WEIGHTS * UNIT_WEIGHTS;
#pragma unroll 1
        for (int token = 0; token < p.n_columns; token++) {
#pragma unroll 1
            for (int start = 0; start < n_values; start += N_HELD * CHUNK) {
                if (token + start > 0) {
                    load_values(held, p, token, start);
                }
                taker::template round_held<N_HELD>(held, n_values - start, [&](float4 v, int k) {
                    const bool is_inside = start + k < n_values;
                    const int i = is_inside ? start + k : 0;
                    const int row = token * n_rows + i / p.n_weights;
                    round_four<W, 1>(v, 0, row * n_padded + i % p.n_weights, is_inside, to, IS_GATED ? 1.0f : chosen.weight[row]);
                });
            }
        }
        __syncthreads();
    }

    // Scales of blocks behind the end of a row are 0.
    static __device__ __forceinline__ void clear_ends(const expert_products & p, int n_units, const shared_input & to) {
        const int n_blocks = p.n_weights / 32, n_padded = n_units * UNIT_BLOCKS;
        const int n_scales = n_blocks == n_padded ? 0 : p.n_columns * rows_of_x(p) * n_padded;
        for (int i = threadIdx.x; i < n_scales; i += blockDim.x) {
            if (i % n_padded >= n_blocks) {
                to.d[i] = 0;
                if (to.s) {
                    to.s[i] = 0;
                }
            }
        }
    }

    // A warp's units of a tile, expert after expert.
    struct walk {
        int tile, place, unit;
        tile_place at;

        __device__ __forceinline__ void begin(const expert_products & p, const choice & chosen, int tile_number, int first, int n_units) {
            tile = tile_number;
            place = 0;
            unit = first;
            find(p, chosen, n_units);
        }
        __device__ __forceinline__ void go_on(const expert_products & p, const choice & chosen, int n_units) {
            unit += p.n_group_warps;
            if (unit >= n_units) {
                find(p, chosen, n_units);
            }
        }
        __device__ __forceinline__ bool is_inside(const expert_products & p) const { return tile < p.n_tiles && place < rows_of_x(p); }

        __device__ __forceinline__ void find(const expert_products & p, const choice & chosen, int n_units) {
            for (; unit >= n_units; unit -= n_units) {
                place++;
            }
            if (is_inside(p)) {
                at = place_of(p, chosen, tile, place);
            }
        }
    };

    static __device__ __forceinline__ void run(const expert_products & p, char * memory) {
        const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
        const int group = warp / p.n_group_warps, group_warp = warp % p.n_group_warps;
        const int n_groups = n_warps / p.n_group_warps * gridDim.x;
        const int n_units = (p.n_weights + UNIT_WEIGHTS - 1) / UNIT_WEIGHTS, n_token_units = rows_of_x(p) * n_units;
        const layout shared(p, p.n_columns * n_token_units, memory);
        choice chosen(shared.end);
        ring weights(shared.slots + warp * p.n_slots * ring::shape::SLOT_BYTES, shared.barriers + 8 * warp * p.n_slots, p.n_slots,
                     p.row_bytes);
        int tile_number = static_cast<int>(blockIdx.x) + group * static_cast<int>(gridDim.x);
        typename product::tile_ends ends(p, shared, group, p.boxes);
        walk ahead;
        const auto issue = [&] {
            if (ahead.is_inside(p)) {
                product::ask(p, p.boxes, weights, ahead.at, ahead.unit);
                ahead.go_on(p, chosen, n_units);
                if (!ahead.is_inside(p)) {
                    ahead.begin(p, chosen, ahead.tile + n_groups, group_warp, n_units);
                }
            }
        };
        const auto ask = [&] {
            chosen.learn(p);
            if (IS_GATED) {
                let_next_start();
            }
            ahead.begin(p, chosen, tile_number, group_warp, n_units);
#pragma unroll 1
            for (int s = 0; s < p.n_slots; s++) {
                issue();
            }
        };
        clear_ends(p, n_units, shared.x);
        float4 held[N_HELD];
        if constexpr (IS_GATED) {
            wait_for_earlier();
            load_values(held, p, 0, 0);
            ask();
        } else {
            if (p.next == NEXT_AT_ONCE) {
                let_next_start();
            }
            ask();
            wait_for_earlier();
            load_values(held, p, 0, 0);
        }
        take_input(held, p, chosen, shared.x);
        if (!IS_GATED && p.next == NEXT_WITH_INPUT) {
            let_next_start();
        }
        const typename product::lane_words words;
        for (; tile_number < p.n_tiles; tile_number += n_groups) {
            const tile_place tile = place_of(p, chosen, tile_number, 0);
            ends.begin(p, tile);
            const int first_unit = (IS_GATED ? tile.column / p.n_used : tile.column) * n_token_units;
            lane_sums<1, ROWS> sums;
            walk now;
            for (now.begin(p, chosen, tile_number, group_warp, n_units); now.is_inside(p); now.go_on(p, chosen, n_units)) {
                const uint32_t slot = weights.take();
                product::multiply_unit(p, now.at, now.unit, memory + (slot - shared_address(memory)), slot, shared,
                                       first_unit + now.place * n_units + now.unit, words, sums);
                weights.done();
                issue();
            }
            ends.leave(p, sums);
        }
        ends.end(p);
    }
};

template <class W, int ROWS, bool IS_GATED, bool IS_LOOSE>
static __global__ void PRODUCT_REGISTERS multiply_experts(const __grid_constant__ expert_products p) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    expert_kernel<W, ROWS, IS_GATED, IS_LOOSE>::run(p, memory);
#endif
}
