/* straitd as a process of a test of the service: its options are those of small arenas, over shared memory. */
#ifndef STRAIT_TESTS_NODE_PROCESS_H
#define STRAIT_TESTS_NODE_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

enum { STRAITD_OPTIONS = 8 };

struct straitd {
    const char *socket;
    const char *listen;                   /* NULL: any port of the loopback */
    const char *log;                      /* it logs to this file; NULL: only errors, and where this process prints */
    const char *options[STRAITD_OPTIONS]; /* further ones, up to the first that is NULL */
    /* Descriptors that it gets as a service manager passes sockets; NULL: none. */
    const int *fds;
    int fd_count;
    const char *fd_names;                /* LISTEN_FDNAMES; NULL: not set */
    const char *listen_pid, *listen_fds; /* what LISTEN_PID and LISTEN_FDS say; NULL: what is right */
};

/* Ends with this process at the latest. */
pid_t straitd_start(struct straitd straitd);
/* Waits until it has ended with this exit status. */
void straitd_ends(pid_t pid, int wanted);
void straitd_stop(pid_t pid); /* SIGTERM; it must end with 0 */
/* Waits until the log has a line with this text. */
void log_says(const char *log, const char *text);
bool log_has(const char *log, const char *text);

#endif
