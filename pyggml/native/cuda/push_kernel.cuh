// The push all-reduce of F32, BF16 or F16, added up in float: each block stores its part of the rank's summand into an inbox on every peer, raises
// a flag there, waits for the peers' flags, and adds all parts in rank order, so that all ranks hold the
// same bits. Two inboxes in turn make one round of flags enough: a rank can only be one sum ahead, since
// the flags of a sum say that the peer has finished the sum before it.
// The number of the sum lives in the rank's own memory and counts up by itself: a captured graph can replay.
#pragma once

#include "launch_order.cuh"
#include "system_words.cuh"

#include <cstring>

constexpr int PUSH_MAX_RANKS = 8;
constexpr int PUSH_MAX_BLOCKS = 128;
constexpr int PUSH_N_THREADS = 256;

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

// One rank's view; `inbox[r]` and `flags[r]` lie on rank r's card, which this one reaches.
struct push_rank {
    char * inbox[PUSH_MAX_RANKS];      // [2][source][capacity]
    uint64_t * flags[PUSH_MAX_RANKS];  // [source][PUSH_MAX_BLOCKS]
    push_control * control;
    push_words * words;
    uint64_t deadline_ns;
    int rank;
    int capacity;  // bytes, a multiple of 16
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

static __device__ bool wait_for_flag(const push_rank & me, const uint64_t * flag, int source, uint64_t sequence) {
    constexpr int SPINS_A_LOOK = 256;
    uint64_t start = 0;
    for (int n_spins = 1; load_acquire(flag) < sequence; n_spins++) {
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

static __device__ void count_block(push_control * control, uint64_t sequence) {
    __threadfence();
    if (atomicInc(&control->n_counted, gridDim.x - 1) == gridDim.x - 1) {
        static_cast<volatile push_control *>(control)->sequence = sequence;
    }
}

// Raises this block's flag on every peer and waits for theirs; ends with the whole block together.
template <int N_RANKS>
static __device__ bool exchange_flags(const push_rank & me, uint64_t sequence) {
    const int peer = threadIdx.x;
    bool is_missing = false;
    __syncthreads();
    if (peer < N_RANKS && peer != me.rank) {
        store_release(me.flags[peer] + me.rank * PUSH_MAX_BLOCKS + blockIdx.x, sequence);
        is_missing = !wait_for_flag(me, me.flags[me.rank] + peer * PUSH_MAX_BLOCKS + blockIdx.x, peer, sequence);
    } else if (threadIdx.x == PUSH_N_THREADS - 1) {
        count_block(me.control, sequence);
    }
    return !__syncthreads_or(is_missing);
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

// Words [start, count) of this block: 16 bytes each, or single numbers; `early` is the thread's first, loaded before.
template <int N_RANKS, typename T>
static __device__ void push(const push_rank & me, const T * mine, const T & early, size_t to, int start, int count) {
    for (int i = start + threadIdx.x; i < count; i += PUSH_N_THREADS) {
        const T value = i == start + static_cast<int>(threadIdx.x) ? early : mine[i];
#pragma unroll
        for (int peer = 0; peer < N_RANKS; peer++) {
            if (peer != me.rank) {
                reinterpret_cast<T *>(me.inbox[peer] + to)[i] = value;
            }
        }
    }
}

template <int N_RANKS, typename NUMBER, typename T>
static __device__ void add_up(const push_rank & me, T * mine, const T & early, size_t from, int start, int count) {
    const char * inbox = me.inbox[me.rank] + from;
    for (int i = start + threadIdx.x; i < count; i += PUSH_N_THREADS) {
        const T own = i == start + static_cast<int>(threadIdx.x) ? early : mine[i];
        T parts[N_RANKS];
#pragma unroll
        for (int source = 0; source < N_RANKS; source++) {
            // Past L1, which may hold an older sum of the same inbox.
            const T * part = reinterpret_cast<const T *>(inbox + static_cast<size_t>(source) * me.capacity) + i;
            parts[source] = source == me.rank ? own : __ldcg(part);
        }
        mine[i] = sum_of<N_RANKS, NUMBER>(parts);
    }
}

// Sums n numbers of all ranks in place, as many bytes as the capacity at most. All ranks must use the same grid:
// which block takes a number depends on n and the grid only, not on how x is aligned.
template <int N_RANKS, typename NUMBER>
static __global__ void __launch_bounds__(PUSH_N_THREADS) push_all_reduce(PUSH_ARGUMENT const push_rank me, void * x, int n,
                                                                                bool lets_next_start) {
    if (lets_next_start) {
        let_next_start();
    }
    wait_for_earlier();
    using stored = typename NUMBER::stored;
    constexpr int A_VECTOR = sizeof(uint4) / sizeof(stored);
    __shared__ uint64_t shared_sequence;
    const int quantum = A_VECTOR * gridDim.x;
    const int a_block = (n + quantum - 1) / quantum * A_VECTOR;
    const int first = blockIdx.x * a_block;
    const int count = max(0, min(a_block, n - first));
    stored * mine = static_cast<stored *>(x) + first;
    uint4 * vectors = reinterpret_cast<uint4 *>(mine);
    const int n_vectors = reinterpret_cast<uintptr_t>(mine) % sizeof(uint4) == 0 ? count / A_VECTOR : 0;
    const int tail = A_VECTOR * n_vectors;
    const int thread = threadIdx.x;

    const uint4 early_vector = thread < n_vectors ? vectors[thread] : make_uint4(0, 0, 0, 0);
    const stored early = tail + thread < count ? mine[tail + thread] : 0;
    if (thread == 0) {
        shared_sequence = read_sequence(me.control);
    }
    __syncthreads();
    const uint64_t sequence = shared_sequence;
    if (sequence == 0) {
        return;
    }
    const size_t box = (sequence & 1) * N_RANKS * static_cast<size_t>(me.capacity) + first * sizeof(stored);
    const size_t own_box = box + static_cast<size_t>(me.rank) * me.capacity;
    push<N_RANKS>(me, vectors, early_vector, own_box, 0, n_vectors);
    push<N_RANKS>(me, mine, early, own_box, tail, count);
    if (exchange_flags<N_RANKS>(me, sequence)) {
        add_up<N_RANKS, NUMBER>(me, vectors, early_vector, box, 0, n_vectors);
        add_up<N_RANKS, NUMBER>(me, mine, early, box, tail, count);
    }
}
