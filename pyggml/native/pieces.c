#include "pieces.h"

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

static bool add_plain(pg_pieces * pieces, int first, int stop) {
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

static void tell_followers(pg_pieces * pieces, int first_piece) {
    for (int i = first_piece; i + 1 < pieces->n; i++) {
        pieces->items[i].fused.is_before_ours = pieces->items[i].is_fused && pieces->items[i + 1].is_fused;
    }
}

bool pg_pieces_add(pg_pieces * pieces, int first, int stop) {
    const int first_piece = pieces->n;
    int plain = first;
    for (int i = first; i < stop;) {
        pg_fused fused;
        const int n = pg_fuse_match(pieces->graph, i, stop, &fused);
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
    tell_followers(pieces, first_piece);
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

int pg_pieces_launch(const pg_pieces * pieces, int first, int stop, bool is_before_ours, const pgc_api * api,
                     ggml_backend_t backend) {
    for (int i = first; i < stop; i++) {
        pg_piece * piece = &pieces->items[i];
        if (!piece->is_fused) {
            struct ggml_cgraph view = ggml_graph_view(pieces->graph, piece->first, piece->stop);
            const enum ggml_status status = ggml_backend_graph_compute_async(backend, &view);
            if (status != GGML_STATUS_SUCCESS) {
                return status;
            }
            continue;
        }
        char why[200];
        pg_fused fused = piece->fused;
        fused.is_before_ours |= is_before_ours && i == stop - 1;
        if (!api->fuse_launch(&fused, backend, why, sizeof(why))) {
            GGML_LOG_ERROR("%s\n", why);
            return GGML_STATUS_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}
