/* strait: runs the subcommand. */
#include <stdio.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/util.h"

#ifndef STRAIT_VERSION
#define STRAIT_VERSION "unknown"
#endif

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"encode", cmd_encode, "compress a safetensors file, or plain values"},
    {"decode", cmd_decode, "restore, or only check, what encode made"},
    {"inspect", cmd_inspect, "tell what is in a compressed file, a chunk or a codebook set"},
    {"calibrate", cmd_calibrate, "make a codebook set of tensors"},
    {"bench", cmd_bench, "measure the codec, transfers and collectives"},
    {"demo", cmd_demo, "two straitd on this machine move a real KV cache; every page is checked"},
    {"status", cmd_status, "how the straitd of this node is, and whom it reaches"},
    {"doctor", cmd_doctor, "what straitd lacks on this node, and what to change"},
    {"top", cmd_top, "what daemons and their peers carry, as a table that is renewed"},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *stream)
{
    fputs("usage: strait COMMAND [ARGUMENT]...\n"
          "\n"
          "Moves KV caches between workers, and compresses them and other BF16 tensors losslessly.\n"
          "\n",
          stream);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\nstrait COMMAND --help tells more. strait --version prints the version.\n", stream);
}

static int run_command(int argc, char **argv)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    print_error(NULL, "no command '%s'; strait --help lists them", argv[0]);
    return EXIT_CODE_USAGE;
}

/* Output that could not be written, to a full disk for instance, is an error too. */
static int finish(int code)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return code;
    print_error("standard output", "cannot be written");
    return code == EXIT_CODE_OK ? EXIT_CODE_DATA : code;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return finish(EXIT_CODE_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("strait " STRAIT_VERSION);
        return finish(EXIT_CODE_OK);
    }
    return finish(run_command(argc - 1, argv + 1));
}
