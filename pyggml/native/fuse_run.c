#include "fuse_run.h"

#include "ggml-impl.h"

bool pg_is_free(const struct ggml_tensor * t) {
    return t->op == GGML_OP_NONE || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

const struct ggml_tensor * pg_behind(const struct ggml_tensor * t) {
    while (t && t->op == GGML_OP_RESHAPE) {
        t = t->src[0];
    }
    return t;
}

const struct ggml_tensor * pg_fuse_peek(const pg_fuse_run * r, enum ggml_op op) {
    for (int i = r->at; i < r->stop; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        if (!pg_is_free(node)) {
            return node->op == op ? node : NULL;
        }
    }
    return NULL;
}

const struct ggml_tensor * pg_fuse_take(pg_fuse_run * r, enum ggml_op op) {
    const struct ggml_tensor * node = pg_fuse_peek(r, op);
    if (node) {
        while (r->graph->nodes[r->at] != node) {
            r->at++;
        }
        r->at++;
    }
    return node;
}

void pg_fuse_write(pg_fuse_run * r, const struct ggml_tensor * t) {
    r->written[r->n_written++] = t;
}

bool pg_is_constant(const struct ggml_tensor * t) {
    while (t && t->view_src) {
        t = t->view_src;
    }
    return !t || t->op == GGML_OP_NONE;
}

bool pg_is_plain(const struct ggml_tensor * t) {
    return t && t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && (size_t) t->data % 16 == 0;
}

bool pg_is_read_once(const struct ggml_cgraph * graph, const struct ggml_tensor * node) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i] == node) {
            return ggml_node_get_use_count(graph, i) == 1 && !(node->flags & GGML_TENSOR_FLAG_OUTPUT) && !node->view_src;
        }
    }
    return false;
}

bool pg_fuse_has(const pg_fuse_run * r, const struct ggml_tensor * t) {
    for (int i = r->first; i < r->at; i++) {
        if (r->graph->nodes[i] == t) {
            return true;
        }
    }
    return false;
}

static bool is_written(const pg_fuse_run * r, const struct ggml_tensor * t) {
    for (int i = 0; i < r->n_written; i++) {
        if (r->written[i] == t) {
            return true;
        }
    }
    return false;
}

bool pg_fuse_is_closed(const pg_fuse_run * r) {
    for (int i = r->first; i < r->at; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        const struct ggml_tensor * root = node;
        while (pg_is_free(root) && root->src[0]) {
            root = root->src[0];
        }
        if (is_written(r, root) || !pg_fuse_has(r, root)) {
            continue;
        }
        int n_uses = 0;
        for (int k = r->first; k < r->at; k++) {
            for (int s = 0; s < GGML_MAX_SRC; s++) {
                n_uses += r->graph->nodes[k]->src[s] == node;
            }
        }
        if (n_uses != ggml_node_get_use_count(r->graph, i) || (node->flags & GGML_TENSOR_FLAG_OUTPUT)) {
            return false;
        }
    }
    return true;
}

bool pg_overlap(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    if (!a || !b) {
        return false;
    }
    const char * a0 = a->data;
    const char * b0 = b->data;
    return a0 < b0 + ggml_nbytes(b) && b0 < a0 + ggml_nbytes(a);
}
