// The machine's own words that products need (compute capability 8.0 and later): copies into shared memory that go on by
// themselves, their barriers, warps that wait for each other, tensor cores.
#pragma once

#include <cstdint>

static __device__ __forceinline__ uint32_t shared_address(const void * p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

static __device__ __forceinline__ void init_barrier(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void wait_barrier(uint32_t barrier, int phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
        "@!done bra again;\n"
        "}\n" ::"r"(barrier), "r"(phase)
        : "memory");
}

static __device__ __forceinline__ void copy_16(uint32_t to, const char * from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Copies of boxes wait for n bytes more; one lane says so, then asks for them.
static __device__ __forceinline__ void expect_bytes(uint32_t barrier, int n) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(n) : "memory");
}

// The copying engine sees barriers that were made before.
static __device__ __forceinline__ void show_barriers() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The box that begins with element x of a row.
static __device__ __forceinline__ void copy_box(uint32_t to, const void * boxes, int x, int row, int expert, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(boxes), "r"(x), "r"(row), "r"(0), "r"(expert), "r"(barrier)
        : "memory");
}

static __device__ __forceinline__ void copies_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// A barrier that counts arrivals; who arrives need not wait, and who waits need not arrive.
static __device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void wait_for_arrivals(uint32_t barrier, int phase) {
    wait_barrier(barrier, phase);
}

// Warps of a block that share `barrier`, 1 or 2, wait for each other. A variable in its place has the compiler set all 16 of
// a block aside.
static __device__ __forceinline__ void wait_for_group(int barrier, int n_threads) {
    if (barrier == 1) {
        asm volatile("bar.sync 1, %0;" ::"r"(n_threads) : "memory");
    } else {
        asm volatile("bar.sync 2, %0;" ::"r"(n_threads) : "memory");
    }
}

static __device__ __forceinline__ void bring_to_l2(const void * address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// The same value, which the compiler keeps in a register.
static __device__ __forceinline__ uint32_t kept(uint32_t value) {
    asm("" : "+r"(value));
    return value;
}

static __device__ __forceinline__ float fast_inverse(float v) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
    return inverse;
}

// c += a b on tensor cores; the fragments of a lane are described in tensor_cores.cuh.
static __device__ __forceinline__ void multiply_signed(int c[4], const uint32_t a[4], int2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

static __device__ __forceinline__ void multiply_unsigned(int c[4], const uint32_t a[4], int2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

static __device__ __forceinline__ void multiply_half(int c[4], uint32_t a0, uint32_t a1, int b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// c += a b of halves, two a word: c[0] and c[1] in row lane / 4, c[2] and c[3] in row lane / 4 + 8.
static __device__ __forceinline__ void multiply_halves(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Of an 8 x 8 matrix of halves with two of row lane / 4 a lane: two of column lane / 4.
static __device__ __forceinline__ uint32_t transposed(uint32_t row) {
    uint32_t column;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
    return column;
}

// Two floats as halves, the first in the low bits, and back.
static __device__ __forceinline__ uint32_t halves_from(float low, float high) {
    uint32_t halves;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
    return halves;
}

static __device__ __forceinline__ float2 floats_of(uint32_t halves) {
    float2 v;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}" : "=f"(v.x), "=f"(v.y) : "r"(halves));
    return v;
}

// Four 8 x 16-byte matrices; each lane's address is of row lane % 8 of matrix lane / 8.
static __device__ __forceinline__ void load_matrices(uint32_t address, uint32_t r[4]) {
    // Volatile keeps it between the slot's barrier and its next filling; other loads may move past it.
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
