#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/peers/peer_internal.h"

/* Connections of a node together: opening, closing, timing. */

/* ---- Time -------------------------------------------------------------------------------------------------------- */

/* False: it was freed. */
static bool tick_idle(struct connection *c, uint64_t now)
{
    if (now - c->asked < PEER_FORGET_MS)
        return true;
    c->peer.state = PEER_CLOSING;
    connection_unlist(c);
    connection_release(c);
    return false;
}

static void tick_one(struct connection *c, uint64_t now)
{
    if (c->peer.state == PEER_UP)
        heartbeat_tick(c);
    if (c->peer.state == PEER_UP && !c->failing)
        gpu_links_tick(c);
    if (c->peer.state != PEER_DIALLING && c->peer.state != PEER_PROVING && c->peer.state != PEER_LINKING)
        return;
    if (c->peer.state == PEER_DIALLING)
        connection_dial_tick(c);
    else if (now >= c->deadline)
        connection_fail(c, "no connection in time, while %s", peer_state_name(c->peer.state));
    else if (c->peer.state == PEER_PROVING)
        connection_first_tick(c);
    else
        links_tick(c);
}

/* A process that did not run could not hear its peers: the time missed is not counted against them. */
static void skip_missed_time(struct peers *peers, uint64_t now)
{
    struct connection *c;
    uint64_t missed = now - peers->last_tick;
    peers->last_tick = now;
    if (missed < 4 * peers->tick_ms)
        return;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        c->received_at = c->received_at + missed < now ? c->received_at + missed : now;
        c->deadline += missed;
        c->next_address += c->next_address != UINT64_MAX ? missed : 0;
        c->attempt_deadline += missed;
    }
}

static void abandon_links(struct connection *c)
{
    char name[2 * MESSAGE_ADDRESS_MAX];
    struct peer_link *link;
    LIST_FOREACH(link, &c->links, entry)
    {
        if (!link->closing || link->abandoned)
            continue;
        link->abandoned = true;
        link_abandon(link->link);
        log_quote(name, sizeof(name), c->peer.address, strlen(c->peer.address));
        log_limited(peers_of(c)->config.log, LOG_OF_PEERS, LOG_WARN,
                    "msg=\"link abandoned\" peer=%s node=%016" PRIx64
                    " transport=%s error=\"the peer lives and does not close its side\"",
                    name, c->peer.node, link->transport->ops->name);
    }
}

/* A stopped peer may keep our slots for as long as it is stopped, but must not keep this process from ending. */
static void abandon_all(struct peers *peers)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        abandon_links(c);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct peers *peers = timer->data;
    uint64_t now = peers_now(peers);
    struct connection *c, *next;
    skip_missed_time(peers, now);
    for (c = TAILQ_FIRST(&peers->connections); c != NULL; c = next) {
        next = TAILQ_NEXT(c, entry);
        if (c->failing || (c->peer.state == PEER_IDLE && !tick_idle(c, now)))
            continue;
        tick_one(c, now);
    }
    if (peers->closing && now >= peers->abandon_at)
        abandon_all(peers);
    if (TAILQ_EMPTY(&peers->connections))
        uv_timer_stop(timer);
}

static uint32_t tick_length(const struct node_options *options)
{
    uint32_t shortest = options->heartbeat_ms / 2;
    if (options->peer_timeout_ms / 8 < shortest)
        shortest = options->peer_timeout_ms / 8;
    if (options->connect_ms / 8 < shortest)
        shortest = options->connect_ms / 8;
    if (shortest > PEER_TICK_MAX_MS)
        shortest = PEER_TICK_MAX_MS;
    return shortest > 0 ? shortest : 1;
}

static void on_due(uv_idle_t *idle)
{
    (void)idle;
}

/* ---- The end of a turn ------------------------------------------------------------------------------------------- */

/* Those that are unread now, each once: a peer that sends all the time must not keep the turn from ending. */
static void read_on(struct peers *peers)
{
    struct connection *c;
    for (uint32_t left = peers->unread_count; left > 0 && (c = TAILQ_FIRST(&peers->unread)) != NULL; left--) {
        connection_unread(c, false);
        connection_read_on(c);
    }
}

/* Lets peers of this host know whether they have to wake this one. What they have put into rings before they could know
 * that it sleeps is found here. */
static void ring_sleeps(struct peers *peers, bool sleeps)
{
    struct connection *c;
    bool due = false;
    for (uint32_t i = 0; i < peers->transport_count; i++)
        if (peers->transports[i].handle != NULL)
            due |= transport_sleep(peers->transports[i].handle, sleeps);
    if (!sleeps)
        return;
    LIST_FOREACH(c, &peers->ringed, ring_entry)
    {
        due |= connection_ring_is_due(c);
    }
    if (due && !peers->handles_closing)
        uv_idle_start(&peers->turn, on_due);
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct peers *peers = prepare->data;
    struct connection *c;
    read_on(peers);
    while ((c = TAILQ_FIRST(&peers->dirty)) != NULL) {
        TAILQ_REMOVE(&peers->dirty, c, dirty_entry);
        c->dirty = false;
        connection_flush(c);
    }
    if (!peers->handles_closing && !peers->turn_again && peers->unread_count == 0)
        uv_idle_stop(&peers->turn);
    peers->turn_again = false;
    if (!peers->awake && !uv_is_active((const uv_handle_t *)&peers->turn))
        ring_sleeps(peers, true);
    peers->awake = false;
}

/* After the loop has slept, or polled. */
static void on_check(uv_check_t *check)
{
    struct peers *peers = check->data;
    struct connection *c, *next;
    ring_sleeps(peers, false);
    for (uint32_t i = 0; i < peers->transport_count; i++)
        if (peers->transports[i].handle != NULL)
            (void)transport_look(peers->transports[i].handle);
    for (c = LIST_FIRST(&peers->ringed); c != NULL; c = next) {
        next = LIST_NEXT(c, ring_entry);
        if (connection_ring_is_due(c))
            connection_read_on(c);
    }
}

void peers_stay_awake(struct peers *peers)
{
    peers->awake = true;
}

/* ---- Closing: connections, then transports, then our own handles ------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct peers *peers = handle->data;
    if (--peers->handles > 0)
        return;
    void (*closed)(void *owner) = peers->config.events->closed;
    void *owner = peers->config.owner;
    struct peer_transport *transport;
    while ((transport = LIST_FIRST(&peers->gpu_transports)) != NULL) {
        LIST_REMOVE(transport, entry);
        free(transport);
    }
    credentials_release(peers->credentials);
    free(peers);
    closed(owner);
}

static void close_ports(struct peers *peers)
{
    peers->ports_closing = true;
    for (uint32_t i = 0; i < peers->transport_count; i++)
        peer_transport_close(&peers->transports[i]);
    struct peer_transport *transport;
    LIST_FOREACH(transport, &peers->gpu_transports, entry)
    {
        peer_transport_close(transport);
    }
}

static void peers_close_rest(struct peers *peers)
{
    if (!peers->closing || !TAILQ_EMPTY(&peers->connections))
        return;
    if (!peers->ports_closing)
        close_ports(peers);
    if (peers->ports == 0 && peers->watches.count == 0 && !peers->handles_closing) {
        peers->handles_closing = true;
        uv_close((uv_handle_t *)&peers->tick, on_handle_closed);
        uv_close((uv_handle_t *)&peers->turn, on_handle_closed);
        uv_close((uv_handle_t *)&peers->prepare, on_handle_closed);
        uv_close((uv_handle_t *)&peers->check, on_handle_closed);
    }
}

/* ---- This host --------------------------------------------------------------------------------------------------- */

static void add_namespace(char *dst, size_t capacity, const char *path)
{
    struct stat of;
    size_t used = strlen(dst);
    if (stat(path, &of) == 0)
        snprintf(dst + used, capacity - used, " %ju:%ju", (uintmax_t)of.st_dev, (uintmax_t)of.st_ino);
}

/* Sets an identity that is equal for processes that can meet at a unix socket; containers of one host with namespaces
 * of their own differ. Empty, which equals nothing, when the system does not tell. */
static void set_host(struct peers *peers)
{
    char boot[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL)
        return;
    if (fgets(boot, sizeof(boot), file) != NULL && boot[0] != '\n') {
        boot[strcspn(boot, "\n")] = 0;
        snprintf(peers->host, sizeof(peers->host), "%s", boot);
        add_namespace(peers->host, sizeof(peers->host), "/proc/self/ns/net");
        add_namespace(peers->host, sizeof(peers->host), "/proc/self/ns/ipc");
    }
    fclose(file);
}

/* The path is made absolute, because it is sent to others; left out when too long for a socket. */
static void set_shm_path(struct peers *peers)
{
    char here[OPTION_TEXT_MAX], path[2 * OPTION_TEXT_MAX];
    const char *socket = peers->options.socket;
    if (socket[0] == 0 || (socket[0] != '/' && getcwd(here, sizeof(here)) == NULL))
        return;
    int size = socket[0] == '/' ? snprintf(path, sizeof(path), "%s", socket)
                                : snprintf(path, sizeof(path), "%s/%s", here, socket);
    if (size > 0 && (size_t)size < sizeof(peers->shm_path))
        memcpy(peers->shm_path, path, (size_t)size + 1);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

enum strait_status peers_reload(struct peers *peers, struct credentials *fresh, char *why, size_t why_size)
{
    if ((fresh == NULL) != (peers->credentials == NULL)) {
        credentials_release(fresh);
        snprintf(why, why_size, "secret-file and tls-certificate cannot come or go while the daemon runs");
        return STRAIT_ERR_INVALID;
    }
    if (fresh == NULL)
        return STRAIT_OK;
    (void)credentials_follow(fresh, peers->credentials);
    credentials_release(peers->credentials);
    peers->credentials = fresh;
    peers->reloads++;
    return STRAIT_OK;
}

void peers_set_options(struct peers *peers, const struct node_options *options)
{
    peers->options = *options;
    peers->tick_ms = tick_length(options);
    uv_timer_set_repeat(&peers->tick, peers->tick_ms);
    if (uv_is_active((uv_handle_t *)&peers->tick))
        uv_timer_again(&peers->tick);
}

static void open_handles(struct peers *peers) /* cannot fail */
{
    uv_timer_init(peers->config.loop, &peers->tick);
    uv_timer_start(&peers->tick, on_tick, peers->tick_ms, peers->tick_ms);
    uv_timer_stop(&peers->tick); /* until there is a connection: peers_tick_start */
    uv_idle_init(peers->config.loop, &peers->turn);
    uv_prepare_init(peers->config.loop, &peers->prepare);
    uv_check_init(peers->config.loop, &peers->check);
    peers->handles = 4;
    peers->tick.data = peers->turn.data = peers->prepare.data = peers->check.data = peers;
    uv_prepare_start(&peers->prepare, on_prepare);
    uv_check_start(&peers->check, on_check);
}

static void on_watches_idle(void *owner)
{
    peers_close_rest(owner);
}

static void on_failed_closed(void *owner)
{
    (void)owner;
}

/* Ends what was opened only in part: it frees itself once its handles have closed. */
static void close_failed(struct peers *peers)
{
    static const struct peers_events nobody = {.closed = on_failed_closed};
    peers->config.events = &nobody;
    peers_close(peers);
}

static void set_codebook(struct peers *peers, const uint8_t *id)
{
    if (id != NULL)
        memcpy(peers->codebook_id, id, sizeof(peers->codebook_id));
    peers->config.codebook_id = id != NULL ? peers->codebook_id : NULL;
}

static struct peers *peers_make(const struct peers_config *config)
{
    struct peers *peers = calloc(1, sizeof(*peers));
    if (peers == NULL)
        return NULL;
    peers->config = *config;
    peers->options = *config->options;
    peers->arena = *config->arena;
    peers->config.arena = &peers->arena;
    peers->tick_ms = tick_length(config->options);
    peers->on_link_up = connection_up;
    peers->on_connected = connection_start;
    peers->on_link_broken = connection_read_last;
    peers->on_part_ended = connection_release;
    peers->on_part_closed = peers_close_rest;
    peers->watches.idle = on_watches_idle;
    peers->watches.owner = peers;
    TAILQ_INIT(&peers->connections);
    TAILQ_INIT(&peers->dirty);
    TAILQ_INIT(&peers->unread);
    LIST_INIT(&peers->ringed);
    LIST_INIT(&peers->gpu_transports);
    return peers;
}

enum strait_status peers_open(const struct peers_config *config, struct peers **peers, char *why, size_t why_size)
{
    struct peers *made = peers_make(config);
    if (made == NULL) {
        snprintf(why, why_size, "%s", strait_status_string(STRAIT_ERR_NO_MEMORY));
        return STRAIT_ERR_NO_MEMORY;
    }
    enum strait_status status = options_credentials(&made->options, &made->credentials, why, why_size);
    if (status == STRAIT_OK)
        status = peers_check_options(config->options, why, why_size);
    if (status == STRAIT_OK)
        status = listener_open(made, why, why_size);
    if (status != STRAIT_OK) {
        credentials_release(made->credentials);
        free(made);
        return status;
    }
    open_handles(made);
    status = listener_start(made);
    if (status != STRAIT_OK) {
        snprintf(why, why_size, "listen: %s", strait_status_string(status));
        close_failed(made);
        return status;
    }
    set_host(made);
    set_shm_path(made);
    peer_transports_open(made);
    *peers = made;
    return STRAIT_OK;
}

static bool is_codebook(const struct peers *peers, const uint8_t *id)
{
    const uint8_t *own = peers->config.codebook_id;
    return own == NULL || id == NULL ? own == id : memcmp(own, id, CODEBOOK_ID_BYTES) == 0;
}

void peers_set_codebook(struct peers *peers, const uint8_t *id)
{
    struct connection *c;
    if (is_codebook(peers, id))
        return;
    set_codebook(peers, id);
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        codebook_send(c);
    }
}

const char *peers_address(const struct peers *peers)
{
    return peers->address;
}

const char *peers_offered(const struct peers *peers)
{
    return peers->offered;
}

const char *peers_left_out(const struct peers *peers)
{
    return peers->left_out;
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

bool peers_address_ok(const char *address)
{
    return strlen(address) <= MESSAGE_ADDRESS_MAX && address_list_ok(address);
}

bool peers_is_own(const struct peers *peers, const char *address)
{
    return address_lists_meet(peers->address, address);
}

/* Those that were reached, or never dialled, do not wait for those that are not reached. */
static bool may_dial(const struct connection *c)
{
    struct peers *peers = peers_of(c);
    if (c->peer.attempts == 0)
        return true;
    if (peers_now(peers) - peers->retries_began >= PEER_RETRIES_MS) {
        peers->retries_began = peers_now(peers);
        peers->retries = 0;
    }
    return peers->retries++ < PEER_RETRIES_MAX;
}

/* A user has no more addresses on record than another one could still have. */
static bool may_record(struct peers *peers, uint32_t uid)
{
    const uint32_t records = HASH_CNT(by_address, peers->by_address);
    const struct peer_asker *asker;
    HASH_FIND_INT(peers->askers, &uid, asker);
    const bool may = (asker != NULL ? asker->records : 0) < PEER_RECORDS_MAX - records;
    peers->config.metrics->peer_records_refused += !may;
    return may;
}

struct peer *peers_get(struct peers *peers, const char *address, uint32_t uid)
{
    struct connection *c;
    if (peers->closing)
        return NULL;
    HASH_FIND(by_address, peers->by_address, address, strlen(address), c);
    if (c == NULL && peers_address_ok(address) && may_record(peers, uid))
        c = connection_dialled(peers, address, uid);
    if (c == NULL)
        return NULL;
    c->asked = peers_now(peers);
    struct connection *same =
        c->peer.state == PEER_IDLE && c->is_alias ? connection_to(peers, c->alias_node, c->alias_incarnation) : NULL;
    if (same != NULL)
        return &same->peer;
    if (c->peer.state == PEER_IDLE && c->asked >= c->next_try && may_dial(c))
        connection_dial(c);
    return &c->peer;
}

const struct peer *peers_find(const struct peers *peers, const char *address)
{
    const struct connection *c;
    HASH_FIND(by_address, peers->by_address, address, strlen(address), c);
    return c != NULL ? &c->peer : NULL;
}

bool peer_is_hopeless(const struct peer *peer, uint32_t *since)
{
    if (*since > peer->attempts) /* the first time; or it has been up meanwhile, or forgotten */
        *since = peer->attempts;
    if (peer->attempts <= *since + 1) /* one may have been under way */
        return false;
    const uint64_t now = peers_now(peer->peers), unreachable_ms = peer->peers->options.unreachable_ms;
    return (peer->refusals >= PEER_REFUSALS && now - peer->refused_since >= PEER_REFUSED_MS) ||
           (unreachable_ms != 0 && now - peer->away_since >= unreachable_ms);
}

void peers_each(struct peers *peers, void (*f)(void *arg, struct peer *peer), void *arg)
{
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        f(arg, &c->peer);
    }
}

uint32_t peers_listening(const struct peers *peers, int *fds, uint32_t most)
{
    uint32_t count = 0;
    for (; count < peers->acceptor_count && count < most; count++)
        fds[count] = acceptor_fd(peers->acceptors[count]);
    return count;
}

void peers_go_away(struct peers *peers)
{
    const struct message message = {.type = MESSAGE_GOAWAY};
    struct connection *c;
    listener_close(peers);
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        if (c->peer.state == PEER_UP || c->peer.state == PEER_LINKING)
            connection_send(c, &message);
        else if (!c->peer.dialled && c->peer.state == PEER_PROVING)
            connection_fail(c, "another daemon listens now");
    }
}

void peers_close(struct peers *peers)
{
    struct connection *c, *next;
    if (peers->closing)
        return;
    peers->closing = true;
    peers->abandon_at = peers_now(peers) + peers->options.peer_timeout_ms;
    listener_close(peers);
    for (c = TAILQ_FIRST(&peers->connections); c != NULL; c = next) {
        next = TAILQ_NEXT(c, entry);
        if (c->peer.state == PEER_IDLE) {
            connection_unlist(c);
            TAILQ_REMOVE(&peers->connections, c, entry);
            free(c);
        } else {
            if (c->peer.state == PEER_UP && !c->failing)
                (void)channel_flush(c->channel); /* the last verdicts: what has no room in the socket is lost */
            connection_fail(c, "this node is closing");
        }
    }
    peers_close_rest(peers);
}
