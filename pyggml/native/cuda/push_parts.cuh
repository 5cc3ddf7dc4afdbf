// The push all-reduce of many numbers: each block stores its share of the rank's summand into an inbox on every peer, part by
// part, raises a flag there for each part, waits for the peers' flags, and adds all ranks' numbers up. While a part is added up
// the next one is on its way. An inbox has room for three parts of each block: the flag of a part says that its rank has added
// up the part before it.
#pragma once

#include "push_rank.cuh"

// A part of a block's numbers: where they lie here, and at which byte of inboxes, from which on each source has its own.
template <typename NUMBER>
struct push_part {
    using stored = typename NUMBER::stored;
    const stored * mine;
    const float * addend;
    stored * out;
    int count, n_vectors;  // numbers; those of 16 bytes, then the rest one by one
    size_t at, a_source;
};

template <typename NUMBER>
static __device__ __forceinline__ push_part<NUMBER> part_of(const push_rank & me, const push_sum & s, int n_ranks, uint64_t sequence, int part,
                                                            int first, int count) {
    using stored = typename NUMBER::stored;
    constexpr int A_PART = PUSH_PART_BYTES / sizeof(stored), A_VECTOR = sizeof(uint4) / sizeof(stored);
    const int start = first + part * A_PART;
    push_part<NUMBER> p;
    p.mine = static_cast<const stored *>(s.x) + start;
    p.addend = s.addend ? s.addend + start : nullptr;
    p.out = s.out ? reinterpret_cast<stored *>(s.out) + start : static_cast<stored *>(s.x) + start;
    p.count = min(A_PART, count - part * A_PART);
    const uintptr_t places = reinterpret_cast<uintptr_t>(p.mine) | reinterpret_cast<uintptr_t>(p.addend) | reinterpret_cast<uintptr_t>(p.out);
    p.n_vectors = places % sizeof(uint4) == 0 ? p.count / A_VECTOR : 0;
    p.a_source = static_cast<size_t>(me.n_blocks) * PUSH_N_PLACES * PUSH_PART_BYTES;
    p.at = (sequence & 1) * n_ranks * p.a_source + static_cast<size_t>(blockIdx.x * PUSH_N_PLACES + part % PUSH_N_PLACES) * PUSH_PART_BYTES;
    return p;
}

template <int N_RANKS, typename NUMBER, typename T>
static __device__ __forceinline__ void push_words_of(const push_rank & me, const push_part<NUMBER> & p, int start, int stop) {
    constexpr int AT_ONCE = 4;  // loads before the first store, which they could not pass
    const size_t to = p.at + me.rank * p.a_source;
    for (int from = start + threadIdx.x; from < stop; from += AT_ONCE * PUSH_N_THREADS) {
        T values[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = from + k * PUSH_N_THREADS;
            values[k] = i < stop ? reinterpret_cast<const T *>(p.mine)[i] : T{};
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = from + k * PUSH_N_THREADS;
#pragma unroll
            for (int peer = 0; peer < N_RANKS; peer++) {
                if (i < stop && peer != me.rank) {
                    reinterpret_cast<T *>(me.inbox[peer] + to)[i] = values[k];
                }
            }
        }
    }
}

template <int N_RANKS, typename NUMBER, typename T>
static __device__ __forceinline__ void add_words_of(const push_rank & me, const push_part<NUMBER> & p, int start, int stop) {
    constexpr int AT_ONCE = N_RANKS <= 2 ? 4 : N_RANKS <= 4 ? 2 : 1;
    const char * inbox = me.inbox[me.rank] + p.at;
    for (int from = start + threadIdx.x; from < stop; from += AT_ONCE * PUSH_N_THREADS) {
        T parts[AT_ONCE][N_RANKS], addends[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = from + k * PUSH_N_THREADS;
#pragma unroll
            for (int source = 0; source < N_RANKS; source++) {
                // Past L1, which may hold an older part of the same inbox.
                const T * part = reinterpret_cast<const T *>(inbox + source * p.a_source);
                parts[k][source] = i >= stop ? T{} : source == me.rank ? reinterpret_cast<const T *>(p.mine)[i] : __ldcg(part + i);
            }
            addends[k] = p.addend && i < stop ? reinterpret_cast<const T *>(p.addend)[i] : T{};
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = from + k * PUSH_N_THREADS;
            T sum = sum_of<N_RANKS, NUMBER>(parts[k]);
            if constexpr (sizeof(typename NUMBER::stored) == sizeof(float)) {
                sum = p.addend ? plus(sum, addends[k]) : sum;
            }
            if (i < stop) {
                reinterpret_cast<T *>(p.out)[i] = sum;
            }
        }
    }
}

static __device__ __forceinline__ uint64_t flag_of(uint64_t sequence, int part) {
    return (sequence << PUSH_PART_BITS) + part + 1;
}

// Whether a part of all peers has come; the whole block together.
template <int N_RANKS>
static __device__ bool await_part(const push_rank & me, uint64_t sequence, int part) {
    const int peer = threadIdx.x;
    bool is_missing = false;
    if (peer < N_RANKS && peer != me.rank) {
        const uint64_t * flag = me.flags[me.rank] + peer * PUSH_MAX_BLOCKS + blockIdx.x;
        uint64_t start = 0;
        is_missing = !wait_until(me, peer, sequence, start, [&] { return load_acquire(flag) >= flag_of(sequence, part); });
    }
    return !__syncthreads_or(is_missing);
}

// After a meeting of the block: its part has been stored.
template <int N_RANKS>
static __device__ void raise_part(const push_rank & me, uint64_t sequence, int part) {
    const int peer = threadIdx.x;
    if (peer < N_RANKS && peer != me.rank) {
        store_release(me.flags[peer] + me.rank * PUSH_MAX_BLOCKS + blockIdx.x, flag_of(sequence, part));
    }
}

// Sums numbers of all ranks. All ranks must use the same grid: which block takes a number depends on n and the grid only, not
// on how x is aligned. An addend is for float numbers. A part is sent, then the one before it taken, and only then its flag is
// raised: the flag waits until its stores have arrived, and has less to wait for by then.
template <int N_RANKS, typename NUMBER>
static __global__ void __launch_bounds__(PUSH_N_THREADS) push_all_reduce(PUSH_ARGUMENT const push_rank me, PUSH_ARGUMENT const push_sum s) {
    if (s.lets_next_start) {
        let_next_start();
    }
    wait_for_earlier();
    using stored = typename NUMBER::stored;
    constexpr int A_VECTOR = sizeof(uint4) / sizeof(stored), A_PART = PUSH_PART_BYTES / sizeof(stored);
    const int64_t quantum = static_cast<int64_t>(A_VECTOR) * gridDim.x;
    const int a_block = static_cast<int>((s.n + quantum - 1) / quantum) * A_VECTOR;
    const int first = static_cast<int>(min(static_cast<int64_t>(blockIdx.x) * a_block, static_cast<int64_t>(s.n)));
    const int count = min(a_block, s.n - first);
    const int n_parts = (count + A_PART - 1) / A_PART;
    const uint64_t sequence = sequence_of_block(me.control);
    if (sequence == 0) {
        return;
    }
    if (threadIdx.x == PUSH_N_THREADS - 1) {
        count_block(me.control, sequence);
    }
    for (int part = 0; part <= n_parts; part++) {
        if (part < n_parts) {
            const push_part<NUMBER> next = part_of<NUMBER>(me, s, N_RANKS, sequence, part, first, count);
            push_words_of<N_RANKS, NUMBER, uint4>(me, next, 0, next.n_vectors);
            push_words_of<N_RANKS, NUMBER, stored>(me, next, next.n_vectors * A_VECTOR, next.count);
        }
        if (part > 0) {
            if (!await_part<N_RANKS>(me, sequence, part - 1)) {
                return;
            }
            const push_part<NUMBER> last = part_of<NUMBER>(me, s, N_RANKS, sequence, part - 1, first, count);
            add_words_of<N_RANKS, NUMBER, uint4>(me, last, 0, last.n_vectors);
            add_words_of<N_RANKS, NUMBER, stored>(me, last, last.n_vectors * A_VECTOR, last.count);
        }
        __syncthreads();
        if (part < n_parts) {
            raise_part<N_RANKS>(me, sequence, part);
        }
    }
}
