/* Choosing the best tokens of a batch of logit rows on the host.
 *
 * One pass over a row takes the maximum of each of many small groups of values. The k-th largest of those maxima
 * can't be above the row's k-th largest value, so a second pass looks only into groups that reach it.
 * Candidates are sorted as 64-bit keys: the value's bits made monotone, then the id inverted, so ties need no care.
 */
#include "candidates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* A tile is some multiple of N_LANES consecutive values; each of its N_LANES groups is every N_LANES-th of them. */
enum { N_LANES = 64, MIN_GROUP = 4, MAX_GROUP = 64, EXP_BLOCK = 4096 };

typedef struct {
    int64_t n_tile;      /* values in a tile */
    float * maxima;      /* one for each group */
    float * spare;       /* a copy of them to select in */
    uint64_t * keys;
    uint64_t * sorted;
} workspace;

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline uint64_t key_of(float value, int64_t id) {
    uint32_t bits;
    value += 0.0f; /* -0 becomes +0 */
    memcpy(&bits, &value, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t) bits << 32 | (uint32_t) ~(uint32_t) id;
}

/* Maxima of all groups; returns whether the row has a NaN. The last tile may be short. */
FOR_EACH_CPU
static int32_t group_maxima(const float * row, int64_t n_vocab, int64_t n_tile, float * maxima) {
    int32_t n_nan[N_LANES] = {0};
    for (int64_t start = 0; start < n_vocab; start += n_tile, maxima += N_LANES) {
        const float * x = row + start;
        const int64_t n = min_i64(n_tile, n_vocab - start);
        float best[N_LANES];
        for (int j = 0; j < N_LANES; j++) {
            best[j] = -INFINITY;
        }
        int64_t i = 0;
        for (; i + N_LANES <= n; i += N_LANES) {
            for (int j = 0; j < N_LANES; j++) {
                best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
                n_nan[j] |= x[i + j] != x[i + j];
            }
        }
        for (int j = 0; i + j < n; j++) {
            best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
            n_nan[j] |= x[i + j] != x[i + j];
        }
        memcpy(maxima, best, sizeof best);
    }
    int32_t has_nan = 0;
    for (int j = 0; j < N_LANES; j++) {
        has_nan |= n_nan[j];
    }
    return has_nan;
}

/* exp(x) for -87 <= x <= 0, relative error below 1e-6. */
static inline float exp_of_negative(float x) {
    const float turns = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* to the nearest whole number */
    const float rest = (x - turns * 0.693359375f) + turns * 2.12194440e-4f;
    float y = 1.3888889e-3f;
    y = y * rest + 8.3333333e-3f;
    y = y * rest + 4.1666667e-2f;
    y = y * rest + 1.6666667e-1f;
    y = y * rest + 0.5f;
    y = y * rest + 1.0f;
    y = y * rest + 1.0f;
    const int32_t bits = ((int32_t) turns + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

/* Terms below exp(-87) count as exp(-87), which a sum that holds a 1 cannot feel. */
FOR_EACH_CPU
static double sum_of_exp(const float * row, int64_t n_vocab, float maximum, float scale) {
    double total = 0.0;
    for (int64_t start = 0; start < n_vocab; start += EXP_BLOCK) {
        const int64_t end = min_i64(start + EXP_BLOCK, n_vocab);
        float sum[N_LANES] = {0};
        for (int64_t i = start; i < end; i += N_LANES) {
            const int n = (int) min_i64(N_LANES, end - i);
            float x[N_LANES];
            if (n == N_LANES) {
                memcpy(x, row + i, sizeof x);
            } else {
                for (int j = 0; j < N_LANES; j++) {
                    x[j] = j < n ? row[i + j] : -INFINITY;
                }
            }
            for (int j = 0; j < N_LANES; j++) {
                const float y = (x[j] - maximum) * scale;
                x[j] = y > -87.0f ? y : -87.0f; /* apart from the next loop: together they would not vectorise */
            }
            for (int j = 0; j < N_LANES; j++) {
                sum[j] += exp_of_negative(x[j]);
            }
        }
        for (int j = 0; j < N_LANES; j++) {
            total += sum[j];
        }
    }
    return total;
}

/* The k-th largest (k from 1) of n floats without NaN; reorders them. */
static float kth_largest(float * x, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const float pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i <= j) {
                const float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break;
        }
    }
    return x[k - 1];
}

/* Keys of all values that are at least threshold and above -inf; by rising id when threshold is -inf. */
static int64_t collect(const float * row, int64_t n_vocab, float threshold, const workspace * work) {
    const float * maxima = work->maxima;
    uint64_t * const keys = work->keys;
    int64_t n_keys = 0;
    if (threshold == -INFINITY) {
        for (int64_t i = 0; i < n_vocab; i++) {
            keys[n_keys] = key_of(row[i], i);
            n_keys += row[i] > -INFINITY;
        }
        return n_keys;
    }
    for (int64_t start = 0; start < n_vocab; start += work->n_tile, maxima += N_LANES) {
        const int64_t end = min_i64(start + work->n_tile, n_vocab);
        for (int lane = 0; lane < N_LANES; lane++) {
            if (maxima[lane] < threshold) {
                continue;
            }
            for (int64_t i = start + lane; i < end; i += N_LANES) {
                if (row[i] >= threshold) {
                    keys[n_keys++] = key_of(row[i], i);
                }
            }
        }
    }
    return n_keys;
}

/* Puts the k largest of n distinct keys first, descending: a quicksort that leaves the rest alone. */
static void sort_first(uint64_t * keys, int64_t n, int64_t k) {
    while (n > 24 && k > 0) {
        const uint64_t a = keys[0], b = keys[n / 2], c = keys[n - 1];
        const uint64_t pivot = a > b ? (b > c ? b : (a > c ? c : a)) : (a > c ? a : (b > c ? c : b));
        int64_t i = 0, j = n - 1;
        while (i <= j) {
            while (keys[i] > pivot) i++;
            while (keys[j] < pivot) j--;
            if (i <= j) {
                const uint64_t t = keys[i];
                keys[i++] = keys[j];
                keys[j--] = t;
            }
        }
        if (j + 1 < n - i) { /* recursion into the shorter part only: its depth stays logarithmic */
            sort_first(keys, j + 1, k);
            keys += i;
            n -= i;
            k -= i;
        } else {
            sort_first(keys + i, n - i, k - i);
            n = j + 1;
        }
    }
    for (int64_t i = 1; k > 0 && i < n; i++) {
        const uint64_t key = keys[i];
        int64_t j = i;
        for (; j > 0 && keys[j - 1] < key; j--) {
            keys[j] = keys[j - 1];
        }
        keys[j] = key;
    }
}

/* All n keys, which lie by rising id, descending: a stable pass for each of the value's four bytes, lowest first.
 * After an even number of passes they are back in keys. */
static void sort_all(uint64_t * keys, uint64_t * spare, int64_t n) {
    uint64_t * from = keys, * to = spare;
    for (int shift = 32; shift < 64; shift += 8) {
        int64_t starts[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            starts[255 - (from[i] >> shift & 255)]++;
        }
        int64_t position = 0;
        for (int digit = 0; digit < 256; digit++) {
            const int64_t count = starts[digit];
            starts[digit] = position;
            position += count;
        }
        for (int64_t i = 0; i < n; i++) {
            to[starts[255 - (from[i] >> shift & 255)]++] = from[i];
        }
        uint64_t * const t = from;
        from = to;
        to = t;
    }
}

/* Long groups make fewer maxima to select from, short ones fewer values to look at twice: near sqrt(4n / k). */
static int64_t tile_for(int64_t n_vocab, int64_t k) {
    int64_t n_group = MAX_GROUP;
    while (n_group > MIN_GROUP && n_group * n_group * k > 4 * n_vocab) {
        n_group /= 2;
    }
    return n_group * N_LANES;
}

static int64_t count_groups(int64_t n_vocab, int64_t n_tile) {
    return (n_vocab + n_tile - 1) / n_tile * N_LANES;
}

static int32_t candidates_of_row(const float * row, int64_t n_vocab, int64_t k, float scale, workspace * work,
                                 int32_t * ids, float * values, double * logsumexp) {
    work->n_tile = tile_for(n_vocab, k);
    const int64_t n_groups = count_groups(n_vocab, work->n_tile);
    if (group_maxima(row, n_vocab, work->n_tile, work->maxima)) {
        return PG_CANDIDATES_NAN;
    }
    float maximum = -INFINITY;
    for (int64_t i = 0; i < n_groups; i++) {
        maximum = work->maxima[i] > maximum ? work->maxima[i] : maximum;
    }
    if (maximum == INFINITY) {
        return PG_CANDIDATES_INF;
    }
    if (maximum == -INFINITY) {
        return PG_CANDIDATES_NONE;
    }
    if (scale > 0.0f) {
        *logsumexp = (double) maximum * (double) scale + log(sum_of_exp(row, n_vocab, maximum, scale));
    }
    float threshold = maximum;
    if (k > 1) {
        threshold = -INFINITY;
        if (k < n_groups) {
            memcpy(work->spare, work->maxima, (size_t) n_groups * sizeof(float));
            threshold = kth_largest(work->spare, n_groups, k);
        }
    }
    const int64_t n_keys = collect(row, n_vocab, threshold, work);
    const int64_t n_found = min_i64(k, n_keys);
    if (threshold == -INFINITY && n_found > 2048) {
        sort_all(work->keys, work->sorted, n_keys);
    } else {
        sort_first(work->keys, n_keys, n_found);
    }
    for (int64_t i = 0; i < n_found; i++) {
        ids[i] = (int32_t) ~(uint32_t) work->keys[i];
        values[i] = row[ids[i]];
    }
    return (int32_t) n_found;
}

int32_t pg_candidates(const float * logits, int64_t n_rows, int64_t n_vocab, const int32_t * k, int64_t k_max,
                      const float * scale, int32_t * ids, float * values, double * logsumexp, int32_t * found) {
    const size_t n_groups = (size_t) count_groups(n_vocab, MIN_GROUP * N_LANES);
    const size_t n_values = (size_t) n_vocab;
    char * const block = malloc(2 * n_values * sizeof(uint64_t) + 2 * n_groups * sizeof(float));
    if (block == NULL) {
        return -1;
    }
    workspace work;
    work.keys = (uint64_t *) block;
    work.sorted = work.keys + n_values;
    work.maxima = (float *) (work.sorted + n_values);
    work.spare = work.maxima + n_groups;
    for (int64_t row = 0; row < n_rows; row++) {
        const int64_t wanted = k[row] > 0 ? min_i64(k[row], n_vocab) : n_vocab;
        found[row] = candidates_of_row(logits + row * n_vocab, n_vocab, min_i64(wanted, k_max), scale[row], &work,
                                       ids + row * k_max, values + row * k_max, logsumexp + row);
    }
    free(block);
    return 0;
}

FOR_EACH_CPU
void pg_candidates_mask(float * row, int64_t n_vocab, const int32_t * words) {
    for (int64_t start = 0; start < n_vocab; start += 32) {
        const uint32_t word = (uint32_t) words[start / 32];
        if (word == 0xFFFFFFFFu) {
            continue;
        }
        const int n = (int) min_i64(32, n_vocab - start);
        for (int bit = 0; bit < n; bit++) {
            const int is_kept = (word >> bit & 1u) || !(row[start + bit] < INFINITY);
            row[start + bit] = is_kept ? row[start + bit] : -INFINITY;
        }
    }
}
