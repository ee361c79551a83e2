#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>

#include "client/client.h"

/* The daemon as a library, loaded only when a client asks for it. Its thread ends when its end of the socket does. */
#ifndef STRAIT_NODE_LIBRARY
#define STRAIT_NODE_LIBRARY "libstrait-node.so.0"
#endif

typedef int (*node_embed)(const char *options, int *fd, char *error, size_t error_size);

/* ---- Signals stay the host's ---------------------------------------------------------------------------------------
 * UCX, which comes with that library, installs handlers for SIGHUP, SIGSEGV and others when it is loaded. Only
 * environment variables could prevent that, and setting them is unsafe in a process with several threads. So the old
 * handlers are put back. */

struct actions {
    struct sigaction of[NSIG];
    bool known[NSIG];
};

static void actions_note(struct actions *actions)
{
    for (int number = 1; number < NSIG; number++) /* fails for the signals that the threads library reserves */
        actions->known[number] = sigaction(number, NULL, &actions->of[number]) == 0;
}

static bool is_changed(const struct sigaction *old, const struct sigaction *now)
{
    bool informed = (now->sa_flags & SA_SIGINFO) != 0;
    if (informed != ((old->sa_flags & SA_SIGINFO) != 0))
        return true;
    return informed ? old->sa_sigaction != now->sa_sigaction : old->sa_handler != now->sa_handler;
}

static void actions_restore(const struct actions *actions)
{
    struct sigaction now;
    for (int number = 1; number < NSIG; number++)
        if (actions->known[number] && sigaction(number, NULL, &now) == 0 && is_changed(&actions->of[number], &now))
            (void)sigaction(number, &actions->of[number], NULL);
}

/* The library is never unloaded: its threads may outlive the client for a moment. */
static void *load(void)
{
    struct actions actions;
    actions_note(&actions);
    void *library = dlopen(STRAIT_NODE_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    actions_restore(&actions);
    return library;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* Goes to stderr, as a status cannot say which option is wrong and there is no client yet to report an event. */
static void say(const char *why)
{
    fprintf(stderr, "strait: no embedded daemon: %s\n", why);
}

static node_embed find_node_embed(void)
{
    void *library = load();
    if (library == NULL) {
        say(dlerror());
        return NULL;
    }
    union { /* ISO C has no conversion from object to function pointers */
        void *object;
        node_embed function;
    } symbol = {.object = dlsym(library, "strait_node_embed")};
    return symbol.function;
}

enum strait_status embedded_start(const char *options, int *fd)
{
    char error[MESSAGE_TEXT_MAX] = "out of memory"; /* the only failure for which the node sets no text */
    node_embed embed = find_node_embed();
    if (embed == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    enum strait_status status = (enum strait_status)embed(options, fd, error, sizeof(error));
    if (status == STRAIT_OK)
        return STRAIT_OK;
    say(error);
    return status == STRAIT_ERR_INVALID || status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_IO;
}
