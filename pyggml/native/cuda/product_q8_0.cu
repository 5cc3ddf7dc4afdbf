// Products with q8_0 weights.

#include "product_launch.cuh"

cudaError_t launch_q8_0(products p, const product_card & card, cudaStream_t stream) {
    // Rows of a multiple of 256 weights lie on 16 bytes when the matrix does.
    const bool is_exact = p.n_weights % UNIT_WEIGHTS == 0 && is_aligned(p, 16);
    return is_exact ? launch_columns<q8_0, false>(p, card, stream) : launch_columns<q8_0, true>(p, card, stream);
}

bool has_product_kernels() {
    cudaFuncAttributes attributes;
    const bool is_there = cudaFuncGetAttributes(&attributes, multiply_products<q8_0, 1, 16, false, false>) == cudaSuccess;
    cudaGetLastError();
    return is_there && attributes.ptxVersion >= 80;
}
