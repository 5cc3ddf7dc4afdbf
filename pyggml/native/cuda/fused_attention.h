// Launches attention for a node of a graph.
#pragma once

#include "place.h"

// node: FLASH_ATTN_EXT, as fuse_attention.c takes it.
bool launch_attention_of(const ggml_tensor * node, bool lets_next_start, int n_processors, const place & where, const reason & why);
