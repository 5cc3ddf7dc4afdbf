// Products with q4_1 weights.

#include "expert_launch.cuh"
#include "nibble_blocks.cuh"

cudaError_t launch_q4_1(products p, const product_card & card, cudaStream_t stream) {
    return fits_boxes(p, card) ? launch_rows<q4_1, false>(p, card, stream) : launch_columns<q4_1, true>(p, card, stream);
}

cudaError_t launch_experts_q4_1(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return fits_boxes(p, card) ? launch_experts<q4_1, false>(p, card, stream) : launch_experts<q4_1, true>(p, card, stream);
}
