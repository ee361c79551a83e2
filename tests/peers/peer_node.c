#include "tests/peers/peer_node.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- Events of a node -------------------------------------------------------------------------------------------- */

uv_loop_t loop;
char folder[64];
struct node a, b, c;
static struct log *logger;

static void tell(struct node *node, char what)
{
    size_t used = strlen(node->story);
    if (used + 1 < sizeof(node->story))
        node->story[used] = what;
}

struct message note_message(const char *text)
{
    static const struct pool_id pool = {{1}};
    return (struct message){
        .type = MESSAGE_PEER_NOTE,
        .note = {.pool = pool, .key = view_of("key", 3), .data = view_of(text, strlen(text))},
    };
}

void send_note(struct node *from, const char *text)
{
    struct message message = note_message(text);
    ck_assert_int_eq(STRAIT_OK, peer_send(from->up, &message));
}

uint64_t ms_since(uint64_t began)
{
    return (uv_hrtime() - began) / 1000000;
}

static void on_up(void *owner, struct peer *peer)
{
    struct node *node = owner;
    tell(node, 'u');
    node->ups++;
    node->up = peer;
    ck_assert_int_eq(PEER_UP, peer->state);
    ck_assert_ptr_nonnull(peer->link);
    if (node->send_on_up)
        send_note(node, "early");
}

static bool on_message(void *owner, struct peer *peer, const struct message *message)
{
    struct node *node = owner;
    ck_assert_int_eq(PEER_UP, peer->state);
    ck_assert_int_eq(MESSAGE_PEER_NOTE, message->type);
    node->messages++;
    if (node->drop_on_message)
        peer_drop(peer, "enough");
    return !node->refuse;
}

static void on_down(void *owner, struct peer *peer)
{
    struct node *node = owner;
    struct message message = note_message("late");
    tell(node, 'd');
    node->downs++;
    snprintf(node->why, sizeof(node->why), "%s", peer->why);
    ck_assert_int_eq(PEER_CLOSING, peer->state);
    ck_assert_int_eq(STRAIT_ERR_AGAIN, peer_send(peer, &message));
    if (!node->keep_link)
        peer_quit_link(peer);
}

static void on_quiet(void *owner, struct peer *peer)
{
    struct node *node = owner;
    tell(node, 'q');
    node->quiets++;
    if (node->up == peer)
        node->up = NULL;
}

/* The header says: token, slot. */
static struct landing on_arriving(void *owner, struct peer *peer, int32_t device, const void *header,
                                  size_t header_size, size_t size)
{
    struct node *node = owner;
    uint64_t fields[2];
    ck_assert(device < 0 || node->gpu_arena != NULL);
    ck_assert_uint_eq(sizeof(fields), header_size);
    ck_assert_uint_le(size, SLOT_BYTES);
    memcpy(fields, header, sizeof(fields));
    ck_assert_uint_eq(peer->token, fields[0]);
    uint8_t *base = device >= 0 ? node->gpu_arena : node->arena.base;
    return (struct landing){.address = base + fields[1] * SLOT_BYTES, .cookie = fields[1] + (device >= 0 ? SLOTS : 0)};
}

static void on_arrived(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    struct node *node = owner;
    (void)peer;
    ck_assert_uint_lt(cookie, 2 * SLOTS);
    node->arrived += status == STRAIT_OK && cookie < SLOTS;
    node->gpu_arrived += status == STRAIT_OK && cookie >= SLOTS;
    node->gpu_failed += status != STRAIT_OK;
}

static void on_sent(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status)
{
    struct node *node = owner;
    (void)peer;
    ck_assert_uint_eq(7, cookie);
    node->sent += status == STRAIT_OK;
}

static void on_codebook(void *owner, struct peer *peer)
{
    (void)owner, (void)peer;
}

static bool knows_codebook(void *owner, const uint8_t id[CODEBOOK_ID_BYTES])
{
    (void)owner, (void)id;
    return false;
}

static void on_gpu_link(void *owner, struct peer *peer, struct gpu_ends ends)
{
    struct node *node = owner;
    (void)peer, (void)ends;
    node->gpu_links++;
}

static void on_peers_closed(void *owner)
{
    struct node *node = owner;
    node->closed = true;
    node->peers = NULL;
}

static const struct peers_events events = {
    .up = on_up,
    .message = on_message,
    .down = on_down,
    .quiet = on_quiet,
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .codebook = on_codebook,
    .knows_codebook = knows_codebook,
    .gpu_link = on_gpu_link,
    .closed = on_peers_closed,
};

/* ---- Its unix socket: only SHM_HELLO comes here ------------------------------------------------------------------ */

static void on_shm_dialled(void *owner, uint32_t what)
{
    struct node *node = owner;
    struct channel *channel;
    struct message message = {0};
    uint32_t fd_count;
    int fds[CHANNEL_FDS_MAX];
    (void)what;
    int fd = accept4(node->shm_listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, 4096, 4096, &channel));
    do { /* the hello is on its way, if not here: the dialling side may be another process */
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        poll(&ready, 1, 1000);
        channel_read(channel);
    } while (channel_next(channel, &message, fds, &fd_count) == STRAIT_ERR_AGAIN);
    ck_assert_int_eq(MESSAGE_SHM_HELLO, message.type);
    peers_accept_shm(node->peers, channel, &message.shm_hello);
    message_fini(&message);
}

void shm_listen(struct node *node)
{
    node->shm_listener = unix_listen(node->options.socket);
    ck_assert_int_eq(STRAIT_OK,
                     watch_open(&loop, node->shm_listener, on_shm_dialled, node, &node->watches, &node->shm_watch));
    watch_for(node->shm_watch, WATCH_READ);
}

/* ---- Beginning and end of a node --------------------------------------------------------------------------------- */

static void arena_make(struct node *node)
{
    node->arena = (struct transport_arena){.size = SLOT_BYTES * SLOTS, .memory = TRANSPORT_HOST};
    node->arena.fd = sealed_memory(node->arena.size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &node->arena.base);
    node->send = aligned_alloc(4096, SLOT_BYTES);
}

/* Not through options_default: what is not said here is nothing. */
void node_init(struct node *node, const char *name, const char *transports)
{
    memset(node, 0, sizeof(*node));
    node->live = true;
    node->shm_listener = -1;
    arena_make(node);
    struct node_options *o = &node->options;
    snprintf(o->socket, sizeof(o->socket), "%s/%s", folder, name);
    snprintf(o->listen, sizeof(o->listen), "127.0.0.1:0");
    snprintf(o->transports, sizeof(o->transports), "%s", transports);
    snprintf(o->ucx, sizeof(o->ucx), "tls=tcp");
    o->tcp_connections = 3;
    o->heartbeat_ms = HEARTBEAT_MS;
    o->peer_timeout_ms = TIMEOUT_MS;
    o->connect_ms = CONNECT_MS;
}

void node_secret(struct node *node, const char *secret)
{
    struct node_options *o = &node->options;
    snprintf(o->secret_file, sizeof(o->secret_file), "%.200s.secret", o->socket);
    unlink(o->secret_file);
    int fd = open(o->secret_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq((int)strlen(secret), (int)write(fd, secret, strlen(secret)));
    close(fd);
}

enum strait_status node_try(struct node *node, char *why, size_t size)
{
    static uint64_t next_id;
    const struct peers_config config = {
        .loop = &loop,
        .options = &node->options,
        .log = logger,
        .metrics = &node->metrics,
        .arena = &node->arena,
        .slot_bytes = SLOT_BYTES,
        .slot_count = SLOTS,
        .send_base = node->send,
        .send_size = SLOT_BYTES,
        .incarnation = 1000 + next_id,
        .node = (uint64_t)getpid() << 20 | next_id,
        .rdma_devices = node->rdma_devices,
        .events = &events,
        .owner = node,
    };
    next_id++;
    node->closed = false;
    return peers_open(&config, &node->peers, why, size);
}

void node_open(struct node *node)
{
    char why[256] = "";
    ck_assert_msg(node_try(node, why, sizeof(why)) == STRAIT_OK, "%s", why);
    if (strstr(node->options.transports, "shm") != NULL)
        shm_listen(node);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static void on_pulse(uv_timer_t *timer)
{
    (void)timer;
}

static uv_timer_t pulse; /* so that the loop never blocks for long */

void node_close(struct node *node)
{
    if (node->peers != NULL)
        peers_close(node->peers);
    EXPECT(node->closed || node->peers == NULL);
    if (node->shm_listener >= 0) {
        watch_close(node->shm_watch);
        close(node->shm_listener);
    }
    node->shm_listener = -1;
    EXPECT(node->watches.count == 0);
}

void nodes_close(void)
{
    struct node *const all[] = {&a, &b, &c};
    for (int i = 0; i < COUNT(all); i++) {
        if (!all[i]->live)
            continue;
        node_close(all[i]);
        munmap(all[i]->arena.base, all[i]->arena.size);
        close(all[i]->arena.fd);
        free(all[i]->send);
        free(all[i]->gpu_arena);
        all[i]->live = false;
    }
}

void setup(void)
{
    snprintf(folder, sizeof(folder), "/tmp/strait-peer-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    if (getenv("STRAIT_TEST_LOG") != NULL)
        ck_assert_int_eq(STRAIT_OK, log_create(2, LOG_DEBUG, &logger));
    ck_assert_int_eq(0, uv_loop_init(&loop));
    uv_timer_init(&loop, &pulse);
    uv_timer_start(&pulse, on_pulse, 2, 2);
}

void teardown(void)
{
    char command[128];
    nodes_close();
    uv_close((uv_handle_t *)&pulse, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(0, uv_loop_close(&loop));
    log_destroy(logger);
    logger = NULL;
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    ck_assert_int_eq(0, system(command));
}

void node_start(struct node *node, const char *name, const char *transports, const char *secret)
{
    node_init(node, name, transports);
    if (secret != NULL)
        node_secret(node, secret);
    node_open(node);
}

void pair_init(const char *transports)
{
    node_init(&a, "a", transports);
    node_init(&b, "b", transports);
}

void pair_open(void)
{
    node_open(&a);
    node_open(&b);
}

void pair_start(const char *transports)
{
    pair_init(transports);
    pair_open();
    connect_nodes(&a, &b);
}

/* Keeps asking, as users do. */
struct peer *get(struct node *from, const struct node *to)
{
    return peers_get(from->peers, peers_address(to->peers), 0);
}

void connect_nodes(struct node *from, struct node *to)
{
    uint32_t ups = from->ups, other = to->ups;
    EXPECT((get(from, to), from->ups > ups && to->ups > other));
}

bool bytes_filled(const void *bytes, uint8_t with, size_t size)
{
    const uint8_t *at = bytes;
    return at[0] == with && memcmp(at, at + 1, size - 1) == 0;
}

int dial_b_from(uint32_t host)
{
    const char *address = peers_address(b.peers);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(0, bind(fd, (const struct sockaddr *)&from, sizeof(from)));
    ck_assert_int_eq(0, connect(fd, (struct sockaddr *)&to, sizeof(to)));
    return fd;
}

bool is_ended(int fd)
{
    char bytes[4096];
    ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}
