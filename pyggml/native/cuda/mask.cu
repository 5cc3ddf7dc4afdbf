// The causal mask of attention, made on the card from the tokens' positions: cheaper than sending it for every chunk.

#include "mask.h"

#include <cuda_fp16.h>

namespace {

constexpr int N_THREADS = 256;
constexpr int A_STORE = 8;  // halves in 16 bytes

// Token `blockIdx.x` sees rows up to its own position, with a window only the last `window` of them.
__global__ void fill(__half * mask, const int32_t * positions, int64_t n_kv, int window) {
    const int64_t position = positions[blockIdx.x];
    const int64_t first = window > 0 ? position - window + 1 : 0;
    __half * row = mask + static_cast<int64_t>(blockIdx.x) * n_kv;
    const __half hidden = __ushort_as_half(0xfc00), seen = __ushort_as_half(0);
    for (int64_t at = A_STORE * threadIdx.x; at < n_kv; at += A_STORE * N_THREADS) {
        __align__(16) __half values[A_STORE];
        for (int i = 0; i < A_STORE; i++) {
            values[i] = at + i <= position && at + i >= first ? seen : hidden;
        }
        if (at + A_STORE <= n_kv && n_kv % A_STORE == 0) {
            *reinterpret_cast<uint4 *>(row + at) = *reinterpret_cast<const uint4 *>(values);
        } else {
            for (int i = 0; i < A_STORE && at + i < n_kv; i++) {
                row[at + i] = values[i];
            }
        }
    }
}

}  // namespace

bool fill_mask(ggml_backend_t backend, ggml_tensor * mask, const ggml_tensor * positions, int window, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    if (!find_place(backend, where, why) || !why.passed(cudaSetDevice(where.card), "cudaSetDevice")) {
        return false;
    }
    fill<<<static_cast<unsigned>(positions->ne[0]), N_THREADS, 0, where.stream>>>(
        static_cast<__half *>(mask->data), static_cast<const int32_t *>(positions->data), mask->ne[0], window);
    return why.passed(cudaGetLastError(), "filling a mask");
}
