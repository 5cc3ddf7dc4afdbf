// Half precision as CUDA names it.
#pragma once

#include "cuda_runtime.h"

#include <cmath>

struct __half {
    unsigned short bits;
};

static inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}

static inline unsigned short __half_as_ushort(__half h) {
    return h.bits;
}

static inline float __half2float(__half h) {
    const int exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                     : exponent == 31 ? (fraction ? NAN : INFINITY)
                                                      : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return h.bits & 0x8000 ? -size : size;
}

// To nearest, ties to even; what is too large becomes infinite.
static inline __half __float2half(float v) {
    const unsigned short sign = std::signbit(v) ? 0x8000 : 0;
    const float size = std::fabs(v);
    if (std::isnan(v)) {
        return {0x7fff};
    }
    if (size >= 65520.0f) {
        return {static_cast<unsigned short>(sign | 0x7c00)};
    }
    if (size == 0) {
        return {sign};
    }
    int exponent;
    std::frexp(size, &exponent);
    const int unit = std::max(exponent - 11, -24);  // of the last place
    const int count = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
    const int biased = unit == -24 && count < 1024 ? 0 : unit + 25;
    const int bits = biased == 0 ? count : (biased << 10) + (count - 1024);  // a carry counts the exponent up
    return {static_cast<unsigned short>(sign | bits)};
}
