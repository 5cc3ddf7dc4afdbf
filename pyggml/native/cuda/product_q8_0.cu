// Products with q8_0 weights.

#include "expert_launch.cuh"

// Rows of a multiple of 256 weights lie on 16 bytes when the matrix does.
static bool is_exact(const products & p) {
    return p.n_weights % UNIT_WEIGHTS == 0 && is_aligned(p, 16);
}

cudaError_t launch_q8_0(products p, const product_card & card, cudaStream_t stream) {
    return is_exact(p) ? launch_columns<q8_0, false>(p, card, stream) : launch_columns<q8_0, true>(p, card, stream);
}

cudaError_t launch_experts_q8_0(const expert_products & p, const product_card & card, cudaStream_t stream) {
    return is_exact(p) ? launch_experts<q8_0, false>(p, card, stream) : launch_experts<q8_0, true>(p, card, stream);
}

// The compute capability that the current card's code was written for, 0 for none.
static int code_version() {
    cudaFuncAttributes attributes;
    const bool is_there = cudaFuncGetAttributes(&attributes, multiply_products<q8_0, 1, 16, false, false>) == cudaSuccess;
    cudaGetLastError();
    return is_there ? attributes.ptxVersion : 0;
}

bool has_product_kernels() {
    return code_version() >= 80;
}

bool product_kernels_take_boxes() {
    return code_version() >= 90;
}
