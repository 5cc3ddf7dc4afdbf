// The machine's words on a processor. Every other copy is made at once, the rest when they are waited for: what they read
// must be there, and what they write over must be of no more use.
#pragma once

#include "cuda_fp16.h"

#include <map>

// Of 16 bytes, of which those behind the first n_bytes become 0.
struct late_copy {
    uint32_t to;
    const char * from;
    int n_bytes = 16;
};
inline std::vector<late_copy> late_copies[MAX_FIBERS];
inline long n_copies = 0;
inline std::vector<std::pair<uint32_t, std::vector<late_copy>>> arriving[MAX_FIBERS];

static inline uint32_t shared_address(const void * p) {
    return static_cast<uint32_t>(static_cast<const char *>(p) - memory);
}
inline std::map<std::pair<int, uint32_t>, meeting> arrivals;  // by block and barrier
static inline meeting & arrivals_at(uint32_t barrier) {
    return arrivals[{block_of(fibers.current), barrier}];
}
static inline void init_barrier(uint32_t barrier, int count) {
    arrivals_at(barrier) = {count};
}
static inline void arrive(uint32_t barrier) {
    meeting & at = arrivals_at(barrier);
    fibers.n_moves++;
    if (++at.n_arrived == at.n_members) {
        at.n_arrived = 0;
        at.turn++;
    }
}
static inline void wait_for_arrivals(uint32_t barrier, int phase) {
    while (arrivals_at(barrier).turn % 2 == phase) {
        const int mine = fibers.current;
        swapcontext(&fibers.fibers[mine], &fibers.scheduler);
    }
}
static inline void make_copies(const std::vector<late_copy> & copies) {
    for (const late_copy & copy : copies) {
        std::memcpy(memory + copy.to, copy.from, copy.n_bytes);
        std::memset(memory + copy.to + copy.n_bytes, 0, 16 - copy.n_bytes);
    }
}
static inline void copy_soon(const late_copy & copy) {
    if (n_copies++ % 2) {
        make_copies({copy});
    } else {
        late_copies[fibers.current].push_back(copy);
    }
}
static inline void copy_16(uint32_t to, const char * from) {
    copy_soon({to, from});
}
static inline void expect_bytes(uint32_t, int) {}
static inline void show_barriers() {}
static inline void copy_box(uint32_t to, const void * boxes, int x, int row, int expert, uint32_t barrier);
static inline uint32_t kept(uint32_t value) { return value; }
static inline void copies_arrive(uint32_t barrier) {
    arriving[fibers.current].push_back({barrier, std::move(late_copies[fibers.current])});
    late_copies[fibers.current].clear();
}
static inline void wait_barrier(uint32_t barrier, int) {
    auto & mine = arriving[fibers.current];
    const auto found = std::find_if(mine.begin(), mine.end(), [&](const auto & one) { return one.first == barrier; });
    if (found != mine.end()) {
        make_copies(found->second);
        mine.erase(found);
    }
    __syncwarp();
}
static inline void wait_for_group(int barrier, int n_threads) {
    meet(fibers.named[block_of(fibers.current)][barrier], n_threads);
}
static inline void bring_to_l2(const void *) {}
static inline float fast_inverse(float v) { return 1.0f / v; }

struct fragment {
    uint32_t a[4];
    int b[2];
};

// The fragments of all lanes of the warp.
static inline std::vector<fragment> gather(const fragment & mine) {
    const int thread = fibers.current, warp = thread / WARP;
    std::vector<fragment> all(WARP);
    std::memcpy(fibers.words[thread], &mine, sizeof(mine));
    meet(fibers.warps[warp], WARP);
    for (int lane = 0; lane < WARP; lane++) {
        std::memcpy(&all[lane], fibers.words[warp * WARP + lane], sizeof(mine));
    }
    meet(fibers.warps[warp], WARP);
    return all;
}

template <bool IS_UNSIGNED>
static void multiply(int c[4], const uint32_t a[4], int2 b, int n_words) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const std::vector<fragment> all = gather({{a[0], a[1], a[2], a[3]}, {b.x, b.y}});
    for (int i = 0; i < 4; i++) {
        const int upper = i / 2, column = 2 * t + i % 2;
        for (int k = 0; k < 4; k++) {
            for (int word = 0; word < n_words; word++) {
                const uint32_t left = all[4 * g + k].a[upper + 2 * word];
                const int right = all[4 * column + k].b[word];
                for (int byte = 0; byte < 4; byte++) {
                    const int l = IS_UNSIGNED ? static_cast<uint8_t>(left >> 8 * byte) : static_cast<int8_t>(left >> 8 * byte);
                    c[i] += l * static_cast<int8_t>(right >> 8 * byte);
                }
            }
        }
    }
}

static inline void multiply_signed(int c[4], const uint32_t a[4], int2 b) { multiply<false>(c, a, b, 2); }
static inline void multiply_unsigned(int c[4], const uint32_t a[4], int2 b) { multiply<true>(c, a, b, 2); }
static inline void multiply_half(int c[4], uint32_t a0, uint32_t a1, int b) {
    const uint32_t a[4] = {a0, a1, 0, 0};
    multiply<false>(c, a, make_int2(b, 0), 1);
}
static inline float2 floats_of(uint32_t halves) {
    return make_float2(__half2float(__ushort_as_half(static_cast<unsigned short>(halves))),
                       __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16))));
}
static inline uint32_t halves_from(float low, float high) {
    return __half_as_ushort(__float2half(low)) | static_cast<uint32_t>(__half_as_ushort(__float2half(high))) << 16;
}
static inline uint32_t transposed(uint32_t row) {
    const std::vector<fragment> all = gather({{row, 0, 0, 0}, {0, 0}});
    const int lane = threadIdx.x % WARP, column = lane / 4, t = lane % 4;
    const auto at = [&](int r) { return all[4 * r + column / 2].a[0] >> 16 * (column % 2) & 0xffff; };
    return at(2 * t) | at(2 * t + 1) << 16;
}
static inline void multiply_halves(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const std::vector<fragment> all = gather({{a[0], a[1], a[2], a[3]}, {static_cast<int>(b0), static_cast<int>(b1)}});
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 8; k++) {  // words of a row
            const float2 left = floats_of(all[4 * g + k % 4].a[i / 2 + k / 4 * 2]);
            const float2 right = floats_of(static_cast<uint32_t>(all[4 * (2 * t + i % 2) + k % 4].b[k / 4]));
            c[i] += left.x * right.x + left.y * right.y;
        }
    }
}
static inline void load_matrices(uint32_t address, uint32_t r[4]) {
    const int lane = threadIdx.x % WARP;
    for (int m = 0; m < 4; m++) {
        const uint32_t row = from_lane(address, [m](int l) { return 8 * m + l / 4; });
        std::memcpy(&r[m], memory + row + 4 * (lane % 4), 4);
    }
}
