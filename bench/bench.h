/* Benches of the command `strait bench`, their options, and the values that they measure with. */
#ifndef STRAIT_BENCH_BENCH_H
#define STRAIT_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/calibrate.h"
#include "tools/util.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

#define LIST_MAX    64u
#define REPEATS_MAX 1000u

struct number_list {
    uint64_t list[LIST_MAX];
    unsigned count;
};

struct text_list {
    const char *list[LIST_MAX];
    unsigned count;
};

/* Options that benches share. The options of every bench begin with them. */
struct bench_options {
    int argc; /* arguments as they were given, because getopt_long changes their order */
    char **argv;
    struct text_list inputs, calibs;
    const char *codebook; /* NULL: calibrate, on `calibs` or on the inputs */
    const char *save;     /* also write the JSON to this file; NULL: do not */
    bool json;
    enum strait_element element; /* of the values; 0: BF16 */
    struct number_list fault;    /* not empty: flip a bit of what arrived, so that the check has to fail */
};

/* Type of an option, and of the field that holds its value. Lists may be given with commas, or option by option. */
enum option_type {
    OPTION_FLAG,    /* bool */
    OPTION_TEXT,    /* const char * */
    OPTION_TEXTS,   /* struct text_list; commas are part of a text */
    OPTION_NUMBER,  /* uint64_t */
    OPTION_NUMBERS, /* struct number_list */
    OPTION_SIZE,    /* uint64_t, such as 32K */
    OPTION_SIZES,   /* struct number_list */
    OPTION_RATES,   /* struct number_list: kbit/s, given in Gbit/s */
    OPTION_NAMES,   /* struct number_list: indexes of `names` */
};

struct bench_option {
    const char *name;
    enum option_type type;
    size_t field;        /* offset in the bench's options */
    const char *initial; /* value where the option is not given; NULL: leave the field zero */
    const char *argument, *help;
    uint64_t min, max;        /* of numbers, sizes and rates; max 0: 2^40 */
    uint64_t multiple;        /* that each size has to be of; 0: any */
    const char *const *names; /* of OPTION_NAMES, NULL-terminated */
    char letter;              /* short form; 0: none */
};

/* Beginning of a row of a table of options. OPTIONS is the struct that holds the values. */
#define OPTION(type_, field_, name_, initial_, argument_, help_)                                    \
    .name = name_, .type = OPTION_##type_, .field = offsetof(OPTIONS, field_), .initial = initial_, \
    .argument = argument_, .help = help_

struct bench_command {
    char *name; /* "strait bench codec" */
    const char *summary;
    const struct bench_option *options;
    unsigned option_count;
    bool codebook; /* takes --calib and --codebook */
};

/* Reads the arguments into `options`, zeroed memory that begins with a struct bench_options, prints the help if it is
 * asked for, and makes error messages name the command. False: there is nothing to measure; *code is the exit status.
 */
bool command_read(const struct bench_command *command, void *options, int argc, char **argv, enum exit_code *code);
bool list_has(const struct number_list *list, uint64_t value);

/* ---- The benches ------------------------------------------------------------------------------------------------- */

/* Each gets the arguments from its own name onward and returns an enum exit_code. */
typedef int bench_function(int argc, char **argv);
bench_function bench_codec, bench_codec_device, bench_transfer, bench_transfer_device, bench_hosts, bench_collective,
    bench_checkpoint, bench_ep, bench_ep_device;

extern const char *const mode_names[];   /* by enum strait_mode, NULL-terminated */
extern const char *const coding_names[]; /* by enum strait_coding, NULL-terminated */

/* ---- Values ------------------------------------------------------------------------------------------------------ */

#define TABLE_BYTES        256u /* size of a table embedded in a file: FORMAT.md, section 7 */
#define VALUE_REGIONS_MAX  64u
#define TOP16_ESCAPE_RANK  16u /* rank from which a value escapes */
#define TIERED_ESCAPE_RANK 21u

/* Tensors of the inputs, of one type (BF16 unless the options say otherwise), and the codebook that they are coded
 * with. */
struct bench_values {
    struct tensors tensors;
    struct strait_codebook *codebook;
};

/* The KV cache that comes with the program. NULL: there is none. */
const char *default_input(void);
/* Whether there is an input, given or default; if not, the error is on stderr. */
bool inputs_exist(const struct bench_options *options);
/* Opens the inputs and loads the codebook, or calibrates one as `strait calibrate` does it: a table for each class and
 * a fallback. False: failed, with the error on stderr. The caller must values_close() it either way. */
bool values_open(struct bench_values *values, const struct bench_options *options, unsigned threads);
void values_close(struct bench_values *values);

/* Number of regions of a pool of which each repeats one tensor: the largest power of two up to the number of tensors,
 * so that any power of two of bytes divides evenly. */
uint32_t values_regions(const struct bench_values *values);

/* Repeats the spans first..first+count-1 until `size` bytes are full. */
void spans_fill(uint8_t *to, uint64_t size, const struct spans *spans, size_t first, size_t count);

/* SplitMix64. */
uint64_t random_next(uint64_t *state);
/* Puts 0..count-1 into a random order, which the seed determines. */
void random_order(uint32_t *ids, uint32_t count, uint64_t seed);

#endif
