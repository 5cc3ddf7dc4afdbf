// Products of one column with quantised weights: every block streams whole tiles of 8 or 16 rows through shared
// memory, warps of a group share a tile along the row, and sums are always added in the same order.
// Weights are asked for before the earlier kernels have ended; the activations are prepared while they come.
#pragma once

#include "launch_order.cuh"
#include "product_input.cuh"

constexpr int N_PRODUCT_WARPS = N_INPUT_THREADS / 32;
constexpr int MAX_GROUPS = N_PRODUCT_WARPS / 4;  // of warps that share a tile; few enough for what fixed_memory has to spare

// Of a thread, so that two blocks leave room for one of a sum over ranks, which waits for one of them: else the other finds none,
// is dealt to a processor that has one of its kernel already, and the whole product takes nearly twice as long.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define PRODUCT_REGISTERS __maxnreg__(104)
#else
#define PRODUCT_REGISTERS __launch_bounds__(32 * (N_PRODUCT_WARPS + 1), 2)
#endif

template <class W, int N, int ROWS, bool IS_GATED, bool IS_LOOSE>
struct product_kernel {
    static constexpr int OUT_ROWS = IS_GATED ? 8 : ROWS;
    using ring = weight_ring<W, N, IS_LOOSE, ROWS>;
    using lane_words = std::conditional_t<N == 1, typename W::lane_words, no_lane_words>;

    // The tiles of a warp's group and its units in each.
    struct cursor {
        int tile, unit;
    };

    struct tile_place {
        const char * data;   // the first row's unit 0
        const char * other;  // of row 8
        int matrix, row, first_row, expert;
        int column, n_columns;  // of the results
    };

    static __device__ __forceinline__ tile_place place_of(const products & p, int tile) {
        int m = 0;
        if constexpr (!IS_GATED) {
            while (m + 1 < p.n_matrices && tile >= p.matrix[m + 1].first_tile) {
                m++;
            }
        }
        const product_matrix & of = p.matrix[m];
        tile_place at;
        at.matrix = m;
        at.expert = 0;
        at.column = 0;
        at.n_columns = p.n_columns;
        at.first_row = (tile - of.first_tile) * OUT_ROWS;
        at.row = min(at.first_row, of.n_rows - OUT_ROWS);  // the last tile overlaps the one before
        at.data = of.data + at.row * p.row_bytes;
        at.other = IS_GATED ? p.matrix[1].data + at.row * p.row_bytes : at.data + 8 * p.row_bytes;
        return at;
    }

    static __device__ __forceinline__ int unit_bytes(const products & p, int unit) {
        return IS_LOOSE ? min(W::UNIT_BYTES, static_cast<int>(p.row_bytes) - unit * W::UNIT_BYTES) : W::UNIT_BYTES;
    }

    // The ring gets a unit of a tile.
    static __device__ __forceinline__ void ask(const products & p, const matrix_boxes & boxes, ring & weights, const tile_place & from, int unit) {
        if constexpr (comes_in_boxes<N, IS_LOOSE>) {
            weights.issue(boxes.of[from.matrix], unit, from.row, from.expert);
        } else {
            const int64_t offset = static_cast<int64_t>(unit) * W::UNIT_BYTES;
            weights.issue(from.data + offset, from.other + offset, unit_bytes(p, unit));
        }
    }

    static __device__ __forceinline__ float gated(int gate, float g, float up) {
        if (gate == GATE_SWIGLU) {
            return g / (1.0f + __expf(-g)) * up;
        }
        constexpr float A = 0.044715f, ROOT = 0.79788456080286535587989211986876f;
        return 0.5f * g * (1.0f + tanhf(ROOT * g * (1.0f + A * g * g))) * up;
    }

    // What a thread adds to its one element of a tile, number i of a group's; asked for early.
    struct addition {
        int row, column;
        bool is_mine;
        float to_first, to_up;

        addition() = default;
        __device__ __forceinline__ addition(const products & p, const tile_place & at) :
            addition(p, at, threadIdx.x % (32 * p.n_group_warps)) {}
        __device__ __forceinline__ addition(const products & p, const tile_place & at, int i) {
            const product_matrix & of = p.matrix[at.matrix];
            row = at.row + i % OUT_ROWS;
            column = at.column + i / OUT_ROWS;
            is_mine = i / OUT_ROWS < at.n_columns && row >= at.first_row;
            to_first = is_mine && of.bias ? of.bias[row] : 0;
            to_up = 0;
            if constexpr (IS_GATED) {
                to_up = is_mine && p.matrix[1].bias ? p.matrix[1].bias[row] : 0;
            } else if (is_mine && of.residual) {
                to_first += __ldcg(of.residual + column * of.residual_stride + row);
            }
        }
    };

    static __device__ __forceinline__ void put(const products & p, int matrix_number, const addition & add, float sum, float up) {
        const product_matrix & matrix = p.matrix[matrix_number];
        sum = IS_GATED ? gated(p.gate, sum, up) : sum;
        matrix.out[add.column * matrix.out_stride + add.row] = sum;
    }

    static __device__ __forceinline__ void finish(const products & p, const tile_place & at, const addition & add, const float * partial) {
        if (!add.is_mine) {
            return;
        }
        float sum = add.to_first, up = add.to_up;
        const float * of = partial + (add.row - at.row) * N + add.column - at.column;
#pragma unroll 4
        for (int w = 0; w < p.n_group_warps; w++) {
            sum += of[w * ROWS * N];
            if constexpr (IS_GATED) {
                up += of[w * ROWS * N + 8 * N];
            }
        }
        put(p, at.matrix, add, sum, up);
    }

    // Adds up the lanes that hold blocks of the same column and keeps the warp's sums.
    static __device__ __forceinline__ void keep_partial(lane_sums<N, ROWS> & sums, float * to) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        constexpr int A_LANE = W::IS_HALVED && N < 8 || N == 1 ? 1 : 2;  // columns
#pragma unroll
        for (int k = 0; k < sums.N_EIGHTS * ROWS / 8; k++) {
            const int r = k % (ROWS / 8), first_column = k / (ROWS / 8) * 8;
            const float * from = sums.acc + first_column / 2 + 2 * r;
            float v[2] = {from[0], from[1]};
#pragma unroll
            for (int offset = N / A_LANE; offset < 4; offset *= 2) {
                v[0] += __shfl_xor_sync(0xffffffff, v[0], offset);
                v[1] += __shfl_xor_sync(0xffffffff, v[1], offset);
            }
            if (t < N / A_LANE) {
                float * mine = to + (g + 8 * r) * N + first_column + A_LANE * t;
                mine[0] = v[0];
                if constexpr (A_LANE == 2) {
                    mine[1] = v[1];
                }
            }
        }
    }

    static constexpr int N_TURNS = N == 1 ? 4 : 2;  // tiles whose sums shared memory has room for

    // Parts of the block's shared memory.
    struct layout {
        uint32_t slots, barriers, group_barriers;
        float * partial;
        shared_input x;

        char * end;

        // With room for the activations of n_units.
        __device__ __forceinline__ layout(const products & p, int n_units, char * memory) {
            const int n_warps = blockDim.x / 32;
            const int n_blocks = n_units * UNIT_BLOCKS;
            char * at = memory;
            const auto part = [&](int bytes) {
                char * start = at;
                at += (bytes + 15) / 16 * 16;
                return start;
            };
            slots = shared_address(part(n_warps * p.n_slots * ring::shape::SLOT_BYTES));
            barriers = shared_address(part(8 * n_warps * p.n_slots));
            group_barriers = N == 1 ? shared_address(part(8 * MAX_GROUPS)) : 0;
            partial = reinterpret_cast<float *>(part(4 * N_TURNS * n_warps * ROWS * N));
            x.q = reinterpret_cast<uint32_t *>(part(32 * n_blocks * N));
            x.d = reinterpret_cast<float *>(part(4 * n_blocks * N));
            x.s = W::SUMS == sum_kind::none ? nullptr : reinterpret_cast<float *>(part(4 * n_blocks * N));
            x.factors = reinterpret_cast<float *>(part(4 * 2 * N_PRODUCT_WARPS));
            end = at;
        }
    };

    // Ends the tiles of one column. A group's warps leave their sums and go on; they are added up one tile later, by each warp in
    // its turn, so that no warp waits for the others while there is something to multiply.
    struct tile_ends {
        const layout & shared;
        const bool & is_up_first;  // up's sums lie before gate's
        uint32_t barrier;
        int first_warp, group_warp;
        unsigned turn = 0;
        int matrix;
        addition mine;

        // The group's first warp makes its barrier: a barrier of the block comes before the first tile.
        __device__ __forceinline__ tile_ends(const products & p, const layout & l, int group, const matrix_boxes & boxes) :
            shared(l), is_up_first(boxes.is_up_first), barrier(l.group_barriers + 8 * group), first_warp(group * p.n_group_warps),
            group_warp(threadIdx.x / 32 - first_warp) {
            if (group_warp == 0 && threadIdx.x % 32 == 0) {
                init_barrier(barrier, p.n_group_warps);
            }
        }

        __device__ __forceinline__ bool has_turn(const products & p, unsigned of) const { return (static_cast<int>(of) & (p.n_group_warps - 1)) == group_warp; }
        __device__ __forceinline__ float * partial(unsigned of) const { return shared.partial + of % N_TURNS * N_PRODUCT_WARPS * ROWS; }

        __device__ __forceinline__ void begin(const products & p, const tile_place & tile) {
            if (has_turn(p, turn)) {
                matrix = tile.matrix;
                mine = addition(p, tile, threadIdx.x % 32);
            }
        }

        // The others' sums of the last tile are there, so that nobody reads those of three tiles ago any more.
        __device__ __forceinline__ void leave(const products & p, lane_sums<N, ROWS> & sums) {
            if (turn > 0) {
                wait_for_arrivals(barrier, static_cast<int>((turn - 1) % 2));
            }
            keep_partial(sums, partial(turn) + (first_warp + group_warp) * ROWS);
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                arrive(barrier);
            }
            add_up(p);
            turn++;
        }

        // Of the last tile.
        __device__ __forceinline__ void add_up(const products & p) const {
            if (turn == 0 || !has_turn(p, turn - 1) || !mine.is_mine) {
                return;
            }
            float sum = mine.to_first, up = mine.to_up;
            const int gate_at = IS_GATED && comes_in_boxes<N, IS_LOOSE> && is_up_first ? 8 : 0, up_at = 8 - gate_at;
            const float * of = partial(turn - 1) + first_warp * ROWS + threadIdx.x % 32;
#pragma unroll 1
            for (int w = 0; w < p.n_group_warps; w += 4, of += 4 * ROWS) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    sum += of[k * ROWS + gate_at];
                    if constexpr (IS_GATED) {
                        up += of[k * ROWS + up_at];
                    }
                }
            }
            put(p, matrix, mine, sum, up);
        }

        // Behind the last tile.
        __device__ __forceinline__ void end(const products & p) const {
            if (turn > 0) {
                wait_for_arrivals(barrier, static_cast<int>((turn - 1) % 2));
                add_up(p);
            }
        }
    };

    // The tile's unit, in its slot, with the activations of unit x_unit.
    static __device__ __forceinline__ void multiply_unit(const products & p, const tile_place & tile, int unit, const char * slot,
                                                         uint32_t slot_address, const layout & shared, int x_unit, const lane_words & words,
                                                         lane_sums<N, ROWS> & sums) {
        unit_rows u;
        u.lane = threadIdx.x % 32;
        u.g = u.lane / 4;
        u.t = u.lane % 4;
        u.slot = slot_address;
        u.stride = ring::shape::STRIDE;
        u.n_blocks = IS_LOOSE ? p.n_weights / 32 - unit * UNIT_BLOCKS : UNIT_BLOCKS;
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            u.row[r] = slot + (u.g + 8 * r) * ring::shape::STRIDE;
            if constexpr (comes_in_boxes<N, IS_LOOSE>) {
                u.row[r] = static_cast<const char *>(__builtin_assume_aligned(u.row[r], 16));
            }
            if constexpr (IS_LOOSE) {
                const char * source = (r ? tile.other : tile.data) + u.g * p.row_bytes + static_cast<int64_t>(unit) * W::UNIT_BYTES;
                u.row[r] += reinterpret_cast<uintptr_t>(source) % 16;
            }
        }
        unit_activations x;
        const int block = x_unit * UNIT_BLOCKS * N;
        x.q = reinterpret_cast<const int2 *>(shared.x.q) + block * 4;
        x.d = shared.x.d + block;
        x.s = W::SUMS == sum_kind::none ? nullptr : shared.x.s + block;
        if constexpr (std::is_same_v<lane_words, no_lane_words>) {
            W::template multiply<N, ROWS>(u, x, sums);
        } else {
            W::template multiply_one<ROWS>(u, x, words, sums);
        }
    }

    static __device__ __forceinline__ void run(const single_products & p, char * memory) {
        if (p.next == NEXT_AT_ONCE) {
            let_next_start();
        }
        const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
        const int group = warp / p.n_group_warps, group_warp = warp % p.n_group_warps;
        const int n_groups = n_warps / p.n_group_warps * gridDim.x;
        const int n_units = (p.n_weights + UNIT_WEIGHTS - 1) / UNIT_WEIGHTS;
        const layout shared(p, n_units, memory);
        cursor ahead = {static_cast<int>(blockIdx.x) + group * static_cast<int>(gridDim.x), group_warp};
        tile_place from = place_of(p, min(ahead.tile, p.n_tiles - 1));
        ring weights(shared.slots + warp * p.n_slots * ring::shape::SLOT_BYTES, shared.barriers + 8 * warp * p.n_slots, p.n_slots,
                     p.row_bytes);
        const auto issue = [&] {
            if (ahead.tile < p.n_tiles) {
                ask(p, p.boxes, weights, from, ahead.unit);
                ahead.unit += p.n_group_warps;
                if (ahead.unit >= n_units) {
                    ahead = {ahead.tile + n_groups, group_warp};
                    if (ahead.tile < p.n_tiles) {
                        from = place_of(p, ahead.tile);
                    }
                }
            }
        };
        int tile_number = ahead.tile;
        tile_ends ends(p, shared, group, p.boxes);
#pragma unroll 1
        for (int s = 0; s < p.n_slots; s++) {
            issue();
        }
        clear_absent<N>(p, shared.x);
        warm_norm(p);
        wait_for_earlier();
        input_taker<W, N>::take(p, shared.x);
        if (p.next == NEXT_WITH_INPUT) {
            let_next_start();
        }
        const unsigned n_readers_before = count_reader(p);
        const lane_words words;
        for (; tile_number < p.n_tiles; tile_number += n_groups) {
            const tile_place tile = place_of(p, tile_number);
            ends.begin(p, tile);
            lane_sums<N, ROWS> sums;
            for (int unit = group_warp; unit < n_units; unit += p.n_group_warps) {
                const uint32_t slot = weights.take();
                multiply_unit(p, tile, unit, memory + (slot - shared_address(memory)), slot, shared, unit, words, sums);
                weights.done();
                issue();
            }
            ends.leave(p, sums);
        }
        ends.end(p);
        write_sum(p, n_readers_before);
    }
};

template <class W, int N, int ROWS, bool IS_GATED, bool IS_LOOSE>
static __global__ void PRODUCT_REGISTERS multiply_products(const __grid_constant__ single_products p) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    product_kernel<W, N, ROWS, IS_GATED, IS_LOOSE>::run(p, memory);
#endif
}

// Columns that a kernel is compiled for.
static inline int columns_for(int n_columns) {
    return n_columns == 1 ? 1 : n_columns == 2 ? 2 : n_columns <= 4 ? 4 : n_columns <= 8 ? 8 : 16;
}

static inline int count_units(const products & p) {
    return (p.n_weights + UNIT_WEIGHTS - 1) / UNIT_WEIGHTS;
}

// Shared memory that a launch needs beside its slots.
template <class W>
static size_t fixed_memory(int n_units, int rows, int columns) {
    const size_t partial = (columns == 1 ? 16 : 8) * N_PRODUCT_WARPS * rows * columns;
    const size_t activations = static_cast<size_t>(W::SUMS == sum_kind::none ? 36 : 40) * n_units * UNIT_BLOCKS * columns;
    return partial + activations + 192;
}
