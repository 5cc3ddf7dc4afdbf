// A stream beside a backend's, on which a sum travels while the backend's own computes.
#pragma once

#include "place.h"

pgc_side * side_new(ggml_backend_t backend, char * text, size_t text_size);
void side_free(pgc_side * side);

// Between begin and end the calling thread's sums go to the side stream, behind what the backend's had to do at begin.
bool side_begin(pgc_side * side, char * text, size_t text_size);
bool side_end(pgc_side * side, int lane, char * text, size_t text_size);

// What the backend's stream is given from now on waits for the sum that ended last in this lane.
bool side_join(pgc_side * side, int lane, char * text, size_t text_size);
