#include "tests/soak/world.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/soak/move.h"
#include "tests/support.h"

#define TOLD_MAX 20u

static uint32_t complaint_count;

void complain(const char *format, ...)
{
    va_list arguments;
    if (complaint_count++ >= TOLD_MAX)
        return;
    fflush(stdout);
    fprintf(stderr, "soak: FAIL: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

uint32_t complaints(void)
{
    return complaint_count;
}

bool too_many_complaints(void)
{
    return complaint_count >= TOLD_MAX;
}

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

#define READY_MS 20000u
#define STOP_MS  30000u
#define STEP_MS  2u

static void daemon_init(struct soak_daemon *daemon, const char *program, const char *folder, const char *name,
                        const struct daemon_options *options)
{
    *daemon = (struct soak_daemon){.program = program, .folder = folder, .options = *options, .reserved = {-1, -1, -1}};
    if (daemon->options.host == NULL)
        daemon->options.host = "127.0.0.1";
    snprintf(daemon->name, sizeof(daemon->name), "%s", name);
    snprintf(daemon->socket, sizeof(daemon->socket), "%s/%s.sock", folder, name);
    snprintf(daemon->log, sizeof(daemon->log), "%s/%s.log", folder, name);
}

static bool choose_ports(struct soak_daemon *daemon)
{
    const int family = strchr(daemon->options.host, ':') != NULL ? AF_INET6 : AF_INET;
    daemon->port = port_reserve_of(family, &daemon->reserved[0]);
    daemon->metrics_port = port_reserve(&daemon->reserved[1]);
    if (daemon->options.relayed)
        daemon->front = port_reserve_of(family, &daemon->reserved[2]);
    if (daemon->port != 0 && daemon->metrics_port != 0 && (daemon->front != 0 || !daemon->options.relayed))
        return true;
    complain("there is no port for daemon %s", daemon->name);
    return false;
}

static void print_address(char *text, size_t size, const char *host, unsigned port)
{
    if (strchr(host, ':') != NULL)
        snprintf(text, size, "[%s]:%u", host, port);
    else
        snprintf(text, size, "%s:%u", host, port);
}

/* `more`: one more option, or NULL. Returns the pid, or 0: complained. */
static pid_t spawn(struct soak_daemon *daemon, const char *more)
{
    enum { EXTRA_MAX = 16 };
    const struct daemon_options *options = &daemon->options;
    char listen[64], advertise[64] = "", metrics[32], arena[32], chunk[32], codebook[DAEMON_PATH_MAX];
    struct stat log;
    print_address(listen, sizeof(listen), options->host, daemon->port);
    if (daemon->front != 0)
        print_address(advertise, sizeof(advertise), options->host, daemon->front);
    snprintf(metrics, sizeof(metrics), "127.0.0.1:%u", daemon->metrics_port);
    snprintf(arena, sizeof(arena), "%" PRIu64, options->arena_bytes);
    snprintf(chunk, sizeof(chunk), "%" PRIu64, options->chunk_bytes);
    snprintf(codebook, sizeof(codebook), "%s/codebook", daemon->folder);
    const char *const own[] = {daemon->program,
                               "--socket",
                               daemon->socket,
                               "--listen",
                               listen,
                               "--advertise",
                               advertise,
                               "--metrics",
                               metrics,
                               "--transports",
                               options->transports,
                               "--ucx-options",
                               "tls=tcp devices=lo",
                               "--codebook",
                               codebook,
                               "--arena-bytes",
                               arena,
                               "--chunk-bytes",
                               chunk,
                               "--workers",
                               "2",
                               "--drain-timeout",
                               "2s"};
    const char *arguments[COUNT(own) + EXTRA_MAX + 2];
    int count = COUNT(own);
    memcpy(arguments, own, sizeof(own));
    for (int i = 0; options->extra != NULL && options->extra[i] != NULL && i < EXTRA_MAX; i++)
        arguments[count++] = options->extra[i];
    arguments[count++] = more;
    arguments[count] = NULL;
    daemon->log_begin = stat(daemon->log, &log) == 0 ? (long)log.st_size : 0;
    const pid_t pid = daemon_spawn(&(struct daemon_start){.arguments = arguments, .log = daemon->log});
    if (pid < 0)
        complain("daemon %s cannot be started: %s", daemon->name, strerror(errno));
    return pid > 0 ? pid : 0;
}

bool daemon_launch(struct soak_daemon *daemon)
{
    daemon->pid = spawn(daemon, NULL);
    return daemon->pid != 0;
}

/* True until it has ended; then *status is how. */
static bool lives(struct soak_daemon *daemon, int *status)
{
    if (daemon->pid == 0 || waitpid(daemon->pid, status, WNOHANG) == 0)
        return daemon->pid != 0;
    daemon->pid = 0;
    return false;
}

static void tell_log(const struct soak_daemon *daemon)
{
    char what[64];
    snprintf(what, sizeof(what), "the log of daemon %s begins with", daemon->name);
    log_print(daemon->log, daemon->log_begin, what);
}

/* A daemon whose loop runs answers. */
bool daemon_await_ready(struct soak_daemon *daemon)
{
    int status;
    for (uint64_t end = now_ms() + READY_MS; now_ms() < end && lives(daemon, &status); rest_ms(STEP_MS)) {
        char *text = daemon_metrics(daemon);
        free(text);
        if (text != NULL)
            return true;
    }
    complain("daemon %s does not become ready", daemon->name);
    tell_log(daemon);
    return false;
}

bool daemon_runs(struct soak_daemon *daemon)
{
    int status;
    if (daemon->pid == 0)
        return false;
    if (lives(daemon, &status))
        return true;
    complain("daemon %s ended by itself, with status 0x%x", daemon->name, (unsigned)status);
    tell_log(daemon);
    return false;
}

void daemon_stop(struct soak_daemon *daemon)
{
    int status = 0;
    if (daemon->pid == 0)
        return;
    kill(daemon->pid, SIGTERM);
    for (unsigned waited = 0; lives(daemon, &status); waited += STEP_MS) {
        if (waited >= STOP_MS) {
            complain("daemon %s does not end", daemon->name);
            daemon_kill(daemon);
            return;
        }
        rest_ms(STEP_MS);
    }
    if (status != 0) {
        complain("daemon %s ended with status 0x%x", daemon->name, (unsigned)status);
        tell_log(daemon);
    }
}

void daemon_kill(struct soak_daemon *daemon)
{
    if (daemon->pid == 0)
        return;
    kill(daemon->pid, SIGKILL);
    (void)process_reap(daemon->pid);
    daemon->pid = 0;
}

void daemon_leave(struct soak_daemon *daemon)
{
    kill(daemon->pid, SIGTERM);
    daemon->leaving = daemon->pid;
    daemon->pid = 0;
}

bool daemon_replace(struct soak_daemon *daemon)
{
    daemon->leaving = daemon->pid;
    daemon->pid = spawn(daemon, "--replace");
    return daemon->pid != 0;
}

bool daemon_left(struct soak_daemon *daemon)
{
    int status = 0;
    if (daemon->leaving == 0)
        return true;
    if (waitpid(daemon->leaving, &status, WNOHANG) == 0)
        return false;
    daemon->leaving = 0;
    if (status != 0) {
        complain("daemon %s, which was to leave, ended with status 0x%x", daemon->name, (unsigned)status);
        tell_log(daemon);
    }
    return true;
}

char *daemon_metrics(const struct soak_daemon *daemon)
{
    return metrics_fetch(daemon->metrics_port, 10000);
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

#define SAMPLE_BYTES (1u << 20)
#define WIPED        0xEE

/* Values whose exponents are as the codebook wants them, and a few pages' worth of noise. */
static const uint8_t *sample(void)
{
    static uint8_t *bytes;
    if (bytes != NULL)
        return bytes;
    struct rng rng = rng_init(1);
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    require((bytes = malloc(SAMPLE_BYTES)) != NULL);
    fill_pattern(&rng, PATTERN_FALLING, ranking, bytes, SAMPLE_BYTES / 8 * 7);
    fill_pattern(&rng, PATTERN_NOISE, ranking, bytes + SAMPLE_BYTES / 8 * 7, SAMPLE_BYTES / 8);
    return bytes;
}

static void fill(uint8_t *dst, size_t size)
{
    for (size_t at = 0; at < size; at += SAMPLE_BYTES)
        memcpy(dst + at, sample(), size - at < SAMPLE_BYTES ? size - at : SAMPLE_BYTES);
}

static uint64_t region_offset(const struct form *form, uint32_t region)
{
    uint64_t layer_bytes = (uint64_t)form->roles * form->ids * form->page_bytes;
    uint64_t role_bytes = form->interleaved ? form->page_bytes : (uint64_t)form->ids * form->page_bytes;
    return region / form->roles * layer_bytes + region % form->roles * role_bytes;
}

static uint64_t page_stride(const struct form *form)
{
    return (uint64_t)form->page_bytes * (form->interleaved ? form->roles : 1);
}

uint8_t *pool_page(const struct pool *pool, uint32_t region, uint32_t id)
{
    return (uint8_t *)pool->memory.base + region_offset(&pool->form, region) + id * page_stride(&pool->form);
}

static struct strait_pool_region describe(const struct pool *pool, uint32_t region)
{
    const struct form *form = &pool->form;
    return (struct strait_pool_region){
        .handle = STRAIT_HANDLE_MEMFD,
        .device = -1,
        .fd = pool->memory.fd,
        .offset = region_offset(form, region),
        .page_stride = page_stride(form),
        .page_count = form->ids,
        .rows = 1,
        .row_bytes = form->page_bytes,
        .element = form->element != 0 ? form->element : STRAIT_ELEMENT_BF16,
        .role = region % form->roles == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
        .layer = (int32_t)(region / form->roles),
    };
}

static bool enroll(struct pool *pool, struct strait_client *client)
{
    uint32_t count = form_regions(&pool->form);
    struct strait_pool_region *regions = calloc(count, sizeof(*regions));
    for (uint32_t i = 0; regions != NULL && i < count; i++)
        regions[i] = describe(pool, i);
    const struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = count};
    bool good = regions != NULL && strait_pool_register(client, &params, &pool->pool) == STRAIT_OK;
    free(regions);
    return good;
}

bool pool_init(struct pool *pool, struct worker *worker, struct strait_client *client, const struct form *form)
{
    *pool = (struct pool){.worker = worker, .form = *form, .memory.fd = -1};
    pool->vacant = calloc(form->ids, sizeof(*pool->vacant));
    if (pool->vacant == NULL || strait_alloc(form_id_bytes(form) * form->ids, &pool->memory) != STRAIT_OK)
        return false;
    for (; pool->vacant_count < form->ids; pool->vacant_count++)
        pool->vacant[pool->vacant_count] = pool->vacant_count;
    fill(pool->memory.base, pool->memory.size);
    return enroll(pool, client);
}

void pool_fini(struct pool *pool)
{
    free(pool->vacant);
    if (pool->memory.base != NULL)
        strait_free(&pool->memory);
    *pool = (struct pool){.memory.fd = -1};
}

void pool_wipe(struct pool *pool, uint32_t id)
{
    for (uint32_t region = 0; region < form_regions(&pool->form); region++)
        memset(pool_page(pool, region, id), WIPED, pool->form.page_bytes);
}

void pool_watch(struct pool *pool)
{
    for (uint32_t id = 0; id < pool->form.ids; id++)
        pool_wipe(pool, id);
    pool->watched = true;
}

bool pool_is_wiped(const struct pool *pool)
{
    for (uint32_t i = 0; i < pool->vacant_count; i++)
        for (uint32_t region = 0; region < form_regions(&pool->form); region++)
            if (!is_filled(pool_page(pool, region, pool->vacant[i]), pool->form.page_bytes, WIPED))
                return false;
    return true;
}

void pool_take(struct pool *pool, uint32_t *ids, uint32_t count)
{
    static struct rng rng;
    if (rng.state == 0)
        rng = rng_init(2);
    require(count <= pool->vacant_count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = rng_below(&rng, pool->vacant_count);
        ids[i] = pool->vacant[at];
        pool->vacant[at] = pool->vacant[--pool->vacant_count];
    }
}

void pool_give(struct pool *pool, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pool->vacant[pool->vacant_count++] = ids[i];
}

#define CONNECT_MS 20000u
#define REST_MS    10000u

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void on_pool(struct worker *worker, const struct strait_event *event)
{
    for (uint32_t i = 0; i < FORMS_MAX; i++) {
        struct pool *pool = &worker->pools[i];
        if (pool->pool != event->pool || event->pool == NULL)
            continue;
        pool->told = true;
        if (event->status != STRAIT_OK)
            complain("daemon %s refuses a pool: %s", worker->daemon->name, event->text);
        else if (strait_pool_export(pool->pool, pool->blob, sizeof(pool->blob), &pool->blob_size) != STRAIT_OK)
            complain("a pool of %s cannot be exported", worker->daemon->name);
    }
}

static void on_event(struct worker *worker, const struct strait_event *event)
{
    switch (event->type) {
    case STRAIT_EVENT_STATE:
    case STRAIT_EVENT_DRAINED:
    case STRAIT_EVENT_LAYER:
        move_take(event);
        break;
    case STRAIT_EVENT_POOL:
        on_pool(worker, event);
        break;
    case STRAIT_EVENT_CONNECTION:
        if (!event->connected && !worker->may_lose)
            complain("a worker lost the connection to daemon %s", worker->daemon->name);
        break;
    default:
        break;
    }
}

static void take_events(struct worker *worker)
{
    struct strait_event events[64];
    uint32_t count = strait_poll(worker->client, events, COUNT(events));
    for (uint32_t i = 0; i < count; i++)
        on_event(worker, &events[i]);
}

bool world_pump(struct world *world, int ms)
{
    struct pollfd fds[WORKERS_MAX];
    bool all_run = true;
    for (uint32_t i = 0; i < world->worker_count; i++)
        fds[i] = (struct pollfd){.fd = strait_client_fd(world->workers[i].client), .events = POLLIN};
    (void)poll(fds, world->worker_count, ms);
    for (uint32_t i = 0; i < world->worker_count; i++)
        take_events(&world->workers[i]);
    for (uint32_t i = 0; i < world->daemon_count; i++)
        all_run = (world->daemons[i].pid == 0 || daemon_runs(&world->daemons[i])) && all_run;
    return all_run;
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

static bool open_worker(struct world *world, uint32_t node, const struct world_plan *plan)
{
    static const enum strait_coding codings[] = {STRAIT_CODING_AUTO, STRAIT_CODING_TIERED, STRAIT_CODING_TOP16,
                                                 STRAIT_CODING_RAW, STRAIT_CODING_BASE};
    struct worker *worker = &world->workers[world->worker_count];
    *worker = (struct worker){.daemon = &world->daemons[node], .node = node};
    const struct strait_client_config config = {.size = sizeof(config), .socket = worker->daemon->socket};
    if (strait_client_open(&config, &worker->client) != STRAIT_OK)
        return false;
    uint32_t number = world->worker_count++;
    for (uint32_t i = 0; i < plan->form_count; i++) {
        struct pool *pool = &worker->pools[i];
        if (!pool_init(pool, worker, worker->client, &plan->forms[i]) ||
            strait_set_policy(pool->pool, codings[(number + i) % COUNT(codings)]) != STRAIT_OK)
            return false;
    }
    return true;
}

static bool all_told(const struct world *world)
{
    for (uint32_t i = 0; i < world->worker_count; i++)
        for (uint32_t p = 0; p < world->form_count; p++)
            if (!world->workers[i].pools[p].told)
                return false;
    return true;
}

static bool await_pools(struct world *world)
{
    for (uint64_t end = now_ms() + CONNECT_MS; !all_told(world);)
        if (!world_pump(world, 20) || now_ms() > end) {
            complain("pools are not registered");
            return false;
        }
    return complaints() == 0;
}

static bool start_relay(struct world *world)
{
    struct relay *relay = &world->relay;
    relay->host = world->daemons[0].options.host;
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        relay->front[i] = world->daemons[i].front;
        relay->behind[i] = world->daemons[i].port;
    }
    relay->count = world->daemon_count;
    if (relay_start(relay))
        return true;
    complain("the relay cannot be started: %s", strerror(errno));
    return false;
}

static bool start_daemons(struct world *world)
{
    for (uint32_t i = 0; i < world->daemon_count; i++)
        if (!choose_ports(&world->daemons[i]))
            return false;
    if (world->daemons[0].options.relayed && !start_relay(world))
        return false;
    for (uint32_t i = 0; i < world->daemon_count; i++)
        if (!daemon_launch(&world->daemons[i]) || !daemon_await_ready(&world->daemons[i]))
            return false;
    return true;
}

bool world_init(struct world *world, const char *program, const struct world_plan *plan)
{
    static const char *const names[DAEMONS_MAX] = {"a", "b", "c"};
    *world = (struct world){.form_count = plan->form_count};
    struct strait_codebook *codebook = test_codebook();
    bool made = folder_make(world->folder, "soak") && codebook_write(world->folder, "codebook", codebook);
    strait_codebook_destroy(codebook);
    if (!made) {
        complain("%s: %s", world->folder, strerror(errno));
        return false;
    }
    for (uint32_t i = 0; i < plan->daemon_count; i++) {
        daemon_init(&world->daemons[i], program, world->folder, names[i], &plan->daemons[i]);
        world->daemon_count++;
    }
    if (!start_daemons(world))
        return false;
    for (uint32_t i = 0; i < plan->worker_count; i++)
        if (!open_worker(world, plan->worker_nodes[i], plan)) {
            complain("a worker cannot begin: out of memory or descriptors");
            return false;
        }
    return await_pools(world);
}

void world_fini(struct world *world)
{
    for (uint32_t i = 0; i < world->worker_count; i++) {
        strait_client_close(world->workers[i].client);
        for (uint32_t p = 0; p < FORMS_MAX; p++)
            pool_fini(&world->workers[i].pools[p]);
    }
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        daemon_stop(&world->daemons[i]);
        if (world->daemons[i].leaving != 0)
            kill(world->daemons[i].leaving, SIGKILL);
        for (int r = 0; r < COUNT(world->daemons[i].reserved); r++)
            if (world->daemons[i].reserved[r] >= 0)
                close(world->daemons[i].reserved[r]);
    }
    relay_stop(&world->relay);
    if (world->folder[0] != '\0')
        folder_remove(world->folder);
}

const struct route *world_route(struct world *world, uint32_t from, uint32_t to, uint32_t form)
{
    struct route *route = &world->routes[world->route_count];
    struct worker *source = &world->workers[from], *sink = &world->workers[to];
    require(world->route_count < ROUTES_MAX);
    *route = (struct route){.source = &source->pools[form], .sink = &sink->pools[form]};
    if (strait_peer_import(source->client, route->sink->blob, route->sink->blob_size, &route->to_sink) != STRAIT_OK ||
        strait_peer_import(sink->client, route->source->blob, route->source->blob_size, &route->to_source) !=
            STRAIT_OK) {
        complain("a pool cannot be imported");
        return NULL;
    }
    world->route_count++;
    return route;
}

/* ---- A busy machine ---------------------------------------------------------------------------------------------- */

#define WAITED_EACH_MS 20u

enum { WAITERS = 4 };

static struct waiters {
    pid_t pids[WAITERS];
    uint64_t seen[WAITERS], due, sum_ms;
} waiters;

void world_look_waited(const struct world *world)
{
    const pid_t pids[WAITERS] = {world->daemons[0].pid, world->daemons[1].pid, world->relay.pid, getpid()};
    if (now_ms() < waiters.due)
        return;
    waiters.due = now_ms() + WAITED_EACH_MS;
    for (int i = 0; i < WAITERS; i++) {
        const uint64_t waited = pids[i] != 0 ? process_waited_ms(pids[i]) : 0;
        const uint64_t before = waiters.pids[i] == pids[i] ? waiters.seen[i] : 0;
        waiters.sum_ms += waited > before ? waited - before : 0;
        waiters.pids[i] = pids[i];
        waiters.seen[i] = waited;
    }
}

uint64_t world_waited_ms(void)
{
    return waiters.sum_ms;
}

/* ---- At rest ----------------------------------------------------------------------------------------------------- */

void world_check_rest(struct world *world)
{
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        const char *name;
        int64_t value;
        uint64_t end = now_ms() + REST_MS;
        while ((name = metrics_left_over(world->daemons[i].metrics_port, 10000, &value)) != NULL && now_ms() < end)
            (void)world_pump(world, 10);
        if (name != NULL)
            complain("daemon %s at rest: %s is %" PRId64, world->daemons[i].name, name, value);
    }
}
