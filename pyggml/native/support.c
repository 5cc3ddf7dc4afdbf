// Whether a device can compute a node: its own answer, less what it says yes to and then ends the process on.

#include "support.h"

static bool is_free(const struct ggml_tensor * node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

// ggml-cuda takes every GGML_OP_CONT, but reorders the elements of these types only.
static bool can_reorder(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_I32;
}

bool pg_supports(ggml_backend_dev_t device, const struct ggml_tensor * node) {
    if (is_free(node)) {
        return true;
    }
    if (!ggml_backend_dev_supports_op(device, node)) {
        return false;
    }
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return true;
    }
    return node->op != GGML_OP_CONT || ggml_is_contiguous(node->src[0]) || can_reorder(node->src[0]->type);
}
