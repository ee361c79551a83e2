/* The parts of `strait checkpoint`. Each gets the arguments from its own name onward and returns an enum exit_code. */
#ifndef STRAIT_TOOLS_CHECKPOINT_PARTS_H
#define STRAIT_TOOLS_CHECKPOINT_PARTS_H

int checkpoint_inspect(int argc, char **argv);
int checkpoint_verify(int argc, char **argv);
int checkpoint_diff(int argc, char **argv);
int checkpoint_export(int argc, char **argv);
int checkpoint_convert(int argc, char **argv);
int checkpoint_clean(int argc, char **argv);

#endif
