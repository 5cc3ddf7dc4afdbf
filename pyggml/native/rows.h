// Rows of a table copied to another place of it, on the device.
#pragma once

#include "ggml-backend.h"

// Copies n_rows rows of each contiguous matrix from row `from` to row `to`; the ranges must not overlap.
// The backend must be idle. Returns false when there is no memory for the views; then nothing was copied.
bool pg_rows_copy(struct ggml_tensor * const * tables, int n_tables, int64_t from, int64_t to, int64_t n_rows);
