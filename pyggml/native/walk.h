// The parts of a run of a plan, for whatever walks it; they only launch where the backend can.
#pragma once

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

// Once before a run, when the plan's group and its transports are known. False without host memory.
bool pg_plan_make_pieces(pg_plan * plan);

// Computes segment i; with is_begun the sum before it has computed its first piece.
int pg_plan_compute(pg_plan * plan, int i, bool is_begun);

// Takes the step behind segment i; with *begins_next the first piece of the next segment is done.
int pg_plan_take_step(pg_plan * plan, int i, bool * begins_next);

#ifdef __cplusplus
}
#endif
