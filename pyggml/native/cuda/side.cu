#include "side.h"

#include <memory>

constexpr int N_LANES = 2;

struct pgc_side {
    place where;
    cudaStream_t stream = nullptr;
    cudaEvent_t ready = nullptr;
    cudaEvent_t done[N_LANES] = {};

    ~pgc_side() {
        cudaSetDevice(where.card);
        for (cudaEvent_t event : {ready, done[0], done[1]}) {
            if (event) {
                cudaEventDestroy(event);
            }
        }
        if (stream) {
            cudaStreamDestroy(stream);
        }
    }
};

pgc_side * side_new(ggml_backend_t backend, char * text, size_t text_size) {
    const reason why = {text, text_size};
    auto side = std::make_unique<pgc_side>();
    int least = 0, greatest = 0;
    // Its blocks come first where both streams have some: others wait for them.
    bool is_made = find_place(backend, side->where, why) && why.passed(cudaSetDevice(side->where.card), "cudaSetDevice") &&
                   why.passed(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams") &&
                   why.passed(cudaStreamCreateWithPriority(&side->stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate");
    for (cudaEvent_t * event : {&side->ready, &side->done[0], &side->done[1]}) {
        is_made = is_made && why.passed(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
    }
    return is_made ? side.release() : nullptr;
}

void side_free(pgc_side * side) {
    delete side;
}

bool side_begin(pgc_side * side, char * text, size_t text_size) {
    const reason why = {text, text_size};
    if (!why.passed(cudaSetDevice(side->where.card), "cudaSetDevice") ||
        !why.passed(cudaEventRecord(side->ready, side->where.stream), "cudaEventRecord") ||
        !why.passed(cudaStreamWaitEvent(side->stream, side->ready), "cudaStreamWaitEvent")) {
        return false;
    }
    sum_on(side->stream);
    return true;
}

bool side_end(pgc_side * side, int lane, char * text, size_t text_size) {
    const reason why = {text, text_size};
    sum_on(nullptr);
    return why.passed(cudaEventRecord(side->done[lane], side->stream), "cudaEventRecord");
}

bool side_join(pgc_side * side, int lane, char * text, size_t text_size) {
    const reason why = {text, text_size};
    return why.passed(cudaSetDevice(side->where.card), "cudaSetDevice") &&
           why.passed(cudaStreamWaitEvent(side->where.stream, side->done[lane]), "cudaStreamWaitEvent");
}
