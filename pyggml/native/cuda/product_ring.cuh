// Weights on their way: each warp has units copied into its own slots of shared memory, several ahead of its work.
// A slot's barrier counts the bytes or copies that have arrived; only the warp itself waits for it and refills it.
#pragma once

#include "machine_words.cuh"
#include "products.h"
#include "weight_blocks.cuh"

#include <type_traits>

// IS_LOOSE: units may start at any even byte or be incomplete, and are copied with what shares their 16 bytes.
template <class W, bool IS_LOOSE, int ROWS>
struct ring_shape {
    static constexpr int EXACT = (W::UNIT_BYTES + (IS_LOOSE ? 14 : 0) + 15) / 16;
    // Rows 16 x odd bytes apart meet different banks.
    static constexpr int ROW_CHUNKS = EXACT % 2 ? EXACT : EXACT + 1;
    static constexpr int STRIDE = 16 * ROW_CHUNKS;
    static constexpr int SLOT_BYTES = ROWS * STRIDE;
    static constexpr int N_STEPS = (8 * EXACT + 31) / 32;
};

// A warp's slots, used in turn.
template <int SLOT_BYTES>
struct slot_ring {
    uint32_t slots, barriers;  // shared addresses of this warp's
    int n_slots, lane;
    int issued = 0, taken = 0;  // slot numbers
    int phase = 0;

    __device__ __forceinline__ slot_ring(uint32_t slots_at, uint32_t barriers_at, int n) :
        slots(slots_at), barriers(barriers_at), n_slots(n), lane(threadIdx.x % 32) {}

    // Waits for the unit that was issued first; its slot.
    __device__ __forceinline__ uint32_t take() {
        wait_barrier(barriers + 8 * taken, phase);
        return slots + taken * SLOT_BYTES;
    }

    __device__ __forceinline__ void done() {
        __syncwarp();
        taken++;
        if (taken == n_slots) {
            taken = 0;
            phase ^= 1;
        }
    }
};

// Copied in chunks of 16 bytes, some by each lane.
template <class W, bool IS_LOOSE, int ROWS>
struct chunk_ring : slot_ring<ring_shape<W, IS_LOOSE, ROWS>::SLOT_BYTES> {
    using shape = ring_shape<W, IS_LOOSE, ROWS>;
    using base = slot_ring<shape::SLOT_BYTES>;
    using base::barriers, base::issued, base::lane, base::n_slots, base::slots;

    int64_t row_bytes;
    int from[shape::N_STEPS];  // of the lane's chunks, from row 0; loose: of their rows

    __device__ __forceinline__ chunk_ring(uint32_t slots_at, uint32_t barriers_at, int n, int64_t bytes) :
        base(slots_at, barriers_at, n), row_bytes(bytes) {
#pragma unroll
        for (int k = 0; k < shape::N_STEPS; k++) {
            const int i = lane + 32 * k;
            const int row = i / shape::EXACT, chunk = i % shape::EXACT;
            from[k] = row * static_cast<int>(row_bytes) + (IS_LOOSE ? 0 : 16 * chunk);
        }
        for (int s = lane; s < n_slots; s += 32) {
            init_barrier(barriers + 8 * s, 32);
        }
        __syncwarp();
    }

    // Where the lane's chunk of step k goes.
    __device__ __forceinline__ uint32_t place_of(int k) const {
        const int i = lane + 32 * k;
        return shape::EXACT == shape::ROW_CHUNKS ? 16 * i : i / shape::EXACT * shape::STRIDE + i % shape::EXACT * 16;
    }

    __device__ __forceinline__ bool has_step(int k) const { return (k + 1) * 32 <= 8 * shape::EXACT || lane + 32 * k < 8 * shape::EXACT; }

    // Eight rows from `data` on.
    __device__ __forceinline__ void copy_rows(const char * data, int n_bytes, uint32_t slot) {
#pragma unroll
        for (int k = 0; k < shape::N_STEPS; k++) {
            const char * source = data + from[k];
            if constexpr (IS_LOOSE) {
                const int start = static_cast<int>(reinterpret_cast<uintptr_t>(source) % 16);
                const int chunk = (lane + 32 * k) % shape::EXACT * 16;
                source += chunk - start;
                if (has_step(k) && chunk < start + n_bytes) {
                    copy_16(slot + place_of(k), source);
                }
            } else if (has_step(k)) {
                copy_16(slot + place_of(k), source);
            }
        }
    }

    // A slot gets a unit: rows from `data` on, and from `other` on those from row 8.
    __device__ __forceinline__ void fill(int slot_number, const char * data, const char * other, int n_bytes) {
        const uint32_t slot = slots + slot_number * shape::SLOT_BYTES;
        copy_rows(data, n_bytes, slot);
        if constexpr (ROWS > 8) {
            copy_rows(other, n_bytes, slot + 8 * shape::STRIDE);
        }
    }

    // What was asked for so far is all that the next slot waits for.
    __device__ __forceinline__ void close() {
        copies_arrive(barriers + 8 * issued);
        issued = issued + 1 == n_slots ? 0 : issued + 1;
    }

    // The next slot gets a unit.
    __device__ __forceinline__ void issue(const char * data, const char * other, int n_bytes) {
        fill(issued, data, other, n_bytes);
        close();
    }
};

// Copied as boxes of ROWS rows, or of 8 of two matrices each, as wide as a slot: what is more than a unit is not looked at. One
// lane asks for them.
template <class W, int ROWS>
struct box_ring : slot_ring<ring_shape<W, false, ROWS>::SLOT_BYTES> {
    using shape = ring_shape<W, false, ROWS>;
    using base = slot_ring<shape::SLOT_BYTES>;
    using base::barriers, base::issued, base::lane, base::n_slots, base::slots;
    static_assert(W::UNIT_BYTES % 16 == 0, "where a box begins");
    static_assert(shape::SLOT_BYTES % 128 == 0, "where it goes");

    __device__ __forceinline__ box_ring(uint32_t slots_at, uint32_t barriers_at, int n, int64_t) : base(slots_at, barriers_at, n) {
        for (int s = lane; s < n_slots; s += 32) {
            init_barrier(barriers + 8 * s, 1);
        }
        show_barriers();
        __syncwarp();
    }

    __device__ __forceinline__ void issue(const weight_boxes & boxes, int unit, int row, int expert) {
        if (lane == 0) {
            const uint32_t barrier = barriers + 8 * issued;
            expect_bytes(barrier, shape::SLOT_BYTES);
            copy_box(slots + issued * shape::SLOT_BYTES, &boxes, unit * (W::UNIT_BYTES / 2), row, expert, barrier);
        }
        issued = issued + 1 == n_slots ? 0 : issued + 1;
    }
};

// Whether weights come as boxes: of one column, whole units, rows that begin at multiples of 16 bytes.
#if __CUDA_ARCH__ >= 900
template <int N, bool IS_LOOSE>
constexpr bool comes_in_boxes = N == 1 && !IS_LOOSE;
#else
template <int N, bool IS_LOOSE>
constexpr bool comes_in_boxes = false;
#endif

template <class W, int N, bool IS_LOOSE, int ROWS>
using weight_ring = std::conditional_t<comes_in_boxes<N, IS_LOOSE>, box_ring<W, ROWS>, chunk_ring<W, IS_LOOSE, ROWS>>;
