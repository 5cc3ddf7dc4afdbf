// Launches the runs that fuse.h finds.
#pragma once

#include "place.h"

// Whether a backend's card can run them: compute capability 8.0 and kernels compiled for it.
bool can_fuse(const place & where);

// Whether it has those of attention: compute capability 9.0.
bool can_attend(const place & where);

bool launch_fused(const pg_fused & fused, const place & where, const reason & why);
