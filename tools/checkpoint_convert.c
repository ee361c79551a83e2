/* strait checkpoint from-dcp */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/checkpoint_parts.h"
#include "tools/util.h"

#define PYTHON "python3"

static const char usage[] =
    "usage: strait checkpoint from-dcp [OPTION]... FOLDER OUT\n"
    "\n"
    "Makes the checkpoint OUT of one that torch.distributed.checkpoint has written into FOLDER, which has the file\n"
    ".metadata. Runs " PYTHON " -m strait.checkpoint: the first " PYTHON
    " of PATH needs the packages strait and torch.\n"
    "\n"
    "  -f, --force          replace a checkpoint that is there\n"
    "      --memory SIZE    bytes of tensors at a time, in whole MiB (1G)\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data, failed input or output, or no such Python, 2 bad usage.\n";

/* What Python runs: as -m does, but it tells what is missing, and takes nothing from the working folder. */
static char program[] = "import sys\n"
                        "sys.path = [path for path in sys.path if path]\n"
                        "try:\n"
                        "    from strait.checkpoint import main\n"
                        "except ImportError as failure:\n"
                        "    sys.exit(f'strait checkpoint from-dcp: {sys.executable} cannot import the package "
                        "strait: {failure}')\n"
                        "sys.exit(main())\n";

struct convert_options {
    bool force;
    uint64_t memory;
};

static bool set_memory(void *options, const char *text)
{
    return option_size("--memory", text, 1 << 20, UINT64_C(1) << 50, &((struct convert_options *)options)->memory);
}

int checkpoint_convert(int argc, char **argv)
{
    static char name[] = "strait checkpoint from-dcp", python[] = PYTHON, as_text[] = "-c", part[] = "from-dcp",
                overwrite[] = "--overwrite", end[] = "--";
    struct convert_options options = {.memory = UINT64_C(1) << 30};
    const struct cli_option list[] = {{"force", 'f', .flag = &options.force}, {"memory", .set = set_memory}};
    char memory[40];
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 2, "a FOLDER and a path OUT"))
        return EXIT_CODE_USAGE;
    snprintf(memory, sizeof(memory), "--memory=%" PRIu64, options.memory >> 20);
    char *command[] = {python, as_text, program, part, memory, overwrite, NULL, NULL, NULL, NULL};
    unsigned count = options.force ? 6 : 5;
    command[count++] = end;
    command[count++] = argv[optind];
    command[count++] = argv[optind + 1];
    execvp(command[0], command);
    print_error(NULL, PYTHON ": %s; it needs to be in PATH, with the packages strait and torch", strerror(errno));
    return EXIT_CODE_DATA;
}
