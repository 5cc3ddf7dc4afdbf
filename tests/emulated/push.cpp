// Runs the push kernel's own source on processors: `push TYPE N_RANKS N_SUMS MISSING_RANK`, -1 for none missing.
// Sizes, grids, alignments and delays vary; every third sum adds something, and float numbers that fit travel as letters.
// Prints "right" or the first wrong sum; with a missing rank what
// each other rank reports: "error source sequence". `push TYPE narrow` rounds what comes on standard input.

#include "push_letters.cuh"
#include "push_parts.cuh"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

using kernel = void (*)(push_rank, push_sum);
constexpr int MAX_LETTER_BLOCKS = 5, MAX_ELEMENTS = 320, CONTROL_SIZE = 256, INBOX_SIZE = 2 * PUSH_MAX_BLOCKS * PUSH_N_PLACES * PUSH_PART_BYTES;

static char * shared_memory(size_t size) {
    return static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

static int n_elements_of(int sum) {
    return (sum * sum * 13 + sum * 5) % 300 + 1;
}

template <typename NUMBER>
static typename NUMBER::stored summand(int sum, int rank, int i) {
    return NUMBER::narrow(1.0f + static_cast<float>((sum * 31 + rank * 7919 + i * 104729) % 8191) / 8192.0f);
}

template <typename NUMBER>
struct world {
    using stored = typename NUMBER::stored;
    static constexpr kernel KERNELS[] = {
        nullptr,
        nullptr,
        push_all_reduce<2, NUMBER>,
        push_all_reduce<3, NUMBER>,
        push_all_reduce<4, NUMBER>,
        push_all_reduce<5, NUMBER>,
        push_all_reduce<6, NUMBER>,
        push_all_reduce<7, NUMBER>,
        push_all_reduce<8, NUMBER>,
    };
    static constexpr kernel LETTER_KERNELS[] = {
        nullptr, nullptr, push_letters<2>, push_letters<3>, push_letters<4>, push_letters<5>, push_letters<6>, push_letters<7>, push_letters<8>,
    };
    static constexpr bool IS_F32 = sizeof(stored) == sizeof(float);
    int n_ranks;
    push_rank views[PUSH_MAX_RANKS] = {};
    stored * values[PUSH_MAX_RANKS];
    int * n_letters = reinterpret_cast<int *>(shared_memory(sizeof(int) * PUSH_MAX_RANKS));  // sums of each rank

    world(int n, int n_sums, uint64_t deadline_ns) : n_ranks(n) {
        const size_t flags_size = (sizeof(uint64_t) * n * PUSH_MAX_BLOCKS + 15) / 16 * 16;
        const size_t letters_size = 2 * n * sizeof(uint64_t) * PUSH_MAX_LETTERS;
        char * memory[PUSH_MAX_RANKS];
        for (int rank = 0; rank < n; rank++) {
            memory[rank] = shared_memory(CONTROL_SIZE + flags_size + letters_size + n * INBOX_SIZE);
            values[rank] = reinterpret_cast<stored *>(shared_memory(sizeof(stored) * 3 * n_sums * MAX_ELEMENTS));
        }
        for (int rank = 0; rank < n; rank++) {
            push_rank & view = views[rank];
            for (int owner = 0; owner < n; owner++) {
                view.flags[owner] = reinterpret_cast<uint64_t *>(memory[owner] + CONTROL_SIZE);
                view.letters[owner] = reinterpret_cast<uint64_t *>(memory[owner] + CONTROL_SIZE + flags_size);
                view.inbox[owner] = memory[owner] + CONTROL_SIZE + flags_size + letters_size;
            }
            view.control = reinterpret_cast<push_control *>(memory[rank]);
            view.words = reinterpret_cast<push_words *>(shared_memory(sizeof(push_words)));
            view.deadline_ns = deadline_ns;
            view.rank = rank;
            view.n_blocks = PUSH_MAX_BLOCKS;
        }
    }

    // What is summed, what is added and the result lie one behind the other, every second time aligned differently on each rank.
    stored * tensor(int sum, int rank, int which = 0) const {
        return values[rank] + (3 * sum + which) * MAX_ELEMENTS + (sum % 2 ? (3 * rank + sum + which) % 8 : 0);
    }

    static bool has_addend(int sum) { return IS_F32 && sum % 3 == 0; }

    stored * result(int sum, int rank) const {
        const int places[] = {2, 0, 1};
        return tensor(sum, rank, has_addend(sum) ? places[sum / 3 % 3] : 0);
    }

    static float addend(int sum, int i) { return has_addend(sum) ? static_cast<float>((sum + 3 * i) % 17) / 16.0f : 0.0f; }

    void launch(int rank, const push_sum & part, int n_more) const {
        const int a_block = PUSH_N_THREADS * 16 / sizeof(stored);
        const bool is_letter = IS_F32 && part.n <= PUSH_MAX_LETTERS && letter_blocks(part.n) <= MAX_LETTER_BLOCKS;
        const int n = part.n, n_blocks = is_letter ? letter_blocks(n) : std::min((n + a_block - 1) / a_block + n_more, PUSH_MAX_BLOCKS);
        const int n_threads = is_letter ? LETTER_N_THREADS : PUSH_N_THREADS;
        n_letters[rank] += is_letter;
        gridDim.x = n_blocks;
        for (int block = 0; block < n_blocks; block++) {
            if (fork() != 0) {
                continue;
            }
            srand(100 * block + rank + n);
            blockIdx.x = block;
            block_meeting = new std::barrier<>(n_threads);
            std::vector<std::thread> threads;
            for (int i = 0; i < n_threads; i++) {
                threads.emplace_back([this, rank, part, is_letter, i] {
                    threadIdx.x = i;
                    (is_letter ? LETTER_KERNELS : KERNELS)[n_ranks](views[rank], part);
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
            stored * x = tensor(sum, rank);
            auto * addends = reinterpret_cast<float *>(tensor(sum, rank, 1)), * out = reinterpret_cast<float *>(tensor(sum, rank, 2));
            const int n = n_elements_of(sum);
            for (int i = 0; i < n; i++) {
                x[i] = summand<NUMBER>(sum, rank, i);
                if (has_addend(sum)) {
                    addends[i] = addend(sum, i);
                }
            }
            usleep(rand() % 3 == 0 ? rand() % 2000 : 0);
            const bool adds = has_addend(sum);
            float * places[] = {out, reinterpret_cast<float *>(x), addends};  // results may take the place of either
            launch(rank, {x, adds ? addends : nullptr, adds ? places[sum / 3 % 3] : nullptr, n, true}, sum % 3);
        }
    }
};

template <typename NUMBER>
static int run(int n_ranks, int n_sums, int missing) {
    const world<NUMBER> all(n_ranks, n_sums, missing < 0 ? 60'000'000'000 : 300'000'000);
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
            float total = NUMBER::widen(summand<NUMBER>(sum, 0, i));
            for (int rank = 1; rank < n_ranks; rank++) {
                total += NUMBER::widen(summand<NUMBER>(sum, rank, i));
            }
            const float right = NUMBER::widen(NUMBER::narrow(total)) + all.addend(sum, i);
            for (int rank = 0; rank < n_ranks; rank++) {
                const float found = NUMBER::widen(all.result(sum, rank)[i]);
                if (found != right) {
                    printf("sum %d, rank %d, element %d: %g, right is %g\n", sum, rank, i, found, right);
                    return 1;
                }
            }
        }
    }
    if (missing < 0) {
        printf("right%s\n", all.n_letters[0] > 0 ? ", some as letters" : "");
    }
    return 0;
}

// Float numbers from standard input to standard output by way of the type.
template <typename NUMBER>
static int narrow_all() {
    float x;
    while (fread(&x, sizeof(x), 1, stdin) == 1) {
        const typename NUMBER::stored narrow = NUMBER::narrow(x);
        const float wide = NUMBER::widen(narrow);
        fwrite(&wide, sizeof(wide), 1, stdout);
    }
    return 0;
}

template <typename NUMBER>
static int act(char ** arguments) {
    if (std::string(arguments[2]) == "narrow") {
        return narrow_all<NUMBER>();
    }
    return run<NUMBER>(atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]));
}

int main(int, char ** arguments) {
    const std::string type = arguments[1];
    return type == "f32" ? act<f32_number>(arguments) : type == "bf16" ? act<bf16_number>(arguments) : act<f16_number>(arguments);
}
