// Products with q4_0 weights.

#include "expert_launch.cuh"
#include "nibble_blocks.cuh"

cudaError_t launch_q4_0(products p, const product_card & card, cudaStream_t stream) {
    return fits_boxes(p, card) ? launch_rows<q4_0, false>(p, card, stream) : launch_columns<q4_0, true>(p, card, stream);
}

cudaError_t launch_experts_q4_0(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return fits_boxes(p, card) ? launch_experts<q4_0, false>(p, card, stream) : launch_experts<q4_0, true>(p, card, stream);
}
