// The end of a run that makes Q, K and V: attention of one token a sequence.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Heads are taken: the attention that reads them and nothing else of the run, over a float16 cache that no node before the
// run writes. Not where others read the rotated Q too. Where it is not taken, the caller goes back to the run as it was.
bool pg_take_attention(pg_fuse_run * r, pg_fused_heads * h);

#ifdef __cplusplus
}
#endif
