// Points in a card's work that are waited for, while what was launched behind them goes on.
#pragma once

#include "place.h"

pgc_mark * mark_new(ggml_backend_t backend, char * text, size_t text_size);
bool mark_set(pgc_mark * mark, char * text, size_t text_size);
bool mark_wait(pgc_mark * mark, char * text, size_t text_size);
void mark_free(pgc_mark * mark);
void poll_until(const pgc_mark * mark);
