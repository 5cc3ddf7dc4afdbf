// Boxes of weights, described by the driver, which is asked for the function by name: the module is not linked with it.

#include "weight_boxes.h"

#include <cuda.h>
#include <cuda_runtime.h>

static_assert(sizeof(weight_boxes) == sizeof(CUtensorMap) && alignof(weight_boxes) >= alignof(CUtensorMap));

static decltype(&cuTensorMapEncodeTiled) find_encoder() {
    void * found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    cudaGetLastError();
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found) : nullptr;
}

static decltype(&cuTensorMapEncodeTiled) encoder() {
    static const auto found = find_encoder();
    return found;
}

bool has_weight_boxes() {
    return encoder() != nullptr;
}

bool describe_boxes(const box_layout & from, weight_boxes & to) {
    constexpr int N_BYTES = sizeof(uint16_t);  // of an element: some units end at no multiple of four
    const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(from.row_bytes / N_BYTES), static_cast<cuuint64_t>(from.n_rows),
                                 static_cast<cuuint64_t>(from.n_beside), static_cast<cuuint64_t>(from.n_experts)};
    const cuuint64_t strides[3] = {static_cast<cuuint64_t>(from.row_bytes), static_cast<cuuint64_t>(from.n_beside > 1 ? from.beside : from.row_bytes),
                                   static_cast<cuuint64_t>(from.n_experts > 1 ? from.expert_bytes : from.row_bytes)};
    const cuuint32_t box[4] = {static_cast<cuuint32_t>(from.box_bytes / N_BYTES), static_cast<cuuint32_t>(from.box_rows),
                               static_cast<cuuint32_t>(from.n_beside), 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return encoder()(reinterpret_cast<CUtensorMap *>(&to), CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<char *>(from.data), sizes, strides, box,
                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
