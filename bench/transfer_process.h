/* Programs that the bench runs: daemons, and tools to compare with. */
#ifndef STRAIT_BENCH_TRANSFER_PROCESS_H
#define STRAIT_BENCH_TRANSFER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_ARGS_MAX 64u

/* A command line under construction; what it points to must outlive its use. */
struct command {
    const char *words[PROCESS_ARGS_MAX]; /* NULL behind the last */
    unsigned count;
    const char *const *environment; /* "NAME=value" to set, NULL-terminated; or NULL */
};

/* Words beyond PROCESS_ARGS_MAX are a bug of the caller. */
void command_add(struct command *command, const char *word);

/* Starts it in a process group of its own, without the daemon's own STRAITD_ variables, output to the file (NULL: to
 * nowhere); it dies with this process. 0: failed, errno tells why. */
pid_t process_start(const struct command *command, const char *output);
/* Whether it still runs; one that has ended is reaped, and *pid becomes 0. */
bool process_runs(pid_t *pid);
/* Asks it to end, waits a while, and kills it then. Safe on 0. */
void process_stop(pid_t *pid);
/* Runs it to its end or for so long; its output, cut at size - 1 bytes, in text. False: it did not exit with 0, and
 * text tells what it said. */
bool process_run(const struct command *command, unsigned timeout_ms, char *text, size_t size);

/* Processor time of a process in milliseconds (utime + stime); 0 when it is gone. */
uint64_t process_cpu_ms(pid_t pid);

/* $STRAITD, or the straitd beside this program. The caller frees it. NULL, which stderr has been told: there is none.
 */
char *process_find_straitd(void);
/* Whether a program is found in $PATH. */
bool process_exists(const char *name);

/* From now on a signal that asks for the end is noted, so that daemons, files and namespaces are removed first. */
void interrupts_catch(void);
bool interrupted(void);

/* Sleeps, or less when interrupted. */
void sleep_ms(unsigned ms);

#endif
