/* A program that uses NCCL, for tests: how it got the functions, and what it finds out about those that were called. */
#ifndef STRAIT_TESTS_COLLECTIVE_CALLER_H
#define STRAIT_TESTS_COLLECTIVE_CALLER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/collective/fake_nccl.h"

/* Stays in release builds. */
#define require(condition)                                                                          \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

struct caller {
    /* NULL: not found by its name. */
#define X(name) __typeof__(nccl##name) *name;
    FAKE_NAMES(X)
#undef X
    /* The fake itself, whatever lies before it; NULL: there is none (FAKE_NCCL is not set). */
    __typeof__(fake_take) *take;
    __typeof__(fake_answer) *answer;
    __typeof__(fake_last_error) *last_error;
    /* Of libstrait-coll; NULL: this process has not got it. */
    size_t (*report)(struct ncclComm *comm, char *dst, size_t dst_capacity);
    int (*pin)(struct ncclComm *comm, int choice);
    int (*nccl)(const char **path, int *version);
    const char *(*version)(void);
};

extern struct caller nccl;

/* The report of it (NULL: of the process) has this row; the numbers are calls, bytes, in groups, captured, failed. */
void require_row(coll_comm comm, const char *operation, const char *type, const char *numbers);
bool report_has(coll_comm comm, const char *text);

/* Subjects. */
void check_every(void);
void check_older(void);
void check_missing(void);
void check_groups(void);
void check_comms(void);
void check_counts(void);
void check_capture(void);
void check_threads(void);
void check_fork(void);
void check_real(void);

#endif
