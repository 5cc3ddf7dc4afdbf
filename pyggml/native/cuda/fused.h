// Launches the runs that fuse.h finds.
#pragma once

#include "place.h"

// Whether a backend's card can run them: compute capability 8.0 and kernels compiled for it.
bool can_fuse(const place & where);

bool launch_fused(const pg_fused & fused, const place & where, const reason & why);
