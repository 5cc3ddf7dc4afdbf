// ggml's log lines: those at or above a level go to stderr, the last error is kept for exceptions.
// Called from any thread.

#include "log.h"

#include "ggml.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[1024];
static int min_level_shown = GGML_LOG_LEVEL_WARN;
static int previous_level = GGML_LOG_LEVEL_NONE;

static void sink(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    pthread_mutex_lock(&lock);
    const int effective = level == GGML_LOG_LEVEL_CONT ? previous_level : (int) level;
    previous_level = effective;
    if (effective == GGML_LOG_LEVEL_ERROR) {
        snprintf(last_error, sizeof(last_error), "%s", text);
        last_error[strcspn(last_error, "\n")] = 0;
    }
    const int shown = effective >= min_level_shown;
    pthread_mutex_unlock(&lock);
    if (shown) {
        fputs(text, stderr);
    }
}

void pg_log_install(int min_level) {
    min_level_shown = min_level;
    ggml_log_set(sink, NULL);
}

int pg_log_last_error(char * text, size_t size) {
    pthread_mutex_lock(&lock);
    const int n = snprintf(text, size, "%s", last_error);
    last_error[0] = 0;
    pthread_mutex_unlock(&lock);
    return n;
}
