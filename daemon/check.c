#include "daemon/check.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/resource.h>

#include "daemon/base/listen.h"
#include "daemon/base/lock.h"
#include "daemon/reload.h"

#define OTHER_DESCRIPTORS 64u /* libraries, timers, arenas, log */

struct check {
    const struct node_options *options;
    FILE *out;
    unsigned problems;
    bool running; /* a daemon has the socket's lock */
};

static void problem(struct check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem(struct check *check, const char *format, ...)
{
    va_list arguments;
    fputs("straitd: ", check->out);
    va_start(arguments, format);
    vfprintf(check->out, format, arguments);
    va_end(arguments);
    fputc('\n', check->out);
    check->problems++;
}

/* ---- Files and memory -------------------------------------------------------------------------------------------- */

static void bad_file(void *owner, const char *why)
{
    problem(owner, "%s", why);
}

static void check_limits(struct check *check)
{
    struct node_options options = *check->options;
    struct rlimit limit;
    char why[300];
    options_complete(&options);
    if (!node_arenas_fit(&options, why, sizeof(why)))
        problem(check, "%s", why);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < options.clients + OTHER_DESCRIPTORS)
        problem(check, "clients = %u: this process may open only %llu descriptors (ulimit -n)", options.clients,
                (unsigned long long)limit.rlim_cur);
}

/* ---- Sockets ----------------------------------------------------------------------------------------------------- */

static void check_socket(struct check *check)
{
    char why[300];
    if (check->options->socket[0] != '\0' &&
        lock_try(check->options->socket, &check->running, why, sizeof(why)) != STRAIT_OK)
        problem(check, "socket: %s", why);
}

/* Binds to every address of the list, or, where the daemon that runs has one, looks them up. False: there are none. */
static bool check_listen(struct check *check, const char *option, const char *list, struct address_list *bound)
{
    struct listen_sockets sockets;
    char why[300];
    bound->count = 0;
    if (list[0] == '\0')
        return false;
    enum strait_status status = listen_tcp(list, 1, &sockets, why, sizeof(why));
    if (status == STRAIT_OK) {
        *bound = sockets.bound;
        listen_close(&sockets);
    } else if (status == STRAIT_ERR_IO && errno == EADDRINUSE && check->running) {
        status = address_resolve(list, bound, why, sizeof(why));
    }
    if (status != STRAIT_OK)
        problem(check, "%s: %s", option, why);
    return status == STRAIT_OK;
}

static void check_addresses(struct check *check)
{
    struct address_list bound;
    char text[MESSAGE_ADDRESS_MAX + 1], why[300];
    (void)check_listen(check, "metrics", check->options->metrics, &bound);
    if (check_listen(check, "listen", check->options->listen, &bound) &&
        address_advertise(check->options->advertise, &bound, text, sizeof(text), why, sizeof(why)) != STRAIT_OK)
        problem(check, "%s: %s", check->options->advertise[0] != '\0' ? "advertise" : "listen", why);
}

static void check_transports(struct check *check)
{
    char why[600];
    if (peers_check_options(check->options, why, sizeof(why)) != STRAIT_OK)
        problem(check, "%s", why);
}

unsigned node_check(const struct node_options *options, FILE *out)
{
    struct check check = {.options = options, .out = out};
    reload_try(options, bad_file, &check);
    check_limits(&check);
    check_socket(&check);
    check_addresses(&check);
    check_transports(&check);
    return check.problems;
}
