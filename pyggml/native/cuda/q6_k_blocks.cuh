// q6_K blocks, like those in weight_blocks.cuh.
#pragma once

#include "weight_blocks.cuh"

// 128 bytes of low nibbles, 64 bytes of upper bits, 16 scales of 16 weights each, d. Rows start at even bytes.
// Its halves of blocks have scales of their own: with up to 4 columns the halves lie in columns beside each other, so
// that a set has 4 column-blocks; with more each half is multiplied for itself.
struct q6_k {
    static constexpr int UNIT_BYTES = 210;
    static constexpr bool IS_ROTATED = false;
    static constexpr bool IS_HALVED = true;
    static constexpr sum_kind SUMS = sum_kind::none;
    using lane_words = no_lane_words;

    template <int ROWS>
    struct half_unit {
        uint32_t low[2][4], high[2][2];

        __device__ __forceinline__ void load(const unit_rows & u, int h) {
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    low[r][i] = loose_word(u.row[r] + 64 * h, 4 * i + u.t);
                }
                high[r][0] = loose_word(u.row[r] + 128 + 32 * h, u.t);
                high[r][1] = loose_word(u.row[r] + 128 + 32 * h, u.t + 4);
            }
        }

        // Row r's words of half `part` of block j of 4.
        __device__ __forceinline__ uint32_t quants(int r, int part, int j) const {
            const uint32_t l = low[r][j % 2 * 2 + part], u = high[r][part];
            const uint32_t upper = (j < 2 ? u << (4 - 2 * j) : u >> (2 * j - 4)) & 0x30303030;
            const uint32_t both = ((j < 2 ? l : l >> 4) & 0x0f0f0f0f) | upper;
            return (both + 0x60606060) ^ 0x80808080;  // minus 32 in each byte
        }

        __device__ __forceinline__ void fragment(int j, uint32_t a[4]) const {
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
                a[r] = quants(r, 0, j);
                a[2 + r] = quants(r, 1, j);
            }
        }
    };

    static __device__ __forceinline__ char2 scales(const unit_rows & u, int r, int block) {
        return *reinterpret_cast<const char2 *>(u.row[r] + 192 + 2 * block);
    }

    template <int N, int ROWS>
    static __device__ __forceinline__ void multiply(const unit_rows & u, const unit_activations & x, lane_sums<N, ROWS> & sums) {
        float d[2] = {};
#pragma unroll
        for (int r = 0; r < ROWS / 8; r++) {
            d[r] = half_at(u.row[r] + 208);
        }
        if constexpr (N >= 8) {
            multiply_many<N, ROWS>(u, x, d, sums);
        } else {
            multiply_few<N, ROWS>(u, x, d, sums);
        }
    }

    // acc[0] and acc[2] are of column t % N.
    template <int N, int ROWS>
    static __device__ __forceinline__ void multiply_few(const unit_rows & u, const unit_activations & x, const float d[2],
                                                        lane_sums<N, ROWS> & sums) {
        half_unit<ROWS> half;
#pragma unroll
        for (int s = 0; s < 2 * N; s++) {
            const int own = reinterpret_cast<const int *>(x.q)[((4 * s + u.g / 2) * 4 + u.t) * 2 + u.g % 2];
            int_tile p(0);
#pragma unroll
            for (int j = 0; j < 4 / N; j++) {
                const int block = s * (4 / N) + j;
                if (block % 4 == 0) {
                    half.load(u, block / 4);
                }
                uint32_t a[4] = {};
                half.fragment(block % 4, a);
                const bool is_own = u.g / 2 / N == j;
                add_product(p, a, make_int2(is_own && u.g % 2 == 0 ? own : 0, is_own && u.g % 2 == 1 ? own : 0));
            }
            const int block = s * (4 / N) + u.t / N;
            const float dx = x.d[4 * s + u.t];
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
                const char2 sc = scales(u, r, block);
                sums.acc[2 * r] += static_cast<float>(p.c[2 * r] * sc.x + p.c[2 * r + 1] * sc.y) * (d[r] * dx);
            }
        }
    }

    template <int N, int ROWS>
    static __device__ __forceinline__ void multiply_many(const unit_rows & u, const unit_activations & x, const float d[2],
                                                         lane_sums<N, ROWS> & sums) {
        half_unit<ROWS> half;
#pragma unroll
        for (int s = 0; s < N; s++) {
            const int block = sums.first_block(s);
            if (block % 4 == 0 && s % sums.N_EIGHTS == 0) {
                half.load(u, block / 4);
            }
            const int2 own = x.q[(8 * s + u.g) * 4 + u.t];
            uint32_t a[4] = {};
            half.fragment(block % 4, a);
            int_tile p0(0), p1(0);
            add_half_product(p0, a[0], a[1], own.x);
            add_half_product(p1, a[2], a[3], own.y);
            float v[4] = {};
#pragma unroll
            for (int r = 0; r < ROWS / 8; r++) {
                const char2 sc = scales(u, r, block);
                v[2 * r] = static_cast<float>(p0.c[2 * r] * sc.x + p1.c[2 * r] * sc.y);
                v[2 * r + 1] = static_cast<float>(p0.c[2 * r + 1] * sc.x + p1.c[2 * r + 1] * sc.y);
            }
            const float w[2][2] = {{d[0], d[0]}, {d[1], d[1]}};
            sums.add(s, v, w, pair_of(x.d, s, u.t));
        }
    }
};
