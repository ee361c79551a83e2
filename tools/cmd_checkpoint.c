/* strait checkpoint: what is in checkpoints, whether they are whole, how two differ, and their ways from and to others
 */
#include "tools/commands.h"

#include <stdio.h>
#include <string.h>

#include "tools/checkpoint_parts.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait checkpoint inspect [OPTION]... PATH\n"
    "       strait checkpoint verify [OPTION]... PATH\n"
    "       strait checkpoint diff [OPTION]... A B\n"
    "       strait checkpoint to-safetensors [OPTION]... PATH OUT\n"
    "       strait checkpoint from-dcp [OPTION]... FOLDER OUT\n"
    "       strait checkpoint clean [OPTION]... FOLDER\n"
    "\n"
    "  inspect         tell what is in a checkpoint, or which of a folder of checkpoints are whole\n"
    "  verify          read a checkpoint and check every page\n"
    "  diff            compare two checkpoints, tensor by tensor and value by value\n"
    "  to-safetensors  write the tensors of a checkpoint as safetensors files\n"
    "  from-dcp        make a checkpoint of one of torch.distributed.checkpoint\n"
    "  clean           remove what saves that were killed have left\n"
    "\n"
    "strait checkpoint inspect --help and so on tell more.\n";

const char *const checkpoint_names[] = {"inspect", "verify", "diff", "to-safetensors", "from-dcp", "clean", NULL};

int cmd_checkpoint(int argc, char **argv)
{
    static int (*const run[])(int argc, char **argv) = {checkpoint_inspect, checkpoint_verify,  checkpoint_diff,
                                                        checkpoint_export,  checkpoint_convert, checkpoint_clean};
    static char name[] = "strait checkpoint";
    for (unsigned i = 0; argc >= 2 && checkpoint_names[i] != NULL; i++)
        if (strcmp(argv[1], checkpoint_names[i]) == 0)
            return run[i](argc - 1, argv + 1);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    command_begin(argv, name);
    if (argc >= 2)
        print_error(NULL, "no '%s': inspect, verify, diff, to-safetensors, from-dcp or clean", argv[1]);
    fputs(usage, stderr);
    return EXIT_CODE_USAGE;
}
