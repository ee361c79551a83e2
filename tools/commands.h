/* The subcommands of `strait`. Each gets the arguments from its own name onward and returns an enum exit_code. */
#ifndef STRAIT_TOOLS_COMMANDS_H
#define STRAIT_TOOLS_COMMANDS_H

int cmd_encode(int argc, char **argv);
int cmd_decode(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_bench(int argc, char **argv); /* in bench/ */
int cmd_demo(int argc, char **argv);  /* in bench/ */
int cmd_status(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

#endif
