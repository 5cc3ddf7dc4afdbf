// A run of a graph's nodes while it is being found: a run is taken only if every node in it that is not written has no
// reader outside.
#pragma once

#include "ggml.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PG_FUSE_MAX_WRITTEN 8

// The run so far: nodes [first, at) are taken.
typedef struct {
    const struct ggml_cgraph * graph;
    int first, at, stop;
    bool may_attend;
    const struct ggml_tensor * written[PG_FUSE_MAX_WRITTEN];
    int n_written;
} pg_fuse_run;

// Whether a node computes nothing.
bool pg_is_free(const struct ggml_tensor * t);

// The tensor behind views that keep all elements in order.
const struct ggml_tensor * pg_behind(const struct ggml_tensor * t);

// The next node that computes something, if it is `op`, else NULL; take makes it part of the run.
const struct ggml_tensor * pg_fuse_peek(const pg_fuse_run * r, enum ggml_op op);
const struct ggml_tensor * pg_fuse_take(pg_fuse_run * r, enum ggml_op op);

// Says that `t` will be written, so that others may read it.
void pg_fuse_write(pg_fuse_run * r, const struct ggml_tensor * t);

// Whether one node reads a node's result, itself and not a view of it, and the graph's user does not.
bool pg_is_read_once(const struct ggml_cgraph * graph, const struct ggml_tensor * node);

bool pg_fuse_has(const pg_fuse_run * r, const struct ggml_tensor * t);
bool pg_fuse_is_closed(const pg_fuse_run * r);

// Whether no node computes it, so that a kernel may read it before earlier ones have ended.
bool pg_is_constant(const struct ggml_tensor * t);

// Read and written by 16 bytes.
bool pg_is_plain(const struct ggml_tensor * t);

// Whether two tensors, either of which may be NULL, share memory.
bool pg_overlap(const struct ggml_tensor * a, const struct ggml_tensor * b);

#ifdef __cplusplus
}
#endif
