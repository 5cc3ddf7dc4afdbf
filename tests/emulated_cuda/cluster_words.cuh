// Blocks of a cluster that see each other's shared memory.
#pragma once

#include "launch_order.cuh"
#include "machine_words.cuh"

static inline void wait_for_cluster() {
    meet(fibers.cluster, fibers.n_together * static_cast<int>(blockDim.x));
}

template <class T>
static T of_block(const T * mine, int block) {
    const size_t at = reinterpret_cast<const char *>(mine) - memory;
    T v;
    std::memcpy(&v, (block == fibers.shown ? memory : fibers.others[block].data()) + at, sizeof(v));
    return v;
}
