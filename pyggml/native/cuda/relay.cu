#include "relay.h"

#include "relay_pairs.cuh"

constexpr int N_THREADS = 128;

bool prepare_relay(const place & where, const reason & why) {
    cudaFuncAttributes attributes;
    return why.passed(cudaSetDevice(where.card), "cudaSetDevice") &&
           why.passed(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(offer)), "loading a kernel") &&
           why.passed(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(feed)), "loading a kernel");
}

void pairs_of(const ggml_tensor * found, int64_t n_rows, int n_ranks, ggml_tensor * pairs) {
    const int64_t result_ints = (n_rows * PGC_CHOOSE_INTS + 3) / 4 * 4;
    *pairs = ggml_tensor{};
    pairs->type = GGML_TYPE_F32;
    pairs->buffer = found->buffer;
    pairs->data = static_cast<int32_t *>(found->data) + result_ints;
    const int64_t n = 2 * n_rows * n_ranks;
    const int64_t ne[GGML_MAX_DIMS] = {n, 1, 1, 1};
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        pairs->ne[i] = ne[i];
        pairs->nb[i] = i == 0 ? sizeof(float) : n * sizeof(float);
    }
}

bool offer_likeliest(ggml_backend_t backend, const ggml_tensor * found, int64_t first_id, int rank, int n_ranks, const ggml_tensor * pairs,
                     char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    if (!find_place(backend, where, why) || !why.passed(cudaSetDevice(where.card), "cudaSetDevice")) {
        return false;
    }
    offer<<<1, N_THREADS, 0, where.stream>>>(static_cast<const int32_t *>(found->data), static_cast<int>(pairs->ne[0] / (2 * n_ranks)),
                                             static_cast<int>(first_id), rank, n_ranks, static_cast<float *>(pairs->data));
    return why.passed(cudaGetLastError(), "offering tokens");
}

bool feed_likeliest(ggml_backend_t backend, const ggml_tensor * pairs, int n_ranks, ggml_tensor * tokens, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    if (!find_place(backend, where, why) || !why.passed(cudaSetDevice(where.card), "cudaSetDevice")) {
        return false;
    }
    feed<<<1, N_THREADS, 0, where.stream>>>(static_cast<const float *>(pairs->data), static_cast<int>(tokens->ne[0]), n_ranks,
                                            static_cast<int32_t *>(tokens->data));
    return why.passed(cudaGetLastError(), "feeding tokens");
}
