/* Choosing the best tokens of a batch of logit rows on the host.
 *
 * Nothing here knows models, samplers or Python; every function is re-entrant
 * and touches only the memory that it is given.
 */
#ifndef PG_CANDIDATES_H
#define PG_CANDIDATES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PG_CANDIDATES_NAN = -1,      /* the row holds a NaN */
    PG_CANDIDATES_INF = -2,      /* the row holds +inf */
    PG_CANDIDATES_NONE = -3,     /* every value of the row is -inf */
};

/* For each row of logits [n_rows][n_vocab]: its k[row] largest values, descending, equal values by rising id.
 *
 * k[row] <= 0 means all. Values of -inf are never candidates. ids and values are [n_rows][k_max], where k_max is
 * at least the largest k after capping at n_vocab; what lies beyond found[row] is left as it was.
 * found[row] is the number written or one of the codes above.
 * scale[row] > 0 asks for logsumexp[row] = log(sum(exp(scale * logit))) over the whole row; 0 leaves it as it was.
 * Returns 0, or -1 when there is no memory for the work space (then nothing was written). */
int32_t pg_candidates(const float * logits, int64_t n_rows, int64_t n_vocab, const int32_t * k, int64_t k_max,
                      const float * scale, int32_t * ids, float * values, double * logsumexp, int32_t * found);

/* Sets row[i] to -inf where bit i of words (32 to a word, lowest first) is 0; NaN and +inf stay, to be noticed. */
void pg_candidates_mask(float * row, int64_t n_vocab, const int32_t * words);

#ifdef __cplusplus
}
#endif

#endif
