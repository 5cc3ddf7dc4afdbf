#include "workspace.h"

#include "attention.h"

#include <map>
#include <mutex>
#include <utility>

struct entry {
    workspace space;
    bool is_made = false;  // under the lock; the rest belongs to the thread that works with the stream
};

static std::mutex lock;

static entry & of_stream(const place & where) {
    static std::map<std::pair<int, cudaStream_t>, entry> known;
    return known[{where.card, where.stream}];
}

static entry & known_entry(const place & where) {
    std::lock_guard<std::mutex> guard(lock);
    return of_stream(where);
}

bool prepare_workspace(const place & where, const reason & why) {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (of_stream(where).is_made) {
            return true;
        }
    }
    workspace space;
    return find_workspace(where, 1, space, why);
}

// Other ranks' kernels may wait for what this thread launches next: the lock is not held while CUDA is called, and nothing
// asks for the end of what was launched.
bool find_workspace(const place & where, size_t n_floats, workspace & found, const reason & why) {
    constexpr size_t LEAST_FLOATS = 1 << 18;
    entry & e = known_entry(where);
    workspace & of = e.space;
    if (!of.n_read) {
        constexpr size_t SIZE = (1 + ATTENTION_MAX_COUNTERS) * sizeof(unsigned);
        unsigned * counters = nullptr;  // kept where they cannot be cleared: the card is lost then
        if (!why.passed(cudaMalloc(&counters, SIZE), "cudaMalloc") ||
            !why.passed(cudaMemsetAsync(counters, 0, SIZE, where.stream), "cudaMemsetAsync")) {
            return false;
        }
        of.n_read = counters;
        of.n_found = counters + 1;
    }
    if (n_floats > of.n_floats) {
        const size_t wanted = n_floats > LEAST_FLOATS ? n_floats : LEAST_FLOATS;
        if (!why.passed(cudaMalloc(&of.between, wanted * sizeof(float)), "cudaMalloc")) {
            return false;
        }
        of.n_floats = wanted;
    }
    if (!e.is_made) {
        std::lock_guard<std::mutex> guard(lock);
        e.is_made = true;
    }
    found = of;
    return true;
}
