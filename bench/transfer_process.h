/* Processes that the bench runs: daemons, and tools to compare with. */
#ifndef STRAIT_BENCH_TRANSFER_PROCESS_H
#define STRAIT_BENCH_TRANSFER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_ARGS_MAX 64u

/* A command line under construction; what it points to must outlive its use. */
struct command {
    const char *words[PROCESS_ARGS_MAX]; /* NULL after the last */
    unsigned count;
    const char *const *environment; /* "NAME=value" to set, NULL-terminated; or NULL */
};

/* More than PROCESS_ARGS_MAX words are a bug of the caller. */
void command_add(struct command *command, const char *word);

/* Starts the command in its own process group, without STRAITD_ variables from the environment, with output to the file
 * (NULL: discarded); it dies with this process. 0: failed, errno tells why. */
pid_t process_start(const struct command *command, const char *output);
/* Whether the process still runs; if it has ended, reaps it and sets *pid to 0. */
bool process_runs(pid_t *pid);
/* Asks the process to end, waits a while, then kills it. Safe on 0. */
void process_stop(pid_t *pid);
/* Runs the command to its end, at most timeout_ms; `text` receives its output, cut at size - 1 bytes. False: it did not
 * exit with status 0. */
bool process_run(const struct command *command, unsigned timeout_ms, char *text, size_t size);

/* Processor time of a process in milliseconds (utime + stime); 0 when it is gone. */
uint64_t process_cpu_ms(pid_t pid);

/* $STRAITD, or the straitd installed with this program. The caller frees it. NULL: there is none, which was printed to
 * stderr. */
char *process_find_straitd(void);
/* Whether a program is found in $PATH. */
bool process_exists(const char *name);

/* From now on a terminating signal is only recorded, so that daemons, files and namespaces can be removed first. */
void interrupts_catch(void);
bool interrupted(void);

/* Sleeps; returns early when interrupted. */
void sleep_ms(unsigned ms);

#endif
