// Kernels here run one after another. Stands where pyggml/native/cuda/launch_order.cuh stands.
#pragma once

inline void let_next_start() {}

inline void wait_for_earlier() {}
