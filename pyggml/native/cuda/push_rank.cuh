// What the two kernels of the push all-reduce share: a rank's view of the others' memory, waiting for them, and numbers of F32,
// BF16 or F16, which are added up in float and in rank order, so that all ranks hold the same bits.
// Two places in turn let sums follow each other: a rank can only be one sum ahead, since
// what comes from a peer in a sum says that it has finished the sum before it.
// The number of the sum lives in the rank's own memory and counts up by itself: a captured graph can replay.
#pragma once

#include "launch_order.cuh"
#include "system_words.cuh"

#include <cstring>

constexpr int PUSH_MAX_RANKS = 8;
constexpr int PUSH_MAX_BLOCKS = 128;
constexpr int PUSH_N_THREADS = 256;
constexpr int PUSH_MAX_LETTERS = 65536;  // numbers of a sum, a multiple of what a warp takes
constexpr int PUSH_PART_BYTES = 16384;
constexpr int PUSH_N_PLACES = 3;         // for parts of one block
constexpr int PUSH_PART_BITS = 20;       // of a flag, which counts parts of a sum

enum push_error : uint32_t { PUSH_EXPIRED = 1, PUSH_ABORTED = 2 };

// In the rank's device memory. 64 bits, since flags of rarely used blocks may lie days behind.
struct push_control {
    uint64_t sequence;
    uint32_t n_counted;  // blocks of the running kernel that know the sequence
    uint32_t has_failed;
};

// In host memory that the card sees: the host's wish to stop, the card's report of the first failure.
struct push_words {
    uint32_t is_aborted;
    uint32_t error;
    uint32_t source;
    uint32_t padding;
    uint64_t sequence;
};

// One rank's view; `inbox[r]` and `flags[r]` lie on rank r's card, which this one reaches, or all in memory of the host.
struct push_rank {
    char * inbox[PUSH_MAX_RANKS];        // [2][source][n_blocks][PUSH_N_PLACES][PUSH_PART_BYTES]
    uint64_t * flags[PUSH_MAX_RANKS];    // [source][PUSH_MAX_BLOCKS]
    uint64_t * letters[PUSH_MAX_RANKS];  // [2][source][PUSH_MAX_LETTERS]
    push_control * control;
    push_words * words;
    uint64_t deadline_ns;
    int rank;
    int n_blocks;  // the most of a launch
};

// x of all ranks is added up, then `addend` (float numbers, may be nullptr). It goes to `out`, by default x itself. Each
// place of x, addend and out is read and written by one thread only, so they may be the same memory.
struct push_sum {
    void * x;
    const float * addend;
    float * out;
    int n;
    bool lets_next_start;
};

// What is summed: how a number lies in memory, and the way to float and back.
struct f32_number {
    using stored = float;
    static __device__ __forceinline__ float widen(stored x) { return x; }
    static __device__ __forceinline__ stored narrow(float x) { return x; }
};

struct bf16_number {
    using stored = uint16_t;
    static __device__ __forceinline__ float widen(stored x) { return float_of_bits(static_cast<uint32_t>(x) << 16); }
    static __device__ __forceinline__ stored narrow(float x) {  // to nearest, ties to even; NaN stays NaN
        const uint32_t bits = bits_of_float(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) {
            return static_cast<stored>(bits >> 16 | 64);
        }
        return static_cast<stored>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
};

struct f16_number {
    using stored = uint16_t;
    static __device__ __forceinline__ float widen(stored x) { return float_of_half(x); }
    static __device__ __forceinline__ stored narrow(float x) { return half_of_float(x); }
};

static __device__ void report(const push_rank & me, int source, uint64_t sequence, uint32_t error) {
    if (atomicExch(&me.control->has_failed, 1) == 0) {
        volatile push_words * words = me.words;
        words->source = source;
        words->sequence = sequence;
        __threadfence_system();
        words->error = error;
    }
}

// Waits for has_come(); `start`, 0 at first, takes when the thread's first look at the clock was.
template <class CHECK>
static __device__ __forceinline__ bool wait_until(const push_rank & me, int source, uint64_t sequence, uint64_t & start,
                                                  const CHECK & has_come) {
    // Not often: reads of one word of host memory wait for each other, and all blocks look at the same time.
    constexpr int SPINS_A_LOOK = 8192;
    for (int n_spins = 1; !has_come(); n_spins++) {
        if (n_spins % SPINS_A_LOOK != 0) {
            continue;
        }
        const uint64_t now = now_ns();
        start = start ? start : now;
        const bool is_aborted = *static_cast<volatile uint32_t *>(&me.words->is_aborted);
        if (is_aborted || now - start > me.deadline_ns) {
            report(me, source, sequence, is_aborted ? PUSH_ABORTED : PUSH_EXPIRED);
            return false;
        }
    }
    return true;
}

// This sum's number, 0 after a failure. The number may count up once every block has read it (count_block).
static __device__ uint64_t read_sequence(const push_control * control) {
    const volatile push_control * now = control;
    return now->has_failed ? 0 : now->sequence + 1;
}

// The same for a whole block, which meets.
static __device__ __forceinline__ uint64_t sequence_of_block(const push_control * control) {
    __shared__ uint64_t sequence;
    if (threadIdx.x == 0) {
        sequence = read_sequence(control);
    }
    __syncthreads();
    return sequence;
}

static __device__ void count_block(push_control * control, uint64_t sequence) {
    if (atomicInc(&control->n_counted, gridDim.x - 1) == gridDim.x - 1) {
        static_cast<volatile push_control *>(control)->sequence = sequence;
    }
}

// The sum over ranks of words that hold several numbers each, in rank order.
template <int N_RANKS, typename NUMBER, typename T>
static __device__ __forceinline__ T sum_of(const T (&words)[N_RANKS]) {
    constexpr int N = sizeof(T) / sizeof(typename NUMBER::stored);
    typename NUMBER::stored part[N];
    float total[N];
#pragma unroll
    for (int source = 0; source < N_RANKS; source++) {
        memcpy(part, &words[source], sizeof(T));
#pragma unroll
        for (int i = 0; i < N; i++) {
            total[i] = source == 0 ? NUMBER::widen(part[i]) : total[i] + NUMBER::widen(part[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        part[i] = NUMBER::narrow(total[i]);
    }
    T sum;
    memcpy(&sum, part, sizeof(T));
    return sum;
}

// Words of float numbers, added up.
template <typename T>
static __device__ __forceinline__ T plus(const T & a, const T & b) {
    const T words[2] = {a, b};
    return sum_of<2, f32_number>(words);
}
