// The rest of a run that makes Q, K and V: rotation, and the writing of the cache.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Q's product is taken: rope of Q and K, K and V into the cache. The rotated Q is not said to be written.
bool pg_take_heads(pg_fuse_run * r, const struct ggml_tensor * input, pg_fused_products * p, pg_fused_heads * h);

#ifdef __cplusplus
}
#endif
