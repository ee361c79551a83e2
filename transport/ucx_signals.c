/* UCX takes signals when it is loaded, before any code of ours runs: those of errors, to print a backtrace, and SIGHUP,
 * to stop for a debugger. */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/debug.h>

#include "transport/ucx.h"

static bool is_of_ucx(const struct sigaction *action)
{
    union { /* ISO C has no conversion from function pointers to object pointers */
        void (*function)(int number, siginfo_t *info, void *context);
        void *object;
    } handler = {.function = action->sa_sigaction}; /* a union with sa_handler */
    Dl_info info;
    return handler.object != NULL && dladdr(handler.object, &info) != 0 && info.dli_fname != NULL &&
           strstr(info.dli_fname, "libucs.so") != NULL;
}

void ucx_leave_signals(void)
{
    struct sigaction action;
    if (getenv("UCX_HANDLE_ERRORS") != NULL || getenv("UCX_DEBUG_SIGNO") != NULL)
        return;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && is_of_ucx(&action))
            ucs_debug_disable_signal(number);
}
