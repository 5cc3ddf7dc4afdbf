// Peer access is enabled here and nowhere else, one direction at a time: CUDA allows a card 8 peers, and a
// board may claim access that does not deliver. Any thread; calls on one card at a time.

#include "peer.h"
#include "place.h"

#include <cstdio>
#include <cstdint>

int find_card(const char * bus_id, char * uuid, char * text, size_t text_size) {
    const reason why = {text, text_size};
    int card = -1;
    cudaDeviceProp properties;
    if (!why.passed(cudaDeviceGetByPCIBusId(&card, bus_id), bus_id) ||
        !why.passed(cudaGetDeviceProperties(&properties, card), "cudaGetDeviceProperties")) {
        return -1;
    }
    for (int i = 0; i < 16; i++) {
        snprintf(uuid + 2 * i, 3, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    }
    return card;
}

bool card_facts(int card, char * bus_id, size_t bus_id_size, size_t * memory_bytes, char * text, size_t text_size) {
    const reason why = {text, text_size};
    cudaDeviceProp properties;
    if (!why.passed(cudaDeviceGetPCIBusId(bus_id, static_cast<int>(bus_id_size), card), "cudaDeviceGetPCIBusId") ||
        !why.passed(cudaGetDeviceProperties(&properties, card), "cudaGetDeviceProperties")) {
        return false;
    }
    *memory_bytes = properties.totalGlobalMem;
    return true;
}

int enable_peer(int card, int peer, char * text, size_t text_size) {
    const reason why = {text, text_size};
    int can_access = 0;
    if (!why.passed(cudaDeviceCanAccessPeer(&can_access, card, peer), "cudaDeviceCanAccessPeer")) {
        return PGC_PEER_FAILED;
    }
    if (!can_access) {
        why.say("the driver reports no peer access from card %d to %d", card, peer);
        return PGC_PEER_ABSENT;
    }
    if (!why.passed(cudaSetDevice(card), "cudaSetDevice")) {
        return PGC_PEER_FAILED;
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        return PGC_PEER_ENABLED;
    }
    if (why.passed(status, "cudaDeviceEnablePeerAccess")) {
        return PGC_PEER_ENABLED;
    }
    return status == cudaErrorTooManyPeers ? PGC_PEER_TOO_MANY : PGC_PEER_FAILED;
}

void disable_peer(int card, int peer) {
    cudaSetDevice(card);
    cudaDeviceDisablePeerAccess(peer);
    cudaGetLastError();
}

static __global__ void store_bytes(const uint8_t * from, uint8_t * to, size_t size) {
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    const size_t thread = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const size_t n_vectors = size / sizeof(uint4);
    for (size_t i = thread; i < n_vectors; i += stride) {
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    }
    for (size_t i = n_vectors * sizeof(uint4) + thread; i < size; i += stride) {
        to[i] = from[i];
    }
}

// Kernels fault on a peer's memory where access is off, and a fault ends the process's use of the card.
static bool can_store(int from, int to, const reason & why) {
    return enable_peer(from, to, why.text, why.size) == PGC_PEER_ENABLED;
}

bool copy_between(int from, int to, bool by_kernel, const void * sent, void * received, size_t size, double deadline_s,
                  char * text, size_t text_size) {
    const reason why = {text, text_size};
    device_memory source, target;
    place where;
    where.card = from;
    if ((by_kernel && !can_store(from, to, why)) || !target.make(to, size, why) ||
        !why.passed(cudaMemset(target.data, 0xA5, size), "cudaMemset") ||
        !why.passed(cudaDeviceSynchronize(), "cudaDeviceSynchronize") || !source.make(from, size, why) ||
        !why.passed(cudaMemcpy(source.data, sent, size, cudaMemcpyHostToDevice), "copy to the card") ||
        // A copy from pageable memory returns when the bytes are staged, and other streams do not wait for the rest.
        !why.passed(cudaDeviceSynchronize(), "cudaDeviceSynchronize") ||
        !why.passed(cudaStreamCreateWithFlags(&where.stream, cudaStreamNonBlocking), "cudaStreamCreate")) {
        return false;
    }
    if (by_kernel) {
        store_bytes<<<64, 256, 0, where.stream>>>(static_cast<uint8_t *>(source.data), static_cast<uint8_t *>(target.data), size);
    } else {
        cudaMemcpyPeerAsync(target.data, to, source.data, from, size, where.stream);
    }
    if (!why.passed(cudaGetLastError(), "copy between cards")) {
        return false;
    }
    const ending end = wait_for(where, deadline_s, [] { return false; });
    if (end == ending::expired) {
        source.forget();  // still in use by a copy that does not end
        target.forget();
        return why.say("the copy from card %d to %d did not end in %.3g s", from, to, deadline_s);
    }
    if (end != ending::done || !why.passed(cudaStreamDestroy(where.stream), "cudaStreamDestroy")) {
        return why.say("the copy from card %d to %d failed", from, to);
    }
    return why.passed(cudaSetDevice(to), "cudaSetDevice") &&
           why.passed(cudaMemcpy(received, target.data, size, cudaMemcpyDeviceToHost), "copy from the card");
}
