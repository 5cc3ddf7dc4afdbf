// Bounded waits, failures and memory: everything about places that needs no look into ggml's CUDA module.

#include "place.h"

#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

using steady = std::chrono::steady_clock;

// A decode step ends while still spinning; longer work is looked at from time to time.
static constexpr auto SPIN_TIME = std::chrono::milliseconds(20);
static constexpr auto LOOK_TIME = std::chrono::microseconds(50);

bool reason::say(const char * format, ...) const {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, size, format, arguments);
    va_end(arguments);
    return false;
}

void transport_name::tell(const char * format, ...) {
    if (is_told.exchange(true)) {
        return;
    }
    const size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, sizeof(text) - length, format, arguments);
    va_end(arguments);
}

bool reason::passed(cudaError_t status, const char * what) const {
    if (status == cudaSuccess) {
        return true;
    }
    cudaGetLastError();
    return say("%s: %s", what, cudaGetErrorString(status));
}

bool find_places(int n_ranks, const ggml_backend_t * backends, place * found, const reason & why) {
    if (n_ranks < 2 || n_ranks > MAX_PLACES) {
        return why.say("%d ranks; 2 to %d are possible", n_ranks, MAX_PLACES);
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        if (!find_place(backends[rank], found[rank], why)) {
            return false;
        }
        for (int other = 0; other < rank; other++) {
            if (found[other].card == found[rank].card) {
                return why.say("ranks %d and %d share a card", other, rank);
            }
        }
    }
    return true;
}

static thread_local cudaEvent_t awaited = nullptr;
static thread_local cudaStream_t beside = nullptr;

void sum_on(cudaStream_t stream) {
    beside = stream;
}

cudaStream_t stream_of_sums(const place & where) {
    return beside ? beside : where.stream;
}

void wait_only_for(cudaEvent_t event) {
    awaited = event;
}

ending wait_for(const place & where, double deadline_s, const std::function<bool()> & must_stop) {
    cudaSetDevice(where.card);
    const auto start = steady::now();
    const auto deadline = std::chrono::duration<double>(deadline_s);
    while (true) {
        const cudaError_t status = awaited ? cudaEventQuery(awaited) : cudaStreamQuery(where.stream);
        cudaGetLastError();  // "not ready" would else be taken for a later launch's error
        if (must_stop()) {
            return ending::stopped;
        }
        if (status == cudaSuccess) {
            return ending::done;
        }
        if (status != cudaErrorNotReady) {
            return ending::broken;
        }
        const auto waited = steady::now() - start;
        if (waited > deadline) {
            return ending::expired;
        }
        if (waited > SPIN_TIME) {
            std::this_thread::sleep_for(LOOK_TIME);
        } else {
            std::this_thread::yield();
        }
    }
}

bool run_bounded(double deadline_s, std::function<void()> work) {
    struct state {
        std::mutex lock;
        std::condition_variable changed;
        bool is_done = false;
    };
    auto shared = std::make_shared<state>();
    std::thread([shared, work = std::move(work)] {
        work();
        std::lock_guard<std::mutex> guard(shared->lock);
        shared->is_done = true;
        shared->changed.notify_all();
    }).detach();
    std::unique_lock<std::mutex> guard(shared->lock);
    return shared->changed.wait_for(guard, std::chrono::duration<double>(deadline_s), [&] { return shared->is_done; });
}

bool device_memory::make(int on_card, size_t bytes, const reason & why) {
    card = on_card;
    return why.passed(cudaSetDevice(card), "cudaSetDevice") && why.passed(cudaMalloc(&data, bytes), "cudaMalloc");
}

void device_memory::release() {
    if (data) {
        cudaSetDevice(card);
        cudaFree(data);
        data = nullptr;
    }
}
