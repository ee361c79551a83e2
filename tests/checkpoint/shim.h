/* System calls of a process, counted and made to fail. The program defines the C library's functions of these names;
 * they pass calls on. io_uring counts as one call for each write that is submitted. */
#ifndef STRAIT_TESTS_CHECKPOINT_SHIM_H
#define STRAIT_TESTS_CHECKPOINT_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>

enum shim_action {
    SHIM_COUNT, /* nothing else */
    SHIM_KILL,  /* SIGKILL in place of call `at` */
    SHIM_FAIL,  /* call `at` fails with `error`, */
    SHIM_STAY,  /* and so do all after it that could */
    SHIM_SHORT, /* all writes and reads move half of their bytes, but for a few */
};

struct shim {
    enum shim_action action;
    int at, error;
    bool no_ring;     /* io_uring is not allowed */
    bool no_direct;   /* O_DIRECT is refused */
    bool direct_lies; /* it is taken, and writes fail with EINVAL then */
    bool no_exchange; /* renameat2 knows no flags */
    bool slow;        /* each write takes 5 ms more */
    bool interrupts;  /* calls that may be are interrupted first, now and then */
};

extern struct shim shim;
extern atomic_int shim_calls;
extern const char *_Atomic shim_last; /* name of the call that was killed or failed */

/* From now on calls are counted and treated, until it is stopped. */
void shim_start(struct shim how);
void shim_stop(void);

#endif
