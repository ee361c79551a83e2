/* The subcommands of `strait`. Each gets the arguments from its own name onward and returns an enum exit_code. */
#ifndef STRAIT_TOOLS_COMMANDS_H
#define STRAIT_TOOLS_COMMANDS_H

#include <stdbool.h>

struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
    bool files;               /* its operands are files */
    const char *const *parts; /* commands of its own, NULL-terminated; NULL: none */
};

extern const char *const bench_names[];       /* parts of cmd_bench; in bench/ */
extern const char *const codebook_names[];    /* of cmd_codebook */
extern const char *const collectives_names[]; /* of cmd_collectives */
extern const char *const checkpoint_names[];  /* of cmd_checkpoint */

int cmd_encode(int argc, char **argv);
int cmd_decode(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_codebook(int argc, char **argv);
int cmd_collectives(int argc, char **argv);
int cmd_checkpoint(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_bench(int argc, char **argv); /* in bench/ */
int cmd_demo(int argc, char **argv);  /* in bench/ */
int cmd_status(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

#endif
