/* Pairs of daemons between which pages move, their clients, counters and pools. */
#include "bench/daemons.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/report.h"
#include "tools/util.h"

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

const char *const path_names[] = {"local", "shm", "tcp", "link", NULL};
static const char *const wire_names[BENCH_WIRES] = {"shm", "tcp", "ucx", "pinned", "peer", "nccl", "ucx_cuda"};
static const char *const phase_names[BENCH_PHASES] = {"start",   "connect", "answer", "chunks", "decode",
                                                      "verdict", "offer",   "encode", "send",   "end"};
static const char *const side_names[2] = {"sink", "source"};
#define SINK_PHASES 6u

static const char *const stage_names[BENCH_STAGES] = {"queue", "encode", "wire", "decode", "copy"};

static uint64_t number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) && item->valuedouble > 0 ? (uint64_t)item->valuedouble : 0;
}

static void copy_string(char *to, size_t size, const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    if (text != NULL && text[0] != '\0')
        snprintf(to, size, "%s", text);
}

static void read_all(struct node_figures *figures, const cJSON *root)
{
    const cJSON *counters = cJSON_GetObjectItemCaseSensitive(root, "counters"), *peer;
    const cJSON *stages = cJSON_GetObjectItemCaseSensitive(root, "stages");

    figures->raw_bytes = number(counters, "raw_bytes_sent");
    figures->wire_bytes = number(counters, "wire_bytes_sent");
    for (unsigned i = 0; i < BENCH_WIRES; i++) {
        char name[32];
        snprintf(name, sizeof(name), "wire_bytes_%s", wire_names[i]);
        figures->wires[i] = number(counters, name);
    }
    for (unsigned i = 0; i < BENCH_STAGES; i++) {
        const cJSON *stage = cJSON_GetObjectItemCaseSensitive(stages, stage_names[i]);
        figures->stages[i].count = number(stage, "count");
        figures->stages[i].sum_us = number(stage, "sum_us");
    }
    for (unsigned i = 0; i < BENCH_PHASES; i++) {
        const cJSON *role = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "phases"),
                                                             side_names[i >= SINK_PHASES]);
        const cJSON *phase = cJSON_GetObjectItemCaseSensitive(role, phase_names[i]);
        figures->phases[i].count = number(phase, "count");
        figures->phases[i].sum_us = number(phase, "sum_us");
    }
    cJSON_ArrayForEach(peer, cJSON_GetObjectItemCaseSensitive(root, "peers"))
    {
        copy_string(figures->transport, sizeof(figures->transport), peer, "transport");
        copy_string(figures->policy, sizeof(figures->policy), peer, "coding");
    }
}

static bool node_figures_read(struct node_figures *figures, const char *text, size_t size)
{
    cJSON *root = cJSON_ParseWithLength(text, size);

    *figures = (struct node_figures){0};
    if (root != NULL)
        read_all(figures, root);
    cJSON_Delete(root);
    return root != NULL;
}

void node_figures_add(struct node_figures *used, const struct node_figures *now, uint64_t sign)
{
    for (unsigned i = 0; i < BENCH_STAGES; i++) {
        used->stages[i].count += sign * now->stages[i].count;
        used->stages[i].sum_us += sign * now->stages[i].sum_us;
    }
    for (unsigned i = 0; i < BENCH_PHASES; i++) {
        used->phases[i].count += sign * now->phases[i].count;
        used->phases[i].sum_us += sign * now->phases[i].sum_us;
    }
    used->raw_bytes += sign * now->raw_bytes;
    used->wire_bytes += sign * now->wire_bytes;
    for (unsigned i = 0; i < BENCH_WIRES; i++)
        used->wires[i] += sign * now->wires[i];
}

static void report_phases(const struct node_figures *used, unsigned count, double wall_us, cJSON *row)
{
    cJSON *phases = cJSON_AddObjectToObject(row, "phases_us");
    double sink = 0;

    for (unsigned i = 0; i < BENCH_PHASES; i++) {
        char name[32];
        uint64_t passed = used->phases[i].count;
        double us = passed > 0 ? (double)used->phases[i].sum_us / (double)passed : 0;
        snprintf(name, sizeof(name), "%s%s", i < SINK_PHASES ? "" : "source_", phase_names[i]);
        cJSON_AddNumberToObject(phases, name, us);
        sink += i < SINK_PHASES ? us : 0;
    }
    json_add_known(row, "client_us", used->phases[SINK_PHASES - 1].count == count ? wall_us - sink : 0);
}

void node_figures_report(const struct node_figures *used, unsigned count, double wall_ms, enum strait_coding coding,
                         cJSON *row)
{
    cJSON *wires = cJSON_AddObjectToObject(row, "wires"), *stages = cJSON_AddObjectToObject(row, "stages_ms");
    uint64_t chunks = used->stages[BENCH_DECODE].count + used->stages[BENCH_COPY].count;
    char names[64] = "";
    double sum = 0;

    for (unsigned i = 0; i < BENCH_WIRES; i++) {
        size_t at = strlen(names);
        if (used->wires[i] == 0)
            continue;
        cJSON_AddNumberToObject(wires, wire_names[i], (double)used->wires[i] / count);
        snprintf(names + at, sizeof(names) - at, "%s%s", at > 0 ? "+" : "", wire_names[i]);
    }
    cJSON_AddStringToObject(row, "wire", names);
    json_add_known(row, "wire_bytes", (double)used->wire_bytes / count);
    json_add_known(row, "ratio", used->wire_bytes > 0 ? (double)used->raw_bytes / (double)used->wire_bytes : 0);
    for (unsigned i = 0; i < BENCH_STAGES; i++) {
        double ms = (double)used->stages[i].sum_us * 1e-3 / count;
        cJSON_AddNumberToObject(stages, stage_names[i], ms);
        sum += i == BENCH_QUEUE ? 0 : ms; /* waiting is not work */
    }
    report_phases(used, count, wall_ms * 1e3, row);
    cJSON_AddNumberToObject(row, "wall_ms", wall_ms);
    cJSON_AddNumberToObject(row, "stages_by_wall", sum / wall_ms);
    cJSON_AddNumberToObject(row, "chunks", (double)chunks / count);
    cJSON_AddStringToObject(row, "transport", used->stages[BENCH_COPY].count > 0 ? "copy" : used->transport);
    cJSON_AddStringToObject(row, "policy", coding == STRAIT_CODING_AUTO ? used->policy : "");
}

#define READY_NS    20000000000ull
#define EVENTS      32u
#define STATE_CHECK 200000000ull /* interval for checking whether the daemons still run */

/* ---- The folder ------------------------------------------------------------------------------------------------- */

static bool write_codebook(struct bench_site *site, const struct strait_codebook *codebook)
{
    size_t size = strait_codebook_serialized_size(codebook);
    void *bytes = malloc(size);
    FILE *file = fopen(site->codebook, "we");
    bool good = bytes != NULL && file != NULL && strait_codebook_serialize(codebook, bytes, size) == STRAIT_OK &&
                fwrite(bytes, 1, size, file) == size;

    if (file != NULL)
        good = fclose(file) == 0 && good;
    free(bytes);
    if (!good)
        print_error(site->codebook, "cannot be written");
    return good;
}

static void remove_folder(const char *folder)
{
    DIR *list = opendir(folder);

    if (list == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    rmdir(folder);
}

bool daemon_options_good(const struct text_list *daemon)
{
    for (unsigned i = 0; i < daemon->count; i++) {
        const char *text = daemon->list[i];
        if (text[0] == '-' || strchr(text, '=') == NULL || strlen(text) > 250) {
            print_error(NULL, "--daemon takes \"name=value\", not '%s'", text);
            return false;
        }
    }
    return true;
}

bool bench_site_init(struct bench_site *site, const struct text_list *daemon, const struct strait_codebook *codebook)
{
    static const char name[] = "/strait-bench-XXXXXX";
    const char *place = getenv("TMPDIR");

    *site = (struct bench_site){.daemon = daemon, .straitd = find_straitd()};
    if (site->straitd == NULL)
        return false;
    if (place == NULL || place[0] != '/' || strlen(place) + sizeof(name) > sizeof(site->folder))
        place = "/tmp";
    snprintf(site->folder, sizeof(site->folder), "%s%s", place, name);
    if (mkdtemp(site->folder) == NULL) {
        print_error(site->folder, "%s", strerror(errno));
        free(site->straitd);
        *site = (struct bench_site){0};
        return false;
    }
    snprintf(site->codebook, sizeof(site->codebook), "%s/codebook", site->folder);
    if (write_codebook(site, codebook))
        return true;
    bench_site_fini(site);
    return false;
}

void bench_site_fini(struct bench_site *site)
{
    if (site->folder[0] != '\0')
        remove_folder(site->folder);
    free(site->straitd);
    *site = (struct bench_site){0};
}

/* ---- Daemons ---------------------------------------------------------------------------------------------------- */

void bench_side_print_log(const struct bench_side *side)
{
    char line[512];
    FILE *file = fopen(side->log, "re");

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strstr(line, "level=info") == NULL)
            fprintf(stderr, "  %s: %s", side->name, line);
    if (file != NULL)
        fclose(file);
}

void bench_path_print_logs(const struct bench_path *path)
{
    bench_side_print_log(path->source);
    bench_side_print_log(path->sink);
}

/* Reports how the daemon has ended. */
static void print_end(const struct bench_side *side, int status)
{
    if (WIFSIGNALED(status))
        print_error(NULL, "the daemon of %s was ended by signal %d", side->name, WTERMSIG(status));
    else
        print_error(NULL, "the daemon of %s ended with status %d", side->name, WEXITSTATUS(status));
    bench_side_print_log(side);
}

static bool side_runs(struct bench_side *side)
{
    int status;

    if (side->pid == 0 || process_runs(&side->pid, &status))
        return true;
    print_end(side, status);
    return false;
}

static bool side_stop(struct bench_side *side)
{
    int status = process_stop(&side->pid);

    if (status != 0)
        print_end(side, status);
    return status == 0;
}

static void add_option(struct command *command, const char *name, const char *value)
{
    command_add(command, name);
    command_add(command, value);
}

/* Starts the daemon of `command`, after whose options come those that all have and the site's. */
static bool start_command(struct bench_side *side, struct command *command, const char *listen,
                          const struct bench_site *site)
{
    char further[LIST_MAX][256];

    add_option(command, "--socket", side->socket);
    add_option(command, "--listen", listen);
    add_option(command, "--codebook", site->codebook);
    add_option(command, "--metrics", "");
    for (unsigned i = 0; i < site->daemon->count; i++) {
        snprintf(further[i], sizeof(further[i]), "--%s", site->daemon->list[i]);
        command_add(command, further[i]);
    }
    side->pid = process_start(command, side->log);
    if (side->pid == 0)
        print_error(site->straitd, "cannot be started: %s", strerror(errno));
    return side->pid != 0;
}

/* Where further options ask for UCX, it is used over TCP. `end`: the
 * daemon's network namespace, or NULL. */
static bool start_daemon(struct bench_side *side, const struct bench_path *path, const char *option,
                         const struct bench_site *site, const struct bench_link_end *end)
{
    static const char *const transports[PATH_KINDS] = {"shm", "shm", "tcp", "tcp"};
    struct command command = {0};
    char listen[64] = "127.0.0.1:0", ucx[128] = "tls=tcp devices=lo";

    if (end != NULL) {
        snprintf(listen, sizeof(listen), "%s:0", end->address);
        snprintf(ucx, sizeof(ucx), "listen=%s tls=tcp devices=%s", end->address, end->device);
        add_option(&command, "ip", "netns");
        add_option(&command, "exec", end->space);
    }
    command_add(&command, site->straitd);
    if (end != NULL)
        command_add(&command, "--insecure-no-auth");
    add_option(&command, "--transports", transports[path->kind]);
    add_option(&command, "--ucx-options", ucx);
    if (option != NULL)
        command_add(&command, option);
    return start_command(side, &command, listen, site);
}

static void name_side(struct bench_side *side, const char *first, const char *second, const struct bench_site *site)
{
    snprintf(side->name, sizeof(side->name), "%s-%s", first, second);
    snprintf(side->socket, sizeof(side->socket), "%s/%.15s.sock", site->folder, side->name);
    snprintf(side->log, sizeof(side->log), "%s/%.15s.log", site->folder, side->name);
}

/* Whether the side is of this path alone. */
static bool is_own(const struct bench_path *path, const struct bench_side *side)
{
    return side == &path->own[0] || side == &path->own[1];
}

static bool start_daemons(struct bench_path *path, const char *option, const struct bench_site *site)
{
    const struct bench_link_end *ends = path->link.ends;
    bool spaced = path->kind == PATH_LINK;

    if (is_own(path, path->source) && !start_daemon(path->source, path, option, site, spaced ? &ends[0] : NULL))
        return false;
    if (path->kind == PATH_LOCAL)
        memcpy(path->sink->socket, path->source->socket, sizeof(path->sink->socket));
    else if (is_own(path, path->sink))
        return start_daemon(path->sink, path, option, site, spaced ? &ends[1] : NULL);
    return true;
}

/* Waits for the daemon's socket, without which a client tries again only after a while. */
static bool await_socket(struct bench_side *side)
{
    for (uint64_t end = clock_ns() + READY_NS; access(side->socket, F_OK) != 0 && clock_ns() < end; sleep_ms(2))
        if (interrupted() || !side_runs(side))
            return false;
    return true;
}

/* Of a side that has none yet. */
static bool open_client(struct bench_side *side)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = side->socket};
    enum strait_status status = side->client != NULL ? STRAIT_OK : strait_client_open(&config, &side->client);

    if (status != STRAIT_OK)
        print_error(NULL, "no client: %s", strait_status_string(status));
    return status == STRAIT_OK;
}

static bool connect_client(struct bench_side *side)
{
    uint64_t end = clock_ns() + READY_NS;

    if (!await_socket(side) || !open_client(side))
        return false;
    while (!strait_client_connected(side->client)) {
        if (clock_ns() > end) {
            print_error(NULL, "the daemon of %s does not answer", side->name);
            bench_side_print_log(side);
            return false;
        }
        if (!bench_sides_work(&side, 1, 10000000))
            return false;
    }
    return true;
}

static bool open_path(struct bench_path *path, const char *option, const struct bench_site *site)
{
    name_side(&path->own[0], path->name, "source", site);
    name_side(&path->own[1], path->name, "sink", site);
    if (path->kind == PATH_LINK && !bench_link_open(&path->link, path->why, sizeof(path->why)))
        return true;
    path->up = start_daemons(path, option, site) && connect_client(path->source) && connect_client(path->sink);
    return path->up;
}

bool bench_path_open(struct bench_path *path, enum path_kind kind, const char *name, const char *option,
                     const struct bench_site *site)
{
    *path = (struct bench_path){.kind = kind, .name = name, .source = &path->own[0], .sink = &path->own[1]};
    return open_path(path, option, site);
}

bool bench_path_open_beside(struct bench_path *path, const struct bench_path *other, bool shares_source,
                            const char *name, const char *option, const struct bench_site *site)
{
    *path = (struct bench_path){.kind = other->kind,
                                .name = name,
                                .source = shares_source ? other->source : &path->own[0],
                                .sink = shares_source ? &path->own[1] : other->sink};
    return open_path(path, option, site);
}

bool bench_path_close(struct bench_path *path)
{
    bool ended = true;

    for (int i = 0; i < 2; i++) {
        strait_client_close(path->own[i].client);
        path->own[i].client = NULL;
    }
    for (int i = 0; i < 2; i++)
        ended = side_stop(&path->own[i]) && ended;
    bench_link_close(&path->link);
    path->up = false;
    return ended;
}

/* Whether an option of all daemons begins so. */
static bool has_option(const struct bench_site *site, const char *beginning)
{
    for (unsigned i = 0; i < site->daemon->count; i++)
        if (strncmp(site->daemon->list[i], beginning, strlen(beginning)) == 0)
            return true;
    return false;
}

bool bench_side_open(struct bench_side *side, const char *name, const char *listen, const struct bench_site *site)
{
    struct command command = {0};

    *side = (struct bench_side){0};
    name_side(side, "hosts", name, site);
    command_add(&command, site->straitd);
    if (!has_option(site, "secret-file=") && !has_option(site, "tls-certificate="))
        command_add(&command, "--insecure-no-auth");
    return start_command(side, &command, listen, site) && connect_client(side);
}

bool bench_side_close(struct bench_side *side)
{
    strait_client_close(side->client);
    side->client = NULL;
    return side_stop(side);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void leg_end(struct bench_leg *leg, const struct strait_event *event, uint64_t now)
{
    leg->ended = true;
    leg->ended_ns = now;
    leg->reason = event->reason;
    leg->drained = event->drained;
    leg->raw_bytes = event->raw_bytes;
    leg->wire_bytes = event->wire_bytes;
    snprintf(leg->text, sizeof(leg->text), "%s", event->text != NULL ? event->text : "");
}

static void leg_take(struct bench_leg *leg, const struct strait_event *event, uint64_t now)
{
    switch (event->type) {
    case STRAIT_EVENT_STATE:
        leg->state = event->state;
        if (event->state == STRAIT_DONE || event->state == STRAIT_FAILED)
            leg_end(leg, event, now);
        break;
    case STRAIT_EVENT_DRAINED:
        leg->drained = true;
        break;
    default:
        break;
    }
}

static void side_take(struct bench_side *side, const struct strait_event *event, uint64_t now)
{
    if (event->context != NULL)
        leg_take(event->context, event, now);
    else if (event->type == STRAIT_EVENT_STATS)
        side->answered = node_figures_read(&side->figures, event->data, event->data_size);
    else if (event->type == STRAIT_EVENT_POOL && event->status == STRAIT_OK)
        side->pools_ready++;
    else if (event->type == STRAIT_EVENT_POOL) {
        print_error(NULL, "%s refused a pool: %s", side->name, event->text);
        side->refused = true;
    }
}

/* Handles pending events and returns their number. */
static uint32_t side_work(struct bench_side *side)
{
    struct strait_event events[EVENTS];
    uint32_t count, total = 0;

    do {
        count = strait_poll(side->client, events, EVENTS);
        uint64_t now = clock_ns();
        for (uint32_t i = 0; i < count; i++)
            side_take(side, &events[i], now);
        total += count;
    } while (count == EVENTS);
    return total;
}

bool bench_sides_work(struct bench_side *const *sides, unsigned count, uint64_t timeout_ns)
{
    struct pollfd fds[BENCH_SIDES_MAX];
    uint64_t wait = timeout_ns < STATE_CHECK ? timeout_ns : STATE_CHECK;
    struct timespec timeout = {.tv_nsec = (long)wait};
    uint32_t handled = 0;
    bool refused = false;

    for (unsigned i = 0; i < count; i++) {
        handled += side_work(sides[i]);
        fds[i] = (struct pollfd){.fd = strait_client_fd(sides[i]->client), .events = POLLIN};
    }
    if (handled == 0 && wait > 0) {
        int ready = ppoll(fds, count, &timeout, NULL);
        for (unsigned i = 0; i < count; i++) {
            if (fds[i].revents != 0)
                side_work(sides[i]);
            if (ready == 0 && !side_runs(sides[i]))
                return false;
        }
    }
    for (unsigned i = 0; i < count; i++)
        refused |= sides[i]->refused;
    return !interrupted() && !refused;
}

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

static bool ask(struct bench_side *side)
{
    uint64_t end = clock_ns() + READY_NS;
    enum strait_status status;

    side->answered = false;
    status = strait_stats(side->client);
    while (status == STRAIT_OK && !side->answered && clock_ns() < end)
        if (!bench_sides_work(&side, 1, 100000000))
            return false;
    if (!side->answered)
        print_error(NULL, "%s sends no statistics", side->name);
    return side->answered;
}

bool bench_path_figures(struct bench_path *path, struct node_figures *source, struct node_figures *sink)
{
    if (!ask(path->source) || !ask(path->sink))
        return false;
    *source = path->source->figures;
    *sink = path->sink->figures;
    return true;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

#define POOLS_NS   30000000000ull /* long, as the first pool of a GPU starts its driver and pins memory */
#define BLOB_BYTES (1024u * 1024)

bool bench_side_register(struct bench_side *side, const struct strait_pool_region *regions, uint32_t count,
                         struct strait_pool **pool)
{
    const struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = count};
    enum strait_status status = strait_pool_register(side->client, &params, pool);

    side->pools_asked += status == STRAIT_OK;
    if (status != STRAIT_OK)
        print_error(NULL, "%s: no pool: %s", side->name, strait_status_string(status));
    return status == STRAIT_OK;
}

static bool introduce(const struct strait_pool *pool, struct strait_client *client, struct strait_peer **peer)
{
    uint8_t *blob = malloc(BLOB_BYTES);
    size_t size;
    enum strait_status status = blob == NULL ? STRAIT_ERR_NO_MEMORY : strait_pool_export(pool, blob, BLOB_BYTES, &size);

    if (status == STRAIT_OK)
        status = strait_peer_import(client, blob, size, peer);
    free(blob);
    if (status != STRAIT_OK)
        print_error(NULL, "pools cannot be introduced: %s", strait_status_string(status));
    return status == STRAIT_OK;
}

bool bench_side_await_pools(struct bench_side *side)
{
    uint64_t end = clock_ns() + POOLS_NS;

    while (side->pools_ready < side->pools_asked) {
        if (clock_ns() > end) {
            print_error(NULL, "the daemon of %s does not take the pools", side->name);
            return false;
        }
        if (!bench_sides_work(&side, 1, 100000000))
            return false;
    }
    return true;
}

bool bench_path_introduce(struct bench_path *path, struct bench_pools *pools)
{
    return bench_side_await_pools(path->source) && bench_side_await_pools(path->sink) &&
           introduce(pools->source, path->sink->client, &pools->source_peer) &&
           introduce(pools->sink, path->source->client, &pools->sink_peer);
}
