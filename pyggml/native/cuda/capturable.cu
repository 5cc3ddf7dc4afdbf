// Which nodes ggml's CUDA module can only run by waiting on the host, which a stream that is recorded does not
// survive: products with experts whose type, shape or card no fast kernel serves. The rule is ggml's own, on the safe side.

#include "capturable.h"

#include "ggml-impl.h"

namespace {

constexpr int AMPERE = 8;
constexpr int N_WARP = 32;
constexpr int ROWS_A_BLOCK = 32;

// ggml's kernel for float matrices, in its form with experts.
bool has_float_kernel(const ggml_tensor * weight, int64_t n_tokens) {
    const int64_t size = static_cast<int64_t>(ggml_type_size(weight->type));
    bool is_aligned = weight->nb[0] == static_cast<size_t>(size);
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        is_aligned = is_aligned && weight->nb[i] % (2 * size) == 0;
    }
    const int64_t most_tokens = weight->ne[1] <= 1024 ? 512 : 128;
    return is_aligned && weight->ne[0] % (N_WARP * 4 / size) == 0 && weight->ne[1] % ROWS_A_BLOCK == 0 &&
           n_tokens <= most_tokens;
}

bool waits_on_host(const ggml_tensor * node, int major) {
    if (node->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    const ggml_tensor * weight = node->src[0];
    if (node->src[1]->type != GGML_TYPE_F32 || node->type != GGML_TYPE_F32 || major < AMPERE) {
        return true;
    }
    return !ggml_is_quantized(weight->type) && !has_float_kernel(weight, node->src[1]->ne[2]);
}

}  // namespace

bool can_capture(ggml_backend_t backend, const ggml_cgraph * graph, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    int major = 0;
    if (!find_place(backend, where, why) ||
        !why.passed(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, where.card), "capability")) {
        return false;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (waits_on_host(node, major)) {
            const ggml_tensor * weight = node->src[0];
            return why.say("experts of type %s, %lld x %lld, for %lld tokens wait on the host", ggml_type_name(weight->type),
                           static_cast<long long>(weight->ne[1]), static_cast<long long>(weight->ne[0]),
                           static_cast<long long>(node->src[1]->ne[2]));
        }
    }
    return true;
}
