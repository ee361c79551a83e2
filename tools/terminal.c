#include "tools/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "tools/util.h"

#define ENTER "\033[?1049h\033[?25l" /* alternate screen, no cursor */
#define LEAVE "\033[?25h\033[?1049l"

static struct {
    bool begun, has_keys;
    struct termios before;
    sigset_t mask_before;
    int signals; /* signalfd */
    int ended_by;
} terminal = {.signals = -1};

static void put(const char *text, size_t size)
{
    while (size > 0) {
        const ssize_t written = write(STDOUT_FILENO, text, size);
        if (written < 0 && errno != EINTR && errno != EAGAIN)
            return; /* the terminal is gone */
        text += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
}

/* No echo, and no waiting for the end of a line; the keys of signals keep their meaning. */
static void enter(void)
{
    struct termios mode = terminal.before;
    mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    mode.c_cc[VMIN] = 0;
    mode.c_cc[VTIME] = 0;
    if (terminal.has_keys)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
    put(ENTER, sizeof(ENTER) - 1);
}

static void leave(void)
{
    put(LEAVE, sizeof(LEAVE) - 1);
    if (terminal.has_keys)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal.before);
}

bool terminal_begin(void)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        sigaddset(&set, taken[i]);
    sigprocmask(SIG_BLOCK, &set, &terminal.mask_before);
    terminal.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (terminal.signals < 0)
        return false;
    terminal.has_keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &terminal.before) == 0;
    terminal.begun = true;
    enter();
    return true;
}

void terminal_end(void)
{
    if (!terminal.begun)
        return;
    leave();
    terminal.begun = false;
    close(terminal.signals);
    if (terminal.ended_by != 0) {
        signal(terminal.ended_by, SIG_DFL);
        raise(terminal.ended_by);
    }
    sigprocmask(SIG_SETMASK, &terminal.mask_before, NULL); /* here the signal ends the process */
}

/* False: it changes nothing that is shown. */
static bool take_signal(enum terminal_event *event)
{
    struct signalfd_siginfo info;
    if (read(terminal.signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return false;
    if (info.ssi_signo == SIGTSTP) {
        leave();
        raise(SIGSTOP);
        enter();
    } else if (info.ssi_signo != SIGWINCH) {
        terminal.ended_by = (int)info.ssi_signo;
    }
    *event = terminal.ended_by != 0 ? TERMINAL_SIGNAL : TERMINAL_DRAW;
    return true;
}

enum terminal_event terminal_wait(uint64_t until_ns, char *key)
{
    enum terminal_event event;
    for (;;) {
        const uint64_t now = clock_ns();
        const int timeout = now >= until_ns ? 0 : (int)((until_ns - now) / 1000000) + 1;
        struct pollfd fds[] = {{.fd = terminal.signals, .events = POLLIN},
                               {.fd = terminal.has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
        const int ready = poll(fds, 2, timeout);
        if (ready > 0 && fds[0].revents != 0 && take_signal(&event))
            return event;
        if (ready > 0 && fds[1].revents != 0) {
            if (read(STDIN_FILENO, key, 1) == 1)
                return TERMINAL_KEY;
            terminal.has_keys = false; /* it was hung up */
        }
        if (now >= until_ns)
            return TERMINAL_TIME;
    }
}

void terminal_size(unsigned *lines, unsigned *columns)
{
    struct winsize size;
    const bool told = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
    *lines = told ? size.ws_row : 24;
    *columns = told ? size.ws_col : 80;
}

void terminal_show(const char *text, size_t size)
{
    unsigned lines, columns;
    char *drawn = NULL;
    size_t drawn_size = 0;
    FILE *out = open_memstream(&drawn, &drawn_size);
    if (out == NULL)
        return;
    terminal_size(&lines, &columns);
    fputs("\033[H", out);
    for (unsigned line = 0; line < lines && size > 0; line++) {
        const char *end = memchr(text, '\n', size);
        const size_t length = end != NULL ? (size_t)(end - text) : size, shown = length < columns ? length : columns;
        fprintf(out, "%s%.*s\033[K", line > 0 ? "\r\n" : "", (int)shown, text);
        text += length + (end != NULL);
        size -= length + (end != NULL);
    }
    fputs("\033[J", out);
    if (fclose(out) == 0)
        put(drawn, drawn_size);
    free(drawn);
}
