// Captured launches of one stream.
#pragma once

#include "place.h"

struct pgc_graph {
    place where;
    cudaGraphExec_t executable;
};

bool begin_capture(const place & where, const reason & why);
pgc_graph * end_capture(const place & where, const reason & why);
bool launch_graph(pgc_graph * graph, const reason & why);
void free_graph(pgc_graph * graph);
