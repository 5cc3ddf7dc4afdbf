// Messages between ranks on different cards: a copy into a box on the receiver's card, ordered by events, so that neither
// the host nor a stream waits. The group's own words say whether a box is full; this file only moves what is in it.
// A box is used by its sender's and its receiver's thread in turn.

#include "mail.h"
#include "place.h"

#include <memory>

namespace {

struct box {
    device_memory memory;  // on the receiver's card
    size_t capacity = 0;
    cudaEvent_t filled = nullptr;  // on the sender's stream
    cudaEvent_t emptied = nullptr;  // on the receiver's stream
    bool was_used = false;
};

struct mover {
    pg_mover face = {};
    int n_ranks = 0;
    place places[MAX_PLACES];
    bool may_copy[MAX_PLACES][MAX_PLACES] = {};
    box boxes[MAX_PLACES][MAX_PLACES][PG_N_MAIL];

    ~mover();
    bool prepare(int from, int to, box & b, size_t size, const reason & why);
};

mover::~mover() {
    for (auto & of_sender : boxes) {
        for (auto & of_pair : of_sender) {
            for (box & b : of_pair) {
                if (b.filled) {
                    cudaEventDestroy(b.filled);
                }
                if (b.emptied) {
                    cudaEventDestroy(b.emptied);
                }
            }
        }
    }
}

bool mover::prepare(int from, int to, box & b, size_t size, const reason & why) {
    if (b.capacity >= size) {
        return true;
    }
    if (b.was_used && !why.passed(cudaEventSynchronize(b.emptied), "waiting for a message")) {
        return false;
    }
    b.memory.release();
    b.capacity = 0;
    if (!b.memory.make(places[to].card, size, why)) {
        return false;
    }
    b.capacity = size;
    return (b.emptied || why.passed(cudaEventCreateWithFlags(&b.emptied, cudaEventDisableTiming), "cudaEventCreate")) &&
           why.passed(cudaSetDevice(places[from].card), "cudaSetDevice") &&
           (b.filled || why.passed(cudaEventCreateWithFlags(&b.filled, cudaEventDisableTiming), "cudaEventCreate"));
}

bool can_move(void * self, int from, int to) {
    return static_cast<mover *>(self)->may_copy[from][to];
}

bool put(void * self, int from, int to, int number, const ggml_tensor * tensor, char * text, size_t text_size) {
    mover & m = *static_cast<mover *>(self);
    const reason why = {text, text_size};
    box & b = m.boxes[from][to][number];
    const size_t size = ggml_nbytes(tensor);
    const place & sender = m.places[from];
    if (!m.prepare(from, to, b, size, why) || !why.passed(cudaSetDevice(sender.card), "cudaSetDevice") ||
        (b.was_used && !why.passed(cudaStreamWaitEvent(sender.stream, b.emptied, 0), "cudaStreamWaitEvent"))) {
        return false;
    }
    return why.passed(cudaMemcpyPeerAsync(b.memory.data, m.places[to].card, tensor->data, sender.card, size, sender.stream),
                      "a copy between cards") &&
           why.passed(cudaEventRecord(b.filled, sender.stream), "cudaEventRecord");
}

bool take(void * self, int from, int to, int number, ggml_tensor * tensor, char * text, size_t text_size) {
    mover & m = *static_cast<mover *>(self);
    const reason why = {text, text_size};
    box & b = m.boxes[from][to][number];
    const place & receiver = m.places[to];
    if (!why.passed(cudaSetDevice(receiver.card), "cudaSetDevice") ||
        !why.passed(cudaStreamWaitEvent(receiver.stream, b.filled, 0), "cudaStreamWaitEvent") ||
        !why.passed(cudaMemcpyAsync(tensor->data, b.memory.data, ggml_nbytes(tensor), cudaMemcpyDeviceToDevice, receiver.stream),
                    "a copy on a card") ||
        !why.passed(cudaEventRecord(b.emptied, receiver.stream), "cudaEventRecord")) {
        return false;
    }
    b.was_used = true;
    return true;
}

}  // namespace

pg_mover * mover_new(int n_ranks, const ggml_backend_t * backends, const bool * may_copy, char * text, size_t text_size) {
    const reason why = {text, text_size};
    auto m = std::make_unique<mover>();
    if (!find_places(n_ranks, backends, m->places, why)) {
        return nullptr;
    }
    m->n_ranks = n_ranks;
    for (int from = 0; from < n_ranks; from++) {
        for (int to = 0; to < n_ranks; to++) {
            m->may_copy[from][to] = may_copy[from * n_ranks + to];
        }
    }
    m->face.self = m.get();
    m->face.can_move = can_move;
    m->face.put = put;
    m->face.take = take;
    m->face.free = [](void * self) { delete static_cast<mover *>(self); };
    return &m.release()->face;
}
