// Blocks of a cluster that run side by side and reach each other's shared memory (compute capability 9.0).
#pragma once

#include "launch_order.cuh"
#include "machine_words.cuh"

// Everything that any block's threads wrote before is there behind it.
static __device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ uint32_t address_in_block(const void * mine, int block) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(block));
    return address;
}
#endif

// What another block of the cluster has in its shared memory, in the place of `mine`.
static __device__ __forceinline__ float of_block(const float * mine, int block) {
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_in_block(mine, block)) : "memory");
#endif
    return v;
}

static __device__ __forceinline__ float2 of_block(const float2 * mine, int block) {
    float2 v = make_float2(0, 0);
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address_in_block(mine, block)) : "memory");
#endif
    return v;
}
