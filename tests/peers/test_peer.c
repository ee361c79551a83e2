/* Nodes that connect to each other; who is to be stopped or killed is another process. */
#include "tests/peers/peer_node.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {"shm", "tcp", "ucx", "loopback"};

static bool is_missing(const char *kind)
{
    if (transport_find(kind) != NULL)
        return false;
    printf("not in this build: %s\n", kind);
    return true;
}

static void send_chunk(struct node *from, struct node *to, uint8_t with)
{
    uint64_t header[2] = {from->up->peer_token, 2};
    uint32_t arrived = to->arrived, sent = from->sent;
    void *data = from->send;
    if (from->up->direct) {
        memset(link_map(from->up->link, 2 * SLOT_BYTES, SLOT_BYTES), with, SLOT_BYTES);
        data = NULL;
    } else {
        memset(from->send, with, SLOT_BYTES);
    }
    ck_assert_int_eq(STRAIT_OK, peer_send_chunk(from->up, header, sizeof(header), data, SLOT_BYTES, 7));
    EXPECT(to->arrived == arrived + 1 && from->sent == sent + 1);
    ck_assert(bytes_filled((uint8_t *)to->arena.base + 2 * SLOT_BYTES, with, SLOT_BYTES));
}

TEST_LOOP(two_nodes_connect_and_carry_messages_and_chunks, COUNT(kinds))
{
    if (is_missing(kinds[_i]))
        return;
    pair_init(kinds[_i]);
    a.send_on_up = b.send_on_up = true;
    pair_open();
    connect_nodes(&a, &b);
    ck_assert_ptr_eq(get(&a, &b), a.up);
    ck_assert_str_eq(kinds[_i], peer_transport_name(a.up));
    ck_assert_str_eq(kinds[_i], peer_transport_name(b.up));
    ck_assert_str_eq("", a.up->why);
    ck_assert(a.up->dialled && !b.up->dialled);
    ck_assert(a.up->rings == (strcmp(kinds[_i], "shm") == 0) && b.up->rings == a.up->rings);
    ck_assert_str_eq(peers_address(b.peers), a.up->address);
    ck_assert_str_eq(peers_address(a.peers), b.up->address);
    ck_assert_uint_eq(a.up->token, b.up->peer_token);
    ck_assert_uint_eq(b.up->token, a.up->peer_token);
    ck_assert_uint_eq(SLOT_BYTES, a.up->slot_bytes);
    ck_assert_uint_eq(SLOTS, b.up->slot_count);
    EXPECT(a.messages == 1 && b.messages == 1); /* what one sent before the other was up is not lost */
    for (int i = 0; i < 100; i++) {
        send_note(&a, "hello");
        send_note(&b, "hello");
    }
    EXPECT(a.messages == 101 && b.messages == 101);
    send_chunk(&a, &b, 0x11);
    send_chunk(&b, &a, 0x22);
    EXPECT(a.up->round_trip_us > 0 && b.up->round_trip_us > 0);
    RUN_UNTIL(false, TIMEOUT_MS + 4 * HEARTBEAT_MS); /* heartbeats keep it */
    peer_drop(a.up, "the test is over");
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_str_eq("udq", a.story);
    ck_assert_str_eq("udq", b.story);
    ck_assert_str_eq("the test is over", a.why);
    ck_assert_uint_eq(1, a.metrics.peers_connected);
    ck_assert_uint_eq(1, b.metrics.peers_lost);
}

/* What this process has open: of sockets, those that listen for TCP. */
static unsigned listening(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int listens = 0, domain = 0;
        socklen_t size = sizeof(listens);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens &&
            getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0)
            count += domain != AF_UNIX;
    }
    return count;
}

/* UCX has ports of its own while two peers use it, and neither before nor after. tcp has none. */
TEST_LOOP(a_transport_has_ports_while_a_peer_uses_it, 2)
{
    const char *kind = _i == 0 ? "tcp" : "ucx";
    if (is_missing(kind))
        return;
    pair_init(kind);
    pair_open();
    for (int round = 0; round < 2; round++) {
        EXPECT(listening() == 2); /* of a and b */
        connect_nodes(&a, &b);
        send_chunk(&a, &b, 0x44);
        ck_assert((listening() > 2) == (_i == 1));
        peer_drop(a.up, "the test is over");
        EXPECT(a.quiets == round + 1u && b.quiets == round + 1u);
        EXPECT(listening() == 2);
    }
}

/* With a device for RDMA `auto` would be another list. */
TEST_LOOP(auto_is_shm_on_one_host_and_tcp_else, 2)
{
    if (transport_rdma_is_active(RDMA_DEVICES))
        return;
    pair_init("auto");
    if (_i == 1)
        a.options.socket[0] = b.options.socket[0] = '\0';
    pair_open();
    if (_i == 0)
        shm_listen(&b);
    connect_nodes(&a, &b);
    ck_assert_str_eq(_i == 0 ? "shm" : "tcp", peer_transport_name(a.up));
    send_chunk(&a, &b, 0x55);
}

#ifdef STRAIT_HAVE_UCX
/* UCX has a port for TCP even where it may use RDMA alone. */
TEST(with_rdma_auto_is_ucx_only_if_its_ports_bear_strangers)
{
    char path[256], version[32];
    snprintf(path, sizeof(path), "mkdir -p %s/rdma/mlx5_0/ports/1 && echo '4: ACTIVE' >%s/rdma/mlx5_0/ports/1/state",
             folder, folder);
    ck_assert_int_eq(0, system(path));
    snprintf(path, sizeof(path), "%s/rdma", folder);
    pair_init("auto");
    a.rdma_devices = b.rdma_devices = path;
    a.options.socket[0] = b.options.socket[0] = '\0';
    pair_open();
    connect_nodes(&a, &b);
    ck_assert_str_eq(ucx_is_sound_over_tcp(version, sizeof(version)) ? "ucx" : "tcp", peer_transport_name(a.up));
}

/* Though shm and tcp could be used. */
TEST(a_node_that_requires_rdma_says_what_it_lacks)
{
    char why[512] = "";
    if (transport_rdma_is_active(RDMA_DEVICES))
        return;
    node_init(&a, "a", "shm,tcp");
    a.options.require_rdma = true;
    node_open(&a);
    ck_assert(!peers_can_travel(a.peers, why, sizeof(why)));
    ck_assert_str_eq("require-rdma = yes: no device for RDMA of this node has an active port", why);
}
#endif

TEST(both_may_dial_and_have_two_connections_then)
{
    pair_init("shm");
    pair_open();
    EXPECT((get(&a, &b), get(&b, &a), a.ups == 2 && b.ups == 2));
    ck_assert_ptr_eq(get(&a, &b), get(&a, &b));
    peers_close(a.peers);
    EXPECT(a.closed && b.quiets == 2);
    ck_assert_uint_eq(2, a.quiets);
}

TEST(a_transport_that_fails_gives_way_to_the_next)
{
    pair_init("shm,loopback");
    pair_open();
    unlink(b.options.socket);
    connect_nodes(&a, &b);
    ck_assert_str_eq("loopback", peer_transport_name(a.up));
    ck_assert_str_eq("loopback", peer_transport_name(b.up));
    ck_assert_ptr_nonnull(strstr(a.up->why, "shm: No such file"));
    send_chunk(&a, &b, 0x33);
}

/* Its unix socket takes the connection and the hello, and then nothing happens. */
TEST(a_transport_that_does_not_answer_gives_way_to_the_next)
{
    pair_init("shm,loopback");
    pair_open();
    watch_for(b.shm_watch, 0);
    connect_nodes(&a, &b);
    ck_assert_str_eq("loopback", peer_transport_name(a.up));
    ck_assert_ptr_nonnull(strstr(a.up->why, "shm: no link in time"));
    peer_drop(a.up, "over"); /* its shm link may be open still: what it was never granted does not matter */
    close(b.shm_listener);
    watch_close(b.shm_watch);
    b.shm_listener = -1;
    EXPECT(a.quiets == 1);
}

/* Connects to b's unix socket, from which nobody accepts, until there is no room; returns how many have. */
static int fill_backlog(int waiting[64])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    watch_for(b.shm_watch, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.100s", b.options.socket);
    for (int count = 0;; count++) {
        ck_assert_int_lt(count, 64);
        waiting[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(waiting[count], (const struct sockaddr *)&address, sizeof(address)) == 0)
            continue;
        ck_assert_int_eq(EAGAIN, errno);
        return count;
    }
}

/* The peer's daemon does not get to accepting: the next kind would be used for as long as the connection lives. */
TEST(a_unix_socket_with_a_full_backlog_is_tried_again)
{
    int waiting[64];
    pair_init("shm,loopback");
    a.options.connect_ms = b.options.connect_ms = SECONDS(10);
    pair_open();
    int count = fill_backlog(waiting);
    EXPECT(get(&a, &b)->state == PEER_LINKING);
    RUN_UNTIL(a.ups > 0, 300);
    ck_assert_uint_eq(0, a.ups);
    for (int i = 0; i < count; i++)
        close(accept4(b.shm_listener, NULL, NULL, SOCK_CLOEXEC));
    for (int i = 0; i <= count; i++)
        close(waiting[i]);
    watch_for(b.shm_watch, WATCH_READ);
    connect_nodes(&a, &b);
    ck_assert_str_eq("shm", peer_transport_name(a.up));
}

TEST(a_unix_socket_whose_backlog_stays_full_gives_way_to_the_next)
{
    int waiting[64];
    pair_init("shm,loopback");
    pair_open();
    int count = fill_backlog(waiting);
    connect_nodes(&a, &b);
    ck_assert_str_eq("loopback", peer_transport_name(a.up));
    ck_assert_ptr_nonnull(strstr(a.up->why, "shm: its socket has no room"));
    for (int i = 0; i <= count; i++)
        close(waiting[i]);
}

TEST(the_diallers_order_decides)
{
    node_init(&a, "a", "loopback,shm");
    node_init(&b, "b", "shm,loopback");
    pair_open();
    connect_nodes(&a, &b);
    ck_assert_str_eq("loopback", peer_transport_name(b.up));
}

TEST(without_a_common_transport_there_is_no_peer)
{
    node_init(&a, "a", "shm");
    node_init(&b, "b", "loopback");
    pair_open();
    EXPECT(strstr(get(&a, &b)->why, "no transport: shm: not offered by the peer") != NULL);
    ck_assert_uint_eq(0, a.ups + b.ups);
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

TEST(a_peer_is_quiet_only_after_its_user_has_quit_the_link)
{
    pair_init("shm");
    pair_open();
    a.keep_link = true;
    connect_nodes(&a, &b);
    struct peer *old = a.up;
    peer_drop(b.up, "over");
    EXPECT(a.downs == 1);
    RUN_UNTIL(b.quiets == 1, 200);
    ck_assert_uint_eq(0, a.quiets);
    ck_assert_uint_eq(0, b.quiets); /* a could write still */
    ck_assert_ptr_nonnull(old->link);
    connect_nodes(&a, &b); /* a new one to the same address meanwhile */
    ck_assert_ptr_ne(old, a.up);
    ck_assert_ptr_eq(get(&a, &b), a.up);
    peer_quit_link(old);
    peer_quit_link(old); /* does no harm */
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_str_eq("uduq", a.story);
    a.keep_link = false;
}

TEST(who_breaks_the_protocol_goes_down)
{
    pair_init("shm");
    b.refuse = true;
    pair_open();
    connect_nodes(&a, &b);
    send_note(&a, "?");
    send_note(&a, "?");
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_uint_eq(1, b.messages); /* nothing after that one */
    ck_assert_ptr_nonnull(strstr(b.why, "protocol error"));
    ck_assert_str_eq("udq", a.story);
    ck_assert_uint_eq(1, b.metrics.peer_errors);
}

/* Where there are no rings, and where they are in use already. */
TEST_LOOP(a_ring_that_nobody_has_breaks_the_protocol, 2)
{
    pair_start(_i == 0 ? "tcp" : "shm");
    send_note(&a, "first");
    EXPECT(b.messages == 1);
    const struct message ring = {.type = MESSAGE_RING};
    ck_assert_int_eq(STRAIT_OK, peer_send(a.up, &ring));
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_str_eq("protocol error: ring", b.why);
    ck_assert_uint_eq(1, b.metrics.peer_errors);
}

TEST(a_peer_can_be_dropped_from_inside_a_callback)
{
    pair_init("loopback");
    b.drop_on_message = true;
    pair_open();
    connect_nodes(&a, &b);
    send_note(&a, "?");
    send_note(&a, "?");
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_uint_eq(1, b.messages);
    ck_assert_str_eq("enough", b.why);
}

TEST(a_node_that_comes_back_is_dialled_again)
{
    char address[MESSAGE_ADDRESS_MAX];
    pair_init("shm");
    pair_open();
    for (uint32_t round = 1; round <= 3; round++) {
        connect_nodes(&a, &b);
        ck_assert_uint_eq(round, a.ups);
        snprintf(address, sizeof(address), "%s", peers_address(b.peers));
        node_close(&b);
        EXPECT(a.quiets == round);
        struct peer *peer = peers_get(a.peers, address, 0);
        ck_assert(peer->state == PEER_IDLE || peer->state == PEER_DIALLING);
        snprintf(b.options.listen, sizeof(b.options.listen), "%s", address); /* the same port */
        EXPECT(strstr(peers_get(a.peers, address, 0)->why, "refused") != NULL);
        node_open(&b);
    }
    connect_nodes(&a, &b);
    ck_assert_str_eq("udqudqudqu", a.story);
}

/* ---- Back-off ---------------------------------------------------------------------------------------------------- */

/* Deadlines of a second go on meanwhile. */
TEST(short_lives_are_no_reason_for_long_waits)
{
    uint64_t took = 0, late = 0;
    pair_start("shm");
    for (uint32_t life = 1; life <= 8; life++) {
        peer_drop(b.up, "short");
        EXPECT(a.quiets == life && b.quiets == life);
        uint64_t begun = uv_hrtime();
        late = machine_late_ms();
        connect_nodes(&a, &b);
        took = ms_since(begun);
        late = machine_late_ms() - late;
    }
    ck_assert_uint_ge(took, 100);
    ck_assert_uint_le(took, 500 + late);
}

TEST(a_node_that_calls_is_called_back_at_once)
{
    char address[MESSAGE_ADDRESS_MAX];
    pair_init("shm");
    pair_open();
    snprintf(address, sizeof(address), "%s", peers_address(b.peers));
    node_close(&b);
    uint64_t begun = uv_hrtime();
    while (ms_since(begun) < 700) { /* 20, 40, ... 320 ms; the next wait is 640 ms */
        (void)peers_get(a.peers, address, 0);
        uv_run(&loop, UV_RUN_ONCE);
    }
    snprintf(b.options.listen, sizeof(b.options.listen), "%s", address);
    node_open(&b);
    begun = uv_hrtime();
    uint64_t late = machine_late_ms();
    connect_nodes(&b, &a);
    connect_nodes(&a, &b);
    ck_assert_uint_le(ms_since(begun), 400 + machine_late_ms() - late);
    ck_assert_uint_eq(2, a.ups);
}

/* ---- Turns of the loop ------------------------------------------------------------------------------------------- */

/* What an owner does: its prepare handle carries out what callbacks have queued. It runs first. The other one runs
 * last, right before the loop blocks. */
static struct turns {
    struct node *nodes[2];
    uv_prepare_t first, last;
    uint32_t done, left_waiting;
} turns;

static uint32_t queued(void)
{
    uint32_t sum = 0;
    for (int i = 0; i < COUNT(turns.nodes); i++) {
        const struct node *node = turns.nodes[i];
        sum += node->ups + node->downs + node->quiets + node->arrived + node->sent;
    }
    return sum;
}

static void on_first(uv_prepare_t *prepare)
{
    (void)prepare;
    turns.done = queued();
}

static void on_last(uv_prepare_t *prepare)
{
    (void)prepare;
    turns.left_waiting += turns.done != queued() && uv_backend_timeout(&loop) != 0;
}

TEST_LOOP(the_loop_does_not_block_on_what_a_callback_queued, COUNT(kinds))
{
    if (is_missing(kinds[_i]))
        return;
    pair_init(kinds[_i]);
    turns = (struct turns){.nodes = {&a, &b}};
    uv_prepare_init(&loop, &turns.first);
    uv_prepare_init(&loop, &turns.last);
    uv_prepare_start(&turns.last, on_last);
    pair_open();
    uv_prepare_start(&turns.first, on_first);
    connect_nodes(&a, &b);
    for (uint8_t i = 0; i < 50; i++) {
        send_chunk(&a, &b, i);
        RUN_UNTIL(false, 3);
    }
    peer_drop(a.up, "over");
    EXPECT(a.quiets == 1 && b.quiets == 1);
    ck_assert_uint_eq(0, turns.left_waiting);
    RUN_UNTIL(false, 10);
    ck_assert_uint_eq(turns.done, queued());
    uv_close((uv_handle_t *)&turns.first, NULL);
    uv_close((uv_handle_t *)&turns.last, NULL);
}

TEST(a_loop_with_idle_peers_sleeps)
{
    uint32_t turns_taken = 0;
    pair_start("shm");
    send_chunk(&a, &b, 1);
    uint64_t end = uv_hrtime() + 300000000u;
    for (; uv_hrtime() < end; turns_taken++)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_le(turns_taken, 1000); /* the pulse makes 150, heartbeats a few more */
}

/* ---- Another process --------------------------------------------------------------------------------------------- */

static struct {
    pid_t pid;
    char address[MESSAGE_ADDRESS_MAX];
} other;

/* A node of its own that lives until it is killed. Before the parent has nodes: it inherits nothing of them. */
static void other_start(uint32_t timeout_ms)
{
    int fds[2];
    ck_assert_int_eq(0, pipe(fds));
    other.pid = fork();
    ck_assert_int_ge(other.pid, 0);
    if (other.pid == 0) {
        struct node node;
        ck_assert_int_eq(0, uv_loop_fork(&loop));
        node_init(&node, "other", "shm");
        node.options.peer_timeout_ms = timeout_ms;
        node_open(&node);
        if (write(fds[1], peers_address(node.peers), strlen(peers_address(node.peers))) < 0)
            _exit(1);
        close(fds[1]);
        while (getppid() != 1 && node.downs == 0)
            uv_run(&loop, UV_RUN_ONCE);
        _exit(node.downs > 0 ? 3 : 0);
    }
    close(fds[1]);
    ssize_t got = read(fds[0], other.address, sizeof(other.address) - 1);
    ck_assert_int_gt(got, 0);
    other.address[got] = 0;
    close(fds[0]);
}

static void other_kill(void)
{
    kill(other.pid, SIGKILL);
    waitpid(other.pid, NULL, 0);
}

/* It is a peer of a. */
static void meet_other(uint32_t its_timeout_ms, uint32_t timeout_ms)
{
    other_start(its_timeout_ms);
    node_init(&a, "a", "shm");
    a.options.peer_timeout_ms = timeout_ms;
    node_open(&a);
    EXPECT((peers_get(a.peers, other.address, 0), a.ups == 1));
}

TEST(a_killed_peer_goes_down_at_once)
{
    meet_other(TIMEOUT_MS, SECONDS(60));
    other_kill();
    uint64_t begun = uv_hrtime(), late = machine_late_ms();
    EXPECT(a.quiets == 1);
    ck_assert_uint_le(ms_since(begun), 5000 + machine_late_ms() - late);
    ck_assert_str_eq("udq", a.story);
}

TEST(a_stopped_peer_goes_down_in_time_and_is_quiet_when_it_is_dead)
{
    meet_other(TIMEOUT_MS, TIMEOUT_MS);
    uint64_t begun = uv_hrtime(), late = machine_late_ms();
    kill(other.pid, SIGSTOP);
    EXPECT(a.downs == 1);
    uint64_t took = ms_since(begun);
    ck_assert_uint_ge(took, TIMEOUT_MS / 2);
    ck_assert_uint_le(took, 10 * TIMEOUT_MS + machine_late_ms() - late);
    ck_assert_ptr_nonnull(strstr(a.why, "no heartbeat for"));
    RUN_UNTIL(a.quiets > 0, 300);
    ck_assert_uint_eq(0, a.quiets); /* it could still write when it goes on */
    ck_assert_ptr_ne(a.up, peers_get(a.peers, other.address, 0));
    other_kill();
    EXPECT(a.quiets == 1);
}

/* 0: it was up until then; 1: it is down for long, and its slots are in quarantine. */
TEST_LOOP(a_stopped_peer_does_not_keep_a_node_from_its_end, 2)
{
    meet_other(TIMEOUT_MS, TIMEOUT_MS);
    kill(other.pid, SIGSTOP);
    if (_i == 1)
        EXPECT(a.downs == 1);
    uint64_t begun = uv_hrtime(), late = machine_late_ms();
    peers_close(a.peers);
    RUN_UNTIL(a.closed, TIMEOUT_MS / 2);
    ck_assert_uint_eq(1, a.downs);
    ck_assert(a.quiets == 0 || ms_since(begun) >= TIMEOUT_MS - 20); /* it may go on in time */
    EXPECT(a.closed);
    ck_assert_uint_ge(ms_since(begun), TIMEOUT_MS - 20);
    ck_assert_uint_le(ms_since(begun), 5 * TIMEOUT_MS + machine_late_ms() - late);
    ck_assert_str_eq("udq", a.story);
    ck_assert_int_eq(0, waitpid(other.pid, NULL, WNOHANG)); /* all that without its help */
    other_kill();
}

/* The other one's patience is far shorter than its sleep. */
/* The link may be the first to end. */
TEST_LOOP(the_last_words_of_a_node_that_closes_are_heard, 2 * 2)
{
    pair_init(kinds[_i % 2]);
    pair_open();
    connect_nodes(&a, &b);
    send_note(&a, "one");
    EXPECT(b.messages == 1);
    RUN_UNTIL(false, _i / 2 * HEARTBEAT_MS / 2);
    for (int i = 0; i < 100; i++)
        send_note(&a, "of the last");
    peers_close(a.peers);
    EXPECT(a.closed && b.quiets == 1);
    ck_assert_uint_eq(101, b.messages);
}

TEST(a_process_does_not_blame_its_peers_for_its_own_sleep)
{
    int status;
    meet_other(TIMEOUT_MS, SECONDS(60));
    kill(other.pid, SIGSTOP);
    RUN_UNTIL(a.downs > 0, 2 * TIMEOUT_MS);
    kill(other.pid, SIGCONT);
    RUN_UNTIL(a.downs > 0, TIMEOUT_MS);
    ck_assert_uint_eq(0, a.downs);
    ck_assert_int_eq(0, waitpid(other.pid, &status, WNOHANG)); /* it has not ended by its own will */
    other_kill();
    EXPECT(a.quiets == 1);
}

TEST(a_peer_that_takes_no_messages_goes_down)
{
    enum { NOTE_BYTES = 60000 };
    static char text[NOTE_BYTES + 1];
    uint64_t queued = 0;
    enum strait_status status;
    meet_other(SECONDS(60), SECONDS(60));
    kill(other.pid, SIGSTOP);
    memset(text, 'x', NOTE_BYTES);
    struct message message = note_message(text);
    for (status = STRAIT_OK; status == STRAIT_OK && queued < 200u * 1024 * 1024; queued += NOTE_BYTES) {
        status = peer_send(a.up, &message);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, status);
    ck_assert_uint_ge(queued, 64u * 1024 * 1024);
    EXPECT(a.downs == 1);
    ck_assert_ptr_nonnull(strstr(a.why, "messages are not taken"));
    other_kill();
    EXPECT(a.quiets == 1);
}

/* ---- Closing ----------------------------------------------------------------------------------------------------- */

/* After so many turns of the loop, whatever is going on then. */
TEST_LOOP(a_node_can_be_closed_at_any_moment, 24)
{
    node_init(&a, "a", "shm,loopback");
    node_init(&b, "b", "loopback,shm");
    node_secret(&a, SECRET);
    node_secret(&b, SECRET);
    pair_open();
    (void)get(&a, &b);
    (void)get(&b, &a);
    (void)peers_get(a.peers, "localhost:1", 0);
    for (int i = 0; i < _i; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    peers_close(a.peers);
    ck_assert_ptr_null(get(&a, &b));
    EXPECT(a.closed && b.downs == b.ups);
    ck_assert_uint_eq(a.ups, a.downs);
    ck_assert_uint_eq(a.ups, a.quiets);
}

/* ---- Transports that spin ---------------------------------------------------------------------------------------- */

/* A transport that only keeps its loop busy, on a loop of its own. */
static struct restless {
    const char *what;
    bool due;      /* it always has something to do: arm refuses */
    bool readable; /* its descriptor always is */
    bool works;    /* it calls back */
    bool spins;    /* expected */
    struct transport base;
    int fd;
    struct port *port;
    uint32_t began, ended;
    bool spun;
    uv_loop_t loop;
    uv_timer_t tick, end;
    pthread_t thread;
} restless[] = {
    {.what = "due for nothing", .due = true, .spins = true},
    {.what = "readable for nothing", .readable = true, .spins = true},
    {.what = "due, and working", .due = true, .works = true},
    {.what = "woken by a slow network"},
};

static int restless_fd(const struct transport *transport)
{
    return ((const struct restless *)((const char *)transport - offsetof(struct restless, base)))->fd;
}

static bool restless_progress(struct transport *transport)
{
    struct restless *r = (struct restless *)((char *)transport - offsetof(struct restless, base));
    uint64_t times;
    if (!r->readable)
        (void)!read(r->fd, &times, sizeof(times));
    if (r->works)
        port_worked(r->port);
    return false;
}

static enum strait_status restless_arm(struct transport *transport)
{
    return ((struct restless *)((char *)transport - offsetof(struct restless, base)))->due ? STRAIT_ERR_AGAIN
                                                                                           : STRAIT_OK;
}

static const struct transport_ops restless_ops = {
    .name = "restless", .fd = restless_fd, .progress = restless_progress, .arm = restless_arm};

static void restless_spins(void *owner, bool spins)
{
    struct restless *r = owner;
    r->began += spins;
    r->ended += !spins;
    r->spun = port_is_spinning(r->port);
    r->due = r->readable = false; /* enough: it sleeps from now on */
}

static void restless_closed(void *owner)
{
    (void)owner;
}

static void restless_packet(uv_timer_t *tick)
{
    struct restless *r = tick->data;
    (void)!write(r->fd, &(uint64_t){1}, 8);
}

static void restless_end(uv_timer_t *end)
{
    struct restless *r = end->data;
    port_close(r->port);
    uv_close((uv_handle_t *)&r->tick, NULL);
    uv_close((uv_handle_t *)&r->end, NULL);
}

static void *restless_run(void *arg)
{
    static const struct port_events events = {.spinning = restless_spins, .closed = restless_closed};
    struct restless *r = arg;
    uv_loop_init(&r->loop);
    r->fd = eventfd(r->readable, EFD_NONBLOCK | EFD_CLOEXEC);
    r->base.ops = &restless_ops;
    ck_assert_int_eq(STRAIT_OK, port_create(&r->loop, &r->base, &events, r, &r->port));
    uv_timer_init(&r->loop, &r->tick);
    uv_timer_init(&r->loop, &r->end);
    r->tick.data = r->end.data = r;
    uv_timer_start(&r->tick, restless_packet, 2, 2);
    uv_timer_start(&r->end, restless_end, 2700, 0);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(0, uv_loop_close(&r->loop));
    close(r->fd);
    return NULL;
}

TEST(a_transport_that_keeps_the_loop_awake_for_nothing_is_told)
{
    for (int i = 0; i < COUNT(restless); i++)
        ck_assert_int_eq(0, pthread_create(&restless[i].thread, NULL, restless_run, &restless[i]));
    for (int i = 0; i < COUNT(restless); i++)
        pthread_join(restless[i].thread, NULL);
    for (int i = 0; i < COUNT(restless); i++) {
        const struct restless *r = &restless[i];
        ck_assert_msg(r->began == r->spins && r->ended == r->spins, "%s: %u, %u", r->what, r->began, r->ended);
    }
}

int main(void)
{
    return peer_main("peer");
}
