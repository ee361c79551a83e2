#include "bench/transfer_link.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/transfer_process.h"
#include "tools/util.h"

#define TOOL_MS        5000u
#define LOOK_MS        20u
#define BUCKET_LATENCY "20ms" /* of the queue before the bucket, like the buffer of a switch port */

/* Runs a command line without a shell, split into words at blanks. */
static bool tool(char *why, size_t why_size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static bool tool(char *why, size_t why_size, const char *format, ...)
{
    struct command command = {0};
    char line[256], *rest = line;
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        command_add(&command, word);
    if (process_run(&command, TOOL_MS, why, why_size))
        return true;
    why[strcspn(why, "\n")] = '\0';
    if (why[0] == '\0')
        snprintf(why, why_size, "%s failed", command.words[0]);
    return false;
}

static bool make_end(const struct bench_link_end *end, char *why, size_t why_size)
{
    return tool(why, why_size, "ip -n %s address add %s/30 dev %s", end->space, end->address, end->device) &&
           tool(why, why_size, "ip -n %s link set %s up", end->space, end->device) &&
           tool(why, why_size, "ip -n %s link set lo up", end->space);
}

/* The kernel reports a device as running only after a moment, and UCX uses only running ones. */
static bool wait_running(const struct bench_link_end *end, char *why, size_t why_size)
{
    char text[512];

    for (unsigned waited = 0; waited < TOOL_MS && !interrupted(); waited += LOOK_MS) {
        if (tool(text, sizeof(text), "ip -n %s link show dev %s", end->space, end->device) &&
            strstr(text, " state UP ") != NULL)
            return true;
        sleep_ms(LOOK_MS);
    }
    snprintf(why, why_size, "%s does not come up", end->device);
    return false;
}

static bool make(const struct bench_link *link, char *why, size_t why_size)
{
    const struct bench_link_end *a = &link->ends[0], *b = &link->ends[1];

    return tool(why, why_size, "ip netns add %s", a->space) && tool(why, why_size, "ip netns add %s", b->space) &&
           tool(why, why_size, "ip link add %s netns %s type veth peer name %s netns %s", a->device, a->space,
                b->device, b->space) &&
           make_end(a, why, why_size) && make_end(b, why, why_size) && wait_running(a, why, why_size) &&
           wait_running(b, why, why_size);
}

bool bench_link_open(struct bench_link *link, char *why, size_t why_size)
{
    int id = (int)getpid();

    *link = (struct bench_link){.ends = {{.address = "10.199.0.1"}, {.address = "10.199.0.2"}}};
    for (int i = 0; i < 2; i++) {
        snprintf(link->ends[i].space, LINK_NAME_BYTES, "strait-%d-%c", id, 'a' + i);
        snprintf(link->ends[i].device, LINK_NAME_BYTES, "sb%d%c", id, 'a' + i); /* at most 15 bytes */
    }
    if (geteuid() != 0 || !process_exists("ip") || !process_exists("tc")) {
        snprintf(why, why_size, "%s", geteuid() != 0 ? "needs root" : "needs ip and tc (iproute2)");
        return false;
    }
    link->made = true;
    if (make(link, why, why_size))
        return true;
    bench_link_close(link);
    return false;
}

bool bench_link_shape(const struct bench_link *link, double gigabits, uint64_t burst)
{
    char why[256];

    for (int i = 0; i < 2; i++) {
        if (!tool(why, sizeof(why),
                  "tc -n %s qdisc replace dev %s root tbf rate %.0fkbit burst %llu latency " BUCKET_LATENCY,
                  link->ends[i].space, link->ends[i].device, gigabits * 1e6, (unsigned long long)burst)) {
            print_error(NULL, "the link cannot be shaped: %s", why);
            return false;
        }
    }
    return true;
}

/* Must run to its end even after an interrupt. */
void bench_link_close(struct bench_link *link)
{
    for (int i = 0; link->made && i < 2; i++) {
        struct command command = {0};
        command_add(&command, "ip");
        command_add(&command, "netns");
        command_add(&command, "delete");
        command_add(&command, link->ends[i].space);
        pid_t pid = process_start(&command, NULL);
        for (unsigned waited = 0; process_runs(&pid) && waited < TOOL_MS; waited += 2)
            usleep(2000);
    }
    link->made = false;
}
