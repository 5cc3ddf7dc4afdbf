// Where a step's time goes: nodes run one by one on any backend, or CUDA kernels as CUPTI saw them.
#pragma once

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sends the inputs, then runs each node of the graph by itself and waits for it: its seconds, 0 for a node without
// work. A ggml_status. Collectives of a group are left out. Nothing else may run on the backend.
int pg_profile_nodes(ggml_backend_t backend, struct ggml_cgraph * graph, const pg_transfer * inputs, int n_inputs,
                     double * seconds);

// All launches of one kernel (name as the linker knows it) with one grid on one card; copies and fills of memory have
// names of their own.
typedef struct {
    char name[512];
    int grid[3];
    int card;
    int64_t count;
    int64_t ns;
} pg_kernel;

// Begins to collect kernels through the CUPTI library at this path, on all cards of the process. Graphs must be recorded
// afterwards for their kernels to be seen. One trace at a time; false with the reason in `why`.
bool pg_trace_begin(const char * library, char * why, size_t why_size);

// Forgets what was collected so far; whatever is on its way must have ended.
void pg_trace_restart(void);

// Ends the trace and writes up to `max` kernels; returns how many there are, -1 without a trace.
int pg_trace_end(pg_kernel * out, int max);

#ifdef __cplusplus
}
#endif
