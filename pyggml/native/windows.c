// Moving windows: sizes and addresses of views are changed in place, so that a graph need not be built anew for
// another slot or another length of the cache. ggml's backends read both when they launch.

#include "windows.h"

#include "ggml-impl.h"

#include <string.h>

static const pg_window * window_of(const pg_window * windows, int n, const struct ggml_tensor * tensor) {
    for (int i = 0; i < n; i++) {
        if (windows[i].tensor == tensor) {
            return &windows[i];
        }
    }
    return NULL;
}

static bool is_turned(const pg_window * windows, int n, const struct ggml_tensor * node) {
    return node && node->op == GGML_OP_PERMUTE && window_of(windows, n, node->src[0]);
}

bool pg_windows_can_move(const struct ggml_cgraph * graph, const pg_window * windows, int n, const char ** reader) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        if (node->op == GGML_OP_FLASH_ATTN_EXT || is_turned(windows, n, node)) {
            continue;
        }
        for (int k = 0; k < GGML_MAX_SRC; k++) {
            if (node->src[k] && (window_of(windows, n, node->src[k]) || is_turned(windows, n, node->src[k]))) {
                *reader = ggml_op_desc(node);
                return false;
            }
        }
    }
    return true;
}

static void shift(struct ggml_tensor * view, int64_t n_bytes) {
    view->data = (char *) view->data + n_bytes;
    view->view_offs += n_bytes;
    if (view->op == GGML_OP_VIEW) {
        memcpy(view->op_params, &view->view_offs, sizeof(view->view_offs));
    }
}

static void resize(const pg_window * window, int64_t length) {
    struct ggml_tensor * tensor = window->tensor;
    tensor->ne[window->dim] = length;
    if (!tensor->view_src) {  // an input is packed
        for (int i = window->dim + 1; i < GGML_MAX_DIMS; i++) {
            tensor->nb[i] = tensor->nb[i - 1] * (i == 1 ? tensor->ne[0] / ggml_blck_size(tensor->type) : tensor->ne[i - 1]);
        }
    }
}

void pg_windows_move(struct ggml_cgraph * graph, pg_window * windows, int n, int64_t delta, int64_t length) {
    for (int i = 0; i < n; i++) {
        shift(windows[i].tensor, windows[i].tensor->view_src ? delta * windows[i].step : 0);
        resize(&windows[i], length);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * node = graph->nodes[i];
        const pg_window * window = node->op == GGML_OP_PERMUTE ? window_of(windows, n, node->src[0]) : NULL;
        if (window) {
            shift(node, delta * window->step);
            node->ne[node->op_params[window->dim]] = length;
        }
    }
}
