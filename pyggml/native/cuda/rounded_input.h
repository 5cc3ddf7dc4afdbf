// Activations of several columns, summed, normed, weighted and rounded once for all blocks of the products that follow.
#pragma once

#include "products.h"

#include <cuda_runtime.h>

// Bytes that `n_columns` of `n_weights` need.
size_t rounded_size(int n_weights, int n_columns);

// Fills `memory`, which the launches before may still read, and lets the next launch start. Sets p.rounded; the sum of x and
// addend is written, also where it lies in one of them, and is what p.in has from then on.
cudaError_t launch_rounding(products & p, rounding kind, void * memory, cudaStream_t stream);
