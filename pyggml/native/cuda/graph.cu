// A stream's launches recorded once and replayed. Relaxed capture: other threads may use CUDA meanwhile.
// A graph belongs to the thread of its stream and is uploaded when it is made, so that its first launch
// waits for nothing while another card spins.

#include "graph.h"

bool begin_capture(const place & where, const reason & why) {
    return why.passed(cudaSetDevice(where.card), "cudaSetDevice") &&
           why.passed(cudaStreamBeginCapture(where.stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
}

pgc_graph * end_capture(const place & where, const reason & why) {
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (!why.passed(cudaSetDevice(where.card), "cudaSetDevice") ||
        !why.passed(cudaStreamEndCapture(where.stream, &recorded), "cudaStreamEndCapture")) {
        return nullptr;
    }
    const bool is_made = why.passed(cudaGraphInstantiate(&executable, recorded, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(recorded);
    if (!is_made) {
        return nullptr;
    }
    if (!why.passed(cudaGraphUpload(executable, where.stream), "cudaGraphUpload")) {
        cudaGraphExecDestroy(executable);
        return nullptr;
    }
    return new pgc_graph{where, executable};
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
