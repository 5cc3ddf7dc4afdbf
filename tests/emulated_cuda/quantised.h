// Random quantised matrices and what their values are, in ggml's layouts and in float64.
#pragma once

#include "cuda_fp16.h"

#include <random>
#include <string>
#include <vector>

inline std::mt19937 generator(1);

inline std::vector<float> random_floats(size_t n, float size, float centre = 0) {
    std::normal_distribution<float> normal(centre, size);
    std::vector<float> v(n);
    for (float & f : v) {
        f = normal(generator);
    }
    return v;
}

struct block_shape {
    int weights, bytes;
};

inline bool is_nibbles(const std::string & type) {
    return type == "q4_0" || type == "q4_1" || type == "mxfp4";
}

inline block_shape shape_of(const std::string & type) {
    if (is_nibbles(type)) {
        return {32, type == "q4_0" ? 18 : type == "q4_1" ? 20 : 17};
    }
    return type == "q8_0" ? block_shape{32, 34} : block_shape{256, type == "q4_k" ? 144 : type == "q5_k" ? 176 : 210};
}

inline float half_of(const uint8_t * p) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

inline void put_half(uint8_t * p, float v) {
    const unsigned short bits = __half_as_ushort(__float2half(v));
    p[0] = static_cast<uint8_t>(bits);
    p[1] = static_cast<uint8_t>(bits >> 8);
}

// Random blocks with scales near 0.01.
inline std::vector<uint8_t> random_rows(const std::string & type, size_t n_rows, int n_weights) {
    const block_shape shape = shape_of(type);
    std::vector<uint8_t> rows(n_rows * (n_weights / shape.weights) * shape.bytes + 16);
    for (uint8_t & byte : rows) {
        byte = static_cast<uint8_t>(generator());
    }
    std::uniform_real_distribution<float> scale(0.005f, 0.02f);
    for (uint8_t * block = rows.data(); block + shape.bytes <= rows.data() + rows.size() - 16; block += shape.bytes) {
        if (type == "mxfp4") {
            *block = static_cast<uint8_t>(118 + generator() % 4);
            continue;
        }
        put_half(block + (type == "q6_k" ? 208 : 0), scale(generator));
        if (type == "q4_k" || type == "q5_k" || type == "q4_1") {
            put_half(block + 2, scale(generator));
        }
    }
    return rows;
}

inline double k_value(const uint8_t * b, int e, bool has_fifth) {
    const uint8_t * s = b + 4;
    const int j = e / 32, l = e % 32;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    const int byte = b[(has_fifth ? 48 : 16) + j / 2 * 32 + l];
    const int q = (j % 2 ? byte >> 4 : byte & 15) | (has_fifth ? (b[16 + l] >> j & 1) << 4 : 0);
    return static_cast<double>(half_of(b)) * scale * q - static_cast<double>(half_of(b + 2)) * minimum;
}

inline double value(const std::string & type, const uint8_t * row, int k) {
    const block_shape shape = shape_of(type);
    const uint8_t * b = row + k / shape.weights * shape.bytes;
    const int e = k % shape.weights;
    if (type == "q8_0") {
        return static_cast<double>(half_of(b)) * static_cast<int8_t>(b[2 + e]);
    }
    if (is_nibbles(type)) {
        static const int DOUBLED[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        const int byte = b[shape.bytes - 16 + e % 16], nibble = e < 16 ? byte & 15 : byte >> 4;
        return type == "mxfp4" ? std::ldexp(DOUBLED[nibble], b[0] - 128) : static_cast<double>(half_of(b)) * nibble;
    }
    if (type != "q6_k") {
        return k_value(b, e, type == "q5_k");
    }
    const int half = e / 128, j = e % 128 / 32, l = e % 32;
    const int low = b[64 * half + j % 2 * 32 + l] >> (j < 2 ? 0 : 4) & 15;
    const int high = b[128 + 32 * half + l] >> 2 * j & 3;
    return static_cast<double>(half_of(b + 208)) * static_cast<int8_t>(b[192 + 8 * half + 2 * j + l / 16]) * ((low | high << 4) - 32);
}

// As ggml rounds activations for these products; of Q4_0 and Q4_1 it adds sums that were not rounded alike.
inline std::vector<double> rounded(const std::vector<float> & x) {
    std::vector<double> out(x.size());
    for (size_t start = 0; start < x.size(); start += 32) {
        float largest = 0;
        for (int i = 0; i < 32; i++) {
            largest = std::max(largest, std::fabs(x[start + i]));
        }
        const float d = largest / 127, kept = __half2float(__float2half(d));
        for (int i = 0; i < 32; i++) {
            out[start + i] = d == 0 ? 0 : kept * std::round(x[start + i] / d);
        }
    }
    return out;
}

// What is added once a block of 32: of q4_0 - 8 d, of q4_1 m, times the sum of the rounded activations.
inline double offset(const std::string & type, const uint8_t * row, int k, const double * x) {
    if (type != "q4_0" && type != "q4_1") {
        return 0;
    }
    const uint8_t * b = row + k / 32 * shape_of(type).bytes;
    double sum = 0;
    for (int i = 0; i < 32; i++) {
        sum += x[k + i];
    }
    return sum * (type == "q4_0" ? -8 * half_of(b) : half_of(b + 2));
}

struct error_sum {
    double wrong = 0, size = 0;
    void add(double ours, double right) {
        wrong += (ours - right) * (ours - right);
        size += right * right;
        wrong = std::isnan(ours) ? NAN : wrong;
    }
    double share() const { return wrong / size; }
};
