// The NCCL transport. The library is opened at run time, so that nothing needs it to start; the few
// declarations used are NCCL 2's stable interface. One process, one communicator a rank, each used by
// its rank's thread alone. Start, abort and end can hang inside NCCL: they run on threads of their own.

#include "nccl.h"
#include "proof.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

namespace {

using communicator = void *;
using nccl_result = int;
constexpr nccl_result NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7;
constexpr int NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9, NCCL_SUM = 0;
constexpr double END_TIME_S = 10;

struct library {
    nccl_result (*get_version)(int *);
    nccl_result (*init_all)(communicator *, int, const int *);
    nccl_result (*all_reduce)(const void *, void *, size_t, int, int, communicator, cudaStream_t);
    nccl_result (*get_async_error)(communicator, nccl_result *);
    nccl_result (*abort)(communicator);
    nccl_result (*destroy)(communicator);
    const char * (*error_string)(nccl_result);

    // Never closed: NCCL leaves threads behind.
    bool open(const char * path, const reason & why);
};

struct nccl_transport {
    pg_transport face = {};
    transport_name name;
    library api = {};
    int n_ranks = 0;
    place places[MAX_PLACES];
    communicator communicators[MAX_PLACES] = {};
    std::atomic<int> n_calls[MAX_PLACES] = {};  // rank threads inside NCCL
    std::atomic<bool> is_aborted{false};

    ~nccl_transport();
    bool start(double deadline_s, const reason & why);
    void abort();
    bool is_broken(int rank);
    bool is_stuck() const;
};

template <typename F>
bool find(void * handle, const char * name, F & function, const reason & why) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    return function || why.say("NCCL has no %s", name);
}

bool library::open(const char * path, const reason & why) {
    void * handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        return why.say("%s", dlerror());
    }
    return find(handle, "ncclGetVersion", get_version, why) && find(handle, "ncclCommInitAll", init_all, why) &&
           find(handle, "ncclAllReduce", all_reduce, why) && find(handle, "ncclCommGetAsyncError", get_async_error, why) &&
           find(handle, "ncclCommAbort", abort, why) && find(handle, "ncclCommDestroy", destroy, why) &&
           find(handle, "ncclGetErrorString", error_string, why);
}

bool nccl_transport::start(double deadline_s, const reason & why) {
    struct state {
        library api;
        std::vector<int> cards;
        communicator communicators[MAX_PLACES] = {};
        nccl_result result = NCCL_IN_PROGRESS;
    };
    auto shared = std::make_shared<state>();
    shared->api = api;
    for (int rank = 0; rank < n_ranks; rank++) {
        shared->cards.push_back(places[rank].card);
    }
    const bool has_ended = run_bounded(deadline_s, [shared] {
        shared->result = shared->api.init_all(shared->communicators, static_cast<int>(shared->cards.size()), shared->cards.data());
    });
    if (!has_ended) {
        return why.say("NCCL did not start in %.3g s", deadline_s);
    }
    if (shared->result != NCCL_SUCCESS) {
        return why.say("NCCL did not start: %s", api.error_string(shared->result));
    }
    std::copy(shared->communicators, shared->communicators + n_ranks, communicators);
    return true;
}

// Each communicator on a thread of its own, since one can wait for another; not before the rank's thread
// has left NCCL, unless it is stuck there.
void nccl_transport::abort() {
    if (is_aborted.exchange(true)) {
        return;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        if (!communicators[rank]) {
            continue;
        }
        for (int i = 0; i < 100 && n_calls[rank]; i++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::thread([end = api.abort, one = communicators[rank], card = places[rank].card] {
            cudaSetDevice(card);
            end(one);
        }).detach();
    }
}

nccl_transport::~nccl_transport() {
    if (is_aborted) {
        return;
    }
    struct state {
        nccl_result (*destroy)(communicator);
        std::vector<std::pair<int, communicator>> list;
    };
    auto shared = std::make_shared<state>();
    shared->destroy = api.destroy;
    for (int rank = 0; rank < n_ranks; rank++) {
        if (communicators[rank]) {
            shared->list.emplace_back(places[rank].card, communicators[rank]);
        }
    }
    run_bounded(END_TIME_S, [shared] {
        for (const auto & [card, one] : shared->list) {
            cudaSetDevice(card);
            shared->destroy(one);
        }
    });
}

bool nccl_transport::is_broken(int rank) {
    nccl_result result = NCCL_SUCCESS;
    n_calls[rank]++;
    if (!is_aborted) {
        api.get_async_error(communicators[rank], &result);
    }
    n_calls[rank]--;
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) {
        return false;
    }
    name.tell(": rank %d: %s", rank, api.error_string(result));
    return true;
}

bool nccl_transport::is_stuck() const {
    return std::any_of(n_calls, n_calls + n_ranks, [](const std::atomic<int> & n) { return n > 0; });
}

// Halves are added up as halves here: NCCL rounds after each addition.
int number_of(ggml_type type) {
    return type == GGML_TYPE_F16 ? NCCL_FLOAT16 : type == GGML_TYPE_BF16 ? NCCL_BFLOAT16 : NCCL_FLOAT32;
}

int all_reduce(void * self, int rank, ggml_backend_t, ggml_tensor * tensor) {
    nccl_transport & nccl = *static_cast<nccl_transport *>(self);
    const place & where = nccl.places[rank];
    nccl_result result = NCCL_SUCCESS;
    nccl.n_calls[rank]++;
    const bool is_closed = nccl.is_aborted;
    if (!is_closed) {
        cudaSetDevice(where.card);
        result = nccl.api.all_reduce(tensor->data, tensor->data, ggml_nelements(tensor), number_of(tensor->type), NCCL_SUM,
                                     nccl.communicators[rank], stream_of_sums(where));
    }
    nccl.n_calls[rank]--;
    if (is_closed) {
        return PG_FAULT_CLOSED;
    }
    if (result != NCCL_SUCCESS) {
        nccl.name.tell(": rank %d: %s", rank, nccl.api.error_string(result));
        return PG_FAULT_TRANSPORT;
    }
    return PG_OK;
}

int poll(void * self, int rank, ggml_backend_t, double deadline_s) {
    nccl_transport & nccl = *static_cast<nccl_transport *>(self);
    bool is_broken = false;
    int n_looks = 0;
    const ending end = wait_for(nccl.places[rank], deadline_s, [&] {
        is_broken = ++n_looks % 64 == 0 && nccl.is_broken(rank);
        return is_broken || nccl.is_aborted;
    });
    if (end == ending::done) {
        return PG_OK;
    }
    const bool was_aborted = nccl.is_aborted;
    if (end == ending::expired) {
        nccl.name.tell(": rank %d is not done after %.3g s", rank, deadline_s);
    }
    nccl.abort();
    if (was_aborted) {
        return PG_FAULT_CLOSED;
    }
    return end == ending::expired ? PG_FAULT_TIMEOUT : is_broken ? PG_FAULT_TRANSPORT : PG_FAULT_COMPUTE;
}

std::unique_ptr<nccl_transport> make(const char * library, const char * name, int n_ranks, const place * places, double deadline_s,
                                     const reason & why) {
    auto nccl = std::make_unique<nccl_transport>();
    if (!nccl->api.open(library, why)) {
        return nullptr;
    }
    std::copy(places, places + n_ranks, nccl->places);
    nccl->n_ranks = n_ranks;
    snprintf(nccl->name.text, sizeof(nccl->name.text), "%s", name);
    if (!nccl->start(deadline_s, why)) {
        return nullptr;
    }
    nccl->face.name = nccl->name.text;
    nccl->face.self = nccl.get();
    nccl->face.all_reduce = all_reduce;
    nccl->face.can_capture = true;
    nccl->face.poll = poll;
    nccl->face.abort = [](void * self) { static_cast<nccl_transport *>(self)->abort(); };
    nccl->face.free = [](void * self) {
        auto * ended = static_cast<nccl_transport *>(self);
        if (!ended->is_stuck()) {  // a thread that hangs in NCCL may still come back to it
            delete ended;
        }
    };
    return nccl;
}

}  // namespace

pg_transport * nccl_new(const char * library, const char * name, int n_ranks, const ggml_backend_t * backends, double deadline_s,
                        char * text, size_t text_size) {
    const reason why = {text, text_size};
    place places[MAX_PLACES];
    if (!find_places(n_ranks, backends, places, why)) {
        return nullptr;
    }
    auto nccl = make(library, name, n_ranks, places, deadline_s, why);
    return nccl ? &nccl.release()->face : nullptr;
}

bool nccl_trial(const char * library, int n_cards, const int * cards, double deadline_s, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place places[MAX_PLACES];
    if (n_cards < 2 || n_cards > MAX_PLACES) {
        return why.say("%d cards; 2 to %d are possible", n_cards, MAX_PLACES);
    }
    for (int rank = 0; rank < n_cards; rank++) {
        places[rank].card = cards[rank];
        if (!why.passed(cudaSetDevice(cards[rank]), "cudaSetDevice") ||
            !why.passed(cudaStreamCreateWithFlags(&places[rank].stream, cudaStreamNonBlocking), "cudaStreamCreate")) {
            return false;
        }
    }
    auto nccl = make(library, "nccl", n_cards, places, deadline_s, why);
    for (const int64_t n_elements : {int64_t(4096), int64_t(65537), int64_t(1) << 21}) {
        if (!nccl || !check_sums(&nccl->face, n_cards, places, {n_elements, 0, GGML_TYPE_F32, false, deadline_s}, why)) {
            return false;
        }
    }
    return true;
}
