// Runs around products of one input; they start with [add,] rms_norm, mul, or at once with a product.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Fills products and heads of `out`, where fuse_parts.h says that they are wanted.
bool pg_match_products(pg_fuse_run * r, pg_fused * out);

// Whether there are kernels for matrices of this type that begin there.
bool pg_has_kernel(const struct ggml_tensor * weight);

// [add,] rms_norm, mul, or none of them; the tensor that the products read.
const struct ggml_tensor * pg_take_input(pg_fuse_run * r, pg_fused_products * p);

// The next product of `input`, if there is one.
bool pg_take_product(pg_fuse_run * r, const struct ggml_tensor * input, pg_fused_products * p);

// An add of one row for all columns (a bias), or of as many (a residual).
void pg_take_addition(pg_fuse_run * r, pg_fused_product * p, bool is_bias);

// What joins gate and up.
enum pg_gate pg_gate_of(const struct ggml_tensor * glu);

#ifdef __cplusplus
}
#endif
