/* Threads of ours inside other programs. */
#ifndef STRAIT_INTERNAL_THREAD_H
#define STRAIT_INTERNAL_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Starts a thread with all signals blocked: they are for the program's own threads. Returns what pthread_create does.
 */
static inline int thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
