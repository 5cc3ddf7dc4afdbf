// A segment of a laid-out graph as pieces: runs of nodes that the CUDA module computes as one, and what lies between.
#pragma once

#include "cuda_api.h"
#include "fuse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int first, stop;
    bool is_fused;  // else ggml computes the nodes
    pg_fused fused;
    struct ggml_tensor * total;  // of a sum over ranks and addend, which the sum may compute in place of the piece
    const struct ggml_tensor * addend;
} pg_piece;

typedef struct {
    struct ggml_cgraph * graph;
    pg_piece * items;
    int n, max;
    bool may_attend;  // with our attention among them
} pg_pieces;

// Appends the pieces of nodes first to stop - 1; false without host memory. Where the first that computes something adds to
// `sum` (the tensor that ranks have just summed, or NULL), and nothing else reads it, it is a piece of its own with a total.
// is_before_ours: a launch of the CUDA module follows.
bool pg_pieces_add(pg_pieces * pieces, int first, int stop, const struct ggml_tensor * sum, bool is_before_ours);
void pg_pieces_free(pg_pieces * pieces);
int pg_pieces_n_fused(const pg_pieces * pieces);

// Whether there are fused products, and all products with weights have so few columns that their time is that of reading them.
bool pg_pieces_stream_weights(const pg_pieces * pieces);

// Launches pieces first to stop - 1 in turn; a ggml_status.
int pg_pieces_launch(const pg_pieces * pieces, int first, int stop, const pgc_api * api, ggml_backend_t backend);

#ifdef __cplusplus
}
#endif
