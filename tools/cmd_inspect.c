/* strait inspect */
#include "tools/commands.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "kernels/codebook_file.h"
#include "kernels/container.h"
#include "tools/inspect.h"
#include "tools/files.h"

static const char usage[] =
    "usage: strait inspect [OPTION]... FILE\n"
    "\n"
    "Tells what is in a compressed file, a bare chunk or a codebook set, without decoding it. Headers, footer and\n"
    "sums of metadata are checked; strait decode --verify checks the values too.\n"
    "\n"
    "  --pages              one line for each page\n"
    "  --json               report as JSON\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data or failed input or output, 2 bad usage.\n";

static bool is_chunk(const struct input *input)
{
    return input->size >= 4 && memcmp(input->data, "STRC", 4) == 0;
}

static bool inspect(const char *path, const struct inspect_options *options)
{
    struct input input;
    bool ok = false;

    if (!input_open(&input, path))
        return false;
    if (container_is_file(input.data, input.size))
        ok = inspect_file(&input, options);
    else if (is_chunk(&input))
        ok = inspect_chunk(&input, options);
    else if (codebook_file_probe(input.data, input.size))
        ok = inspect_set(&input, options);
    else
        print_error(path, "neither a Strait file nor a chunk nor a codebook set");
    input_close(&input);
    return ok;
}

int cmd_inspect(int argc, char **argv)
{
    static char name[] = "strait inspect";
    struct inspect_options options = {0};
    const struct cli_option list[] = {{"pages", .flag = &options.pages}, {"json", .flag = &options.json}};
    enum exit_code code;

    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (argc - optind != 1) {
        print_error(NULL, "takes one FILE; see strait inspect --help");
        return EXIT_CODE_USAGE;
    }
    return inspect(argv[optind], &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
