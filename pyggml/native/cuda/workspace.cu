#include "workspace.h"

#include <map>
#include <mutex>
#include <utility>

// A stream's own, which only the thread that works with the stream touches.
static workspace & of_stream(const place & where) {
    static std::mutex lock;
    static std::map<std::pair<int, cudaStream_t>, workspace> known;
    std::lock_guard<std::mutex> guard(lock);
    return known[{where.card, where.stream}];
}

// Other ranks' kernels may wait for what this thread launches next: nothing here waits for a card, nor holds a lock meanwhile.
bool find_workspace(const place & where, size_t n_floats, workspace & found, const reason & why) {
    constexpr size_t LEAST_FLOATS = 1 << 18;
    workspace & of = of_stream(where);
    if (!of.n_read) {
        if (!why.passed(cudaMalloc(&of.n_read, sizeof(unsigned)), "cudaMalloc")) {
            return false;
        }
        if (!why.passed(cudaMemsetAsync(of.n_read, 0, sizeof(unsigned), where.stream), "cudaMemsetAsync")) {
            cudaFree(of.n_read);
            of.n_read = nullptr;
            return false;
        }
    }
    if (n_floats > of.n_floats) {
        const size_t wanted = n_floats > LEAST_FLOATS ? n_floats : LEAST_FLOATS;
        if (!why.passed(cudaMalloc(&of.between, wanted * sizeof(float)), "cudaMalloc")) {
            return false;
        }
        of.n_floats = wanted;
    }
    found = of;
    return true;
}
