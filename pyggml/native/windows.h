// Windows: stretches of rows that a laid out graph sees, and that may begin and end elsewhere from run to run.
#pragma once

#include "ggml.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// A view of rows of a state, `step` bytes a unit of its start, or an input (step 0) as wide as such views are long.
// `dim` is the dimension (innermost 0) that is as long as the window.
typedef struct {
    struct ggml_tensor * tensor;
    int dim;
    int64_t step;
} pg_window;

// Whether the graph computes the same kind of thing for every window: nothing but attention that takes any length
// reads them. Else *reader is the operation that does.
bool pg_windows_can_move(const struct ggml_cgraph * graph, const pg_window * windows, int n, const char ** reader);

// Moves every window of a graph that is laid out by `delta` units and makes it `length` long, at most as long as it
// was when the graph was laid out. No run may be in flight.
void pg_windows_move(struct ggml_cgraph * graph, pg_window * windows, int n, int64_t delta, int64_t length);

#ifdef __cplusplus
}
#endif
