// Products of int8 fragments on tensor cores (compute capability 8.0 and later), from shared memory.
// Fragments of one lane, g = lane / 4 and t = lane % 4: of the left operand (16 rows of weights) words of rows g and
// g + 8 at bytes 4t and 16 + 4t; of the right one (8 columns) the same bytes of column g; of the result rows g and
// g + 8, columns 2t and 2t + 1.
#pragma once

#include "machine_words.cuh"

// Integers below 2^22 added to these bits make the float MAGIC + integer.
constexpr int MAGIC_BITS = 0x4B400000;
constexpr float MAGIC = 12582912.0f;

struct int_tile {
    int c[4];

    __device__ __forceinline__ explicit int_tile(int start) {
        c[0] = c[1] = c[2] = c[3] = start;
    }
    __device__ __forceinline__ void add(const int_tile & other) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[i] += other.c[i];
        }
    }
    // Of a tile that started with MAGIC_BITS.
    __device__ __forceinline__ float magic(int i) const { return __int_as_float(c[i]) - MAGIC; }
};

// 16 x 32 by 32 x 8.
static __device__ __forceinline__ void add_product(int_tile & r, const uint32_t a[4], int2 b) {
    multiply_signed(r.c, a, b);
}

// The same with weights from 0 to 255.
static __device__ __forceinline__ void add_unsigned_product(int_tile & r, const uint32_t a[4], int2 b) {
    multiply_unsigned(r.c, a, b);
}

// 16 x 16 by 16 x 8.
static __device__ __forceinline__ void add_half_product(int_tile & r, uint32_t a0, uint32_t a1, int b) {
    multiply_half(r.c, a0, a1, b);
}
