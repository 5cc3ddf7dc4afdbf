// Products of int8 fragments on tensor cores (compute capability 8.0 and later), from shared memory.
// Fragments of one lane, g = lane / 4 and t = lane % 4: of the left operand (16 rows of weights) words of rows g and
// g + 8 at bytes 4t and 16 + 4t; of the right one (8 columns) the same bytes of column g; of the result rows g and
// g + 8, columns 2t and 2t + 1.
#pragma once

#include <cstdint>

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
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(r.c[0]), "+r"(r.c[1]), "+r"(r.c[2]), "+r"(r.c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// The same with weights from 0 to 255.
static __device__ __forceinline__ void add_unsigned_product(int_tile & r, const uint32_t a[4], int2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(r.c[0]), "+r"(r.c[1]), "+r"(r.c[2]), "+r"(r.c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// 16 x 16 by 16 x 8.
static __device__ __forceinline__ void add_half_product(int_tile & r, uint32_t a0, uint32_t a1, int b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(r.c[0]), "+r"(r.c[1]), "+r"(r.c[2]), "+r"(r.c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// Four 8 x 16-byte matrices; each lane's address is of row lane % 8 of matrix lane / 8.
static __device__ __forceinline__ void load_matrices(uint32_t address, uint32_t r[4]) {
    // Volatile keeps it between the slot's barrier and its next filling; other loads may move past it.
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
