#include "ep/group.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ep/host.h"
#include "ep/share.h"

#define TIMEOUT_NS  10000000000u
#define SM_BUDGET   16u
#define PART_TOKENS 256u          /* of a part at least */
#define MIXED_BYTES (16ull << 20) /* of a call's rows at most, from which on coding them through host memory pays */
#define ROW_BYTES   65536u
#define ROWS_MAX    0x7FFFFFFFu /* places are int32 */
#define TOKENS_MAX  (1u << 20)
#define HEAP_MAX    (1ull << 40)
#define FORMAT      3u /* of what ranks tell each other here; one more with every change of the arena or of AUTO */
#define HELLO_WORDS 18u
#define LEAVE_NS    10000000000u /* that a rank waits at its end, at most, for ranks of other hosts */

struct told {
    char *text;
    size_t size;
};

static enum strait_status tell(struct told told, enum strait_status status, const char *text)
{
    if (told.size > 0)
        snprintf(told.text, told.size, "%s", text);
    return status;
}

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

/* NULL, or what is wrong with a configuration whose rank_count is in range. */
static const char *wrong_field(const struct strait_ep_config *config)
{
    const bool low_latency = config->algorithm == STRAIT_EP_LOW_LATENCY;

    if (config->rank >= config->rank_count)
        return "rank is not below rank_count";
    if (!low_latency && config->algorithm != STRAIT_EP_HIGH_THROUGHPUT)
        return "algorithm is unknown";
    if (config->memory != STRAIT_EP_HOST && config->memory != STRAIT_EP_CUDA)
        return "memory is unknown";
    if (config->experts == 0 || config->experts > STRAIT_EP_EXPERTS_MAX || config->experts % config->rank_count != 0)
        return "experts is not a multiple of rank_count, or too large";
    if (config->tokens_max == 0 || config->tokens_max > TOKENS_MAX)
        return "tokens_max is 0 or too large";
    if (config->row_bytes_max == 0 || config->row_bytes_max % 16 != 0 || config->row_bytes_max > ROW_BYTES)
        return "row_bytes_max is not a multiple of 16 up to 65536";
    if (config->scale_bytes_max % 4 != 0 || config->scale_bytes_max > ROW_BYTES)
        return "scale_bytes_max is not a multiple of 4 up to 65536";
    if (config->topk_max == 0 || config->topk_max > STRAIT_EP_TOPK_MAX)
        return "topk_max is 0 or too large";
    if ((uint64_t)config->rank_count * config->tokens_max * config->topk_max > ROWS_MAX ||
        (low_latency && (uint64_t)config->experts * config->tokens_max > ROWS_MAX))
        return "tokens_max is too large for so many ranks and experts";
    if (config->overflow != STRAIT_EP_TRAP && config->overflow != STRAIT_EP_DROP)
        return "overflow is unknown";
    if ((unsigned)config->coding > STRAIT_EP_CODED)
        return "coding is unknown";
    if (config->mask && !low_latency)
        return "mask is for LOW_LATENCY";
    if (config->heap_bytes > HEAP_MAX)
        return "heap_bytes is too large";
    return NULL;
}

/* First exchange: what has to be equal on all ranks, and whether each is well so far. */
struct hello {
    int64_t status;
    uint64_t words[HELLO_WORDS];
    uint64_t host; /* ep_share_host */
};

static const char *const hello_names[HELLO_WORDS] = {"the version of the library",
                                                     "size",
                                                     "rank_count",
                                                     "algorithm",
                                                     "memory",
                                                     "experts",
                                                     "tokens_max",
                                                     "receive_max",
                                                     "row_bytes_max",
                                                     "scale_bytes_max",
                                                     "topk_max",
                                                     "sm_budget",
                                                     "overflow",
                                                     "coding",
                                                     "mask",
                                                     "timeout_ns",
                                                     "heap_bytes",
                                                     "rank"};

static struct hello hello_of(const struct strait_ep_config *c, enum strait_status status)
{
    return (struct hello){status,
                          {FORMAT, c->size, c->rank_count, c->algorithm, c->memory, c->experts, c->tokens_max,
                           c->receive_max, c->row_bytes_max, c->scale_bytes_max, c->topk_max, c->sm_budget, c->overflow,
                           c->coding, c->mask, c->timeout_ns, c->heap_bytes, c->rank},
                          ep_share_host()};
}

/* Gathers from all ranks to `all`, which has room for STRAIT_EP_RANKS_MAX: ranks may not agree on how many there are.
 */
static enum strait_status gather(const struct strait_ep_config *config, const void *own, void *all, size_t bytes,
                                 struct told told)
{
    if (config->all_gather(config->context, own, all, bytes) == 0)
        return STRAIT_OK;
    return tell(told, STRAIT_ERR_IO, "all_gather failed");
}

/* What the first rank that is not well says, by statuses that lie `stride` bytes apart: the same on all ranks. What was
 * told is the own text, if there is one. */
static enum strait_status all_well(const struct strait_ep_config *config, const void *statuses, size_t stride,
                                   struct told told)
{
    char text[96];

    for (uint32_t rank = 0; rank < config->rank_count; rank++) {
        int64_t status;
        memcpy(&status, (const char *)statuses + rank * stride, sizeof(status));
        if (status == STRAIT_OK)
            continue;
        snprintf(text, sizeof(text), "rank %" PRIu32 ": %s", rank, strait_status_string((int)status));
        if (told.size > 0 && told.text[0] == 0)
            tell(told, (enum strait_status)status, text);
        return (enum strait_status)status;
    }
    return STRAIT_OK;
}

/* *remote: bit s, rank s is on another host. */
static enum strait_status agree(const struct strait_ep_config *config, uint64_t *remote, struct told told)
{
    struct hello all[STRAIT_EP_RANKS_MAX] = {0};
    const char *wrong = wrong_field(config);
    const struct hello own = hello_of(config, wrong != NULL ? STRAIT_ERR_INVALID : STRAIT_OK);
    char text[160];

    if (wrong != NULL)
        tell(told, STRAIT_ERR_INVALID, wrong);
    enum strait_status status = gather(config, &own, all, sizeof(own), told);
    if (status == STRAIT_OK)
        status = all_well(config, all, sizeof(own), told);
    for (uint32_t rank = 0; rank < config->rank_count && status == STRAIT_OK; rank++)
        for (uint32_t word = 0; word < HELLO_WORDS && status == STRAIT_OK; word++) {
            const uint64_t expected = word == HELLO_WORDS - 1 ? rank : own.words[word];
            if (all[rank].words[word] == expected)
                continue;
            snprintf(text, sizeof(text), "%s differs: %" PRIu64 " on rank %" PRIu32 ", %" PRIu64 " expected",
                     hello_names[word], all[rank].words[word], rank, expected);
            status = tell(told, STRAIT_ERR_INVALID, text);
        }
    for (uint32_t rank = 0; rank < config->rank_count; rank++)
        *remote |= (uint64_t)(all[rank].host != own.host) << rank;
    return status;
}

/* ---- The table of GPUs, libstrait-ep-cuda, opened for the first group of their memory -----------------------------
 */

static pthread_once_t plugin_once = PTHREAD_ONCE_INIT;
static const struct ep_ops *plugin_found;
static char plugin_trouble[300];

static void open_plugin(void)
{
    void *library = dlopen(EP_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(plugin_trouble, sizeof(plugin_trouble), "memory of GPUs needs " EP_PLUGIN ": %s", dlerror());
        return;
    }
    ep_plugin_get *get;
    *(void **)&get = dlsym(library, EP_PLUGIN_SYMBOL);
    const struct ep_ops *ops = get != NULL ? get() : NULL;
    if (ops != NULL && ops->version == EP_OPS_VERSION) {
        plugin_found = ops;
        return;
    }
    snprintf(plugin_trouble, sizeof(plugin_trouble),
             EP_PLUGIN " finds no GPU, or is of another version than this library");
    dlclose(library);
}

/* The plugin's table; NULL: there is none, and *why is a text that stays. Any thread. */
static const struct ep_ops *find_plugin(const char **why)
{
    pthread_once(&plugin_once, open_plugin);
    *why = plugin_trouble;
    return plugin_found;
}

/* ---- Arenas ------------------------------------------------------------------------------------------------------ */

/* Second exchange: how others reach a rank's arena. */
struct offer {
    int64_t status;
    union {
        uint8_t bytes[EP_TICKET_BYTES];
        struct ep_share_ticket share;
    } ticket;
    struct ep_proxy_info proxy; /* where ranks are on several hosts */
};

static enum strait_status create_arena(struct strait_ep_group *group, struct offer *offer, int *fd)
{
    const uint32_t me = group->config.rank;
    const uint64_t bytes = group->view.at.bytes;

    if (group->peer && (group->ops->arena_create == NULL || group->ops->arena_map == NULL))
        return STRAIT_ERR_UNSUPPORTED;
    if (group->peer)
        return group->ops->arena_create(group->context, bytes, offer->ticket.bytes, &group->bases[me], &group->medium);
    if (group->view.remote != 0)
        group->medium = group->config.memory == STRAIT_EP_HOST ? "shared memory and TCP" : "host memory and TCP";
    else
        group->medium = group->config.memory == STRAIT_EP_HOST ? "shared memory" : "host memory";
    return ep_share_create(bytes, &offer->ticket.share, fd, &group->bases[me]);
}

/* Memory that phases tell the proxy in, as both see it. False: none is left. */
static bool alloc_signals(struct strait_ep_group *group)
{
    const struct strait_ep_config *config = &group->config;
    struct ep_group_view *view = &group->view, *host_view = &group->host_view;
    const uint64_t ranks = config->rank_count, local = config->experts / config->rank_count;
    const uint64_t rows = config->topk_max < local ? config->topk_max : local;
    const uint64_t places = config->algorithm == STRAIT_EP_LOW_LATENCY ? config->tokens_max * rows : 1;
    void *device[3] = {NULL};

    host_view->signals =
        group->ops->alloc_pinned(group->context, EP_FLAG_KINDS * ranks * sizeof(*view->signals), &device[0]);
    host_view->manifests = group->ops->alloc_pinned(
        group->context, EP_FLAG_KINDS * EP_MANIFESTS * ranks * sizeof(*view->manifests), &device[1]);
    host_view->places =
        group->ops->alloc_pinned(group->context, EP_BUFFERS_LL * ranks * places * sizeof(*view->places), &device[2]);
    view->signals = device[0];
    view->manifests = device[1];
    view->places = device[2];
    view->place_count = host_view->place_count = (uint32_t)places;
    return host_view->signals != NULL && host_view->manifests != NULL && host_view->places != NULL;
}

static void free_signals(struct strait_ep_group *group)
{
    void *const memory[] = {group->host_view.signals, group->host_view.manifests, group->host_view.places};

    for (int i = 0; i < 3; i++)
        if (memory[i] != NULL)
            group->ops->free_pinned(group->context, memory[i]);
    group->host_view = (struct ep_group_view){0};
}

/* What a rank needs beside its arena where others are on other hosts. */
static enum strait_status create_proxy(struct strait_ep_group *group, struct ep_proxy_info *info, struct told told)
{
    if (!alloc_signals(group))
        return STRAIT_ERR_NO_MEMORY;
    group->host_view.rank = group->config.rank;
    group->host_view.rank_count = group->config.rank_count;
    group->host_view.remote = group->view.remote;
    group->host_view.at = group->view.at;
    const enum strait_status status = ep_proxy_create(&group->host_view, info, &group->proxy);
    return status == STRAIT_ERR_IO ? tell(told, status, "no address that ranks of other hosts could reach") : status;
}

/* Third exchange, where ranks are on several hosts: the replicas that a rank has made, by rank. */
struct replicas {
    int64_t status;
    struct ep_share_ticket tickets[STRAIT_EP_RANKS_MAX];
};

/* The rank of this host that makes the replica of a rank of another host: they share the work. */
static uint32_t maker_of(const struct strait_ep_group *group, uint32_t rank)
{
    uint32_t here = 0;

    for (uint32_t i = 0; i < group->config.rank_count; i++)
        here += !ep_is_remote(&group->view, i);
    here = rank % here;
    for (uint32_t i = 0;; i++)
        if (!ep_is_remote(&group->view, i) && here-- == 0)
            return i;
}

/* Makes the own share of replicas, and learns of the others. fds: to be closed when all have mapped them. */
static enum strait_status share_replicas(struct strait_ep_group *group, struct replicas *all, int *fds,
                                         struct told told)
{
    struct replicas own = {.status = STRAIT_OK};

    for (uint32_t rank = 0; rank < group->config.rank_count && own.status == STRAIT_OK; rank++)
        if (ep_is_remote(&group->view, rank) && maker_of(group, rank) == group->config.rank)
            own.status = ep_share_create(group->view.at.bytes, &own.tickets[rank], &fds[rank], &group->bases[rank]);
    if (own.status != STRAIT_OK)
        tell(told, (enum strait_status)own.status, "no memory for replicas of arenas");
    const enum strait_status status = gather(&group->config, &own, all, sizeof(own), told);
    return status == STRAIT_OK ? all_well(&group->config, all, sizeof(own), told) : status;
}

/* Maps the arenas of the others, and replicas of those of other hosts. *culprit: the rank that it did not work with. */
static enum strait_status map_arenas(struct strait_ep_group *group, const struct offer *offers,
                                     const struct replicas *replicas, uint32_t *culprit)
{
    const uint64_t bytes = group->view.at.bytes;

    for (uint32_t rank = 0; rank < group->config.rank_count; rank++) {
        const struct ep_share_ticket *ticket = ep_is_remote(&group->view, rank)
                                                   ? &replicas[maker_of(group, rank)].tickets[rank]
                                                   : &offers[rank].ticket.share;
        enum strait_status status = STRAIT_OK;
        void *device = NULL;
        *culprit = ep_is_remote(&group->view, rank) ? maker_of(group, rank) : rank;
        if (rank != group->config.rank && group->peer)
            status = group->ops->arena_map(group->context, rank, offers[rank].ticket.bytes, bytes, &group->bases[rank]);
        else if (group->bases[rank] == NULL)
            status = ticket->bytes == bytes ? ep_share_map(ticket, &group->bases[rank]) : STRAIT_ERR_UNSUPPORTED;
        if (status == STRAIT_OK && !group->peer && group->ops->host_attach != NULL)
            status = group->ops->host_attach(group->context, group->bases[rank], bytes, &device);
        if (status != STRAIT_OK)
            return status;
        group->view.arenas[rank] = device != NULL ? device : group->bases[rank];
    }
    return STRAIT_OK;
}

static void drop_arenas(struct strait_ep_group *group)
{
    for (uint32_t rank = 0; rank < group->config.rank_count; rank++) {
        void *base = group->bases[rank];
        if (base == NULL)
            continue;
        if (!group->peer && group->ops->host_detach != NULL && group->view.arenas[rank] != NULL)
            group->ops->host_detach(group->context, base);
        if (!group->peer)
            ep_share_unmap(base);
        else if (rank != group->config.rank)
            group->ops->arena_unmap(group->context, rank, base);
        else
            group->ops->arena_destroy(group->context, base);
        group->bases[rank] = NULL;
        group->view.arenas[rank] = NULL;
    }
}

static enum strait_status start_proxy(struct strait_ep_group *group, const struct offer *offers, struct told told)
{
    struct ep_proxy_info infos[STRAIT_EP_RANKS_MAX];
    char text[200] = "";

    for (uint32_t rank = 0; rank < group->config.rank_count; rank++) {
        infos[rank] = offers[rank].proxy;
        group->host_view.arenas[rank] = group->bases[rank];
    }
    const enum strait_status status = ep_proxy_start(group->proxy, &group->host_view, infos, text, sizeof(text));
    return status == STRAIT_OK ? status : tell(told, status, text);
}

/* Maps what was offered. */
static enum strait_status reach_memory(struct strait_ep_group *group, const struct offer *offers,
                                       const struct replicas *replicas, struct told told)
{
    uint32_t culprit = 0;
    char text[160];

    const enum strait_status status = map_arenas(group, offers, replicas, &culprit);
    if (status == STRAIT_OK)
        return status;
    snprintf(text, sizeof(text), "memory of rank %" PRIu32 " cannot be mapped: %s", culprit,
             status == STRAIT_ERR_UNSUPPORTED ? "its process cannot be seen" : strait_status_string((int)status));
    return tell(told, status, text);
}

/* How a step ended that all ranks make: the same on all of them. */
static enum strait_status agree_on(const struct strait_ep_group *group, enum strait_status own, struct told told)
{
    int64_t status = own, all[STRAIT_EP_RANKS_MAX] = {0};

    own = gather(&group->config, &status, all, sizeof(status), told);
    return own == STRAIT_OK ? all_well(&group->config, all, sizeof(status), told) : own;
}

/* Exchanges arenas. All ranks return the same, but for what was told. */
static enum strait_status share_arenas(struct strait_ep_group *group, enum strait_status status, struct told told)
{
    struct offer own = {.status = status}, all[STRAIT_EP_RANKS_MAX] = {0};
    struct replicas *replicas = group->view.remote != 0 ? calloc(STRAIT_EP_RANKS_MAX, sizeof(*replicas)) : NULL;
    int fds[STRAIT_EP_RANKS_MAX];

    memset(fds, -1, sizeof(fds));
    if (status == STRAIT_OK)
        own.status = create_arena(group, &own, &fds[group->config.rank]);
    if (own.status == STRAIT_OK && group->view.remote != 0)
        own.status = replicas != NULL ? create_proxy(group, &own.proxy, told) : STRAIT_ERR_NO_MEMORY;
    if (own.status == STRAIT_ERR_NO_MEMORY)
        tell(told, STRAIT_ERR_NO_MEMORY, "no memory for the arena");
    status = gather(&group->config, &own, all, sizeof(own), told);
    if (status == STRAIT_OK)
        status = all_well(&group->config, all, sizeof(own), told);
    if (status == STRAIT_OK && group->view.remote != 0)
        status = share_replicas(group, replicas, fds, told);
    if (status == STRAIT_OK)
        status = agree_on(group, reach_memory(group, all, replicas, told), told);
    if (status == STRAIT_OK && group->proxy != NULL)
        status = agree_on(group, start_proxy(group, all, told), told);
    for (uint32_t rank = 0; rank < STRAIT_EP_RANKS_MAX; rank++)
        if (fds[rank] >= 0)
            close(fds[rank]);
    free(replicas);
    return status;
}

/* ---- Making a group ---------------------------------------------------------------------------------------------- */

/* Parts of rows that a link carries for longer than launches take. Between hosts there is one, of coded rows. */
static uint32_t parts_of(const struct strait_ep_group *group, bool slow)
{
    const struct strait_ep_config *config = &group->config;
    const uint32_t parts = (config->tokens_max + PART_TOKENS - 1) / PART_TOKENS;

    if (!slow || config->algorithm == STRAIT_EP_LOW_LATENCY)
        return 0;
    if (group->view.remote != 0)
        return group->view.coded ? 1 : 0;
    return parts < EP_PARTS_MAX ? parts : EP_PARTS_MAX;
}

static enum strait_status open_backend(struct strait_ep_group *group, struct told told)
{
    const struct strait_ep_config *config = &group->config;
    const bool far = config->memory == STRAIT_EP_CUDA && !group->peer;
    struct ep_open_args args = {.config = config,
                                .coded = group->view.coded,
                                .far = far,
                                .coding = &group->view.coding,
                                .text = told.text,
                                .text_size = told.size};

    const uint32_t parts = parts_of(group, config->memory == STRAIT_EP_CUDA && (far || args.coded));
    const enum ep_rows rows = group->mixed ? EP_ROWS_BOTH : args.coded ? EP_ROWS_CODED : EP_ROWS_RAW;
    if (ep_arena_plan(config, rows, parts, &group->view.at) != STRAIT_OK)
        return tell(told, group->mixed ? STRAIT_ERR_UNSUPPORTED : STRAIT_ERR_INVALID,
                    "coded: tokens_max * row_bytes_max is too large for a chunk");
    args.at = group->view.at;
    group->view.coding = (struct ep_coding){0};
    const enum strait_status status = group->ops->open(&args, &group->context);
    return status == STRAIT_ERR_NO_MEMORY ? tell(told, status, "no memory for the backend") : status;
}

/* Ends the proxy, which waits for so long at most until ranks of other hosts have all that was sent. */
static void leave_hosts(struct strait_ep_group *group, uint64_t timeout_ns)
{
    ep_proxy_destroy(group->proxy, timeout_ns);
    group->proxy = NULL;
}

static void close_backend(struct strait_ep_group *group)
{
    if (group->context == NULL)
        return;
    leave_hosts(group, 0);
    free_signals(group);
    drop_arenas(group);
    group->ops->close(group->context);
    group->context = NULL;
}

/* A way for rows to cross. */
struct way {
    bool peer; /* access of GPUs to each other's memory, else host memory that all map */
    bool coded, mixed;
};

enum { WAYS_MAX = 3 };

/* The ways that a configuration allows, the one to prefer first. Between hosts rows cross host memory. */
static uint32_t list_ways(const struct strait_ep_group *group, struct way ways[WAYS_MAX])
{
    const struct strait_ep_config *config = &group->config;
    const bool coded = config->coding == STRAIT_EP_CODED;
    const bool one_host = config->memory == STRAIT_EP_CUDA && group->view.remote == 0;
    const bool large = (uint64_t)config->tokens_max * config->row_bytes_max >= MIXED_BYTES;
    uint32_t count = 0;

    if (one_host)
        ways[count++] = (struct way){.peer = true, .coded = coded};
    if (one_host && config->coding == STRAIT_EP_AUTO && config->algorithm == STRAIT_EP_HIGH_THROUGHPUT && large)
        ways[count++] = (struct way){.coded = true, .mixed = true};
    ways[count++] = (struct way){.coded = coded};
    return count;
}

/* Opens the backend and shares arenas in the first way that all ranks have. */
static enum strait_status connect_ranks(struct strait_ep_group *group, struct told told)
{
    enum strait_status status = STRAIT_ERR_UNSUPPORTED;
    const char *why = NULL;
    struct way ways[WAYS_MAX];

    group->ops = group->config.memory == STRAIT_EP_HOST ? &ep_host_ops : find_plugin(&why);
    const enum strait_status found = group->ops != NULL ? STRAIT_OK : tell(told, STRAIT_ERR_UNSUPPORTED, why);
    const uint32_t count = list_ways(group, ways);
    bool next = true; /* on all ranks alike; rows of both kinds may need more memory than there is */
    for (uint32_t i = 0; i < count && next; i++) {
        group->peer = ways[i].peer;
        group->view.coded = ways[i].coded;
        group->mixed = ways[i].mixed;
        if (told.size > 0 && found == STRAIT_OK)
            told.text[0] = 0;
        status = share_arenas(group, found == STRAIT_OK ? open_backend(group, told) : found, told);
        if (status != STRAIT_OK && group->ops != NULL)
            close_backend(group);
        next = status == STRAIT_ERR_UNSUPPORTED || (ways[i].mixed && status == STRAIT_ERR_NO_MEMORY);
    }
    return status;
}

/* The rest of what phases see. */
static enum strait_status fill_view(struct strait_ep_group *group)
{
    const struct strait_ep_config *config = &group->config;
    struct ep_group_view *view = &group->view;
    const uint32_t all = config->rank_count * config->tokens_max;
    void *device = NULL;

    view->timeout_ns = config->timeout_ns;
    view->rank = config->rank;
    view->rank_count = config->rank_count;
    view->experts = config->experts;
    view->local_experts = config->experts / config->rank_count;
    view->tokens_max = config->tokens_max;
    view->topk_max = config->topk_max;
    view->receive_max = config->receive_max != 0 && config->receive_max < all ? config->receive_max : all;
    view->sm_budget = config->sm_budget;
    view->low_latency = config->algorithm == STRAIT_EP_LOW_LATENCY;
    view->masked = config->mask;
    view->drop = config->overflow == STRAIT_EP_DROP;
    view->state = group->ops->alloc(group->context, sizeof(*view->state));
    group->report = group->ops->alloc_pinned(group->context, sizeof(*group->report), &device);
    view->report = device;
    if (view->state == NULL || group->report == NULL)
        return STRAIT_ERR_NO_MEMORY;
    const uint64_t active = config->rank_count == 64 ? UINT64_MAX : (1ull << config->rank_count) - 1;
    return group->ops->write(group->context, &view->state->active, &active, sizeof(active), NULL);
}

/* Last exchange: nobody begins a call before all are ready for it. */
static enum strait_status finish_group(struct strait_ep_group *group, struct told told)
{
    const enum strait_status status = fill_view(group);

    return agree_on(group, status == STRAIT_OK ? status : tell(told, status, "no memory for the state of the group"),
                    told);
}

enum strait_status strait_ep_group_create(const struct strait_ep_config *config, struct strait_ep_group **group,
                                          char *text, size_t text_size)
{
    const struct told told = {text, text != NULL ? text_size : 0};
    struct strait_ep_group *made;

    if (told.size > 0)
        text[0] = 0;
    if (config == NULL || group == NULL || config->size < sizeof(*config) || config->all_gather == NULL)
        return tell(told, STRAIT_ERR_INVALID, "an argument is NULL, or of an older version");
    if (config->rank_count == 0 || config->rank_count > STRAIT_EP_RANKS_MAX)
        return tell(told, STRAIT_ERR_INVALID, "rank_count is 0 or too large");
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return tell(told, STRAIT_ERR_NO_MEMORY, "no memory for the group");
    made->config = *config;
    if (made->config.timeout_ns == 0)
        made->config.timeout_ns = TIMEOUT_NS;
    if (made->config.sm_budget == 0)
        made->config.sm_budget = SM_BUDGET;
    enum strait_status status = agree(&made->config, &made->view.remote, told);
    if (status == STRAIT_OK)
        status = connect_ranks(made, told);
    if (status == STRAIT_OK)
        status = finish_group(made, told);
    if (status != STRAIT_OK) {
        strait_ep_group_destroy(made);
        return status;
    }
    made->heap.bytes = made->view.at.heap_bytes;
    *group = made;
    return STRAIT_OK;
}

void strait_ep_group_destroy(struct strait_ep_group *group)
{
    if (group == NULL)
        return;
    if (group->context != NULL) {
        if (group->report != NULL)
            leave_hosts(group, ep_group_usable(group) == STRAIT_OK ? LEAVE_NS : LEAVE_NS / 10);
        if (group->view.state != NULL)
            group->ops->free(group->context, group->view.state);
        if (group->report != NULL)
            group->ops->free_pinned(group->context, group->report);
        close_backend(group);
    }
    ep_heap_free(&group->heap);
    free(group);
}

/* ---- Heap -------------------------------------------------------------------------------------------------------- */

void *strait_ep_alloc(struct strait_ep_group *group, size_t bytes)
{
    uint64_t offset;

    if (group == NULL || !ep_heap_take(&group->heap, bytes, &offset))
        return NULL;
    return group->view.arenas[group->config.rank] + group->view.at.heap + offset;
}

void strait_ep_free(struct strait_ep_group *group, void *memory)
{
    if (group != NULL && memory != NULL)
        ep_heap_give(&group->heap, (uint64_t)((uintptr_t)memory - (uintptr_t)group->view.arenas[group->config.rank]) -
                                       group->view.at.heap);
}

struct ep_announce ep_group_place(const struct strait_ep_group *group, const void *data, uint32_t row_bytes)
{
    const uintptr_t base = (uintptr_t)group->view.arenas[group->config.rank], at = (uintptr_t)data;

    if (at < base || at - base < group->view.at.heap)
        return (struct ep_announce){0, 0};
    const uint64_t room = ep_heap_room(&group->heap, at - base - group->view.at.heap);
    return room > 0 ? (struct ep_announce){at - base, room / row_bytes} : (struct ep_announce){0, 0};
}

/* ---- Errors and the mask ----------------------------------------------------------------------------------------- */

enum strait_status ep_group_usable(const struct strait_ep_group *group)
{
    const int status = (int)(int32_t)__atomic_load_n(group->report, __ATOMIC_ACQUIRE);

    return status == STRAIT_ERR_TIMEOUT && group->config.mask ? STRAIT_OK : (enum strait_status)status;
}

enum strait_status strait_ep_async_error(struct strait_ep_group *group, uint32_t *rank)
{
    if (group == NULL)
        return STRAIT_ERR_INVALID;
    const uint64_t report = __atomic_load_n(group->report, __ATOMIC_ACQUIRE);
    if (rank != NULL && report != 0)
        *rank = (uint32_t)(report >> 32);
    return (enum strait_status)(int32_t)report;
}

void strait_ep_error_clear(struct strait_ep_group *group)
{
    if (group == NULL || !group->config.mask)
        return;
    uint64_t report = __atomic_load_n(group->report, __ATOMIC_ACQUIRE);
    if ((int32_t)report == STRAIT_ERR_TIMEOUT)
        __atomic_compare_exchange_n(group->report, &report, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

enum strait_status strait_ep_mask_get(struct strait_ep_group *group, int32_t *ranks, struct CUstream_st *stream)
{
    uint64_t active;

    if (group == NULL || ranks == NULL || !group->config.mask)
        return STRAIT_ERR_INVALID;
    const enum strait_status status =
        group->ops->read(group->context, &active, &group->view.state->active, sizeof(active), stream);
    for (uint32_t rank = 0; rank < group->config.rank_count && status == STRAIT_OK; rank++)
        ranks[rank] = (int32_t)(active >> rank & 1);
    return status;
}

enum strait_status strait_ep_mask_set(struct strait_ep_group *group, const int32_t *ranks, struct CUstream_st *stream)
{
    uint64_t active = 0;

    if (group == NULL || ranks == NULL || !group->config.mask || ranks[group->config.rank] != 1)
        return STRAIT_ERR_INVALID;
    for (uint32_t rank = 0; rank < group->config.rank_count; rank++) {
        if (ranks[rank] != 0 && ranks[rank] != 1)
            return STRAIT_ERR_INVALID;
        active |= (uint64_t)ranks[rank] << rank;
    }
    return group->ops->write(group->context, &group->view.state->active, &active, sizeof(active), stream);
}

void strait_ep_info(const struct strait_ep_group *group, struct strait_ep_info *info)
{
    struct strait_ep_info known = {.size = sizeof(known),
                                   .medium = group->medium,
                                   .coded = group->view.coded,
                                   .arena_bytes = group->view.at.bytes,
                                   .coded_calls = group->coded_calls};

    if (group->config.memory == STRAIT_EP_HOST) {
        known.sent_bytes = group->view.state->sent_bytes;
        known.raw_bytes = group->view.state->raw_bytes;
    }
    const size_t size = info->size < sizeof(known) ? info->size : sizeof(known);
    known.size = info->size;
    memcpy(info, &known, size);
}
