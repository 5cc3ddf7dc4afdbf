// Proof and timing of a transport, each rank on a thread of its own as in real use. Memory is made before
// any rank starts. A rank that is stuck is left behind with what it uses, and the transport is aborted.

#include "proof.h"
#include "graph.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int N_SUMS = 3;
constexpr int N_TIMED_ROUNDS = 3;
constexpr double GRACE_S = 5;

// What all rank threads share, and outlives the call where one of them is stuck.
struct session {
    pg_transport transport;
    std::vector<place> places;
    proof wanted;
    int n_repeats = 0;
    bool is_captured = false;
    device_memory memory[MAX_PLACES];
    std::vector<double> seconds;

    std::mutex lock;
    std::condition_variable changed;
    size_t n_met = 0, n_meetings = 0, n_ended = 0;
    std::string failure;

    void fail(int rank, const char * words) {
        std::lock_guard<std::mutex> guard(lock);
        if (failure.empty()) {
            failure = "rank " + std::to_string(rank) + ": " + words;
        }
        changed.notify_all();
    }

    // False when a rank has failed or does not come.
    bool meet(int rank) {
        std::unique_lock<std::mutex> guard(lock);
        const size_t meeting = n_meetings;
        if (++n_met == places.size()) {
            n_met = 0;
            n_meetings++;
            changed.notify_all();
        }
        const auto limit = std::chrono::duration<double>(wanted.deadline_s);
        if (!changed.wait_for(guard, limit, [&] { return n_meetings != meeting || !failure.empty(); }) && failure.empty()) {
            failure = "rank " + std::to_string(rank) + ": another rank did not come";
            changed.notify_all();
        }
        return failure.empty();
    }

    ggml_tensor tensor(int rank) const {
        const size_t size = ggml_type_size(wanted.type);
        ggml_tensor t = {};
        t.type = wanted.type;
        std::fill(t.ne, t.ne + GGML_MAX_DIMS, 1);
        t.ne[0] = wanted.n_elements;
        t.nb[0] = size;
        std::fill(t.nb + 1, t.nb + GGML_MAX_DIMS, wanted.n_elements * size);
        t.data = static_cast<char *>(memory[rank].data) + wanted.offset_elements * size;
        return t;
    }

    bool sum(int rank, int n_times) {
        ggml_tensor t = tensor(rank);
        for (int i = 0; i < n_times; i++) {
            if (transport.all_reduce(transport.self, rank, nullptr, &t) != PG_OK) {
                fail(rank, transport.name);
                return false;
            }
        }
        return true;
    }

    bool wait(int rank) {
        if (transport.poll(transport.self, rank, nullptr, wanted.deadline_s) != PG_OK) {
            fail(rank, transport.name);
            return false;
        }
        return true;
    }
};

// Summands between 1 and 2: no two equal in a row, sums never cancel.
float summand(int rank, int64_t i) {
    const uint32_t mixed = (static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 40503u) >> 9;
    return 1.0f + static_cast<float>(mixed % 8191) / 8192.0f;
}

std::vector<char> narrowed(ggml_type type, const std::vector<float> & values) {
    std::vector<char> bytes(values.size() * ggml_type_size(type));
    const auto n = static_cast<int64_t>(values.size());
    switch (type) {
        case GGML_TYPE_BF16: ggml_fp32_to_bf16_row(values.data(), reinterpret_cast<ggml_bf16_t *>(bytes.data()), n); break;
        case GGML_TYPE_F16: ggml_fp32_to_fp16_row(values.data(), reinterpret_cast<ggml_fp16_t *>(bytes.data()), n); break;
        default: memcpy(bytes.data(), values.data(), bytes.size());
    }
    return bytes;
}

std::vector<float> widened(ggml_type type, const std::vector<char> & bytes) {
    std::vector<float> values(bytes.size() / ggml_type_size(type));
    const auto n = static_cast<int64_t>(values.size());
    switch (type) {
        case GGML_TYPE_BF16: ggml_bf16_to_fp32_row(reinterpret_cast<const ggml_bf16_t *>(bytes.data()), values.data(), n); break;
        case GGML_TYPE_F16: ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t *>(bytes.data()), values.data(), n); break;
        default: memcpy(values.data(), bytes.data(), bytes.size());
    }
    return values;
}

std::vector<float> rounded(ggml_type type, const std::vector<float> & values) {
    return widened(type, narrowed(type, values));
}

std::vector<float> summands(const proof & wanted, int rank) {
    std::vector<float> values(wanted.n_elements);
    for (int64_t i = 0; i < wanted.n_elements; i++) {
        values[i] = summand(rank, i);
    }
    return rounded(wanted.type, values);
}

// In float and rank order, rounded after each sum, as often as the ranks did.
std::vector<float> right_sums(const proof & wanted, int n_ranks) {
    std::vector<float> total = summands(wanted, 0);
    for (int rank = 1; rank < n_ranks; rank++) {
        const std::vector<float> part = summands(wanted, rank);
        std::transform(total.begin(), total.end(), part.begin(), total.begin(), std::plus<float>());
    }
    total = rounded(wanted.type, total);
    for (int k = 1; k < N_SUMS; k++) {
        const std::vector<float> part = total;
        for (int rank = 1; rank < n_ranks; rank++) {
            std::transform(total.begin(), total.end(), part.begin(), total.begin(), std::plus<float>());
        }
        total = rounded(wanted.type, total);
    }
    return total;
}

// What each addition in another order, and in halves, may be off by, over all sums; a part of the sum.
float tolerance(const proof & wanted, int n_ranks) {
    if (wanted.is_ordered) {
        return 0;
    }
    const float unit = wanted.type == GGML_TYPE_BF16 ? 1.0f / 256 : wanted.type == GGML_TYPE_F16 ? 1.0f / 2048 : 0;
    return 1e-5f + unit * static_cast<float>(N_SUMS * n_ranks);
}

// Runs the ranks; true when all have ended well.
bool run_ranks(const std::shared_ptr<session> & shared, const std::function<void(session &, int)> & work, const reason & why) {
    const size_t n_ranks = shared->places.size();
    for (size_t rank = 0; rank < n_ranks; rank++) {
        std::thread([shared, work, rank] {
            cudaSetDevice(shared->places[rank].card);
            work(*shared, static_cast<int>(rank));
            std::lock_guard<std::mutex> guard(shared->lock);
            shared->n_ended++;
            shared->changed.notify_all();
        }).detach();
    }
    const auto limit = std::chrono::duration<double>(2 * shared->wanted.deadline_s + GRACE_S);
    std::unique_lock<std::mutex> guard(shared->lock);
    const auto is_over = [&] { return shared->n_ended == n_ranks || !shared->failure.empty(); };
    if (!shared->changed.wait_for(guard, limit, is_over)) {
        shared->failure = "a rank is stuck";
    }
    if (!shared->failure.empty()) {
        guard.unlock();
        shared->transport.abort(shared->transport.self);
        guard.lock();
        shared->changed.wait_for(guard, std::chrono::duration<double>(GRACE_S), [&] { return shared->n_ended == n_ranks; });
        for (device_memory & memory : shared->memory) {
            memory.forget();  // a card may still use it
        }
        return why.say("%s", shared->failure.c_str());
    }
    return true;
}

std::shared_ptr<session> begin(pg_transport * transport, int n_ranks, const place * places, const proof & wanted, const reason & why) {
    auto shared = std::make_shared<session>();
    shared->transport = *transport;
    shared->places.assign(places, places + n_ranks);
    shared->wanted = wanted;
    shared->seconds.resize(n_ranks);
    const size_t size = ggml_type_size(wanted.type) * (wanted.n_elements + wanted.offset_elements);
    for (int rank = 0; rank < n_ranks; rank++) {
        const std::vector<char> bytes = narrowed(wanted.type, summands(wanted, rank));
        if (!shared->memory[rank].make(places[rank].card, size, why) ||
            !why.passed(cudaMemcpy(shared->tensor(rank).data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "copy to the card") ||
            !why.passed(cudaDeviceSynchronize(), "cudaDeviceSynchronize")) {  // staged bytes may still be on their way
            return nullptr;
        }
    }
    return shared;
}

void time_rank(session & s, int rank) {
    char text[200] = "";
    const reason why = {text, sizeof(text)};
    pgc_graph * graph = nullptr;
    if (s.is_captured) {
        if (!begin_capture(s.places[rank], false, why) || !s.sum(rank, s.n_repeats) || !(graph = end_capture(s.places[rank], nullptr, why))) {
            s.fail(rank, text);
            return;
        }
    }
    const auto launch = [&](int n_rounds) {
        for (int i = 0; i < n_rounds; i++) {
            if (graph ? !launch_graph(graph, why) : !s.sum(rank, s.n_repeats)) {
                s.fail(rank, text);
                return false;
            }
        }
        return s.wait(rank);
    };
    if (s.meet(rank) && launch(1) && s.meet(rank)) {
        const auto start = std::chrono::steady_clock::now();
        if (launch(N_TIMED_ROUNDS)) {
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
            s.seconds[rank] = passed.count() / (N_TIMED_ROUNDS * s.n_repeats);
        }
    }
    s.meet(rank);  // a graph may hold what the others still use
    free_graph(graph);
}

}  // namespace

bool check_sums(pg_transport * transport, int n_ranks, const place * places, const proof & wanted, const reason & why) {
    auto shared = begin(transport, n_ranks, places, wanted, why);
    const auto work = [](session & s, int rank) {
        if (s.meet(rank) && s.sum(rank, N_SUMS)) {
            s.wait(rank);
        }
    };
    if (!shared || !run_ranks(shared, work, why)) {
        return false;
    }
    const std::vector<float> right = right_sums(wanted, n_ranks);
    const float allowed = tolerance(wanted, n_ranks);
    std::vector<char> first, sums(ggml_type_size(wanted.type) * wanted.n_elements);
    for (int rank = 0; rank < n_ranks; rank++) {
        const ggml_tensor t = shared->tensor(rank);
        if (!why.passed(cudaSetDevice(places[rank].card), "cudaSetDevice") ||
            !why.passed(cudaMemcpy(sums.data(), t.data, sums.size(), cudaMemcpyDeviceToHost), "copy from the card")) {
            return false;
        }
        shared->memory[rank].release();
        const std::vector<float> found = widened(wanted.type, sums);
        for (int64_t i = 0; i < wanted.n_elements; i++) {
            if (!(std::fabs(found[i] - right[i]) <= allowed * right[i])) {
                return why.say("rank %d, element %lld of %lld in %s: %.9g, right is %.9g", rank, static_cast<long long>(i),
                               static_cast<long long>(wanted.n_elements), ggml_type_name(wanted.type), found[i], right[i]);
            }
        }
        if (rank == 0) {
            first = sums;
        } else if (first != sums) {
            return why.say("ranks 0 and %d got different bits", rank);
        }
    }
    return true;
}

bool time_sums(pg_transport * transport, int n_ranks, const place * places, const proof & wanted, int n_repeats, bool is_captured,
               double * seconds, const reason & why) {
    auto shared = begin(transport, n_ranks, places, wanted, why);
    if (!shared) {
        return false;
    }
    for (int rank = 0; rank < n_ranks; rank++) {  // repeated sums grow: zeros stay
        cudaSetDevice(places[rank].card);
        if (!why.passed(cudaMemset(shared->memory[rank].data, 0, wanted.n_elements * ggml_type_size(wanted.type)), "cudaMemset") ||
            !why.passed(cudaDeviceSynchronize(), "cudaDeviceSynchronize")) {
            return false;
        }
    }
    shared->n_repeats = n_repeats;
    shared->is_captured = is_captured;
    if (!run_ranks(shared, time_rank, why)) {
        return false;
    }
    for (device_memory & memory : shared->memory) {
        memory.release();  // here and now, not whenever the last thread goes
    }
    *seconds = *std::max_element(shared->seconds.begin(), shared->seconds.end());
    return true;
}
