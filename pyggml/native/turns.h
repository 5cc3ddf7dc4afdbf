// Two plans of a rank, each computing while the other's sum travels.
#pragma once

#include "runs.h"

#ifdef __cplusplus
extern "C" {
#endif

// Plans of one family of graphs, with memory of their own and their inputs sent: as pg_plan_start of the first, then of the
// second, but in turns from sum to sum. Sums go to `side` where a transport takes them there. A segment of the second may
// read what the same segment of the first has written.
int pg_turns_start(pg_plan * first, pg_plan * second, pgc_side * side);

#ifdef __cplusplus
}
#endif
