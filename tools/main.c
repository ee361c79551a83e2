/* strait: runs the subcommand. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/completion.h"
#include "tools/util.h"

#ifndef STRAIT_VERSION
#define STRAIT_VERSION "unknown"
#endif

static const struct subcommand commands[] = {
    {.name = "encode", .run = cmd_encode, .help = "compress a safetensors file, or plain values", .files = true},
    {.name = "decode", .run = cmd_decode, .help = "restore, or only check, what encode made", .files = true},
    {.name = "inspect",
     .run = cmd_inspect,
     .help = "tell what is in a compressed file, a chunk or a codebook set",
     .files = true},
    {.name = "calibrate", .run = cmd_calibrate, .help = "make a codebook set of tensors", .files = true},
    {.name = "codebook",
     .run = cmd_codebook,
     .help = "compare codebook sets, or tell what one makes of tensors",
     .files = true,
     .parts = codebook_names},
    {.name = "collectives",
     .run = cmd_collectives,
     .help = "what libstrait-coll does under a job, or has done",
     .files = true,
     .parts = collectives_names},
    {.name = "checkpoint",
     .run = cmd_checkpoint,
     .help = "tell what is in a checkpoint, verify, compare, export or make it of another",
     .files = true,
     .parts = checkpoint_names},
    {.name = "bench", .run = cmd_bench, .help = "measure the codec, transfers and collectives", .parts = bench_names},
    {.name = "demo",
     .run = cmd_demo,
     .help = "two straitd on this machine move a real KV cache; every page is checked"},
    {.name = "status", .run = cmd_status, .help = "how the straitd of this node is, and whom it reaches"},
    {.name = "doctor", .run = cmd_doctor, .help = "what straitd lacks on this node, and what to change"},
    {.name = "top", .run = cmd_top, .help = "what daemons and their peers carry, as a table that is renewed"},
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
        fprintf(stream, "  %-11s %s\n", commands[i].name, commands[i].help);
    fputs("\nstrait COMMAND --help tells more. strait --version prints the version.\n", stream);
}

/* Insertions, removals and changes of letters that lead from one word to the other; WORD_MAX for longer words. */
static size_t distance(const char *from, const char *to)
{
    enum { WORD_MAX = 24 };
    size_t row[WORD_MAX + 1];
    const size_t columns = strlen(to);
    if (strlen(from) > WORD_MAX || columns > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (; *from != '\0'; from++) {
        size_t corner = row[0]++;
        for (size_t j = 1; j <= columns; j++) {
            const size_t changed = corner + (*from != to[j - 1]);
            corner = row[j];
            row[j] = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = row[j] < changed ? row[j] : changed;
        }
    }
    return row[columns];
}

/* The command that the word can be a slip for; NULL: none. */
static const char *nearest(const char *word)
{
    const char *found = NULL;
    size_t least = 3; /* more is no slip */
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const size_t far = distance(word, commands[i].name);
        if (far < least && far < strlen(commands[i].name)) {
            least = far;
            found = commands[i].name;
        }
    }
    return found;
}

static int run_command(int argc, char **argv)
{
    if (strcmp(argv[0], "completion") == 0) /* for builds and packages: not in the list */
        return completion_run(commands, COMMAND_COUNT, argc, argv);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    const char *alike = nearest(argv[0]);
    print_error(NULL, "no command '%s'%s%s%s; strait --help lists them", argv[0], alike != NULL ? ": is '" : "",
                alike != NULL ? alike : "", alike != NULL ? "' meant?" : "");
    return EXIT_CODE_USAGE;
}

/* strait help, strait help COMMAND */
static int run_help(int argc, char **argv)
{
    static char option[] = "--help";
    char *words[] = {argc > 1 ? argv[1] : NULL, option, NULL};
    if (argc > 1)
        return run_command(2, words);
    print_help(stdout);
    return EXIT_CODE_OK;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

/* Output that could not be written, to a full disk for instance, is an error too. */
static int finish(int code)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return code;
    print_error("standard output", "cannot be written");
    return code == EXIT_CODE_OK ? EXIT_CODE_DATA : code;
}

/* A standard descriptor that the caller has closed would be that of the next file: in its place one of the other
 * direction, so that what is read or written there fails. */
static void fill_closed(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            abort(); /* all below it are open */
}

int main(int argc, char **argv)
{
    fill_closed();
    if (argc < 2) {
        print_help(stderr);
        return EXIT_CODE_USAGE;
    }
    if (is_one_of(argv[1], "--help", "-h", "help"))
        return finish(run_help(argc - 1, argv + 1));
    if (is_one_of(argv[1], "--version", "-V", "version")) {
        puts("strait " STRAIT_VERSION);
        return finish(EXIT_CODE_OK);
    }
    return finish(run_command(argc - 1, argv + 1));
}
