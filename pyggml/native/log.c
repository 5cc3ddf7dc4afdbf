// ggml's log lines: those at or above a level go to stderr, each thread's last error is kept for its exceptions.

#include "log.h"

#include "ggml.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];
static _Thread_local int previous_level = GGML_LOG_LEVEL_NONE;
static int min_level_shown = GGML_LOG_LEVEL_WARN;

static void sink(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    const int effective = level == GGML_LOG_LEVEL_CONT ? previous_level : (int) level;
    previous_level = effective;
    if (effective == GGML_LOG_LEVEL_ERROR) {
        snprintf(last_error, sizeof(last_error), "%s", text);
        last_error[strcspn(last_error, "\n")] = 0;
    }
    if (effective >= min_level_shown) {
        fputs(text, stderr);
    }
}

void pg_log_install(int min_level) {
    min_level_shown = min_level;
    ggml_log_set(sink, NULL);
}

int pg_log_last_error(char * text, size_t size) {
    const int n = snprintf(text, size, "%s", last_error);
    last_error[0] = 0;
    return n;
}
