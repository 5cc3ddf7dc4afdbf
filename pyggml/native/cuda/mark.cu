#include "mark.h"

#include "relay.h"

#include <memory>

struct pgc_mark {
    place where;
    cudaEvent_t event = nullptr;

    ~pgc_mark() {
        if (event) {
            cudaSetDevice(where.card);
            cudaEventDestroy(event);
        }
    }
};

pgc_mark * mark_new(ggml_backend_t backend, char * text, size_t text_size) {
    const reason why = {text, text_size};
    auto mark = std::make_unique<pgc_mark>();
    const bool is_made = find_place(backend, mark->where, why) && prepare_relay(mark->where, why) &&
                         why.passed(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming), "cudaEventCreate");
    return is_made ? mark.release() : nullptr;
}

bool mark_set(pgc_mark * mark, char * text, size_t text_size) {
    const reason why = {text, text_size};
    return why.passed(cudaSetDevice(mark->where.card), "cudaSetDevice") &&
           why.passed(cudaEventRecord(mark->event, mark->where.stream), "cudaEventRecord");
}

bool mark_wait(pgc_mark * mark, char * text, size_t text_size) {
    const reason why = {text, text_size};
    return why.passed(cudaSetDevice(mark->where.card), "cudaSetDevice") && why.passed(cudaEventSynchronize(mark->event), "a step");
}

void mark_free(pgc_mark * mark) {
    delete mark;
}

void poll_until(const pgc_mark * mark) {
    wait_only_for(mark ? mark->event : nullptr);
}
