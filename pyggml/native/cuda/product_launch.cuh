// How a product is cut into blocks and launched: rows a tile, warps a tile and slots by what keeps all processors busy.
#pragma once

#include "product_card.h"
#include "product_types.h"
#include "wide_products.cuh"

#include <algorithm>
#include <cstdlib>
#include <utility>

static inline bool is_aligned(const products & p, size_t bytes) {
    for (int m = 0; m < p.n_matrices; m++) {
        if (reinterpret_cast<uintptr_t>(p.matrix[m].data) % bytes != 0) {
            return false;
        }
    }
    return true;
}

// Whether weights can come as boxes: whole units, of rows that begin at multiples of 16 bytes.
static inline bool fits_boxes(const products & p, const product_card & card) {
    return card.has_boxes && p.n_columns == 1 && p.n_weights % UNIT_WEIGHTS == 0 && p.row_bytes % 16 == 0 && is_aligned(p, 16);
}

// Part of the processors' time that has work, when tiles are dealt to groups.
static double busy_part(int n_tiles, int n_groups) {
    return static_cast<double>(n_tiles) / ((n_tiles + n_groups - 1) / n_groups * n_groups);
}

static int count_tiles(products & p, int out_rows) {
    int n = 0;
    for (int m = 0; m < (p.gate ? 1 : p.n_matrices); m++) {
        p.matrix[m].first_tile = n;
        n += (p.matrix[m].n_rows + out_rows - 1) / out_rows;
    }
    return n;
}

// How long groups take for their tiles, in units of 16 rows of a warp: each tile's beginning and end take as long as half of one.
static double tile_time(int n_tiles, int n_groups, int units_a_warp, int rows) {
    const int n_rounds = (n_tiles + n_groups - 1) / n_groups;
    return n_rounds * (units_a_warp * (rows == 16 ? 1.0 : 0.7) + 0.5);
}

// Rows of a tile; sets the group's warps and the tiles, which are needed n_times over and have n_units each.
static int choose_tiles(products & p, const product_card & card, int n_units, int n_times) {
    double best = 0;
    int best_rows = 0, best_warps = 0;
    for (int rows : {16, 8}) {
        for (int warps : {4, 8}) {
            if ((p.gate && rows == 8) || (warps > n_units && warps > 4)) {
                continue;
            }
            const int n_tiles = n_times * count_tiles(p, p.gate ? 8 : rows);
            const int n_groups = card.n_processors * N_PRODUCT_WARPS / warps;
            const double time = tile_time(n_tiles, n_groups, (n_units + warps - 1) / warps, rows);
            if (best_rows == 0 || time < best) {
                best = time;
                best_rows = rows;
                best_warps = warps;
            }
        }
    }
    p.n_tiles = n_times * count_tiles(p, p.gate ? 8 : best_rows);
    p.n_group_warps = best_warps;
    return best_rows;
}

// Gives the shared memory that is left to slots: `fixed` bytes are needed beside them, `slot` by one slot of every warp.
template <class ARGUMENT>
static cudaError_t launch_with_slots(void (*kernel)(ARGUMENT), ARGUMENT & argument, size_t fixed, size_t slot,
                                     const product_card & card, cudaStream_t stream) {
    constexpr int MAX_SLOTS = 8;
    // Blocks of two kernels share a processor where they can, the next one's with its slots full. Of more than this two
    // blocks were seen to find room on half of the processors only.
    const size_t shared_room = card.max_shared * 3 / 7;
    const size_t room = fixed + 2 * slot <= shared_room ? shared_room : card.max_shared;
    if (fixed + slot > room) {
        return cudaErrorInvalidValue;
    }
    argument.n_slots = static_cast<int>(std::min<size_t>(MAX_SLOTS, (room - fixed) / slot));
    const size_t memory = fixed + argument.n_slots * slot;
    for (const auto & [attribute, value] : {std::pair{cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(card.max_shared)},
                                          std::pair{cudaFuncAttributePreferredSharedMemoryCarveout, 100}}) {
        if (const cudaError_t status = cudaFuncSetAttribute(kernel, attribute, value); status != cudaSuccess) {
            return status;
        }
    }
    // One block a processor, also where some have no tile: two kernels' blocks then always find places beside each other.
    return launch_in_order(kernel, dim3(card.n_processors), dim3(32 * N_PRODUCT_WARPS), memory, stream, argument);
}

template <class W, int ROWS, bool IS_LOOSE>
static constexpr size_t slot_memory() {
    return N_PRODUCT_WARPS * (ring_shape<W, IS_LOOSE, ROWS>::SLOT_BYTES + 8);
}

// Where the kernel takes weights as boxes: describes them, of gate and up together.
template <class W, int ROWS, bool IS_GATED, bool IS_LOOSE>
static bool find_boxes(const products & p, matrix_boxes & boxes, const product_card & card, int64_t expert_bytes = 0, int n_experts = 1) {
    if (IS_LOOSE || !card.has_boxes) {
        return true;
    }
    const int64_t to_up = IS_GATED ? p.matrix[1].data - p.matrix[0].data : 0;
    boxes.is_up_first = to_up < 0;
    for (int m = 0; m < (IS_GATED ? 1 : p.n_matrices); m++) {
        const box_layout layout = {p.matrix[boxes.is_up_first ? 1 : m].data, p.row_bytes, std::abs(to_up), expert_bytes, p.matrix[m].n_rows,
                                   IS_GATED ? 2 : 1, n_experts, ring_shape<W, false, ROWS>::STRIDE, IS_GATED ? 8 : ROWS};
        if (!describe_boxes(layout, boxes.of[m])) {
            return false;
        }
    }
    return true;
}

template <class W, int ROWS, bool IS_GATED, bool IS_LOOSE>
static cudaError_t launch_tiles(const products & p, const product_card & card, cudaStream_t stream) {
    single_products single = {p, {}};
    if (!find_boxes<W, ROWS, IS_GATED, IS_LOOSE>(p, single.boxes, card)) {
        return cudaErrorInvalidValue;
    }
    return launch_with_slots(multiply_products<W, 1, ROWS, IS_GATED, IS_LOOSE>, single, fixed_memory<W>(count_units(p), ROWS, 1),
                             slot_memory<W, ROWS, IS_LOOSE>(), card, stream);
}

template <class W, bool IS_LOOSE>
static cudaError_t launch_rows(products & p, const product_card & card, cudaStream_t stream) {
    const int rows = choose_tiles(p, card, count_units(p), 1);
    if (p.gate) {
        return launch_tiles<W, 16, true, IS_LOOSE>(p, card, stream);
    }
    return rows == 16 ? launch_tiles<W, 16, false, IS_LOOSE>(p, card, stream) : launch_tiles<W, 8, false, IS_LOOSE>(p, card, stream);
}

// Of a group, by what keeps all processors busy; smaller ones cost less work.
static void choose_wide_group(products & p, const product_card & card) {
    const auto part = [&](int warps) { return busy_part(p.n_tiles, card.n_processors * N_PRODUCT_WARPS / warps); };
    p.n_tiles = count_tiles(p, p.gate ? 8 : 16);
    p.n_group_warps = count_units(p) >= 8 && part(8) > part(4) + 0.04 ? 8 : 4;
}

template <class W, int N, bool IS_GATED, bool IS_LOOSE>
static cudaError_t launch_wide_tiles(products & p, const product_card & card, cudaStream_t stream) {
    constexpr int ROWS = wide_kernel<W, N, IS_GATED, IS_LOOSE, false>::ROWS;
    constexpr size_t SLOT = slot_memory<W, ROWS, IS_LOOSE>();
    const size_t fixed = fixed_memory<W>(count_units(p), ROWS, N);
    if (fixed + 2 * SLOT > card.max_shared) {
        const size_t without = fixed_memory<W>(0, ROWS, N);
        const size_t a_unit = fixed_memory<W>(1, ROWS, N) - without;
        return launch_with_slots(multiply_wide<W, N, IS_GATED, IS_LOOSE, true>, p, without, SLOT + N_PRODUCT_WARPS * a_unit, card, stream);
    }
    return launch_with_slots(multiply_wide<W, N, IS_GATED, IS_LOOSE, false>, p, fixed, SLOT, card, stream);
}

template <class W, int N, bool IS_LOOSE>
static cudaError_t launch_wide_rows(products & p, const product_card & card, cudaStream_t stream) {
    choose_wide_group(p, card);
    return p.gate ? launch_wide_tiles<W, N, true, IS_LOOSE>(p, card, stream) : launch_wide_tiles<W, N, false, IS_LOOSE>(p, card, stream);
}

template <class W, bool IS_LOOSE>
static cudaError_t launch_columns(products & p, const product_card & card, cudaStream_t stream) {
    if (p.n_columns > 1 && !serves(p.rounded.kind, rounding_for<W>())) {
        return cudaErrorInvalidValue;
    }
    switch (columns_for(p.n_columns)) {
        case 1: return launch_rows<W, IS_LOOSE>(p, card, stream);
        case 2: return launch_wide_rows<W, 2, IS_LOOSE>(p, card, stream);
        case 4: return launch_wide_rows<W, 4, IS_LOOSE>(p, card, stream);
        case 8: return launch_wide_rows<W, 8, IS_LOOSE>(p, card, stream);
        default: return launch_wide_rows<W, 16, IS_LOOSE>(p, card, stream);
    }
}
