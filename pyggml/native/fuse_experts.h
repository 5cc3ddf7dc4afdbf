// Runs that begin with the product of gate or up of the experts that a router chose.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

// For any number of tokens up to the limit; which are wanted says fuse_parts.h.
bool pg_match_experts(pg_fuse_run * r, pg_fused_experts * out);

#ifdef __cplusplus
}
#endif
