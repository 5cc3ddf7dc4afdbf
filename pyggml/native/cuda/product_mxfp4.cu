// Products with mxfp4 weights.

#include "nibble_blocks.cuh"
#include "product_launch.cuh"

cudaError_t launch_mxfp4(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<mxfp4, true>(p, card, stream);
}
