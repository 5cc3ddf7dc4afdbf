// Where a rank works (a card and its backend's stream), bounded waits for it, and how failures are told.
#pragma once

#include "cuda_api.h"

#include <cuda_runtime.h>

#include <atomic>
#include <functional>

constexpr int MAX_PLACES = 16;

// The caller's buffer for the reason of a failure.
struct reason {
    char * text;
    size_t size;

    // Writes the reason; gives false, so that `return why.say(...)` fails.
    bool say(const char * format, ...) const __attribute__((format(printf, 2, 3)));

    // Whether a CUDA call succeeded; if not, the reason names it and CUDA's error is cleared.
    bool passed(cudaError_t status, const char * what) const;
};

// A transport's name, which takes the reason of its first fault: a group tells it with the fault.
struct transport_name {
    char text[200] = "";
    std::atomic<bool> is_told{false};

    void tell(const char * format, ...) __attribute__((format(printf, 2, 3)));
};

struct place {
    int card = -1;
    cudaStream_t stream = nullptr;
};

// The place of a CUDA backend; makes the backend's stream if it has none yet.
bool find_place(ggml_backend_t backend, place & found, const reason & why);
bool find_places(int n_ranks, const ggml_backend_t * backends, place * found, const reason & why);

enum class ending { done, stopped, expired, broken };

// Waits until the stream is empty (or see wait_only_for), must_stop() says so, or the deadline has passed; never blocks in CUDA.
ending wait_for(const place & where, double deadline_s, const std::function<bool()> & must_stop);

// Has this thread's next waits take the event for the stream's end; with nullptr the stream's own again.
void wait_only_for(cudaEvent_t event);

// Has this thread's sums go to another stream; with nullptr to their backends' own again.
void sum_on(cudaStream_t stream);
cudaStream_t stream_of_sums(const place & where);

// Runs work on a thread of its own. False at the deadline: the work then goes on alone, so it must own what it uses.
bool run_bounded(double deadline_s, std::function<void()> work);

// Device memory that is freed at the end of its block.
struct device_memory {
    int card = -1;
    void * data = nullptr;

    device_memory() = default;
    device_memory(const device_memory &) = delete;
    ~device_memory() { release(); }
    bool make(int on_card, size_t size, const reason & why);
    void release();
    void forget() { data = nullptr; }
};
