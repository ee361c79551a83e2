#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/peers/peer_internal.h"

/* From an address to a connected socket. */

#define LOOKUPS_MAX 16u /* lookups at a time: a name server that does not answer blocks each for long */

void socket_prepare(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* ---- One address after the other --------------------------------------------------------------------------------- */

static void try_next(struct connection *c);

static void address_failed(struct connection *c, int error)
{
    watch_close(c->watch);
    c->watch = NULL;
    if (c->socket >= 0)
        close(c->socket);
    c->socket = -1;
    if (c->next_address != NULL)
        try_next(c);
    else
        connection_doom(c, "%s", strerror(error));
}

static void connected(struct connection *c)
{
    int fd = c->socket;
    watch_close(c->watch);
    c->watch = NULL;
    c->socket = -1;
    connection_begin(c, fd);
}

static void on_connect(void *owner, uint32_t events)
{
    struct connection *c = owner;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)events;
    if (getsockopt(c->socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error != 0)
        address_failed(c, error);
    else if (!c->doomed)
        connected(c);
}

/* Each address gets an equal share of the time that is left. */
static uint64_t share_of_time(const struct connection *c, const struct addrinfo *address)
{
    uint64_t now = peers_now(peers_of(c)), left = c->deadline > now ? c->deadline - now : 0;
    uint32_t addresses = 0;
    for (; address != NULL; address = address->ai_next)
        addresses++;
    return now + left / (addresses > 0 ? addresses : 1);
}

static void try_next(struct connection *c)
{
    struct peers *peers = peers_of(c);
    const struct addrinfo *address = c->next_address;
    c->address_deadline = share_of_time(c, address);
    c->next_address = address->ai_next;
    c->socket = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (c->socket < 0 || (connect(c->socket, address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        address_failed(c, errno);
        return;
    }
    if (watch_open(peers->config.loop, c->socket, on_connect, c, &peers->watches, &c->watch) != STRAIT_OK) {
        address_failed(c, ENOMEM);
        return;
    }
    watch_for(c->watch, WATCH_WRITE);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static void found(struct connection *c, int error, const char *text)
{
    if (error == 0 && c->next_address != NULL)
        try_next(c);
    else
        connection_doom(c, "name look-up: %s", error == 0 ? "no address" : text);
}

static void on_lookup(uv_getaddrinfo_t *request, int error, struct addrinfo *list)
{
    struct connection *c = request->data;
    c->looking_up = false;
    if (c->peer.state != PEER_DIALLING || c->doomed) {
        uv_freeaddrinfo(list);
        connection_settle(c);
        return;
    }
    c->found = c->next_address = list;
    found(c, error, error != 0 ? uv_strerror(error) : "");
}

static uint32_t lookups(const struct peers *peers)
{
    const struct connection *c;
    uint32_t count = 0;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        count += c->looking_up;
    }
    return count;
}

static void look_up(struct connection *c, const char *host, const char *port, const struct addrinfo *hints)
{
    if (lookups(peers_of(c)) >= LOOKUPS_MAX) {
        connection_doom(c, "too many name look-ups at once");
        return;
    }
    c->lookup.data = c;
    int error = uv_getaddrinfo(peers_of(c)->config.loop, &c->lookup, on_lookup, host, port, hints);
    c->looking_up = error == 0;
    if (error != 0)
        connection_doom(c, "name look-up: %s", uv_strerror(error));
}

/* Numeric addresses need no lookup on a worker thread. */
void connection_dial(struct connection *c)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    char host[ADDRESS_HOST_MAX], port[8];
    unsigned number = 0;
    c->peer.state = PEER_DIALLING;
    c->deadline = peers_now(peers_of(c)) + peers_of(c)->options.connect_ms;
    c->address_deadline = c->deadline;
    if (!address_split(c->peer.address, host, &number)) {
        connection_doom(c, "malformed address");
        return;
    }
    snprintf(port, sizeof(port), "%u", number);
    int error = getaddrinfo(host, port, &hints, &c->found);
    c->next_address = error == 0 ? c->found : NULL;
    hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
    if (error == EAI_NONAME)
        look_up(c, host, port, &hints);
    else
        found(c, error, gai_strerror(error));
}

/* ---- Time and end ------------------------------------------------------------------------------------------------ */

void connection_dial_tick(struct connection *c)
{
    if (peers_now(peers_of(c)) < c->address_deadline)
        return;
    if (c->looking_up)
        connection_doom(c, "name look-up: no answer in time");
    else
        address_failed(c, ETIMEDOUT);
}

void connection_dial_end(struct connection *c)
{
    if (c->looking_up)
        uv_cancel((uv_req_t *)&c->lookup); /* on_lookup is called in any case */
    if (c->found != NULL)
        freeaddrinfo(c->found);
    c->found = c->next_address = NULL;
}

/* Accepted connections. Strangers cost little: only a few are allowed at once, with small messages, and not for long.
 * When there are too many, the oldest is closed, because an honest peer completes the handshake quickly. */

#define BACKLOG        1024
#define LISTEN_REST_MS 100u /* out of descriptors, accepting would fail again at once */

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

static bool is_half_open(const struct connection *c)
{
    if (c->peer.dialled || c->doomed)
        return false;
    return c->peer.state == PEER_PROVING || (c->peer.state == PEER_LINKING && peers_of(c)->secret == NULL);
}

struct census {
    uint32_t accepted, half_open;
    struct connection *oldest; /* half-open one */
};

static struct census count_accepted(struct peers *peers)
{
    struct census census = {0};
    struct connection *c;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        census.accepted += !c->peer.dialled;
        census.half_open += is_half_open(c);
        if (census.oldest == NULL && is_half_open(c))
            census.oldest = c;
    }
    return census;
}

static const char *address_text(const struct sockaddr_storage *address, char text[MESSAGE_ADDRESS_MAX])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)address, sizeof(*address), host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "?";
    snprintf(text, MESSAGE_ADDRESS_MAX, address->ss_family == AF_INET6 ? "[%.200s]:%s" : "%.200s:%s", host, port);
    return text;
}

/* The peer's address is the socket's until its hello says where it listens. */
static void accept_one(struct peers *peers, int fd, const struct sockaddr_storage *address)
{
    char text[MESSAGE_ADDRESS_MAX];
    struct census census = count_accepted(peers);
    if (census.half_open >= PEER_HALF_OPEN_MAX)
        connection_doom(census.oldest, "too many connections at once that do not say who they are");
    struct connection *c =
        census.accepted < PEER_ACCEPTED_MAX ? connection_create(peers, address_text(address, text), false) : NULL;
    if (c == NULL) {
        peers_log_limited(peers, "msg=\"connection refused\" error=\"too many peers\"");
        close(fd);
        return;
    }
    c->deadline = peers_now(peers) + peers->options.connect_ms;
    connection_begin(c, fd);
}

static void rest(struct peers *peers)
{
    peers_log_limited(peers, "msg=\"cannot accept\" error=\"%s\"", strerror(errno));
    watch_for(peers->listener, 0);
    peers->listen_again = peers_now(peers) + LISTEN_REST_MS;
    peers_tick_start(peers);
}

static bool is_passing(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void on_listener(void *owner, uint32_t events)
{
    struct peers *peers = owner;
    (void)events;
    for (uint32_t i = 0; i < PEER_ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage address = {0};
        socklen_t size = sizeof(address);
        int fd = accept4(peers->listen_fd, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (is_passing(errno))
                rest(peers);
            break; /* other errors concern a connection that is gone already */
        }
        accept_one(peers, fd, &address);
    }
    if (peers->listen_again == 0)
        watch_for(peers->listener, WATCH_READ);
}

void listener_tick(struct peers *peers)
{
    if (peers->listen_again == 0 || peers_now(peers) < peers->listen_again)
        return;
    peers->listen_again = 0;
    watch_for(peers->listener, WATCH_READ);
}

/* ---- The socket -------------------------------------------------------------------------------------------------- */

static int bind_first(const struct addrinfo *address)
{
    int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static enum strait_status bind_to(struct peers *peers, const char *listen_at, char *why, size_t why_size)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char host[ADDRESS_HOST_MAX], port[8];
    unsigned number;
    struct addrinfo *found = NULL;
    if (!address_split(listen_at, host, &number)) {
        snprintf(why, why_size, "listen: \"%s\" is not host:port", listen_at);
        return STRAIT_ERR_INVALID;
    }
    snprintf(port, sizeof(port), "%u", number);
    int error = getaddrinfo(host, port, &hints, &found);
    peers->listen_fd = error == 0 ? bind_first(found) : -1;
    if (peers->listen_fd < 0)
        snprintf(why, why_size, "listen at %s: %s", listen_at, error != 0 ? gai_strerror(error) : strerror(errno));
    if (found != NULL)
        freeaddrinfo(found);
    return peers->listen_fd >= 0 ? STRAIT_OK : STRAIT_ERR_IO;
}

/* Sets the address that others dial: the operator's, else the one that we listen on; by host name when that is the
 * wildcard. */
static void set_address(struct peers *peers)
{
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof(bound);
    char name[128] = "";
    (void)getsockname(peers->listen_fd, (struct sockaddr *)&bound, &size);
    address_text(&bound, peers->address);
    if (!address_is_wildcard(&bound) || gethostname(name, sizeof(name) - 1) != 0)
        return;
    snprintf(peers->address, sizeof(peers->address), "%s:%u", name, address_port(&bound));
}

enum strait_status listener_open(struct peers *peers, char *why, size_t why_size)
{
    enum strait_status status = STRAIT_OK;
    peers->listen_fd = -1;
    if (peers->options.listen[0] != 0) {
        status = bind_to(peers, peers->options.listen, why, why_size);
        if (status != STRAIT_OK)
            return status;
        set_address(peers);
        status =
            watch_open(peers->config.loop, peers->listen_fd, on_listener, peers, &peers->watches, &peers->listener);
        if (status != STRAIT_OK) {
            snprintf(why, why_size, "listen: %s", strait_status_string(status));
            close(peers->listen_fd);
            peers->listen_fd = -1;
            return status;
        }
        watch_for(peers->listener, WATCH_READ);
    }
    if (peers->options.advertise[0] != 0)
        snprintf(peers->address, sizeof(peers->address), "%s", peers->options.advertise);
    return status;
}

void listener_close(struct peers *peers)
{
    watch_close(peers->listener);
    peers->listener = NULL;
    if (peers->listen_fd >= 0)
        close(peers->listen_fd);
    peers->listen_fd = -1;
}

/* All connections of a node: opening, closing, timing. */

#define LOG_LINES_PER_SECOND 10u

/* ---- Lines that others can cause --------------------------------------------------------------------------------- */

void peers_log_limited(struct peers *peers, const char *format, ...)
{
    struct log_limit *limit = &peers->limit;
    uint64_t second = peers_now(peers) / 1000;
    char text[1024];
    va_list arguments;
    if (limit->second != second) {
        limit->second = second;
        limit->lines = 0;
    }
    if (limit->lines++ >= LOG_LINES_PER_SECOND) {
        limit->suppressed++;
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    log_write(peers->config.log, LOG_WARN, limit->suppressed > 0 ? "%s left_out=%" PRIu32 : "%s", text,
              limit->suppressed);
    limit->suppressed = 0;
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

/* False: it was freed. */
static bool tick_idle(struct connection *c, uint64_t now)
{
    if (now - c->asked < PEER_FORGET_MS)
        return true;
    c->peer.state = PEER_CLOSING;
    connection_settle(c);
    return false;
}

static void tick_one(struct connection *c, uint64_t now)
{
    if (c->peer.state == PEER_UP)
        beat_tick(c);
    if (c->peer.state == PEER_UP && !c->doomed)
        gpu_links_tick(c);
    if (c->peer.state != PEER_DIALLING && c->peer.state != PEER_PROVING && c->peer.state != PEER_LINKING)
        return;
    if (now >= c->deadline)
        connection_doom(c, "no connection in time, while %s", peer_state_name(c->peer.state));
    else if (c->peer.state == PEER_DIALLING)
        connection_dial_tick(c);
    else if (c->peer.state == PEER_LINKING)
        links_tick(c);
}

/* A process that did not run could not hear its peers: the time missed is not counted against them. */
static void forgive(struct peers *peers, uint64_t now)
{
    struct connection *c;
    uint64_t missed = now - peers->last_tick;
    peers->last_tick = now;
    if (missed < 4 * peers->tick_ms)
        return;
    TAILQ_FOREACH(c, &peers->connections, entry)
    {
        c->heard = c->heard + missed < now ? c->heard + missed : now;
        c->deadline += missed;
        c->address_deadline += missed;
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
        log_write(peers_of(c)->config.log, LOG_WARN,
                  "msg=\"link abandoned\" peer=%s node=%016" PRIx64
                  " transport=%s error=\"the peer lives and does not close its side\"",
                  name, c->peer.node, link->kind->ops->name);
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
    forgive(peers, now);
    listener_tick(peers);
    for (c = TAILQ_FIRST(&peers->connections); c != NULL; c = next) {
        next = TAILQ_NEXT(c, entry);
        if (c->doomed || (c->peer.state == PEER_IDLE && !tick_idle(c, now)))
            continue;
        tick_one(c, now);
    }
    if (peers->closing && now >= peers->abandon_at)
        abandon_all(peers);
    if (TAILQ_EMPTY(&peers->connections) && peers->listen_again == 0)
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

void peers_tick_start(struct peers *peers)
{
    if (peers->handles_closing || uv_is_active((uv_handle_t *)&peers->tick))
        return;
    peers->last_tick = peers_now(peers);
    uv_timer_start(&peers->tick, on_tick, peers->tick_ms, peers->tick_ms);
}

/* ---- The end of a turn ------------------------------------------------------------------------------------------- */

static void on_turn(uv_idle_t *idle)
{
    (void)idle;
}

void peers_turn_start(struct peers *peers)
{
    if (!peers->handles_closing)
        uv_idle_start(&peers->turn, on_turn);
}

void peers_told(struct peers *peers)
{
    peers->told = true;
    peers_turn_start(peers);
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct peers *peers = prepare->data;
    struct connection *c;
    while ((c = TAILQ_FIRST(&peers->dirty)) != NULL) {
        TAILQ_REMOVE(&peers->dirty, c, dirty_entry);
        c->dirty = false;
        connection_flush(c);
    }
    if (!peers->handles_closing && !peers->told)
        uv_idle_stop(&peers->turn);
    peers->told = false;
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

static enum strait_status read_secret(struct peers *peers, char *why, size_t why_size)
{
    if (peers->options.secret_file[0] == 0)
        return STRAIT_OK;
    enum strait_status status = auth_secret_read(peers->options.secret_file, &peers->secret_bytes, why, why_size);
    if (status == STRAIT_OK)
        peers->secret = &peers->secret_bytes;
    return status;
}

static void open_handles(struct peers *peers) /* cannot fail */
{
    uv_timer_init(peers->config.loop, &peers->tick);
    uv_idle_init(peers->config.loop, &peers->turn);
    uv_prepare_init(peers->config.loop, &peers->prepare);
    peers->handles = 3;
    peers->tick.data = peers->turn.data = peers->prepare.data = peers;
    uv_prepare_start(&peers->prepare, on_prepare);
}

static void on_watches_idle(void *owner)
{
    peers_settle(owner);
}

static struct peers *peers_make(const struct peers_config *config)
{
    struct peers *peers = calloc(1, sizeof(*peers));
    if (peers == NULL)
        return NULL;
    peers->config = *config;
    peers->options = *config->options;
    peers->listen_fd = -1;
    peers->tick_ms = tick_length(config->options);
    peers->watches.idle = on_watches_idle;
    peers->watches.owner = peers;
    TAILQ_INIT(&peers->connections);
    TAILQ_INIT(&peers->dirty);
    LIST_INIT(&peers->gpu_kinds);
    return peers;
}

enum strait_status peers_open(const struct peers_config *config, struct peers **peers, char *why, size_t why_size)
{
    struct peers *made = peers_make(config);
    if (made == NULL) {
        snprintf(why, why_size, "%s", strait_status_string(STRAIT_ERR_NO_MEMORY));
        return STRAIT_ERR_NO_MEMORY;
    }
    enum strait_status status = read_secret(made, why, why_size);
    if (status == STRAIT_OK)
        status = kinds_check(made, why, why_size);
    if (status == STRAIT_OK)
        status = listener_open(made, why, why_size);
    if (status != STRAIT_OK) {
        auth_secret_wipe(&made->secret_bytes);
        free(made);
        return status;
    }
    open_handles(made);
    set_host(made);
    set_shm_path(made);
    kinds_open(made);
    *peers = made;
    return STRAIT_OK;
}

const char *peers_address(const struct peers *peers)
{
    return peers->address;
}

/* ---- Closing: connections, then transports, then our own handles ------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct peers *peers = handle->data;
    if (--peers->handles > 0)
        return;
    void (*closed)(void *owner) = peers->config.events->closed;
    void *owner = peers->config.owner;
    struct kind *kind;
    while ((kind = LIST_FIRST(&peers->gpu_kinds)) != NULL) {
        LIST_REMOVE(kind, entry);
        free(kind);
    }
    auth_secret_wipe(&peers->secret_bytes);
    free(peers);
    closed(owner);
}

static void close_ports(struct peers *peers)
{
    peers->ports_closing = true;
    for (uint32_t i = 0; i < peers->kind_count; i++) {
        kind_release_memory(&peers->kinds[i]);
        port_close(peers->kinds[i].port);
    }
    struct kind *kind;
    LIST_FOREACH(kind, &peers->gpu_kinds, entry)
    {
        port_close(kind->port);
    }
}

static void close_handles(struct peers *peers)
{
    peers->handles_closing = true;
    uv_close((uv_handle_t *)&peers->tick, on_handle_closed);
    uv_close((uv_handle_t *)&peers->turn, on_handle_closed);
    uv_close((uv_handle_t *)&peers->prepare, on_handle_closed);
}

void peers_settle(struct peers *peers)
{
    if (!peers->closing || !TAILQ_EMPTY(&peers->connections))
        return;
    if (!peers->ports_closing)
        close_ports(peers);
    if (peers->ports == 0 && peers->watches.count == 0 && !peers->handles_closing)
        close_handles(peers);
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
            TAILQ_REMOVE(&peers->connections, c, entry);
            free(c);
        } else {
            connection_doom(c, "this node is closing");
        }
    }
    peers_settle(peers);
}
