#include "fuse_router.h"

#include "fuse_products.h"

#include "ggml-impl.h"

static bool has_kernel(const pg_fused_products * p, const struct ggml_tensor * w) {
    const int64_t max_weights = 8192;  // which registers hold
    const int64_t max_rows = 1024;     // few for a block
    return pg_is_plain(p->x) && pg_is_plain(w) && p->is_normed && p->x->ne[1] <= PG_FUSED_MAX_TOKENS && p->x->ne[2] == 1 &&
           p->x->ne[3] == 1 && w->ne[0] <= max_weights && w->ne[0] % 4 == 0 && w->ne[1] <= max_rows && w->ne[2] == 1 && w->ne[3] == 1;
}

// Blocks read x and addend whole and at their own time; the sum is written after all have read.
static bool is_safe(const pg_fused_products * p) {
    const struct ggml_tensor * out = p->product[0].out;
    for (int i = 0; i < 2; i++) {
        const struct ggml_tensor * result = i ? p->normed : out;
        if (pg_overlap(result, p->x) || pg_overlap(result, p->addend) || pg_overlap(result, p->sum)) {
            return false;
        }
    }
    return !pg_overlap(out, p->normed);
}

bool pg_match_router(pg_fuse_run * r, pg_fused_products * p) {
    p->normed = pg_take_input(r, p);
    const struct ggml_tensor * rating = p->normed ? pg_fuse_take(r, GGML_OP_MUL_MAT) : NULL;
    if (!rating || rating->src[1] != p->normed || !has_kernel(p, rating->src[0]) ||
        !pg_is_constant(rating->src[0])) {
        return false;
    }
    p->n_products = 1;
    p->product[0] = (pg_fused_product) { .weight = rating->src[0], .out = rating };
    pg_fuse_write(r, p->normed);
    pg_fuse_write(r, rating);
    return pg_is_plain(p->normed) && pg_fuse_is_closed(r) && is_safe(p);
}
