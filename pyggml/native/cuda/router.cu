#include "router.cuh"

cudaError_t launch_router(const router_product & p, const product_card & card, cudaStream_t stream) {
    return launch_router_rows(p, card, stream);
}
