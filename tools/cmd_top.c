/* strait top */
#include "tools/commands.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal/default_socket.h"
#include "tools/ask.h"
#include "tools/terminal.h"
#include "tools/top_table.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait top [--socket PATH]... [--interval SECONDS] [--sort NAME] [--once] [--json]\n"
    "\n"
    "Shows what daemons of this node carry, and with whom, and renews it: bytes of pages and on the wire, their "
    "ratio,\n"
    "transfers, their latency, errors, and how full the arenas are. Where standard output is no terminal, one table "
    "of\n"
    "one interval is printed.\n"
    "\n"
    "  --socket PATH        a daemon's socket, once or more (else $STRAIT_SOCKET, that of this user's own daemon in\n"
    "                       $XDG_RUNTIME_DIR, or /run/strait/straitd.sock)\n"
    "  --interval SECONDS   time between two looks, 0.1 to 3600 (2; with --once 1)\n"
    "  --sort NAME          order of the rows: name, bytes, errors (bytes)\n"
    "  --once               one table, and end\n"
    "  --json               the same as a JSON document: implies --once\n"
    "  -h, --help           print this\n"
    "\n"
    "Keys: q quits, s sorts by the next column, p pauses and goes on, + and - change the interval.\n"
    "\n"
    "Exit status: 0 it was told to end; with --once all daemons answered, 1 one did not, or none at first; 2 bad "
    "usage.\n";

#define SOCKETS_MAX      64u
#define PATIENCE_LIVE_MS 500u /* a daemon that hangs must not keep the keys waiting */
#define INTERVAL_MIN     0.1
#define INTERVAL_MAX     3600.0

struct top {
    struct asked daemons[SOCKETS_MAX];
    struct top_node nodes[SOCKETS_MAX];
    unsigned count;
    double interval; /* seconds; 0: not given */
    enum top_sort sort;
    bool once, json, paused;
};

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

static void look(struct top *top, unsigned patience_ms)
{
    for (unsigned i = 0; i < top->count; i++) {
        struct top_node *node = &top->nodes[i];
        sample_free(&node->before);
        node->before = node->now;
        sample_take(&top->daemons[i], patience_ms, &node->now);
    }
}

static bool all_answer(const struct top *top)
{
    bool all = true;
    for (unsigned i = 0; i < top->count; i++)
        all &= top->nodes[i].now.there;
    return all;
}

/* False: no daemon answers. */
static bool first_look(struct top *top)
{
    look(top, ASK_PATIENCE_MS);
    for (unsigned i = 0; i < top->count; i++)
        if (top->nodes[i].now.there)
            return true;
    return false;
}

static void tell_errors(const struct top *top)
{
    for (unsigned i = 0; i < top->count; i++)
        if (!top->nodes[i].now.there)
            print_error(top->daemons[i].path, "%s", top->nodes[i].now.why);
}

static void sleep_for(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        continue;
}

static enum exit_code run_once(struct top *top)
{
    const bool any = first_look(top);
    if (any) {
        sleep_for(top->interval);
        look(top, ASK_PATIENCE_MS);
    }
    tell_errors(top);
    if (top->json) {
        char *text = top_json(top->nodes, top->count, top->sort);
        puts(text != NULL ? text : "{}");
        free(text);
    } else if (any) {
        top_print(stdout, top->nodes, top->count, top->sort);
    }
    return all_answer(top) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

/* ---- Live -------------------------------------------------------------------------------------------------------- */

static void draw(const struct top *top)
{
    char *text = NULL, clock[16];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const time_t now = time(NULL);
    struct tm local;
    if (out == NULL)
        return;
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
    fprintf(out, "strait top  %s  every %.3g s, by %s%s   q quit  s sort  p pause  +/- interval\n\n", clock,
            top->interval, top_sort_names[top->sort], top->paused ? ", PAUSED" : "");
    top_print(out, top->nodes, top->count, top->sort);
    if (fclose(out) == 0)
        terminal_show(text, size);
    free(text);
}

static void scale_interval(struct top *top, double factor)
{
    top->interval *= factor;
    if (top->interval < INTERVAL_MIN)
        top->interval = INTERVAL_MIN;
    if (top->interval > INTERVAL_MAX)
        top->interval = INTERVAL_MAX;
}

/* False: the key quits. */
static bool take_key(struct top *top, char key)
{
    switch (key) {
    case 'q':
        return false;
    case 's':
        top->sort = (enum top_sort)((top->sort + 1) % TOP_SORTS);
        break;
    case 'p':
        top->paused = !top->paused;
        break;
    case '+':
        scale_interval(top, 2);
        break;
    case '-':
        scale_interval(top, 0.5);
        break;
    default:
        break;
    }
    return true;
}

static uint64_t next_look(const struct top *top)
{
    return clock_ns() + (uint64_t)(top->interval * 1e9);
}

static void run_live(struct top *top)
{
    char key = 0;
    bool going = true;
    uint64_t next = next_look(top);
    while (going) {
        draw(top);
        switch (terminal_wait(next, &key)) {
        case TERMINAL_KEY:
            going = take_key(top, key);
            if (key == '+' || key == '-')
                next = next_look(top);
            break;
        case TERMINAL_TIME:
            if (!top->paused)
                look(top, PATIENCE_LIVE_MS);
            next = next_look(top);
            break;
        case TERMINAL_DRAW:
            break;
        case TERMINAL_SIGNAL:
            going = false;
            break;
        }
    }
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool set_socket(void *options, const char *text)
{
    struct top *top = options;
    if (top->count == SOCKETS_MAX) {
        print_error(NULL, "--socket: at most %u daemons", SOCKETS_MAX);
        return false;
    }
    top->daemons[top->count].path = text;
    top->nodes[top->count++].socket = text;
    return true;
}

static bool set_interval(void *options, const char *text)
{
    struct top *top = options;
    char *end;
    top->interval = strtod(text, &end);
    if (end == text || *end != '\0' || !(top->interval >= INTERVAL_MIN && top->interval <= INTERVAL_MAX)) {
        print_error(NULL, "--interval takes seconds from %g to %g, not '%s'", INTERVAL_MIN, INTERVAL_MAX, text);
        return false;
    }
    return true;
}

static bool set_sort(void *options, const char *text)
{
    unsigned sort;
    if (!option_name("--sort", text, top_sort_names, TOP_SORTS, &sort))
        return false;
    ((struct top *)options)->sort = (enum top_sort)sort;
    return true;
}

static enum exit_code run(struct top *top)
{
    top->once |= top->json || isatty(STDOUT_FILENO) == 0;
    if (top->interval == 0)
        top->interval = top->once ? 1 : 2;
    enum exit_code code = EXIT_CODE_OK;
    if (top->once) {
        code = run_once(top);
    } else if (!first_look(top)) {
        tell_errors(top);
        code = EXIT_CODE_DATA;
    } else if (terminal_begin()) {
        run_live(top);
        terminal_end();
    } else {
        print_error("standard output", "%s", strerror(errno));
        code = EXIT_CODE_DATA;
    }
    for (unsigned i = 0; i < top->count; i++) {
        daemon_leave(&top->daemons[i]);
        sample_free(&top->nodes[i].before);
        sample_free(&top->nodes[i].now);
    }
    return code;
}

int cmd_top(int argc, char **argv)
{
    static char name[] = "strait top";
    static struct top top = {.sort = TOP_BY_BYTES};
    char own[SOCKET_PATH_MAX + 1];
    const struct cli_option list[] = {
        {"socket", .set = set_socket},
        {"interval", .set = set_interval},
        {"sort", .set = set_sort, .values = "name bytes errors"},
        {"once", .flag = &top.once},
        {"json", .flag = &top.json},
    };
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &top, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 0, "no arguments"))
        return EXIT_CODE_USAGE;
    if (top.count == 0)
        (void)set_socket(&top, socket_find(own));
    return run(&top);
}
