// Captured launches of one stream.
#pragma once

#include "place.h"

struct pgc_graph {
    place where;
    cudaGraphExec_t executable;
};

bool begin_capture(const place & where, const reason & why);

// The recorded graph; `earlier`, which may be null, is taken over and becomes it where the two are alike but for their kernels'
// arguments, which takes a fraction of the time.
pgc_graph * end_capture(const place & where, pgc_graph * earlier, const reason & why);
bool launch_graph(pgc_graph * graph, const reason & why);
void free_graph(pgc_graph * graph);
