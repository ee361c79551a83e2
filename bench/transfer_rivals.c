#include "bench/transfer_rivals.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "bench/transfer_process.h"
#include "tools/util.h"

#define TRIES       40u /* attempts until the server listens, */
#define TRY_MS      50u /* this far apart */
#define CLIENT_MS   60000u
#define OUTPUT_MAX  65536u
#define LAT_ROUNDS  "500"
#define LAT_WARM_UP "50"

static const char *const ucx_environment[] = {"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", NULL};

uint64_t rival_copy(const struct shape *shape, const struct transfer_data *data)
{
    uint64_t started = clock_ns();
    uint32_t count = shape_places(shape);

    for (uint32_t r = 0; r < shape->regions; r++)
        for (uint32_t i = 0; i < count; i++)
            memcpy(shape_page(shape, &data->sink, r, shape->to[i]), shape_page(shape, &data->source, r, shape->from[i]),
                   shape->page_bytes);
    return clock_ns() - started;
}

/* ---- Servers and clients ----------------------------------------------------------------------------------------- */

/* A port that was free a moment ago; 0: none. */
static unsigned free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unsigned port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void tell(char *why, size_t why_size, const char *tool, const char *said)
{
    int length = (int)strcspn(said, "\n");
    snprintf(why, why_size, "%s: %.*s", tool, length > 0 ? length : 6, length > 0 ? said : "failed");
}

/* Runs a client against a server, repeatedly until the server listens. */
static bool run_pair(const struct command *server, const struct command *client, char *text, size_t size)
{
    pid_t pid = process_start(server, NULL);
    bool good = false;

    for (unsigned i = 0; pid != 0 && !good && i < TRIES && !interrupted(); i++) {
        sleep_ms(TRY_MS);
        good = process_run(client, CLIENT_MS, text, size);
        if (!good && !process_runs(&pid)) /* the server has served a client, or never listened */
            break;
    }
    process_stop(&pid);
    return good;
}

/* ---- UCX --------------------------------------------------------------------------------------------------------- */

/* Number `index`, from 0, of the line after the heading: "  64,4.165,8920.062,...". */
static bool csv_number(const char *text, unsigned index, double *number)
{
    const char *line = strstr(text, "iterations,");

    line = line == NULL ? NULL : strchr(line, '\n');
    for (; line != NULL && index > 0; index--) {
        line = strchr(line + 1, ',');
    }
    return line != NULL && sscanf(line + 1, "%lf", number) == 1 && *number > 0;
}

/* ucx_perftest -t TEST -s SIZE -n COUNT -w WARM_UP -R RANK, at both ends; the figure is one of its columns, in us. */
struct ucx_test {
    const char *test, *count, *warm_up, *rank;
    uint64_t size;
    unsigned column;
};

static bool ucx_run(const struct ucx_test *test, double *us, char *why, size_t why_size)
{
    struct command server = {.environment = ucx_environment}, client = {.environment = ucx_environment};
    char port[16], size[24], text[4096] = "";
    const char *const words[] = {"ucx_perftest", "127.0.0.1",   "-t", test->test, "-s", size, "-n", test->count,
                                 "-w",           test->warm_up, "-R", test->rank, "-f", "-v", "-p", port};

    snprintf(port, sizeof(port), "%u", free_port());
    snprintf(size, sizeof(size), "%llu", (unsigned long long)test->size);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        command_add(&client, words[i]);
    command_add(&server, "ucx_perftest");
    command_add(&server, "-p");
    command_add(&server, port);
    if (!process_exists("ucx_perftest")) {
        snprintf(why, why_size, "ucx_perftest is not installed");
        return false;
    }
    if (run_pair(&server, &client, text, sizeof(text)) && csv_number(text, test->column, us))
        return true;
    tell(why, why_size, "ucx_perftest", text);
    return false;
}

bool rival_ucx_bandwidth(uint32_t messages, uint64_t *ns, char *why, size_t why_size)
{
    char count[16];
    struct ucx_test test = {"ucp_am_bw", count, "8", "50", RIVAL_MESSAGE_BYTES, 3};
    double us;

    snprintf(count, sizeof(count), "%u", (unsigned)messages);
    if (!ucx_run(&test, &us, why, why_size))
        return false;
    *ns = (uint64_t)(us * 1000 * messages);
    return true;
}

bool rival_ucx_latency(uint64_t bytes, uint64_t *p50_ns, uint64_t *p99_ns, char *why, size_t why_size)
{
    struct ucx_test test = {"ucp_am_lat", LAT_ROUNDS, LAT_WARM_UP, "50", bytes, 1};
    double p50, p99;

    if (!ucx_run(&test, &p50, why, why_size))
        return false;
    test.rank = "99";
    if (!ucx_run(&test, &p99, why, why_size))
        return false;
    *p50_ns = (uint64_t)(p50 * 1000);
    *p99_ns = (uint64_t)(p99 * 1000);
    return true;
}

/* ---- iperf3 ------------------------------------------------------------------------------------------------------ */

static bool read_iperf(const char *text, uint64_t *bytes, uint64_t *ns)
{
    cJSON *root = cJSON_Parse(text);
    const cJSON *end = cJSON_GetObjectItemCaseSensitive(root, "end");
    const cJSON *sum = cJSON_GetObjectItemCaseSensitive(end, "sum_received");
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(sum, "bytes");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(sum, "seconds");
    bool good = cJSON_IsNumber(count) && cJSON_IsNumber(seconds) && count->valuedouble > 0 && seconds->valuedouble > 0;

    if (good) {
        *bytes = (uint64_t)count->valuedouble;
        *ns = (uint64_t)(seconds->valuedouble * 1e9);
    }
    cJSON_Delete(root);
    return good;
}

bool rival_iperf(const struct bench_link *link, uint64_t *bytes, uint64_t *ns, char *why, size_t why_size)
{
    const char *const server_words[] = {"ip", "netns", "exec", link->ends[1].space, "iperf3", "-s", "-1"};
    const char *const client_words[] = {
        "ip", "netns", "exec", link->ends[0].space, "iperf3", "-c", link->ends[1].address, "-t", "1", "-J"};
    struct command server = {0}, client = {0};
    char *text = malloc(OUTPUT_MAX);
    bool good = false;

    for (size_t i = 0; i < sizeof(server_words) / sizeof(server_words[0]); i++)
        command_add(&server, server_words[i]);
    for (size_t i = 0; i < sizeof(client_words) / sizeof(client_words[0]); i++)
        command_add(&client, client_words[i]);
    if (!process_exists("iperf3"))
        snprintf(why, why_size, "iperf3 is not installed");
    else if (text == NULL)
        snprintf(why, why_size, "out of memory");
    else if (!run_pair(&server, &client, text, OUTPUT_MAX) || !read_iperf(text, bytes, ns))
        tell(why, why_size, "iperf3", text[0] == '{' ? "unexpected output" : text);
    else
        good = true;
    free(text);
    return good;
}
