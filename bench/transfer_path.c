#include "bench/transfer_path.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/transfer_process.h"
#include "tools/util.h"

#define READY_NS    10000000000ull
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

bool bench_site_init(struct bench_site *site, const char *const *daemon, unsigned daemon_count,
                     const struct strait_codebook *codebook)
{
    *site = (struct bench_site){.daemon = daemon, .daemon_count = daemon_count, .straitd = process_find_straitd()};
    if (site->straitd == NULL)
        return false;
    snprintf(site->folder, sizeof(site->folder), "/tmp/strait-bench-XXXXXX");
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

static void tell_log(const struct bench_side *side)
{
    char line[512];
    FILE *file = fopen(side->log, "re");

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strstr(line, "level=info") == NULL)
            fprintf(stderr, "  %s: %s", side->name, line);
    if (file != NULL)
        fclose(file);
}

void bench_path_tell_logs(const struct bench_path *path)
{
    tell_log(&path->source);
    tell_log(&path->sink);
}

static bool side_runs(struct bench_side *side)
{
    if (side->pid == 0 || process_runs(&side->pid))
        return true;
    print_error(NULL, "the daemon of %s has ended", side->name);
    tell_log(side);
    return false;
}

static void add_option(struct command *command, const char *name, const char *value)
{
    command_add(command, name);
    command_add(command, value);
}

/* Adds further options, "name=value", to the command line. */
static void add_further(struct command *command, const struct bench_site *site, char words[][256])
{
    for (unsigned i = 0; i < site->daemon_count; i++) {
        snprintf(words[i], sizeof(words[i]), "--%s", site->daemon[i]);
        command_add(command, words[i]);
    }
}

static void add_setup(struct command *command, const struct path_setup *setup)
{
    add_option(command, "--metrics", setup->metrics ? "127.0.0.1:0" : "");
    for (unsigned i = 0; setup->options != NULL && setup->options[i] != NULL; i++)
        command_add(command, setup->options[i]);
    command->environment = setup->environment;
}

/* UCX gets options for TCP and the device, as it would use shared memory between processes of one host. `end`: the
 * daemon's network namespace, or NULL. */
static bool start_daemon(struct bench_side *side, const struct bench_path *path, const struct path_setup *setup,
                         const struct bench_site *site, const struct bench_link_end *end)
{
    static const char *const transports[PATH_KINDS] = {"shm", "shm", "ucx", "ucx"};
    struct command command = {0};
    char listen[64] = "127.0.0.1:0", ucx[128] = "tls=tcp devices=lo", further[DAEMON_OPTIONS_MAX][256];

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
    add_setup(&command, setup);
    add_further(&command, site, further);
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

static bool start_daemons(struct bench_path *path, const struct path_setup *setup, const struct bench_site *site)
{
    const struct bench_link_end *ends = path->link.ends;
    bool spaced = path->kind == PATH_LINK;

    if (!start_daemon(&path->source, path, setup, site, spaced ? &ends[0] : NULL))
        return false;
    if (!bench_path_is_local(path))
        return start_daemon(&path->sink, path, setup, site, spaced ? &ends[1] : NULL);
    memcpy(path->sink.socket, path->source.socket, sizeof(path->sink.socket));
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

    if (!open_client(&path->source) || !open_client(&path->sink))
        return false;
    while (!strait_client_connected(path->source.client) || !strait_client_connected(path->sink.client)) {
        if (clock_ns() > end) {
            print_error(NULL, "the daemons of path %s do not answer", path->name);
            bench_path_tell_logs(path);
            return false;
        }
        if (!bench_path_work(path, 10000000))
            return false;
    }
    return true;
}

bool bench_path_open(struct bench_path *path, enum path_kind kind, const struct path_setup *setup,
                     const struct bench_site *site)
{
    struct path_setup plain = {.name = path_names[kind]};

    if (setup == NULL)
        setup = &plain;
    *path = (struct bench_path){.kind = kind, .name = setup->name};
    name_side(&path->source, path, "source", site);
    name_side(&path->sink, path, "sink", site);
    if (kind == PATH_LINK && !bench_link_open(&path->link, path->why, sizeof(path->why)))
        return true;
    if (!start_daemons(path, setup, site) || !connect_clients(path))
        return false;
    path->up = true;
    return true;
}

void bench_path_close(struct bench_path *path)
{
    strait_client_close(path->source.client);
    strait_client_close(path->sink.client);
    path->source.client = path->sink.client = NULL;
    process_stop(&path->source.pid);
    process_stop(&path->sink.pid);
    bench_link_close(&path->link);
    path->up = false;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void ticket_end(struct ticket *ticket, const struct strait_event *event, uint64_t now)
{
    ticket->ended = true;
    ticket->ended_ns = now;
    ticket->reason = event->reason;
    ticket->drained = event->drained;
    snprintf(ticket->text, sizeof(ticket->text), "%s", event->text != NULL ? event->text : "");
    if (ticket->aux != NULL && event->state == STRAIT_DONE)
        ticket->aux_wrong =
            event->data_size != ticket->aux_size || memcmp(event->data, ticket->aux, ticket->aux_size) != 0;
}

static void ticket_take(struct ticket *ticket, const struct strait_event *event, uint64_t now)
{
    switch (event->type) {
    case STRAIT_EVENT_STATE:
        ticket->state = event->state;
        if (event->state == STRAIT_DONE || event->state == STRAIT_FAILED)
            ticket_end(ticket, event, now);
        break;
    case STRAIT_EVENT_DRAINED:
        ticket->drained = true;
        break;
    case STRAIT_EVENT_LAYER:
        ticket->layers++;
        ticket->layer_ns = now;
        break;
    default:
        break;
    }
}

static void side_take(struct bench_side *side, const struct strait_event *event, uint64_t now)
{
    if (event->context != NULL)
        ticket_take(event->context, event, now);
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
bool bench_path_work(struct bench_path *path, uint64_t timeout_ns)
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
        print_error(NULL, "%s tells no statistics", side->name);
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
