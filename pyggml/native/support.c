// Whether a device can compute a node: its own answer, less what it says yes to and then ends the process on, or
// computes wrongly.

#include "support.h"

#include <string.h>

static const char * const NO_KERNEL = "it has no kernel for these operands";

static bool is_free(const struct ggml_tensor * node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_VIEW ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

// ggml-cuda takes every GGML_OP_CONT, but reorders the elements of these types only.
static bool can_reorder(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_I32;
}

static bool is_copy(const struct ggml_tensor * node) {
    return node->op == GGML_OP_CONT || node->op == GGML_OP_CPY || node->op == GGML_OP_DUP;
}

// ggml-vulkan takes copies of 8-byte numbers, but has kernels for two and four bytes only.
static bool is_wide_copy(const struct ggml_tensor * node) {
    return is_copy(node) && !ggml_is_quantized(node->src[0]->type) && ggml_type_size(node->src[0]->type) > 4;
}

// Where a storage buffer may begin is coarser than an element. Only some of ggml-vulkan's kernels are told how far
// behind its buffer's beginning an operand lies; the others end the process or read from the beginning.
static bool takes_any_place(const struct ggml_tensor * node, int operand) {
    switch (node->op) {
        case GGML_OP_CONT:
        case GGML_OP_CPY:
        case GGML_OP_DUP:
            // The distance is told in blocks and taken for elements.
            return !ggml_is_quantized(node->src[0]->type) && !ggml_is_quantized(node->type);
        case GGML_OP_UNARY:
        case GGML_OP_SQR:
        case GGML_OP_SQRT:
        case GGML_OP_LOG:
        case GGML_OP_CLAMP:
        case GGML_OP_SCALE:
        case GGML_OP_REPEAT:
        case GGML_OP_GLU:
        case GGML_OP_SUM_ROWS:
        case GGML_OP_CONCAT:
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_GET_ROWS:
        case GGML_OP_SET_ROWS:
            return true;
        case GGML_OP_ROPE:
            return operand <= 0;
        default:
            return false;
    }
}

static bool begins_between(const struct ggml_tensor * t, size_t alignment) {
    return t && t->view_src && t->view_offs % alignment;
}

static bool is_out_of_place(ggml_backend_dev_t device, const struct ggml_tensor * node) {
    const size_t alignment = ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(device));
    bool is_between = begins_between(node, alignment) && !takes_any_place(node, -1);
    for (int i = 0; i < GGML_MAX_SRC && !is_between; i++) {
        is_between = begins_between(node->src[i], alignment) && !takes_any_place(node, i);
    }
    return is_between;
}

static const char * vulkan_obstacle(ggml_backend_dev_t device, const struct ggml_tensor * node) {
    if (is_wide_copy(node)) {
        return NO_KERNEL;
    }
    return is_out_of_place(device, node) ? "an operand begins inside of another tensor, at a place that the device "
                                           "cannot bind; use .cont() on it" : NULL;
}

// ggml-cuda's products and attention read up to 16 bytes at once and count strides in pairs, whatever the operand's own do.
static bool is_evenly_laid(const struct ggml_tensor * t) {
    const bool has_blocks = ggml_is_quantized(t->type);
    const size_t row_size = ggml_row_size(t->type, t->ne[0]);
    if (t->view_src && t->view_offs % 16 && !has_blocks) {
        return false;
    }
    if (t->nb[1] == row_size && t->nb[2] == t->nb[1] * t->ne[1] && t->nb[3] == t->nb[2] * t->ne[2]) {
        return true;
    }
    return t->nb[1] >= row_size && (has_blocks || (t->nb[1] % 16 == 0 && t->nb[2] % 16 == 0 && t->nb[3] % 16 == 0));
}

// ggml-cuda's attention with a cap on scores is compiled for these heads; it traps on others.
static bool takes_cap(const struct ggml_tensor * attention) {
    float cap;
    memcpy(&cap, attention->op_params + 2, sizeof(cap));
    const int64_t k = attention->src[1]->ne[0], v = attention->src[2]->ne[0];
    return cap == 0.0f || (k == v && (k == 128 || k == 256 || k == 512));
}

// It sorts tokens by expert and counts on each token choosing an expert once. Inputs are checked when they are sent.
static bool are_distinct(const struct ggml_tensor * ids) {
    const int64_t n = ids->ne[0];
    bool is_cut = false;
    while (ids->op == GGML_OP_VIEW || ids->op == GGML_OP_CONT || (ids->op == GGML_OP_RESHAPE && ids->ne[0] == ids->src[0]->ne[0])) {
        is_cut |= ids->op == GGML_OP_VIEW;
        ids = ids->src[0];
    }
    return n == 1 || ids->op == GGML_OP_ARGSORT || (ids->flags & GGML_TENSOR_FLAG_INPUT && !is_cut);
}

static const char * const UNEVEN = "an operand's rows begin at places that the device cannot read from; use .cont() on it";

static const char * cuda_obstacle(const struct ggml_tensor * node) {
    const bool is_product = node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
    if (!is_product && node->op != GGML_OP_FLASH_ATTN_EXT) {
        return NULL;
    }
    const int n_read = is_product ? 2 : 4;
    for (int i = 0; i < n_read; i++) {
        if (node->src[i] && !is_evenly_laid(node->src[i])) {
            return UNEVEN;
        }
    }
    if (node->op == GGML_OP_FLASH_ATTN_EXT && !takes_cap(node)) {
        return NO_KERNEL;
    }
    return node->op == GGML_OP_MUL_MAT_ID && !are_distinct(node->src[2]) ?
        "the experts of a token may be equal, as far as is known; take them from top_k" : NULL;
}

const char * pg_obstacle(ggml_backend_dev_t device, const struct ggml_tensor * node) {
    if (is_free(node)) {
        return NULL;
    }
    if (!ggml_backend_dev_supports_op(device, node)) {
        return NO_KERNEL;
    }
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return NULL;
    }
    if (node->op == GGML_OP_CONT && !ggml_is_contiguous(node->src[0]) && !can_reorder(node->src[0]->type)) {
        return NO_KERNEL;
    }
    const char * interface = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    return strcmp(interface, "Vulkan") == 0 ? vulkan_obstacle(device, node) : strcmp(interface, "CUDA") == 0 ? cuda_obstacle(node) : NULL;
}

bool pg_supports(ggml_backend_dev_t device, const struct ggml_tensor * node) {
    return pg_obstacle(device, node) == NULL;
}
