/* Pairs of daemons between which pages move, their clients and pools, and the moves, timed and checked. */
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

/* One side of a transfer: the context of its events. */
struct leg {
    struct strait_transfer *transfer;
    enum strait_state state;
    enum strait_reason reason;
    char text[96];
    bool ended, drained;
    uint64_t ended_ns;
};

static bool bench_path_work(struct bench_path *path, uint64_t timeout_ns);

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

const char *const path_names[] = {"local", "shm", "tcp", "link", NULL};
static const char *const wire_names[BENCH_WIRES] = {"shm", "tcp", "ucx", "pinned", "peer", "nccl", "ucx_cuda"};
static const char *const phase_names[BENCH_PHASES] = {"start",   "connect", "answer", "chunks", "decode",
                                                      "verdict", "offer",   "encode", "send",   "end"};
static const char *const sides[2] = {"sink", "source"};
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
        const cJSON *role =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "phases"), sides[i >= SINK_PHASES]);
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

    *site = (struct bench_site){.daemon = daemon, .straitd = process_find_straitd()};
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

static void print_log(const struct bench_side *side)
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
    print_log(&path->source);
    print_log(&path->sink);
}

/* Reports how the daemon has ended. */
static void print_end(const struct bench_side *side, int status)
{
    if (WIFSIGNALED(status))
        print_error(NULL, "the daemon of %s was ended by signal %d", side->name, WTERMSIG(status));
    else
        print_error(NULL, "the daemon of %s ended with status %d", side->name, WEXITSTATUS(status));
    print_log(side);
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

/* Where further options ask for UCX, it is used over TCP. `end`: the
 * daemon's network namespace, or NULL. */
static bool start_daemon(struct bench_side *side, const struct bench_path *path, const char *option,
                         const struct bench_site *site, const struct bench_link_end *end)
{
    static const char *const transports[PATH_KINDS] = {"shm", "shm", "tcp", "tcp"};
    struct command command = {0};
    char listen[64] = "127.0.0.1:0", ucx[128] = "tls=tcp devices=lo", further[LIST_MAX][256];

    if (end != NULL) {
        snprintf(listen, sizeof(listen), "%s:0", end->address);
        snprintf(ucx, sizeof(ucx), "listen=%s tls=tcp devices=%s", end->address, end->device);
        add_option(&command, "ip", "netns");
        add_option(&command, "exec", end->space);
    }
    command_add(&command, site->straitd);
    if (end != NULL)
        command_add(&command, "--insecure-no-auth");
    add_option(&command, "--socket", side->socket);
    add_option(&command, "--listen", listen);
    add_option(&command, "--codebook", site->codebook);
    add_option(&command, "--transports", transports[path->kind]);
    add_option(&command, "--ucx-options", ucx);
    add_option(&command, "--metrics", "");
    if (option != NULL)
        command_add(&command, option);
    for (unsigned i = 0; i < site->daemon->count; i++) {
        snprintf(further[i], sizeof(further[i]), "--%s", site->daemon->list[i]);
        command_add(&command, further[i]);
    }
    side->pid = process_start(&command, side->log);
    if (side->pid == 0)
        print_error(site->straitd, "cannot be started: %s", strerror(errno));
    return side->pid != 0;
}

static void name_side(struct bench_side *side, const struct bench_path *path, const char *role,
                      const struct bench_site *site)
{
    snprintf(side->name, sizeof(side->name), "%s-%s", path->name, role);
    snprintf(side->socket, sizeof(side->socket), "%s/%s.sock", site->folder, side->name);
    snprintf(side->log, sizeof(side->log), "%s/%s.log", site->folder, side->name);
}

static bool start_daemons(struct bench_path *path, const char *option, const struct bench_site *site)
{
    const struct bench_link_end *ends = path->link.ends;
    bool spaced = path->kind == PATH_LINK;

    if (!start_daemon(&path->source, path, option, site, spaced ? &ends[0] : NULL))
        return false;
    if (path->kind != PATH_LOCAL)
        return start_daemon(&path->sink, path, option, site, spaced ? &ends[1] : NULL);
    memcpy(path->sink.socket, path->source.socket, sizeof(path->sink.socket));
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

static bool open_client(struct bench_side *side)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = side->socket};
    enum strait_status status = strait_client_open(&config, &side->client);

    if (status != STRAIT_OK)
        print_error(NULL, "no client: %s", strait_status_string(status));
    return status == STRAIT_OK;
}

static bool connect_clients(struct bench_path *path)
{
    uint64_t end = clock_ns() + READY_NS;

    if (!await_socket(&path->source) || !await_socket(&path->sink) || !open_client(&path->source) ||
        !open_client(&path->sink))
        return false;
    while (!strait_client_connected(path->source.client) || !strait_client_connected(path->sink.client)) {
        if (clock_ns() > end) {
            print_error(NULL, "the daemons of path %s do not answer", path->name);
            bench_path_print_logs(path);
            return false;
        }
        if (!bench_path_work(path, 10000000))
            return false;
    }
    return true;
}

bool bench_path_open(struct bench_path *path, enum path_kind kind, const char *name, const char *option,
                     const struct bench_site *site)
{
    *path = (struct bench_path){.kind = kind, .name = name};
    name_side(&path->source, path, "source", site);
    name_side(&path->sink, path, "sink", site);
    if (kind == PATH_LINK && !bench_link_open(&path->link, path->why, sizeof(path->why)))
        return true;
    if (!start_daemons(path, option, site) || !connect_clients(path))
        return false;
    path->up = true;
    return true;
}

bool bench_path_close(struct bench_path *path)
{
    bool ended;

    strait_client_close(path->source.client);
    strait_client_close(path->sink.client);
    path->source.client = path->sink.client = NULL;
    ended = side_stop(&path->source);
    ended = side_stop(&path->sink) && ended;
    bench_link_close(&path->link);
    path->up = false;
    return ended;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void leg_end(struct leg *leg, const struct strait_event *event, uint64_t now)
{
    leg->ended = true;
    leg->ended_ns = now;
    leg->reason = event->reason;
    leg->drained = event->drained;
    snprintf(leg->text, sizeof(leg->text), "%s", event->text != NULL ? event->text : "");
}

static void leg_take(struct leg *leg, const struct strait_event *event, uint64_t now)
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

/* Polls the sink first, because its events are timed. */
static bool bench_path_work(struct bench_path *path, uint64_t timeout_ns)
{
    struct pollfd fds[2] = {{.fd = strait_client_fd(path->sink.client), .events = POLLIN},
                            {.fd = strait_client_fd(path->source.client), .events = POLLIN}};
    uint64_t wait = timeout_ns < STATE_CHECK ? timeout_ns : STATE_CHECK;
    struct timespec timeout = {.tv_nsec = (long)wait};
    uint32_t count = side_work(&path->sink) + side_work(&path->source);

    if (count == 0 && wait > 0) {
        int ready = ppoll(fds, 2, &timeout, NULL);
        if (fds[0].revents != 0)
            side_work(&path->sink);
        if (fds[1].revents != 0)
            side_work(&path->source);
        if (ready == 0 && (!side_runs(&path->source) || !side_runs(&path->sink)))
            return false;
    }
    return !interrupted() && !path->source.refused && !path->sink.refused;
}

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

static bool ask(struct bench_path *path, struct bench_side *side)
{
    uint64_t end = clock_ns() + READY_NS;
    enum strait_status status;

    side->answered = false;
    status = strait_stats(side->client);
    while (status == STRAIT_OK && !side->answered && clock_ns() < end)
        if (!bench_path_work(path, 100000000))
            return false;
    if (!side->answered)
        print_error(NULL, "%s sends no statistics", side->name);
    return side->answered;
}

bool bench_path_figures(struct bench_path *path, struct node_figures *source, struct node_figures *sink)
{
    if (!ask(path, &path->source) || !ask(path, &path->sink))
        return false;
    *source = path->source.figures;
    *sink = path->sink.figures;
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

static bool wait_pools(struct bench_path *path)
{
    uint64_t end = clock_ns() + POOLS_NS;

    while (path->source.pools_ready < path->source.pools_asked || path->sink.pools_ready < path->sink.pools_asked) {
        if (clock_ns() > end) {
            print_error(NULL, "the daemons of path %s do not take the pools", path->name);
            return false;
        }
        if (!bench_path_work(path, 100000000))
            return false;
    }
    return true;
}

bool bench_path_introduce(struct bench_path *path, struct bench_pools *pools)
{
    return wait_pools(path) && introduce(pools->source, path->sink.client, &pools->source_peer) &&
           introduce(pools->sink, path->source.client, &pools->sink_peer);
}

#define LEASE_MS         60000u /* deadline and lease, */
#define LEASE_MS_PER_MIB 100u   /* plus this for large requests on slow links */
#define LOOK_NS          100000000u
#define SPIN_NS          20000000u

struct legs {
    struct leg *source, *sink;
    uint64_t *started;
    uint32_t count;
    uint64_t round; /* part of the keys */
};

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

static bool succeeded(enum strait_status status, const char *call)
{
    if (status != STRAIT_OK)
        print_error(NULL, "%s: %s", call, strait_status_string(status));
    return status == STRAIT_OK;
}

static bool legs_init(struct legs *legs, uint32_t count)
{
    static uint64_t rounds;

    *legs = (struct legs){.count = count, .round = ++rounds};
    legs->source = calloc(count, sizeof(legs->source[0]));
    legs->sink = calloc(count, sizeof(legs->sink[0]));
    legs->started = calloc(count, sizeof(legs->started[0]));
    if (legs->source != NULL && legs->sink != NULL && legs->started != NULL)
        return true;
    print_error(NULL, "out of memory");
    return false;
}

static void legs_fini(struct legs *legs)
{
    for (uint32_t i = 0; legs->source != NULL && legs->sink != NULL && i < legs->count; i++) {
        strait_release(legs->source[i].transfer);
        strait_release(legs->sink[i].transfer);
    }
    free(legs->source);
    free(legs->sink);
    free(legs->started);
}

static bool offer_or_expect(const struct move *move, struct legs *legs, uint32_t request, bool offers)
{
    const uint32_t *ids = (offers ? move->from : move->to) + (size_t)request * move->pages;
    const struct strait_page_list list = {.count = move->pages, .ids = ids};
    const uint32_t limit_ms = LEASE_MS + (uint32_t)(move->bytes >> 20) * LEASE_MS_PER_MIB;
    char key[48];
    size_t key_size =
        (size_t)snprintf(key, sizeof(key), "round-%llu-%u", (unsigned long long)legs->round, (unsigned)request);
    struct strait_offer_params offer = {
        .size = sizeof(offer),
        .key = key,
        .key_size = key_size,
        .lists = &list,
        .list_count = 1,
        .lease_ms = limit_ms,
        .last = true,
        .context = &legs->source[request],
    };
    struct strait_expect_params expect = {
        .size = sizeof(expect),
        .key = key,
        .key_size = key_size,
        .lists = &list,
        .list_count = 1,
        .deadline_ms = limit_ms,
        .context = &legs->sink[request],
    };

    if (offers)
        return succeeded(strait_offer(move->pools->source, &offer, &legs->source[request].transfer), "offer");
    return succeeded(strait_expect(move->pools->sink, &expect, &legs->sink[request].transfer), "expect");
}

static bool start(const struct move *move, struct legs *legs, uint32_t request)
{
    const struct strait_start_params params = {.size = sizeof(params), .direction = move->direction};

    if (move->direction == STRAIT_PUSH)
        return succeeded(strait_start(legs->source[request].transfer, move->pools->sink_peer, &params), "start");
    return succeeded(strait_start(legs->sink[request].transfer, move->pools->source_peer, &params), "start");
}

static bool wait_ended(const struct move *move, const struct leg *legs, uint32_t count, const char *side, bool drained)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct leg *leg = &legs[i];
        while (!leg->ended || (drained && !leg->drained))
            if (!bench_path_work(move->path, move->polls ? 0 : LOOK_NS))
                return false;
        if (leg->state == STRAIT_FAILED) {
            print_error(NULL, "a transfer over %s failed at the %s: %s%s%s", move->path->name, side,
                        strait_reason_string(leg->reason), leg->text[0] != '\0' ? ": " : "", leg->text);
            bench_path_print_logs(move->path);
            return false;
        }
    }
    return true;
}

/* The side that waits makes its calls before the time begins. */
static bool run_requests(const struct move *move, struct legs *legs)
{
    bool push = move->direction == STRAIT_PUSH, good = move->wipe(move->arg);

    for (uint32_t i = 0; good && i < legs->count; i++)
        good = offer_or_expect(move, legs, i, !push);
    good = good && bench_path_work(move->path, 0); /* makes sure that all are written to the daemon's socket */
    if (move->gap_us != 0)
        usleep(move->gap_us);
    for (uint32_t i = 0; good && i < legs->count; i++) {
        legs->started[i] = clock_ns();
        good = offer_or_expect(move, legs, i, push) && start(move, legs, i);
    }
    return good && wait_ended(move, legs->sink, legs->count, "sink", false);
}

/* Both sides make their calls before; then the client polls without sleeping, as an engine does between two steps. */
static bool run_from_start(const struct move *move, struct legs *legs)
{
    if (!offer_or_expect(move, legs, 0, true) || !offer_or_expect(move, legs, 0, false) ||
        !bench_path_work(move->path, 0) || !move->wipe(move->arg) || !bench_path_work(move->path, 0))
        return false;
    legs->started[0] = clock_ns();
    if (!start(move, legs, 0))
        return false;
    while (!legs->sink[0].ended && clock_ns() < legs->started[0] + SPIN_NS)
        if (!bench_path_work(move->path, 0))
            return false;
    return wait_ended(move, legs->sink, 1, "sink", false);
}

static bool run_move(const struct move *move, bool (*run)(const struct move *move, struct legs *legs), uint64_t *ns,
                     uint64_t *request_ns, uint64_t *wrong)
{
    uint64_t last = 0;
    struct legs legs;
    bool good = legs_init(&legs, move->requests) &&
                succeeded(strait_set_policy(move->pools->source, move->coding), "set_policy") && run(move, &legs);

    for (uint32_t i = 0; good && i < legs.count; i++) {
        last = legs.sink[i].ended_ns > last ? legs.sink[i].ended_ns : last;
        request_ns[i] = legs.sink[i].ended_ns - legs.started[i];
        *ns = last - legs.started[0];
    }
    good = good && wait_ended(move, legs.source, legs.count, "source", true) &&
           wait_ended(move, legs.sink, legs.count, "sink", true) && move->count_wrong(move->arg, wrong);
    legs_fini(&legs);
    return good;
}

bool move_requests(const struct move *move, uint64_t *ns, uint64_t *request_ns, uint64_t *wrong)
{
    return run_move(move, run_requests, ns, request_ns, wrong);
}

bool move_from_start(const struct move *move, uint64_t *ns, uint64_t *wrong)
{
    uint64_t request_ns;

    return run_move(move, run_from_start, ns, &request_ns, wrong);
}
