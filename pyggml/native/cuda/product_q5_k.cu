// Products with q5_k weights.

#include "expert_launch.cuh"

cudaError_t launch_q5_k(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<q5_k, false>(p, card, stream);
}

cudaError_t launch_experts_q5_k(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return launch_experts<q5_k, false>(p, card, stream);
}
