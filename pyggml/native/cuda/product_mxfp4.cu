// Products with mxfp4 weights.

#include "expert_launch.cuh"
#include "nibble_blocks.cuh"

cudaError_t launch_mxfp4(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<mxfp4, true>(p, card, stream);
}

cudaError_t launch_experts_mxfp4(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return launch_experts<mxfp4, true>(p, card, stream);
}
