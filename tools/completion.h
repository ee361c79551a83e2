/* Scripts that complete the options of strait and straitd in shells, made of the tables that --help prints. */
#ifndef STRAIT_TOOLS_COMPLETION_H
#define STRAIT_TOOLS_COMPLETION_H

#include "tools/commands.h"

/* `strait completion SHELL [PROGRAM]`: prints the script for bash, zsh or fish of strait, or of straitd. Returns an
 * enum exit_code. */
int completion_run(const struct subcommand *commands, unsigned count, int argc, char **argv);

#endif
