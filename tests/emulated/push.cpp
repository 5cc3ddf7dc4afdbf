// Runs the push kernel's own source on processors: `push N_RANKS N_SUMS MISSING_RANK`, -1 for none missing.
// Sizes, grids, alignments and delays vary. Prints "right" or the first wrong sum; with a missing rank what
// each other rank reports: "error source sequence".

#include "push_kernel.cuh"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

using kernel = void (*)(push_rank, float *, int);
const kernel KERNELS[] = {nullptr,            nullptr,            push_all_reduce<2>, push_all_reduce<3>, push_all_reduce<4>,
                          push_all_reduce<5>, push_all_reduce<6>, push_all_reduce<7>, push_all_reduce<8>};
constexpr int CAPACITY = 64, MAX_ELEMENTS = 160, CONTROL_SIZE = 256;

static char * shared_memory(size_t size) {
    return static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

static int n_elements_of(int sum) {
    return (sum * sum * 13 + sum * 5) % 150 + 1;
}

static float summand(int sum, int rank, int i) {
    return 1.0f + static_cast<float>((sum * 31 + rank * 7919 + i * 104729) % 8191) / 8192.0f;
}

struct world {
    int n_ranks;
    push_rank views[PUSH_MAX_RANKS] = {};
    float * values[PUSH_MAX_RANKS];

    world(int n, int n_sums, uint64_t deadline_ns) : n_ranks(n) {
        const size_t flags_size = (sizeof(uint64_t) * n * PUSH_MAX_BLOCKS + 15) / 16 * 16;
        char * memory[PUSH_MAX_RANKS];
        for (int rank = 0; rank < n; rank++) {
            memory[rank] = shared_memory(CONTROL_SIZE + flags_size + sizeof(float) * 2 * n * CAPACITY);
            values[rank] = reinterpret_cast<float *>(shared_memory(sizeof(float) * n_sums * MAX_ELEMENTS));
        }
        for (int rank = 0; rank < n; rank++) {
            push_rank & view = views[rank];
            for (int owner = 0; owner < n; owner++) {
                view.flags[owner] = reinterpret_cast<uint64_t *>(memory[owner] + CONTROL_SIZE);
                view.inbox[owner] = reinterpret_cast<float *>(memory[owner] + CONTROL_SIZE + flags_size);
            }
            view.control = reinterpret_cast<push_control *>(memory[rank]);
            view.words = reinterpret_cast<push_words *>(shared_memory(sizeof(push_words)));
            view.deadline_ns = deadline_ns;
            view.rank = rank;
            view.capacity = CAPACITY;
        }
    }

    float * tensor(int sum, int rank) const {  // aligned differently on each rank
        return values[rank] + sum * MAX_ELEMENTS + (3 * rank + sum) % 4;
    }

    void launch(int rank, float * x, int n, int n_blocks) const {
        gridDim.x = n_blocks;
        for (int block = 0; block < n_blocks; block++) {
            if (fork() != 0) {
                continue;
            }
            srand(100 * block + rank + n);
            blockIdx.x = block;
            block_meeting = new std::barrier<>(PUSH_N_THREADS);
            std::vector<std::thread> threads;
            for (int i = 0; i < PUSH_N_THREADS; i++) {
                threads.emplace_back([this, rank, x, n, i] {
                    threadIdx.x = i;
                    KERNELS[n_ranks](views[rank], x, n);
                });
            }
            for (std::thread & thread : threads) {
                thread.join();
            }
            _exit(0);
        }
        while (wait(nullptr) > 0) {
        }
    }

    void run_rank(int rank, int n_sums) const {
        srand(rank + 77);
        for (int sum = 0; sum < n_sums; sum++) {
            float * x = tensor(sum, rank);
            const int n = n_elements_of(sum);
            for (int i = 0; i < n; i++) {
                x[i] = summand(sum, rank, i);
            }
            for (int done = 0; done < n; done += CAPACITY) {
                const int part = std::min(n - done, CAPACITY);
                const int needed = (part + 4 * PUSH_N_THREADS - 1) / (4 * PUSH_N_THREADS);
                usleep(rand() % 3 == 0 ? rand() % 2000 : 0);
                launch(rank, x + done, part, std::min(needed + sum % 3, PUSH_MAX_BLOCKS));
            }
        }
    }
};

int main(int, char ** arguments) {
    const int n_ranks = atoi(arguments[1]), n_sums = atoi(arguments[2]), missing = atoi(arguments[3]);
    const world all(n_ranks, n_sums, missing < 0 ? 60'000'000'000 : 300'000'000);
    for (int rank = 0; rank < n_ranks; rank++) {
        if (rank != missing && fork() == 0) {
            all.run_rank(rank, n_sums);
            _exit(0);
        }
    }
    while (wait(nullptr) > 0) {
    }
    for (int rank = 0; missing >= 0 && rank < n_ranks; rank++) {
        const push_words & words = *all.views[rank].words;
        if (rank != missing) {
            printf("%u %u %llu\n", words.error, words.source, static_cast<unsigned long long>(words.sequence));
        }
    }
    for (int sum = 0; missing < 0 && sum < n_sums; sum++) {
        for (int i = 0; i < n_elements_of(sum); i++) {
            float right = summand(sum, 0, i);
            for (int rank = 1; rank < n_ranks; rank++) {
                right += summand(sum, rank, i);
            }
            for (int rank = 0; rank < n_ranks; rank++) {
                if (all.tensor(sum, rank)[i] != right) {
                    printf("sum %d, rank %d, element %d: %g, right is %g\n", sum, rank, i, all.tensor(sum, rank)[i], right);
                    return 1;
                }
            }
        }
    }
    printf("%s", missing < 0 ? "right\n" : "");
    return 0;
}
