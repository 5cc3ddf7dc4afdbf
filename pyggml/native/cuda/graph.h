// Captured launches of one stream.
#pragma once

#include "place.h"

struct pgc_graph {
    place where;
    cudaGraphExec_t executable;
};

// streams_weights: products of ours, which fill shared memory, take most of the launches' time. A processor changes what it has of it
// only when nothing runs there, so kernels between that would do with little are to leave it as it is.
bool begin_capture(const place & where, bool streams_weights, const reason & why);

// The recorded graph; `earlier`, which may be null, is taken over and becomes it where the two are alike but for their kernels'
// arguments, which takes a fraction of the time.
pgc_graph * end_capture(const place & where, pgc_graph * earlier, const reason & why);
bool launch_graph(pgc_graph * graph, const reason & why);
void free_graph(pgc_graph * graph);
