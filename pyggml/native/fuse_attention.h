// Runs of attention: few tokens over a float16 cache.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

// One FLASH_ATTN_EXT and the views before and behind it, so that a run of ours on either side is its neighbour.
bool pg_match_attention(pg_fuse_run * r, pg_fused * out);

#ifdef __cplusplus
}
#endif
