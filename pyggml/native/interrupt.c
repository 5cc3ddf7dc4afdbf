// Ctrl-C during a computation: the CPU backend asks between two nodes whether to stop.
// The handler is there only while a run of the main thread lasts, and passes the signal on to the one before it.

#include "interrupt.h"

#include <signal.h>

static volatile sig_atomic_t is_interrupted;
static struct sigaction previous;

static void on_interrupt(int number, siginfo_t * info, void * context) {
    is_interrupted = 1;
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    }
}

static bool should_stop(void * user_data) {
    (void) user_data;
    return is_interrupted;
}

static void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    ggml_backend_set_abort_callback_t set =
        (ggml_backend_set_abort_callback_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_abort_callback");
    if (set) {
        set(backend, callback, NULL);
    }
}

void pg_interrupt_begin(ggml_backend_t backend) {
    is_interrupted = 0;
    set_abort_callback(backend, should_stop);
    struct sigaction action = { .sa_flags = SA_SIGINFO };
    action.sa_sigaction = on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &previous);
}

void pg_interrupt_end(ggml_backend_t backend) {
    sigaction(SIGINT, &previous, NULL);
    set_abort_callback(backend, NULL);
}
