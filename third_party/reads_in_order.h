// Included before ggml-cuda's attention kernels, on whose cards (compute capability 9.0 on) kernels may start before earlier
// ones have ended and wait before they read: there nvcc must not take reads for those of memory that never changes.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define __restrict__
#endif
