/* pyggml/native: choosing the best tokens of a batch of logit rows. */
int32_t pg_candidates(const float *logits, int64_t n_rows, int64_t n_vocab, const int32_t *k, int64_t k_max,
                      const float *scale, int32_t *ids, float *values, double *logsumexp, int32_t *found);
void pg_candidates_mask(float *row, int64_t n_vocab, const int32_t *words);
