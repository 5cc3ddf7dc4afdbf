// The push all-reduce of F32, BF16 or F16, added up in float: each block stores its part of the rank's summand into an inbox on every peer, raises
// a flag there, waits for the peers' flags, and adds all parts in rank order, so that all ranks hold the
// same bits. Two inboxes in turn make one round of flags enough: a rank can only be one sum ahead, since
// the flags of a sum say that the peer has finished the sum before it.
// The number of the sum lives in the rank's own memory and counts up by itself: a captured graph can replay.
// Few float numbers travel as letters: words that hold a number and the sum's tag each, so that a rank sees from the word
// itself that it has come. This saves the wait for stores to arrive before a flag may be raised, which is half of the time.
#pragma once

#include "launch_order.cuh"
#include "system_words.cuh"

#include <cstring>

constexpr int PUSH_MAX_RANKS = 8;
constexpr int PUSH_MAX_BLOCKS = 128;
constexpr int PUSH_N_THREADS = 256;
constexpr int PUSH_MAX_LETTERS = 65536;  // numbers of a sum

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
    char * inbox[PUSH_MAX_RANKS];        // [2][source][capacity]
    uint64_t * flags[PUSH_MAX_RANKS];    // [source][PUSH_MAX_BLOCKS]
    uint64_t * letters[PUSH_MAX_RANKS];  // [2][source][PUSH_MAX_LETTERS]
    push_control * control;
    push_words * words;
    uint64_t deadline_ns;
    int rank;
    int capacity;  // bytes, a multiple of 16
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
    // Milliseconds: reads of one word of host memory wait for each other, and all blocks look at the same time.
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

static __device__ bool wait_for_flag(const push_rank & me, const uint64_t * flag, int source, uint64_t sequence) {
    uint64_t start = 0;
    return wait_until(me, source, sequence, start, [&] { return load_acquire(flag) >= sequence; });
}

// This sum's number, 0 after a failure. The number may count up once every block has read it (count_block).
static __device__ uint64_t read_sequence(const push_control * control) {
    const volatile push_control * now = control;
    return now->has_failed ? 0 : now->sequence + 1;
}

static __device__ void count_block(push_control * control, uint64_t sequence) {
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

// Words of float numbers, added up.
template <typename T>
static __device__ __forceinline__ T plus(const T & a, const T & b) {
    const T words[2] = {a, b};
    return sum_of<2, f32_number>(words);
}

template <int N_RANKS, typename NUMBER, typename T>
static __device__ void add_up(const push_rank & me, const T * mine, const T & early, const float * addend, T * out, size_t from, int start,
                              int count) {
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
        T sum = sum_of<N_RANKS, NUMBER>(parts);
        if constexpr (sizeof(typename NUMBER::stored) == sizeof(float)) {
            sum = addend ? plus(sum, reinterpret_cast<const T *>(addend)[i]) : sum;
        }
        out[i] = sum;
    }
}

// Sums numbers of all ranks, as many bytes as the capacity at most. All ranks must use the same grid: which block takes a
// number depends on n and the grid only, not on how x is aligned. An addend is for float numbers.
template <int N_RANKS, typename NUMBER>
static __global__ void __launch_bounds__(PUSH_N_THREADS) push_all_reduce(PUSH_ARGUMENT const push_rank me, PUSH_ARGUMENT const push_sum s) {
    if (s.lets_next_start) {
        let_next_start();
    }
    wait_for_earlier();
    using stored = typename NUMBER::stored;
    constexpr int A_VECTOR = sizeof(uint4) / sizeof(stored);
    __shared__ uint64_t shared_sequence;
    const int quantum = A_VECTOR * gridDim.x;
    const int a_block = (s.n + quantum - 1) / quantum * A_VECTOR;
    const int first = blockIdx.x * a_block;
    const int count = max(0, min(a_block, s.n - first));
    const stored * mine = static_cast<const stored *>(s.x) + first;
    stored * out = s.out ? reinterpret_cast<stored *>(s.out) + first : static_cast<stored *>(s.x) + first;
    const float * addend = s.addend ? s.addend + first : nullptr;
    const uint4 * vectors = reinterpret_cast<const uint4 *>(mine);
    const uintptr_t places = reinterpret_cast<uintptr_t>(mine) | reinterpret_cast<uintptr_t>(addend) | reinterpret_cast<uintptr_t>(out);
    const int n_vectors = places % sizeof(uint4) == 0 ? count / A_VECTOR : 0;
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
        add_up<N_RANKS, NUMBER>(me, vectors, early_vector, addend, reinterpret_cast<uint4 *>(out), box, 0, n_vectors);
        add_up<N_RANKS, NUMBER>(me, mine, early, addend, out, box, tail, count);
    }
}

// Sums that travel as letters have four numbers a thread. Ranks must agree on it, so it depends on n only.
static inline int letter_blocks(int n) {
    return (n + 4 * PUSH_N_THREADS - 1) / (4 * PUSH_N_THREADS);
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

// The float bits of four letters once all of them have come.
static __device__ __forceinline__ bool take_letters(const push_rank & me, const uint64_t * from, int source, uint64_t sequence,
                                                    uint32_t tag, uint64_t & start, uint4 & to) {
    uint64_t a[2], b[2];
    const bool has_come = wait_until(me, source, sequence, start, [&] {
        load_two(from, a);
        load_two(from + 2, b);
        return a[0] >> 32 == tag && a[1] >> 32 == tag && b[0] >> 32 == tag && b[1] >> 32 == tag;
    });
    to = make_uint4(static_cast<uint32_t>(a[0]), static_cast<uint32_t>(a[1]), static_cast<uint32_t>(b[0]), static_cast<uint32_t>(b[1]));
    return has_come;
}

// Sums few float numbers of all ranks, PUSH_MAX_LETTERS at most. A place for letters may be used by every second sum: what came
// from a rank in the sum before, be it a letter or a flag, says that its kernel of the sum before that has ended. A tag comes
// again after 2^32 sums, days later, and would have to meet a letter that lay there all the time.
template <int N_RANKS>
static __global__ void __launch_bounds__(PUSH_N_THREADS) push_letters(PUSH_ARGUMENT const push_rank me, PUSH_ARGUMENT const push_sum s) {
    if (s.lets_next_start) {
        let_next_start();
    }
    wait_for_earlier();
    __shared__ uint64_t shared_sequence;
    const int at = blockIdx.x * PUSH_N_THREADS + threadIdx.x;
    const bool has_numbers = 4 * at < s.n;
    float * x = static_cast<float *>(s.x), * out = s.out ? s.out : x;
    const uintptr_t places = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(s.addend) | reinterpret_cast<uintptr_t>(out);
    const bool is_whole = places % sizeof(uint4) == 0 && 4 * at + 4 <= s.n;
    const uint4 own = has_numbers ? read_four(x, at, s.n, is_whole) : make_uint4(0, 0, 0, 0);
    const uint4 addend = has_numbers && s.addend ? read_four(s.addend, at, s.n, is_whole) : make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        shared_sequence = read_sequence(me.control);
    }
    __syncthreads();
    const uint64_t sequence = shared_sequence;
    if (sequence == 0) {
        return;
    }
    const uint32_t tag = static_cast<uint32_t>(sequence % 0xffffffffu) + 1;  // never 0, which memory begins with
    const size_t box = (sequence & 1) * N_RANKS * static_cast<size_t>(PUSH_MAX_LETTERS) + 4 * at;
    uint4 parts[N_RANKS];
#pragma unroll
    for (int peer = 0; peer < N_RANKS; peer++) {
        parts[peer] = own;
        if (has_numbers && peer != me.rank) {
            uint64_t * to = me.letters[peer] + box + static_cast<size_t>(me.rank) * PUSH_MAX_LETTERS;
            store_two(to, letter_of(own.x, tag), letter_of(own.y, tag));
            store_two(to + 2, letter_of(own.z, tag), letter_of(own.w, tag));
        }
    }
    if (threadIdx.x == PUSH_N_THREADS - 1) {
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
