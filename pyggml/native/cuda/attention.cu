// How many blocks share a window, and the kernel of a head's size.

#include "attention_launch.h"

#include "attention.cuh"

#include <algorithm>
#include <utility>

namespace {

// A block that has less to read costs more to add than it saves.
constexpr int LEAST_TILES = N_ATTENTION_WARPS;

// One block a processor, or two where one would leave many idle; fewer for a short window.
int choose_splits(const attention & p, int n_processors) {
    const int n_groups = n_block_groups(p), n_tiles = (p.n_kv + ATTENTION_TILE - 1) / ATTENTION_TILE;
    const int once = std::max(1, n_processors / n_groups), twice = std::max(1, 2 * n_processors / n_groups);
    const int most = 5 * n_groups * once >= 4 * n_processors ? once : twice;
    return std::clamp(std::min(most, n_tiles / LEAST_TILES), 1, MAX_SPLITS);
}

template <int D>
cudaError_t launch_heads_of(const attention & p, cudaStream_t stream) {
    constexpr int MEMORY = attention_kernel<D>::layout::SIZE;
    for (const auto & [attribute, value] : {std::pair{cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY},
                                          std::pair{cudaFuncAttributePreferredSharedMemoryCarveout, 100}}) {
        if (const cudaError_t status = cudaFuncSetAttribute(attend<D>, attribute, value); status != cudaSuccess) {
            return status;
        }
    }
    const dim3 grid(p.n_splits, p.n_head_kv * n_query_tiles(p), p.n_seq);
    return launch_in_order(attend<D>, grid, dim3(32 * N_ATTENTION_WARPS), MEMORY, stream, p);
}

}  // namespace

size_t attention_floats(const attention & p, int n_processors) {
    return static_cast<size_t>(std::max(n_block_groups(p), 2 * n_processors)) * ATTENTION_QUERIES * (p.head_dim + 2);
}

cudaError_t launch_attention(attention p, int n_processors, cudaStream_t stream) {
    p.n_splits = choose_splits(p, n_processors);
    switch (p.head_dim) {
        case 64: return launch_heads_of<64>(p, stream);
        case 80: return launch_heads_of<80>(p, stream);
        case 96: return launch_heads_of<96>(p, stream);
        case 112: return launch_heads_of<112>(p, stream);
        case 128: return launch_heads_of<128>(p, stream);
        case 256: return launch_heads_of<256>(p, stream);
        default: return cudaErrorInvalidValue;
    }
}
