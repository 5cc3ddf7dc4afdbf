// Products with q5_k weights.

#include "product_launch.cuh"

cudaError_t launch_q5_k(products p, const product_card & card, cudaStream_t stream) {
    return launch_columns<q5_k, false>(p, card, stream);
}
