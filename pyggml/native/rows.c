// Rows of a table copied to another place of it, on the device.

#include "rows.h"

#include "ggml.h"

static struct ggml_tensor * rows_of(struct ggml_context * ctx, struct ggml_tensor * table, int64_t start, int64_t n) {
    struct ggml_tensor * view = ggml_view_2d(ctx, table, table->ne[0], n, table->nb[1], (size_t) start * table->nb[1]);
    return ggml_backend_view_init(view) == GGML_STATUS_SUCCESS ? view : NULL;
}

bool pg_rows_copy(struct ggml_tensor * const * tables, int n_tables, int64_t from, int64_t to, int64_t n_rows) {
    struct ggml_init_params params = { (size_t) (2 * n_tables + 1) * ggml_tensor_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    if (!ctx) {
        return false;
    }
    bool is_done = true;
    for (int i = 0; i < n_tables && is_done; i++) {
        struct ggml_tensor * source = rows_of(ctx, tables[i], from, n_rows);
        struct ggml_tensor * target = rows_of(ctx, tables[i], to, n_rows);
        is_done = source && target;
        if (is_done) {
            ggml_backend_tensor_copy(source, target);
        }
    }
    ggml_free(ctx);
    return is_done;
}
