// Products with q4_1 weights.

#include "nibble_blocks.cuh"
#include "product_launch.cuh"

cudaError_t launch_q4_1(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<q4_1, true>(p, card, stream);
}
