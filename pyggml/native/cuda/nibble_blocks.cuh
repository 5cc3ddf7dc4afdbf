// Blocks of 32 weights of 4 bits, like those in weight_blocks.cuh: 16 bytes hold elements 0 to 15 in their lower halves
// and 16 to 31 in their upper ones. Blocks may start at any byte.
#pragma once

#include "weight_blocks.cuh"

// d, or d and m, as float16; a weight is d q - 8 d, or d q + m. The sums of activations are those of the values.
template <bool HAS_MINIMUM>
struct q4_01 {
    static constexpr int BLOCK_BYTES = HAS_MINIMUM ? 20 : 18;
    static constexpr int HEADER_BYTES = HAS_MINIMUM ? 4 : 2;
    static constexpr sum_kind SUMS = sum_kind::of_quants;

    static __device__ __forceinline__ void values(uint32_t word, uint32_t & low, uint32_t & high) {
        low = word & 0x0f0f0f0f;
        high = word >> 4 & 0x0f0f0f0f;
    }
    static __device__ __forceinline__ float scale(const char * block) { return half_at(block); }
    static __device__ __forceinline__ float minimum(const char * block) {
        return HAS_MINIMUM ? -half_at(block + 2) : 8.0f * half_at(block);
    }
};

// A power of two, and halves of floats with one bit of fraction: the values are those times two.
struct mxfp4_format {
    static constexpr int BLOCK_BYTES = 17;
    static constexpr int HEADER_BYTES = 1;
    static constexpr sum_kind SUMS = sum_kind::none;

    // Of four nibbles in the lower half of `nibbles`.
    static __device__ __forceinline__ uint32_t look_up(uint32_t nibbles) {
        const uint32_t positive = __byte_perm(0x03020100, 0x0c080604, nibbles);  // 0 1 2 3 4 6 8 12
        const uint32_t negative = __byte_perm(0xfdfeff00, 0xf4f8fafc, nibbles);
        return __byte_perm(positive, negative, 0x3210 | (nibbles & 0x8888) >> 1);
    }
    static __device__ __forceinline__ void values(uint32_t word, uint32_t & low, uint32_t & high) {
        const uint32_t first = look_up(word & 0xffff), second = look_up(word >> 16);
        low = __byte_perm(first, second, 0x6420);
        high = __byte_perm(first, second, 0x7531);
    }
    static __device__ __forceinline__ float scale(const char * block) {
        const unsigned exponent = static_cast<unsigned char>(*block);
        return __int_as_float(exponent ? static_cast<int>(exponent << 23) : 0x00400000) * 0.5f;
    }
    static __device__ __forceinline__ float minimum(const char *) { return 0; }
};

template <class FORMAT>
struct nibble_blocks {
    static constexpr int UNIT_BYTES = UNIT_BLOCKS * FORMAT::BLOCK_BYTES;
    static constexpr bool IS_ROTATED = false;
    static constexpr bool IS_HALVED = false;
    static constexpr sum_kind SUMS = FORMAT::SUMS;
    using lane_words = no_lane_words;

    template <int N, int ROWS>
    static __device__ __forceinline__ void multiply(const unit_rows & u, const unit_activations & x, lane_sums<N, ROWS> & sums) {
#pragma unroll
        for (int s = 0; s < N; s++) {
            const int2 own = x.q[(8 * s + u.g) * 4 + u.t];
            int_tile p(MAGIC_BITS), odd(0);
#pragma unroll
            for (int j = 0; j < sums.SET_BLOCKS; j++) {
                uint32_t a[4] = {};
#pragma unroll
                for (int r = 0; r < ROWS / 8; r++) {
                    const char * block = u.row[r] + (sums.first_block(s) + j) * FORMAT::BLOCK_BYTES;
                    FORMAT::values(loose_word(block + FORMAT::HEADER_BYTES, u.t), a[r], a[2 + r]);
                }
                add_product(j % 2 ? odd : p, a, own_or_zero<N>(own, u.g, j));
            }
            if constexpr (N < 8) {
                p.add(odd);
            }
            float w[2][2] = {}, m[2][2] = {};
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
#pragma unroll
                for (int e = 0; e < (N == 1 ? 2 : 1); e++) {
                    const int number = sums.block_of(s, u.t, e);
                    const char * block = u.row[r] + number * FORMAT::BLOCK_BYTES;
                    w[r][e] = number < u.n_blocks ? FORMAT::scale(block) : 0;
                    m[r][e] = number < u.n_blocks ? FORMAT::minimum(block) : 0;
                }
            }
            sums.add_magic(s, p, w, pair_of(x.d, s, u.t));
            if constexpr (SUMS != sum_kind::none) {
                sums.subtract(s, m, pair_of(x.s, s, u.t));
            }
        }
    }
};

using q4_0 = nibble_blocks<q4_01<false>>;
using q4_1 = nibble_blocks<q4_01<true>>;
using mxfp4 = nibble_blocks<mxfp4_format>;
