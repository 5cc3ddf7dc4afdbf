// Blocks of quantised weights in shared memory, multiplied with activations of 8 bits: one struct a type.
// A unit is 256 weights of each of ROWS rows, which one warp multiplies with N columns (1, 2, 4, 8 or 16).
//
// A tensor core's product has 8 columns. Fewer columns leave room for several blocks: 8 / N blocks are multiplied one
// after another, each with its activations in columns of its own and zeros elsewhere, so that one set of sums holds
// them all and scales are applied once a set. Column-blocks count block by block, columns inside; a set has 8. With 16
// columns a block has two sets, and its weights are read once for both.
// Layouts and arithmetic are ggml's (ggml-common.h; mul_mat_vec_q's sums up to their order).
#pragma once

#include "tensor_cores.cuh"

#include <cuda_fp16.h>

constexpr int UNIT_WEIGHTS = 256;
constexpr int UNIT_BLOCKS = UNIT_WEIGHTS / 32;

enum class sum_kind { none, of_quants };

// Activations of one unit in shared memory, by column-block: words t and t + 4 lie together.
struct unit_activations {
    const int2 * q;  // 4 a column-block
    const float * d;
    const float * s;
};

// One warp's unit.
struct unit_rows {
    const char * row[2];  // rows g and g + 8 of this lane, where they start
    uint32_t slot;        // shared address of row 0
    uint32_t stride;
    int g, t, lane;
    int n_blocks;  // of 32 weights, 8 but for the end of a row

    __device__ __forceinline__ const uint32_t * words(int r) const { return reinterpret_cast<const uint32_t *>(row[r]); }
};

// Sums of this lane. Of one column acc[0] (row g) and acc[2] (row g + 8) count, else acc[1] and acc[3] too; of columns
// from 8 on the next four.
template <int N, int ROWS>
struct lane_sums {
    static constexpr int N_EIGHTS = N > 8 ? N / 8 : 1;    // sets of a block
    static constexpr int SET_BLOCKS = N < 8 ? 8 / N : 1;  // blocks of a set
    float acc[4 * N_EIGHTS] = {};

    static __device__ __forceinline__ int first_block(int s) { return s / N_EIGHTS * SET_BLOCKS; }

    // The block of set s to which this lane's sum e (0 or 1) of a row belongs.
    static __device__ __forceinline__ int block_of(int s, int t, int e) {
        return N == 1 ? 2 * t + e : first_block(s) + 2 * t / N;
    }

    // v: sums of set s; w: scales of row r's blocks for sums 0 and 1; d: of the activations.
    __device__ __forceinline__ void add(int s, const float v[4], const float w[2][2], float2 d) {
        float * to = acc + s % N_EIGHTS * 4;
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            to[2 * r] += v[2 * r] * (w[r][0] * d.x);
            to[2 * r + (N > 1)] += v[2 * r + 1] * (w[r][N == 1] * d.y);
        }
    }

    __device__ __forceinline__ void subtract(int s, const float m[2][2], float2 of) {
        float * to = acc + s % N_EIGHTS * 4;
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            to[2 * r] -= m[r][0] * of.x;
            to[2 * r + (N > 1)] -= m[r][N == 1] * of.y;
        }
    }

    __device__ __forceinline__ void add_magic(int s, const int_tile & p, const float w[2][2], float2 d) {
        const float v[4] = {p.magic(0), p.magic(1), p.magic(2), p.magic(3)};
        add(s, v, w, d);
    }
};

template <int N>
static __device__ __forceinline__ int2 own_or_zero(int2 own, int g, int j) {
    return N >= 8 || g / N == j ? own : make_int2(0, 0);
}

// Of types whose lanes keep nothing between units; others have multiply_one for one column.
struct no_lane_words {};

static __device__ __forceinline__ float2 pair_of(const float * of, int s, int t) {
    return reinterpret_cast<const float2 *>(of)[4 * s + t];
}

static __device__ __forceinline__ float low_half(uint32_t word) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffff)));
}

static __device__ __forceinline__ float high_half(uint32_t word) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

static __device__ __forceinline__ float half_at(const char * at) {
    return __half2float(*reinterpret_cast<const __half *>(at));
}

// Word i of bytes that may start anywhere.
static __device__ __forceinline__ uint32_t loose_word(const char * bytes, int i) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(bytes);
    const uint32_t * words = reinterpret_cast<const uint32_t *>(at & ~uintptr_t(3)) + i;
    return __funnelshift_r(words[0], words[1], 8 * (at & 3));
}

// Two blocks are 17 words. In the first one words 1 to 7 hold elements 2 to 29, and the ends of words 0 and 8 the
// others; so its activations lie rotated by two elements, and no word must be shifted.
struct q8_0 {
    static constexpr int UNIT_BYTES = 272;
    static constexpr bool IS_ROTATED = true;
    static constexpr bool IS_HALVED = false;
    static constexpr sum_kind SUMS = sum_kind::none;
    using lane_words = no_lane_words;

    template <int ROWS>
    static __device__ __forceinline__ void load(const unit_rows & u, int block, uint32_t merge, uint32_t a[4]) {
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            const uint32_t * w = u.words(r) + 17 * (block / 2);
            if (block % 2 == 0) {
                a[r] = __byte_perm(w[u.t], w[8], merge);
                a[2 + r] = w[u.t + 4];
            } else {
                a[r] = w[u.t + 9];
                a[2 + r] = w[u.t + 13];
            }
        }
    }

    template <int N, int ROWS>
    static __device__ __forceinline__ void multiply(const unit_rows & u, const unit_activations & x, lane_sums<N, ROWS> & sums) {
        const uint32_t merge = u.t == 0 ? 0x3254 : 0x3210;
#pragma unroll
        for (int s = 0; s < N; s++) {
            const int2 own = x.q[(8 * s + u.g) * 4 + u.t];
            int_tile p(MAGIC_BITS), q(0);  // two chains, which do not wait for each other
#pragma unroll
            for (int j = 0; j < sums.SET_BLOCKS; j++) {
                uint32_t a[4] = {};
                load<ROWS>(u, sums.first_block(s) + j, merge, a);
                add_product(j % 2 ? q : p, a, own_or_zero<N>(own, u.g, j));
            }
            if constexpr (N < 8) {
                p.add(q);
            }
            float w[2][2] = {};
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
#pragma unroll
                for (int e = 0; e < (N == 1 ? 2 : 1); e++) {
                    const int block = sums.block_of(s, u.t, e);
                    w[r][e] = block < u.n_blocks ? half_at(u.row[r] + 34 * block) : 0;
                }
            }
            sums.add_magic(s, p, w, pair_of(x.d, s, u.t));
        }
    }
};

// Eight scales and eight minima of 6 bits each, in two words each.
struct k_scales {
    uint32_t scale[2], minimum[2];
    float d, dmin;

    __device__ __forceinline__ void set(uint4 header) {
        d = low_half(header.x);
        dmin = high_half(header.x);
        scale[0] = header.y & 0x3f3f3f3f;
        minimum[0] = header.z & 0x3f3f3f3f;
        scale[1] = (header.w & 0x0f0f0f0f) | ((header.y >> 2) & 0x30303030);
        minimum[1] = ((header.w >> 4) & 0x0f0f0f0f) | ((header.z >> 2) & 0x30303030);
    }

    static __device__ __forceinline__ float byte_of(const uint32_t words[2], int i) {
        return static_cast<float>(((i < 4 ? words[0] : words[1]) >> (8 * (i & 3))) & 0xff);
    }
};

// q4_K and q5_K: a header of 16 bytes, of q5_K 32 bytes of fifth bits, and 4 x 32 bytes of two blocks each.
// Quants of the upper nibbles stay 16 times too large, their scales 16 times too small.
template <bool HAS_FIFTH>
struct q45_k {
    static constexpr int UNIT_BYTES = HAS_FIFTH ? 176 : 144;
    static constexpr bool IS_ROTATED = false;
    static constexpr bool IS_HALVED = false;
    static constexpr sum_kind SUMS = sum_kind::of_quants;

    // Of a whole word: block's quants from nibbles and fifth bits.
    static __device__ __forceinline__ uint32_t quants(uint32_t q, uint32_t fifth, int block) {
        if constexpr (!HAS_FIFTH) {
            return q & (block % 2 ? 0xf0f0f0f0 : 0x0f0f0f0f);
        }
        const uint32_t bit = (block <= 4 ? fifth << (4 - block) : fifth >> (block - 4)) & 0x10101010;
        return ((block % 2 ? q >> 4 : q) & 0x0f0f0f0f) | bit;
    }

    // Which columns are a lane's own, and where it finds its two blocks' scales and minima in a header: words that the compiler
    // would work out anew for each unit.
    struct lane_words {
        uint32_t even[4], pair[4];  // all bits for the column of block 2 i, for those of blocks 2 i and 2 i + 1
        uint32_t low_mask, high_mask;
        int shift, first_byte;

        __device__ __forceinline__ lane_words() {
            const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                even[i] = kept(g == 2 * i ? 0xffffffff : 0);
                pair[i] = kept(g / 2 == i ? 0xffffffff : 0);
            }
            low_mask = kept(t < 2 ? 0 : 0x0f0f0f0f);
            high_mask = kept(t < 2 ? 0x3f3f3f3f : 0x30303030);
            shift = static_cast<int>(kept(t < 2 ? 0 : 2));
            first_byte = static_cast<int>(kept(t % 2 * 2));
        }

        // Of the blocks 2 t and 2 t + 1, as k_scales has them for all eight.
        __device__ __forceinline__ uint32_t scales(uint4 header) const { return (header.w & low_mask) | (header.y >> shift & high_mask); }
        __device__ __forceinline__ uint32_t minima(uint4 header) const { return (header.w >> 4 & low_mask) | (header.z >> shift & high_mask); }

        // Byte e of those times d, rounded once.
        __device__ __forceinline__ float scaled(uint32_t bytes, int e, float d) const {
            constexpr float BIAS = 8388608.0f;  // whose float has a byte's integer in its low bits
            return __fmaf_rn(__uint_as_float(__byte_perm(bytes, 0x4B000000, 0x7440 | (first_byte + e))), d, -BIAS * d);
        }
    };

    template <int ROWS>
    static __device__ __forceinline__ void multiply_one(const unit_rows & u, const unit_activations & x, const lane_words & k, lane_sums<1, ROWS> & sums) {
        // With 8 rows the upper half of the matrices is read again and not used.
        const int row = u.lane % 8 + (ROWS > 8 ? u.lane / 8 % 2 * 8 : 0);
        const uint32_t address = u.slot + row * u.stride + u.lane / 16 * 16 + 16;
        const int2 own = x.q[u.g * 4 + u.t];
        uint32_t fifth[4] = {};
        if constexpr (HAS_FIFTH) {
            load_matrices(address, fifth);
        }
        int_tile even(0), odd(0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t q[4], a[4] = {}, b[4] = {};
            load_matrices(address + (HAS_FIFTH ? 32 : 0) + 32 * i, q);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                if (ROWS > 8 || n % 2 == 0) {
                    a[n] = HAS_FIFTH ? quants(q[n], fifth[n], 2 * i) : q[n];
                    b[n] = quants(q[n], fifth[n], 2 * i + 1);
                }
            }
            // Of q4_K the first is of whole bytes, and the second of both blocks, so that their difference is the lower nibbles'.
            const uint32_t second = HAS_FIFTH ? k.pair[i] ^ k.even[i] : k.pair[i];
            add_unsigned_product(even, a, make_int2(own.x & k.even[i], own.y & k.even[i]));
            add_unsigned_product(odd, b, make_int2(own.x & second, own.y & second));
        }
        const float2 dx = pair_of(x.d, 0, u.t), sx = pair_of(x.s, 0, u.t);
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            const uint4 header = *reinterpret_cast<const uint4 *>(u.row[r]);
            const uint32_t scales = k.scales(header), minima = k.minima(header);
            const float d = low_half(header.x), dmin = high_half(header.x);
            const int of_even = even.c[2 * r] - (HAS_FIFTH ? 0 : odd.c[2 * r]), of_odd = odd.c[2 * r + 1];
            float & acc = sums.acc[2 * r];
            acc += (__int_as_float(of_even + MAGIC_BITS) - MAGIC) * (k.scaled(scales, 0, d) * dx.x);
            acc += (__int_as_float(of_odd + MAGIC_BITS) - MAGIC) * (k.scaled(scales, 1, HAS_FIFTH ? d : d * 0.0625f) * dx.y);
            acc -= k.scaled(minima, 0, dmin) * sx.x;
            acc -= k.scaled(minima, 1, dmin) * sx.y;
        }
    }

    template <int N, int ROWS>
    static __device__ __forceinline__ void multiply(const unit_rows & u, const unit_activations & x, lane_sums<N, ROWS> & sums) {
        k_scales k[2];
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            k[r].set(*reinterpret_cast<const uint4 *>(u.row[r]));
        }
        // With 8 rows the upper half of the matrices is read again and not used.
        const int row = u.lane % 8 + (ROWS > 8 ? u.lane / 8 % 2 * 8 : 0);
        const uint32_t address = u.slot + row * u.stride + u.lane / 16 * 16 + 16;
        uint32_t fifth[4] = {}, q[4];
        if constexpr (HAS_FIFTH) {
            load_matrices(address, fifth);
        }
#pragma unroll
        for (int s = 0; s < N; s++) {
            const int2 own = x.q[(8 * s + u.g) * 4 + u.t];
            int_tile p(MAGIC_BITS), odd(0);
#pragma unroll
            for (int j = 0; j < sums.SET_BLOCKS; j++) {
                const int block = sums.first_block(s) + j;
                if (block % 2 == 0 && s % sums.N_EIGHTS == 0) {
                    load_matrices(address + (HAS_FIFTH ? 32 : 0) + 16 * block, q);
                }
                uint32_t a[4] = {};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (ROWS > 8 || i % 2 == 0) {
                        a[i] = quants(q[i], fifth[i], block);
                    }
                }
                add_unsigned_product(j % 2 ? odd : p, a, own_or_zero<N>(own, u.g, j));
            }
            if constexpr (N < 8) {
                p.add(odd);
            }
            float w[2][2] = {}, m[2][2] = {};
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
#pragma unroll
                for (int e = 0; e < (N == 1 ? 2 : 1); e++) {
                    const int block = sums.block_of(s, u.t, e);
                    w[r][e] = k_scales::byte_of(k[r].scale, block) * (HAS_FIFTH || block % 2 == 0 ? k[r].d : k[r].d * 0.0625f);
                    m[r][e] = k_scales::byte_of(k[r].minimum, block) * k[r].dmin;
                }
            }
            sums.add_magic(s, p, w, pair_of(x.d, s, u.t));
            sums.subtract(s, m, pair_of(x.s, s, u.t));
        }
    }
};

using q4_k = q45_k<false>;
using q5_k = q45_k<true>;
