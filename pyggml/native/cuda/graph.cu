// A stream's launches recorded once and replayed. Relaxed capture: other threads may use CUDA meanwhile.
// A graph belongs to the thread of its stream and is uploaded when it is made, so that its first launch
// waits for nothing while another card spins.

#include "graph.h"

#include <map>
#include <mutex>
#include <utility>

namespace {

// How many threads record with another preference on a card, and what it was before the first of them.
struct preference {
    int n_recording = 0;
    cudaFuncCache usual = cudaFuncCachePreferNone;
};

std::mutex lock;
std::map<int, preference> preferences;  // by card
thread_local bool is_recording = false;

// Of the current card: as much shared memory as there is, for kernels that have no preference of their own.
void prefer_shared(int card) {
    std::lock_guard<std::mutex> guard(lock);
    preference & of = preferences[card];
    if (of.n_recording == 0 && cudaDeviceGetCacheConfig(&of.usual) != cudaSuccess) {
        of.usual = cudaFuncCachePreferNone;
    }
    cudaDeviceSetCacheConfig(cudaFuncCachePreferShared);
    cudaGetLastError();  // it is a matter of speed only
    of.n_recording++;
    is_recording = true;
}

void prefer_as_usual(int card) {
    if (!std::exchange(is_recording, false)) {
        return;
    }
    std::lock_guard<std::mutex> guard(lock);
    preference & of = preferences[card];
    if (--of.n_recording == 0) {
        cudaDeviceSetCacheConfig(of.usual);
        cudaGetLastError();
    }
}

}  // namespace

bool begin_capture(const place & where, bool streams_weights, const reason & why) {
    if (!why.passed(cudaSetDevice(where.card), "cudaSetDevice")) {
        return false;
    }
    if (streams_weights) {
        prefer_shared(where.card);
    }
    if (!why.passed(cudaStreamBeginCapture(where.stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture")) {
        prefer_as_usual(where.card);
        return false;
    }
    return true;
}

static bool has_become(pgc_graph * earlier, cudaGraph_t recorded) {
    cudaGraphExecUpdateResultInfo info;
    const bool is_so = cudaGraphExecUpdate(earlier->executable, recorded, &info) == cudaSuccess;
    cudaGetLastError();
    return is_so;
}

static pgc_graph * make_graph(const place & where, pgc_graph * earlier, const reason & why) {
    cudaGraph_t recorded = nullptr;
    if (!why.passed(cudaSetDevice(where.card), "cudaSetDevice") ||
        !why.passed(cudaStreamEndCapture(where.stream, &recorded), "cudaStreamEndCapture")) {
        free_graph(earlier);
        return nullptr;
    }
    pgc_graph * graph = earlier;
    if (!earlier || !has_become(earlier, recorded)) {
        free_graph(earlier);
        cudaGraphExec_t executable = nullptr;
        const bool is_made = why.passed(cudaGraphInstantiate(&executable, recorded, 0), "cudaGraphInstantiate");
        graph = is_made ? new pgc_graph{where, executable} : nullptr;
    }
    cudaGraphDestroy(recorded);
    if (graph && !why.passed(cudaGraphUpload(graph->executable, where.stream), "cudaGraphUpload")) {
        free_graph(graph);
        return nullptr;
    }
    return graph;
}

pgc_graph * end_capture(const place & where, pgc_graph * earlier, const reason & why) {
    pgc_graph * graph = make_graph(where, earlier, why);
    prefer_as_usual(where.card);
    return graph;
}

bool launch_graph(pgc_graph * graph, const reason & why) {
    return why.passed(cudaSetDevice(graph->where.card), "cudaSetDevice") &&
           why.passed(cudaGraphLaunch(graph->executable, graph->where.stream), "cudaGraphLaunch");
}

void free_graph(pgc_graph * graph) {
    if (graph) {
        cudaSetDevice(graph->where.card);
        cudaGraphExecDestroy(graph->executable);
        delete graph;
    }
}
