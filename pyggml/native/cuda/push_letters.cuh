// The push all-reduce of few float numbers, which travel as letters: words that hold a number and the sum's tag each, so that a
// rank sees from the word itself that it has come. This saves the wait for stores to arrive before a flag may be raised, which is
// half of the time.
#pragma once

#include "push_rank.cuh"

// Few, so that a block finds registers beside two blocks of products (PRODUCT_REGISTERS), one of which it waits for.
constexpr int LETTER_N_THREADS = 128;

// Sums that travel as letters have four numbers a thread. Ranks must agree on it, so it depends on n only.
static inline int letter_blocks(int n) {
    return (n + 4 * LETTER_N_THREADS - 1) / (4 * LETTER_N_THREADS);
}

// Four float numbers of `count`, at any multiple of 4 bytes; 0 for those behind the last.
static __device__ __forceinline__ uint4 read_four(const float * from, int at, int count, bool is_whole) {
    if (is_whole) {
        return reinterpret_cast<const uint4 *>(from)[at];
    }
    uint32_t numbers[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        numbers[k] = 4 * at + k < count ? bits_of_float(from[4 * at + k]) : 0;
    }
    return make_uint4(numbers[0], numbers[1], numbers[2], numbers[3]);
}

static __device__ __forceinline__ void write_four(float * to, int at, int count, bool is_whole, uint4 numbers) {
    if (is_whole) {
        reinterpret_cast<uint4 *>(to)[at] = numbers;
        return;
    }
    const uint32_t each[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (4 * at + k < count) {
            to[4 * at + k] = float_of_bits(each[k]);
        }
    }
}

static __device__ __forceinline__ uint64_t letter_of(uint32_t number, uint32_t tag) {
    return number | static_cast<uint64_t>(tag) << 32;
}

// Where a thread's first two letters lie; the other two lie SECOND_PAIR behind them, so that what a warp stores or loads at once
// lies side by side.
constexpr int SECOND_PAIR = 64;

static __device__ __forceinline__ size_t letters_at(int thread) {
    return static_cast<size_t>(thread / 32) * 2 * SECOND_PAIR + thread % 32 * 2;
}

// The float bits of four letters once all of them have come.
static __device__ __forceinline__ bool take_letters(const push_rank & me, const uint64_t * from, int source, uint64_t sequence,
                                                    uint32_t tag, uint64_t & start, uint4 & to) {
    uint64_t a[2], b[2];
    const bool has_come = wait_until(me, source, sequence, start, [&] {
        load_two(from, a);
        load_two(from + SECOND_PAIR, b);
        return a[0] >> 32 == tag && a[1] >> 32 == tag && b[0] >> 32 == tag && b[1] >> 32 == tag;
    });
    to = make_uint4(static_cast<uint32_t>(a[0]), static_cast<uint32_t>(a[1]), static_cast<uint32_t>(b[0]), static_cast<uint32_t>(b[1]));
    return has_come;
}

// Sums few float numbers of all ranks, PUSH_MAX_LETTERS at most. A place for letters may be used by every second sum: what came
// from a rank in the sum before, be it a letter or a flag, says that its kernel of the sum before that has ended. A tag comes
// again after 2^32 sums, days later, and would have to meet a letter that lay there all the time.
template <int N_RANKS>
static __global__ void __launch_bounds__(LETTER_N_THREADS) push_letters(PUSH_ARGUMENT const push_rank me, PUSH_ARGUMENT const push_sum s) {
    if (s.lets_next_start) {
        let_next_start();
    }
    wait_for_earlier();
    const int at = blockIdx.x * LETTER_N_THREADS + threadIdx.x;
    const bool has_numbers = 4 * at < s.n;
    float * x = static_cast<float *>(s.x), * out = s.out ? s.out : x;
    const uintptr_t places = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(s.addend) | reinterpret_cast<uintptr_t>(out);
    const bool is_whole = places % sizeof(uint4) == 0 && 4 * at + 4 <= s.n;
    const uint4 own = has_numbers ? read_four(x, at, s.n, is_whole) : make_uint4(0, 0, 0, 0);
    const uint4 addend = has_numbers && s.addend ? read_four(s.addend, at, s.n, is_whole) : make_uint4(0, 0, 0, 0);
    const uint64_t sequence = sequence_of_block(me.control);
    if (sequence == 0) {
        return;
    }
    const uint32_t tag = static_cast<uint32_t>(sequence % 0xffffffffu) + 1;  // never 0, which memory begins with
    const size_t box = (sequence & 1) * N_RANKS * static_cast<size_t>(PUSH_MAX_LETTERS) + letters_at(at);
    uint4 parts[N_RANKS];
#pragma unroll
    for (int peer = 0; peer < N_RANKS; peer++) {
        parts[peer] = own;
        if (has_numbers && peer != me.rank) {
            uint64_t * to = me.letters[peer] + box + static_cast<size_t>(me.rank) * PUSH_MAX_LETTERS;
            store_two(to, letter_of(own.x, tag), letter_of(own.y, tag));
            store_two(to + SECOND_PAIR, letter_of(own.z, tag), letter_of(own.w, tag));
        }
    }
    if (threadIdx.x == LETTER_N_THREADS - 1) {
        count_block(me.control, sequence);
    }
    if (!has_numbers) {
        return;
    }
    const uint64_t * mail = me.letters[me.rank] + box;
    uint64_t start = 0;
#pragma unroll
    for (int source = 0; source < N_RANKS; source++) {
        if (source != me.rank && !take_letters(me, mail + static_cast<size_t>(source) * PUSH_MAX_LETTERS, source, sequence, tag, start,
                                                   parts[source])) {
            return;
        }
    }
    const uint4 sum = sum_of<N_RANKS, f32_number>(parts);
    write_four(out, at, s.n, is_whole, s.addend ? plus(sum, addend) : sum);
}
