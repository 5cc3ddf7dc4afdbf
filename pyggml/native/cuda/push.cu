// The push transport's host side: memory, launches, and what the cards report.
// all_reduce only launches, so that it can be captured. One thread a rank; abort from any thread.

#include "peer.h"
#include "place.h"
#include "push.h"
#include "push_letters.cuh"
#include "push_parts.cuh"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace {

using kernel = void (*)(push_rank, push_sum);

// For the next sum that this thread launches.
thread_local const ggml_tensor * next_addend = nullptr;
thread_local ggml_tensor * next_out = nullptr;
thread_local bool is_before_ours = false;

template <typename NUMBER>
constexpr kernel KERNELS[PUSH_MAX_RANKS + 1] = {
    nullptr,
    nullptr,
    push_all_reduce<2, NUMBER>,
    push_all_reduce<3, NUMBER>,
    push_all_reduce<4, NUMBER>,
    push_all_reduce<5, NUMBER>,
    push_all_reduce<6, NUMBER>,
    push_all_reduce<7, NUMBER>,
    push_all_reduce<8, NUMBER>,
};

constexpr kernel LETTER_KERNELS[PUSH_MAX_RANKS + 1] = {
    nullptr,
    nullptr,
    push_letters<2>,
    push_letters<3>,
    push_letters<4>,
    push_letters<5>,
    push_letters<6>,
    push_letters<7>,
    push_letters<8>,
};

kernel kernel_for(ggml_type type, int n_ranks) {
    switch (type) {
        case GGML_TYPE_F32: return KERNELS<f32_number>[n_ranks];
        case GGML_TYPE_BF16: return KERNELS<bf16_number>[n_ranks];
        case GGML_TYPE_F16: return KERNELS<f16_number>[n_ranks];
        default: return nullptr;
    }
}

constexpr double DRAIN_TIME_S = 5;

// Sums of up to so many bytes have their blocks in place before the work before them has ended; more would take its place.
constexpr int64_t EARLY_BYTES = 32768;

constexpr int64_t LAUNCH_ELEMENTS = 1 << 30;  // which an int counts

// Through host memory: few blocks fill the bus, and memory that cannot be swapped out is dear.
constexpr int FAR_BLOCKS = 32;
constexpr int FAR_LETTERS = 32768;

struct push_transport {
    pg_transport face = {};
    transport_name name{"push"};
    int n_ranks = 0;
    int max_blocks = PUSH_MAX_BLOCKS;
    int max_letters = PUSH_MAX_LETTERS;
    place places[PUSH_MAX_RANKS];
    push_rank views[PUSH_MAX_RANKS] = {};
    push_words * words[PUSH_MAX_RANKS] = {};
    push_control * controls[PUSH_MAX_RANKS] = {};
    void * mail[PUSH_MAX_RANKS] = {};
    bool is_through_host = false;
    std::atomic<bool> is_aborted{false};

    ~push_transport();
    bool make_mail(int rank, size_t n_cleared, size_t size, const reason & why);
    bool make_memory(double deadline_s, const reason & why);
    bool prepare_kernels(const reason & why);
    void abort();
    bool is_idle();
};

push_transport::~push_transport() {
    abort();
    if (!is_idle()) {
        return;  // something on a card does not end: freeing its memory would wait for it
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        cudaSetDevice(places[rank].card);
        cudaFree(controls[rank]);
        is_through_host ? cudaFreeHost(mail[rank]) : cudaFree(mail[rank]);
        cudaFreeHost(words[rank]);
    }
}

bool push_transport::is_idle() {
    for (int rank = 0; rank < n_ranks; rank++) {
        if (wait_for(places[rank], DRAIN_TIME_S, [] { return false; }) == ending::expired) {
            return false;
        }
    }
    return true;
}

void push_transport::abort() {
    is_aborted = true;
    for (int rank = 0; rank < n_ranks; rank++) {
        if (words[rank]) {
            static_cast<volatile push_words *>(words[rank])->is_aborted = 1;
        }
    }
}

// What the others write for a rank: on its card, or in host memory that all cards reach.
bool push_transport::make_mail(int rank, size_t n_cleared, size_t size, const reason & why) {
    if (is_through_host) {
        if (!why.passed(cudaHostAlloc(&mail[rank], size, cudaHostAllocMapped | cudaHostAllocPortable), "host memory for inboxes")) {
            return false;
        }
        memset(mail[rank], 0, n_cleared);
        return true;
    }
    return why.passed(cudaMalloc(&mail[rank], size), "memory for inboxes") &&
           why.passed(cudaMemset(mail[rank], 0, n_cleared), "cudaMemset");
}

bool push_transport::make_memory(double deadline_s, const reason & why) {
    const size_t flags_size = sizeof(uint64_t) * n_ranks * PUSH_MAX_BLOCKS;
    const size_t letters_size = 2 * n_ranks * sizeof(uint64_t) * PUSH_MAX_LETTERS;
    const size_t inbox_size = static_cast<size_t>(2) * n_ranks * max_blocks * PUSH_N_PLACES * PUSH_PART_BYTES;
    for (int rank = 0; rank < n_ranks; rank++) {
        void * control = nullptr, * host = nullptr;
        if (!why.passed(cudaSetDevice(places[rank].card), "cudaSetDevice") ||
            !why.passed(cudaMalloc(&control, sizeof(push_control)), "memory for a counter")) {
            return false;
        }
        controls[rank] = static_cast<push_control *>(control);
        if (!why.passed(cudaMemset(control, 0, sizeof(push_control)), "cudaMemset") ||
            !make_mail(rank, flags_size + letters_size, flags_size + letters_size + inbox_size, why) ||
            !why.passed(cudaDeviceSynchronize(), "cudaDeviceSynchronize") ||
            !why.passed(cudaHostAlloc(&host, sizeof(push_words), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc")) {
            return false;
        }
        words[rank] = new (host) push_words();
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        push_rank & view = views[rank];
        for (int owner = 0; owner < n_ranks; owner++) {
            char * base = static_cast<char *>(mail[owner]);
            view.flags[owner] = reinterpret_cast<uint64_t *>(base);
            view.letters[owner] = reinterpret_cast<uint64_t *>(base + flags_size);
            view.inbox[owner] = base + flags_size + letters_size;
        }
        view.control = controls[rank];
        view.words = words[rank];
        view.deadline_ns = static_cast<uint64_t>(deadline_s * 1e9);
        view.rank = rank;
        view.n_blocks = max_blocks;
    }
    return true;
}

// Loads the kernels on every card (loading one later could wait for a peer that already spins), and finds a
// grid that all cards can hold at once, so that no block waits for one that has no place.
bool push_transport::prepare_kernels(const reason & why) {
    for (int rank = 0; rank < n_ranks; rank++) {
        int n_processors = 0;
        if (!why.passed(cudaSetDevice(places[rank].card), "cudaSetDevice") ||
            !why.passed(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, places[rank].card), "processors")) {
            return false;
        }
        const auto held_at_once = [&](kernel one, int n_threads) {
            const void * function = reinterpret_cast<const void *>(one);
            cudaFuncAttributes attributes;
            int a_processor = 0;
            const bool is_told = why.passed(cudaFuncGetAttributes(&attributes, function), "loading a push kernel") &&
                why.passed(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&a_processor, function, n_threads, 0), "occupancy");
            return is_told ? std::max(1, a_processor * n_processors) : 0;
        };
        for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_F16}) {
            max_blocks = std::min(max_blocks, held_at_once(kernel_for(type, n_ranks), PUSH_N_THREADS));
        }
        max_letters = std::min(max_letters, 4 * LETTER_N_THREADS * held_at_once(LETTER_KERNELS[n_ranks], LETTER_N_THREADS));
        if (max_blocks == 0 || max_letters == 0) {
            return false;
        }
    }
    return true;
}

cudaError_t launch(const push_transport & push, int rank, ggml_type type, const push_sum & sum) {
    const int64_t size = ggml_type_size(type);
    const int a_block = PUSH_N_THREADS * static_cast<int>(sizeof(uint4) / size);
    const cudaStream_t stream = stream_of_sums(push.places[rank]);
    const bool starts_early = sum.n * size <= EARLY_BYTES;
    if (type == GGML_TYPE_F32 && sum.n <= push.max_letters) {
        return launch_early_if(starts_early, LETTER_KERNELS[push.n_ranks], dim3(letter_blocks(sum.n)), dim3(LETTER_N_THREADS), 1, 0, stream,
                               push.views[rank], sum);
    }
    const int n_blocks = static_cast<int>(std::min<int64_t>((static_cast<int64_t>(sum.n) + a_block - 1) / a_block, push.max_blocks));
    return launch_early_if(starts_early, kernel_for(type, push.n_ranks), dim3(n_blocks), dim3(PUSH_N_THREADS), 1, 0, stream,
                           push.views[rank], sum);
}

int all_reduce(void * self, int rank, ggml_backend_t, ggml_tensor * tensor) {
    push_transport & push = *static_cast<push_transport *>(self);
    const ggml_tensor * addend = std::exchange(next_addend, nullptr);
    ggml_tensor * out = std::exchange(next_out, nullptr);
    const bool lets_ours_start = std::exchange(is_before_ours, false);
    if (push.is_aborted) {
        return PG_FAULT_CLOSED;
    }
    if (!kernel_for(tensor->type, push.n_ranks)) {
        push.name.tell(": rank %d cannot sum %s", rank, ggml_type_name(tensor->type));
        return PG_FAULT_TRANSPORT;
    }
    const int64_t size = ggml_type_size(tensor->type), n_all = ggml_nelements(tensor);
    cudaSetDevice(push.places[rank].card);
    cudaError_t status = cudaSuccess;
    for (int64_t done = 0; done < n_all && status == cudaSuccess; done += LAUNCH_ELEMENTS) {
        const push_sum sum = {static_cast<char *>(tensor->data) + done * size,
                              addend ? static_cast<const float *>(addend->data) + done : nullptr,
                              out ? static_cast<float *>(out->data) + done : nullptr,
                              static_cast<int>(std::min(n_all - done, LAUNCH_ELEMENTS)), lets_ours_start || n_all - done > LAUNCH_ELEMENTS};
        status = launch(push, rank, tensor->type, sum);
    }
    if (status != cudaSuccess) {
        push.name.tell(": rank %d cannot launch: %s", rank, cudaGetErrorString(status));
        return PG_FAULT_TRANSPORT;
    }
    return PG_OK;
}

int poll(void * self, int rank, ggml_backend_t, double deadline_s) {
    push_transport & push = *static_cast<push_transport *>(self);
    const volatile push_words * words = push.words[rank];
    switch (wait_for(push.places[rank], deadline_s, [&] { return words->error != 0; })) {
        case ending::done: return PG_OK;
        case ending::expired:
            push.name.tell(": rank %d is not done after %.3g s", rank, deadline_s);
            push.abort();
            return PG_FAULT_TIMEOUT;
        case ending::broken:
            push.name.tell(": a CUDA error on rank %d", rank);
            push.abort();
            return PG_FAULT_COMPUTE;
        case ending::stopped: break;
    }
    if (words->error == PUSH_ABORTED) {
        return PG_FAULT_CLOSED;
    }
    push.name.tell(": rank %d waited %.3g s for rank %u (sum %llu)", rank, push.views[rank].deadline_ns / 1e9, words->source,
                   static_cast<unsigned long long>(words->sequence));
    return PG_FAULT_TIMEOUT;
}

}  // namespace

void push_with(const ggml_tensor * addend, ggml_tensor * out, bool is_so) {
    next_addend = addend;
    next_out = out;
    is_before_ours = is_so;
}

pg_transport * push_new(int n_ranks, const ggml_backend_t * backends, bool through_host, double deadline_s,
                        char * text, size_t text_size) {
    const reason why = {text, text_size};
    auto push = std::make_unique<push_transport>();
    if (n_ranks > PUSH_MAX_RANKS) {
        why.say("%d ranks; push is for 2 to %d", n_ranks, PUSH_MAX_RANKS);
        return nullptr;
    }
    if (!find_places(n_ranks, backends, push->places, why)) {
        return nullptr;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        for (int peer = 0; peer < n_ranks; peer++) {
            if (!through_host && peer != rank && enable_peer(push->places[rank].card, push->places[peer].card, text, text_size) != PGC_PEER_ENABLED) {
                return nullptr;
            }
        }
    }
    push->n_ranks = n_ranks;
    push->is_through_host = through_host;
    if (through_host) {
        snprintf(push->name.text, sizeof(push->name.text), "push-shm");
        push->max_blocks = FAR_BLOCKS;
        push->max_letters = FAR_LETTERS;
    }
    if (!push->make_memory(deadline_s, why) || !push->prepare_kernels(why)) {
        return nullptr;
    }
    push->face.name = push->name.text;
    push->face.self = push.get();
    push->face.all_reduce = all_reduce;
    push->face.can_capture = true;
    push->face.can_add = true;
    push->face.poll = poll;
    push->face.abort = [](void * self) { static_cast<push_transport *>(self)->abort(); };
    push->face.free = [](void * self) { delete static_cast<push_transport *>(self); };
    return &push.release()->face;
}
