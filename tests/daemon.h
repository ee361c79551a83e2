/* straitd as a process of a test: started, killed with its parent, and asked for its metrics; for chaos, soak and the
 * programs on GPUs. */
#ifndef STRAIT_TESTS_DAEMON_H
#define STRAIT_TESTS_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/codec.h>
#include <sys/types.h>

#define MIB (UINT64_C(1) << 20)

/* CLOCK_MONOTONIC. */
uint64_t now_ns(void);

static inline uint64_t now_ms(void)
{
    return now_ns() / 1000000;
}

static inline double now_seconds(void)
{
    return (double)now_ns() * 1e-9;
}

void rest_ms(uint32_t ms);

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Makes a folder in $TMPDIR or /tmp: `folder` has 64 bytes. False: errno tells. */
bool folder_make(char *folder, const char *name);
void folder_remove(const char *folder); /* with the files in it; it is flat */
bool codebook_write(const char *folder, const char *name, const struct strait_codebook *codebook);
/* A file "secret", for secret-file. */
bool secret_make(const char *folder);

/* ---- Processes --------------------------------------------------------------------------------------------------- */

struct daemon_start {
    const char *const *arguments; /* the program, found in PATH, and its options; ends with NULL */
    const char *log;              /* what it prints is appended to this file; NULL: where this process prints */
    /* Of a daemon that can be made to fail: the file of struct chaos_shared and the number of its part, the folder of
     * the plugin that is found before its own, and the file of that one. NULL: it is a daemon like any other. */
    const char *faults, *plugin, *behind;
    int side;
};

/* Returns its pid; -1: errno tells. */
pid_t daemon_spawn(const struct daemon_start *start);
/* Waits for the end of a process, however it ends. */
int process_reap(pid_t pid);

struct process_size {
    uint64_t resident, anonymous; /* bytes; resident has pools and arenas in it, anonymous the heap only */
    uint32_t descriptors, threads;
};

/* False: it does not run. */
bool process_size_read(pid_t pid, struct process_size *size);

/* How long the first thread of a process, in a daemon its event loop, has waited for a processor, in ms; 0: it does not
 * run. */
uint64_t process_waited_ms(pid_t pid);

/* Prints what a log has from this place on, or its end. */
void log_print(const char *path, long begin, const char *what);

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

/* The text of GET /metrics; the caller frees it. NULL: no answer within `ms`. */
char *metrics_fetch(unsigned port, uint32_t ms);
/* The value of a name, with its labels; -1: there is none. */
int64_t metric_read(const char *text, const char *name);
/* Sum over all labels. */
int64_t metric_sum(const char *text, const char *family);
/* Seconds below which a share of a histogram lies, interpolated in its bucket; -1: empty or not told. */
double metric_quantile(const char *text, const char *family, double quantile);
/* Of the metrics that are zero when nothing is under way, the first that is not, and its value; NULL: there is none. */
const char *metrics_left_over(unsigned port, uint32_t ms, int64_t *value);

/* ---- Options of a program that starts daemons -------------------------------------------------------------------- */

/* --name VALUE, with one place that it is written to, or --name, which sets a flag. */
struct program_option {
    const char *name, *value, *help;
    uint64_t *number, least, most;
    const char **text;
    const char **list; /* each time one more, up to `most`; the rest is NULL */
    bool *flag;
};

struct program {
    const char *name;
    const struct program_option *options;
    int count;
};

/* False: an option is wrong, and stderr was told. --help ends the program. */
bool program_take_options(const struct program *program, int argc, char **argv);
/* Says what is wrong, and the usage. Returns the exit status. */
int program_refuse(const struct program *program, const char *problem);

#endif
