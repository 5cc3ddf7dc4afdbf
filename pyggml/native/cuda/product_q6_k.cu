// Products with q6_k weights.

#include "expert_launch.cuh"
#include "q6_k_blocks.cuh"

cudaError_t launch_q6_k(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<q6_k, true>(p, card, stream);
}

cudaError_t launch_experts_q6_k(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return launch_experts<q6_k, true>(p, card, stream);
}
