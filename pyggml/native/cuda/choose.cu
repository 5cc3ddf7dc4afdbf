// The best logits of each row, found on the card, so that a step brings back kilobytes and not the whole vocabulary.
// Two kernels: the best of each stretch of a row, then the best of those. Both select by radix, digit by digit from the
// top, on keys that order as floats do; equal values come by rising id, as on the host.

#include "choose.h"

#include <cfloat>
#include <cmath>
#include <cstdint>

namespace {

constexpr int K = PGC_CHOOSE_K;
constexpr int N_THREADS = 256;
constexpr int A_THREAD = 16;
constexpr int STRETCH = N_THREADS * A_THREAD;
constexpr int MAX_STRETCHES = 128;
static_assert(MAX_PLACES * MAX_STRETCHES * STRETCH < 1 << 24, "relay_pairs.cuh tells tokens of all ranks as floats");
constexpr uint32_t KEY_OF_MINUS_INF = 0x007fffffu;
constexpr uint32_t KEY_OF_INF = 0xff800000u;

// What one stretch found: keys in any order, zeros where there are fewer.
struct stretch_result {
    unsigned long long keys[K];
    float max, sum;  // of exp(logit - max)
    uint32_t has_nan, n_found;
};
static_assert(sizeof(stretch_result) >= 2 * MAX_PLACES * sizeof(float), "pairs_of (relay.cu) takes the room of one stretch a row");

__device__ uint32_t key_of(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

struct selection {
    uint32_t histogram[256];
    uint32_t digit, n_left, n_taken;
};

// Narrows the keys that share `prefix` above `shift` to the digit that holds the n_left-th largest.
template <typename key_type, int N>
__device__ void narrow(const key_type (&keys)[N], key_type & prefix, int shift, selection & s) {
    s.histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < N; i++) {
        const bool is_inside = shift + 8 >= int(8 * sizeof(key_type)) || (keys[i] >> (shift + 8)) == (prefix >> (shift + 8));
        if (keys[i] != 0 && is_inside) {
            atomicAdd(&s.histogram[(keys[i] >> shift) & 255], 1u);
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int top = 255 - 8 * threadIdx.x;  // this lane's digits, the largest first
        uint32_t own = 0;
        for (int i = 0; i < 8; i++) {
            own += s.histogram[top - i];
        }
        uint32_t before = own;
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, before, step);
            before += int(threadIdx.x) >= step ? other : 0;
        }
        const uint32_t total = __shfl_sync(0xffffffffu, before, 31);
        before -= own;
        const uint32_t wanted = min(s.n_left, total);
        if (before < wanted && wanted <= before + own) {
            int digit = top;
            while (before + s.histogram[digit] < wanted) {
                before += s.histogram[digit--];
            }
            s.digit = digit;
            s.n_left = wanted - before;
        }
        if (threadIdx.x == 0 && wanted == 0) {
            s.digit = 255;
            s.n_left = 0;
        }
    }
    __syncthreads();
    prefix |= static_cast<key_type>(s.digit) << shift;
    __syncthreads();
}

__device__ float reduced(float value, bool is_max, float * shared) {
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = is_max ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = shared[0];
    for (int i = 1; i < N_THREADS / 32; i++) {
        value = is_max ? fmaxf(value, shared[i]) : value + shared[i];
    }
    __syncthreads();
    return value;
}

__global__ void best_of_stretch(const float * logits, int n_vocab, int64_t row_stride, stretch_result * results) {
    __shared__ selection s;
    __shared__ float sums[N_THREADS / 32];
    const int first = blockIdx.x * STRETCH;
    const float * row = logits + blockIdx.y * row_stride;
    stretch_result & result = results[blockIdx.y * gridDim.x + blockIdx.x];
    uint32_t keys[A_THREAD];
    float values[A_THREAD];
    float max = -INFINITY;
    bool has_nan = false;
    int n_valid = 0;
    for (int i = 0; i < A_THREAD; i++) {
        const int at = first + i * N_THREADS + threadIdx.x;
        values[i] = at < n_vocab ? row[at] : -INFINITY;
        has_nan |= isnan(values[i]);
        const uint32_t key = key_of(values[i]);
        keys[i] = key > KEY_OF_MINUS_INF ? key : 0;
        n_valid += keys[i] != 0;
        max = fmaxf(max, values[i]);
    }
    max = reduced(max, true, sums);
    const float origin = isinf(max) ? 0.0f : max;
    float sum = 0;
    for (int i = 0; i < A_THREAD; i++) {
        sum += expf(values[i] - origin);
    }
    sum = reduced(sum, false, sums);
    n_valid = static_cast<int>(reduced(static_cast<float>(n_valid), false, sums));
    const bool is_bad = __syncthreads_or(has_nan);
    if (threadIdx.x == 0) {
        result.max = origin;
        result.sum = sum;
        result.has_nan = is_bad;
        result.n_found = min(n_valid, K);
        s.n_left = K;
        s.n_taken = 0;
    }
    __syncthreads();
    uint32_t threshold = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        narrow(keys, threshold, shift, s);
    }
    const uint32_t n_equal_wanted = s.n_left;
    if (threadIdx.x < K) {
        result.keys[threadIdx.x] = 0;
    }
    __syncthreads();
    for (int i = 0; i < A_THREAD; i++) {
        if (n_valid <= K ? keys[i] != 0 : keys[i] > threshold) {
            const uint32_t id = first + i * N_THREADS + threadIdx.x;
            result.keys[atomicAdd(&s.n_taken, 1u)] = static_cast<unsigned long long>(keys[i]) << 32 | ~id;
        }
    }
    if (n_valid <= K) {
        return;
    }
    // Of those that equal the threshold, the ones with the lowest ids; ids rise with i, then with the thread.
    uint32_t n_before = 0;
    for (int i = 0; i < A_THREAD && n_before < n_equal_wanted; i++) {
        const bool is_equal = keys[i] == threshold;
        const uint32_t mask = __ballot_sync(0xffffffffu, is_equal);
        if (threadIdx.x % 32 == 0) {
            s.histogram[threadIdx.x / 32] = __popc(mask);
        }
        __syncthreads();
        uint32_t rank = n_before + __popc(mask & ((1u << (threadIdx.x % 32)) - 1));
        for (int warp = 0; warp < N_THREADS / 32; warp++) {
            rank += warp < int(threadIdx.x / 32) ? s.histogram[warp] : 0;
            n_before += s.histogram[warp];
        }
        if (is_equal && rank < n_equal_wanted) {
            const uint32_t id = first + i * N_THREADS + threadIdx.x;
            result.keys[atomicAdd(&s.n_taken, 1u)] = static_cast<unsigned long long>(keys[i]) << 32 | ~id;
        }
        __syncthreads();
    }
}

__global__ void best_of_row(const stretch_result * results, int n_stretches, int32_t * out) {
    static_assert(MAX_STRETCHES <= N_THREADS, "a thread takes a stretch");
    __shared__ selection s;
    __shared__ float sums[N_THREADS / 32];
    __shared__ unsigned long long chosen[K];
    constexpr int N = MAX_STRETCHES * K / N_THREADS;
    const stretch_result * row = results + static_cast<int64_t>(blockIdx.x) * n_stretches;
    unsigned long long keys[N];
    for (int i = 0; i < N; i++) {
        const int at = i * N_THREADS + threadIdx.x;
        keys[i] = at < n_stretches * K ? row[at / K].keys[at % K] : 0;
    }
    if (threadIdx.x == 0) {
        s.n_left = K;
        s.n_taken = 0;
    }
    if (threadIdx.x < K) {
        chosen[threadIdx.x] = 0;
    }
    __syncthreads();
    unsigned long long threshold = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        narrow(keys, threshold, shift, s);
    }
    const bool has_stretch = int(threadIdx.x) < n_stretches;
    const int n_own = has_stretch ? row[threadIdx.x].n_found : 0;
    const float own_max = n_own ? row[threadIdx.x].max : -FLT_MAX, own_sum = n_own ? row[threadIdx.x].sum : 0;
    const bool has_nan = __syncthreads_or(has_stretch && row[threadIdx.x].has_nan);
    const int n_valid = static_cast<int>(reduced(static_cast<float>(n_own), false, sums));
    const float max = reduced(own_max, true, sums);
    const float sum = reduced(own_sum * expf(own_max - max), false, sums);
    for (int i = 0; i < N; i++) {
        if (keys[i] != 0 && (n_valid <= K || keys[i] >= threshold)) {
            chosen[atomicAdd(&s.n_taken, 1u)] = keys[i];
        }
    }
    __syncthreads();
    int32_t * ids = out + static_cast<int64_t>(blockIdx.x) * PGC_CHOOSE_INTS;
    float * values = reinterpret_cast<float *>(ids + K);
    if (threadIdx.x < K) {
        const unsigned long long own = chosen[threadIdx.x];
        int rank = 0;
        for (int i = 0; i < K; i++) {
            rank += chosen[i] > own || (chosen[i] == own && i < int(threadIdx.x));
        }
        ids[rank] = static_cast<int32_t>(~static_cast<uint32_t>(own));
        values[rank] = value_of(static_cast<uint32_t>(own >> 32));
    }
    const bool has_inf = __syncthreads_or(threadIdx.x < K && static_cast<uint32_t>(chosen[threadIdx.x % K] >> 32) == KEY_OF_INF);
    if (threadIdx.x == 0) {
        ids[2 * K] = has_nan ? PGC_CHOOSE_NAN : has_inf ? PGC_CHOOSE_INF : n_valid == 0 ? PGC_CHOOSE_NONE : min(n_valid, K);
        values[K + 1] = max + logf(sum);
    }
}

}  // namespace

int64_t choose_ints(int64_t n_rows, int64_t n_vocab) {
    const int64_t n_stretches = (n_vocab + STRETCH - 1) / STRETCH;
    if (n_stretches > MAX_STRETCHES) {
        return 0;
    }
    const int64_t result_ints = (n_rows * PGC_CHOOSE_INTS + 3) / 4 * 4;
    return result_ints + n_rows * n_stretches * static_cast<int64_t>(sizeof(stretch_result) / sizeof(int32_t));
}

bool choose(ggml_backend_t backend, const ggml_tensor * logits, ggml_tensor * found, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    if (!find_place(backend, where, why) || !why.passed(cudaSetDevice(where.card), "cudaSetDevice")) {
        return false;
    }
    const int n_vocab = static_cast<int>(logits->ne[0]), n_rows = static_cast<int>(logits->ne[1]);
    const int n_stretches = (n_vocab + STRETCH - 1) / STRETCH;
    int32_t * out = static_cast<int32_t *>(found->data);
    auto * results = reinterpret_cast<stretch_result *>(out + (static_cast<int64_t>(n_rows) * PGC_CHOOSE_INTS + 3) / 4 * 4);
    best_of_stretch<<<dim3(n_stretches, n_rows), N_THREADS, 0, where.stream>>>(
        static_cast<const float *>(logits->data), n_vocab, static_cast<int64_t>(logits->nb[1] / sizeof(float)), results);
    best_of_row<<<n_rows, N_THREADS, 0, where.stream>>>(results, n_stretches, out);
    return why.passed(cudaGetLastError(), "choosing tokens");
}
