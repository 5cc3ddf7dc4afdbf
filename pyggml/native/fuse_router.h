// Runs around the product that rates experts: [add,] rms_norm, mul, and a small matrix of float32.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

bool pg_match_router(pg_fuse_run * r, pg_fused_products * out);

#ifdef __cplusplus
}
#endif
