// Products with q4_k weights.

#include "expert_launch.cuh"

cudaError_t launch_q4_k(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<q4_k, false>(p, card, stream);
}

cudaError_t launch_experts_q4_k(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return launch_experts<q4_k, false>(p, card, stream);
}
