/* A terminal that a command draws on: keys without echo, its size, signals as events, and its state restored at any
 * end that the process has a say in. One in a process. */
#ifndef STRAIT_TOOLS_TERMINAL_H
#define STRAIT_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

enum terminal_event {
    TERMINAL_TIME,   /* the time has come */
    TERMINAL_KEY,    /* *key */
    TERMINAL_DRAW,   /* the size has changed, or the process was continued */
    TERMINAL_SIGNAL, /* the process is to end: call terminal_end */
};

/* Begins to draw on standard output, a terminal: the alternate screen, no cursor. Keys are read where standard input is
 * a terminal. False: errno. */
bool terminal_begin(void);
/* Restores everything. After TERMINAL_SIGNAL the process then ends by that signal. */
void terminal_end(void);
/* Waits until clock_ns reaches `until`. A stop from the keyboard is carried out inside. */
enum terminal_event terminal_wait(uint64_t until_ns, char *key);
/* Lines and columns; 24 and 80 where the terminal does not tell. */
void terminal_size(unsigned *lines, unsigned *columns);
/* Replaces what is shown by these lines, cut at the terminal's size. */
void terminal_show(const char *text, size_t size);

#endif
