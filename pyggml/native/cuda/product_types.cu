// Which launches a type of weights has.

#include "product_types.h"

#include "ggml.h"

static cudaError_t refuse(products, const product_card &, cudaStream_t) {
    return cudaErrorInvalidValue;
}

static cudaError_t refuse_experts(const expert_products &, const product_card &, cudaStream_t) {
    return cudaErrorInvalidValue;
}

product_launches launches_of(int type) {
    switch (type) {
        case GGML_TYPE_Q8_0: return {launch_q8_0, launch_experts_q8_0};
        case GGML_TYPE_Q4_K: return {launch_q4_k, launch_experts_q4_k};
        case GGML_TYPE_Q5_K: return {launch_q5_k, launch_experts_q5_k};
        case GGML_TYPE_Q6_K: return {launch_q6_k, launch_experts_q6_k};
        case GGML_TYPE_Q4_0: return {launch_q4_0, launch_experts_q4_0};
        case GGML_TYPE_Q4_1: return {launch_q4_1, launch_experts_q4_1};
        case GGML_TYPE_MXFP4: return {launch_mxfp4, launch_experts_mxfp4};
        default: return {refuse, refuse_experts};
    }
}
