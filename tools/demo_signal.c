#include <signal.h>
#include <stddef.h>

#include "tools/demo.h"

static volatile sig_atomic_t caught;

static void note(int number)
{
    caught = number;
}

/* A signal that the parent process had ignored (nohup) stays ignored. A closed pipe becomes an output error, reported
 * at the end. */
void demo_signals_catch(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = note}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

bool demo_interrupted(void)
{
    return caught != 0;
}

void demo_signals_obey(void)
{
    if (caught == 0)
        return;
    signal(caught, SIG_DFL);
    raise(caught);
}
