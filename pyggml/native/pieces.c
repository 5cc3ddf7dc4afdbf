#include "pieces.h"

#include "fuse_run.h"

#include "ggml-impl.h"

#include <stdlib.h>

static pg_piece * next(pg_pieces * pieces) {
    if (pieces->n == pieces->max) {
        const int max = pieces->max ? 2 * pieces->max : 16;
        pg_piece * items = realloc(pieces->items, max * sizeof(pg_piece));
        if (!items) {
            return NULL;
        }
        pieces->items = items;
        pieces->max = max;
    }
    pg_piece * piece = &pieces->items[pieces->n++];
    *piece = (pg_piece) { .is_fused = false };
    return piece;
}

// Nodes that compute nothing are no piece: what lies before them and behind are neighbours.
static bool add_plain(pg_pieces * pieces, int first, int stop) {
    while (first < stop && pg_is_free(pieces->graph->nodes[first])) {
        first++;
    }
    if (first == stop) {
        return true;
    }
    pg_piece * piece = next(pieces);
    if (piece) {
        piece->first = first;
        piece->stop = stop;
    }
    return piece != NULL;
}

// Whether places of one tensor are other places of the other.
static bool is_shifted(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a->data != b->data && pg_overlap(a, b);
}

// The node after an addition to `sum` that the ranks' sum itself can make, or `first`; `piece` takes what it is.
static int take_addition(const pg_pieces * pieces, int first, int stop, const struct ggml_tensor * sum, pg_piece * piece) {
    pg_fuse_run run = { .graph = pieces->graph, .first = first, .at = first, .stop = stop };
    const struct ggml_tensor * add = sum ? pg_fuse_take(&run, GGML_OP_ADD) : NULL;
    if (!add || (add->src[0] != sum && add->src[1] != sum) || add->src[0] == add->src[1]) {
        return first;
    }
    const struct ggml_tensor * addend = add->src[add->src[0] == sum];
    const bool is_plain = pg_is_plain(sum) && pg_is_plain(addend) && pg_is_plain(add);
    if (!is_plain || is_shifted(add, sum) || is_shifted(add, addend) || !ggml_are_same_shape(sum, addend) ||
        !pg_is_read_once(pieces->graph, sum)) {
        return first;
    }
    *piece = (pg_piece) { .first = first, .stop = run.at, .total = pieces->graph->nodes[run.at - 1], .addend = addend };
    return run.at;
}

// A launch of ours behind a segment is a sum.
static void tell_neighbours(pg_pieces * pieces, int first_piece, bool is_behind_ours, bool is_before_ours) {
    for (int i = first_piece; i < pieces->n; i++) {
        pg_piece * piece = &pieces->items[i];
        piece->fused.is_before_ours = i + 1 < pieces->n ? piece[1].is_fused : is_before_ours;
        piece->fused.is_behind_ours = i > first_piece ? piece[-1].is_fused || piece[-1].total : is_behind_ours;
        piece->fused.is_before_sum = i + 1 == pieces->n && is_before_ours;
    }
}

bool pg_pieces_add(pg_pieces * pieces, int first, int stop, const struct ggml_tensor * sum, bool is_before_ours) {
    const int first_piece = pieces->n;
    pg_piece addition;
    int plain = take_addition(pieces, first, stop, sum, &addition);
    if (plain > first) {
        pg_piece * piece = next(pieces);
        if (!piece) {
            return false;
        }
        *piece = addition;
    }
    for (int i = plain; i < stop;) {
        pg_fused fused;
        const int n = pg_fuse_match(pieces->graph, i, stop, pieces->may_attend, &fused);
        if (n == 0) {
            i++;
            continue;
        }
        pg_piece * piece = add_plain(pieces, plain, i) ? next(pieces) : NULL;
        if (!piece) {
            return false;
        }
        piece->first = i;
        piece->stop = i + n;
        piece->is_fused = true;
        piece->fused = fused;
        plain = i += n;
    }
    if (!add_plain(pieces, plain, stop)) {
        return false;
    }
    tell_neighbours(pieces, first_piece, sum != NULL, is_before_ours);
    return true;
}

void pg_pieces_free(pg_pieces * pieces) {
    free(pieces->items);
    *pieces = (pg_pieces) { .graph = NULL };
}

int pg_pieces_n_fused(const pg_pieces * pieces) {
    int n = 0;
    for (int i = 0; i < pieces->n; i++) {
        n += pieces->items[i].is_fused;
    }
    return n;
}

static const int64_t max_streaming_columns = 8;

// Whether a node multiplies many columns by weights.
static bool is_wide_product(const struct ggml_tensor * node) {
    const bool is_product = (node->op == GGML_OP_MUL_MAT && pg_is_constant(node->src[0])) || node->op == GGML_OP_MUL_MAT_ID;
    return is_product && (node->op == GGML_OP_MUL_MAT_ID ? node->ne[2] : node->ne[1]) > max_streaming_columns;
}

bool pg_pieces_stream_weights(const pg_pieces * pieces) {
    for (int i = 0; i < pieces->n; i++) {
        for (int k = pieces->items[i].first; k < pieces->items[i].stop; k++) {
            if (is_wide_product(pieces->graph->nodes[k])) {
                return false;
            }
        }
    }
    return pg_pieces_n_fused(pieces) > 0;
}

static int compute(const pg_pieces * pieces, int first, int stop, ggml_backend_t backend) {
    struct ggml_cgraph view = ggml_graph_view(pieces->graph, first, stop);
    return ggml_backend_graph_compute_async(backend, &view);
}

static int launch(const pg_fused * fused, const pgc_api * api, ggml_backend_t backend) {
    char why[200];
    if (!api->fuse_launch(fused, backend, why, sizeof(why))) {
        GGML_LOG_ERROR("%s\n", why);
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

// A run whose attention is ggml's this time.
static int launch_without_attention(const pg_pieces * pieces, const pg_piece * piece, const pgc_api * api, ggml_backend_t backend) {
    pg_fused heads = piece->fused;
    heads.heads.attention = NULL;
    heads.is_before_ours = false;
    const int status = launch(&heads, api, backend);
    return status == GGML_STATUS_SUCCESS ? compute(pieces, piece->first + heads.heads.n_before_attention, piece->stop, backend) : status;
}

int pg_pieces_launch(const pg_pieces * pieces, int first, int stop, const pgc_api * api, ggml_backend_t backend) {
    for (int i = first; i < stop; i++) {
        pg_piece * piece = &pieces->items[i];
        const bool has_attention = piece->is_fused && piece->fused.heads.attention;
        const int status = !piece->is_fused ? compute(pieces, piece->first, piece->stop, backend) :
                           has_attention && !pg_fuse_attends(&piece->fused) ? launch_without_attention(pieces, piece, api, backend) :
                           launch(&piece->fused, api, backend);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}
