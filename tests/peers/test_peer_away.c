/* Peers that are not reached: how soon one that comes back is dialled, and of which it is of no use to wait for. */
#include "tests/peers/peer_node.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/fault.h"

/* ---- Coming back ------------------------------------------------------------------------------------------------- */

/* A process with a node of its own, which it opens when it is told where to listen. */
struct process {
    pid_t pid;
    int told, tells; /* pipes: where to listen, and that it does */
};

static _Noreturn void process_run(int told, int tells)
{
    struct node node;
    node_init(&node, "other", "shm");
    const ssize_t got = read(told, node.options.listen, sizeof(node.options.listen) - 1);
    if (got <= 0 || uv_loop_fork(&loop) != 0)
        _exit(1);
    node.options.listen[got] = 0;
    node_open(&node);
    if (write(tells, "", 1) != 1)
        _exit(1);
    while (getppid() != 1)
        uv_run(&loop, UV_RUN_ONCE);
    _exit(0);
}

/* Before the test has nodes: it inherits nothing of them. */
static struct process process_fork(void)
{
    int told[2], tells[2];
    ck_assert(pipe(told) == 0 && pipe(tells) == 0);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(told[1]);
        process_run(told[0], tells[1]);
    }
    close(told[0]);
    close(tells[1]);
    return (struct process){.pid = pid, .told = told[1], .tells = tells[0]};
}

/* Returns when it listens there. */
static void process_listen(const struct process *process, const char *address)
{
    char listens;
    ck_assert_int_gt((int)write(process->told, address, strlen(address)), 0);
    ck_assert_int_eq(1, (int)read(process->tells, &listens, 1));
}

static void process_kill(const struct process *process)
{
    kill(process->pid, SIGKILL);
    waitpid(process->pid, NULL, 0);
    close(process->told);
    close(process->tells);
}

static const uint32_t away_ms[] = {200, 1000, 5000};

/* For dialing, and for what else the machine does. */
enum { DIAL_MS = SANITIZED ? 400 : 50 };

/* Those who wait are kept for a sixteenth of the time that it was away. */
TEST_LOOP(a_killed_node_is_reached_soon_after_it_is_back, COUNT(away_ms))
{
    char address[MESSAGE_ADDRESS_MAX];
    const struct process first = process_fork(), second = process_fork();
    int reserved = -1;
    snprintf(address, sizeof(address), "127.0.0.1:%u", port_reserve(&reserved));
    process_listen(&first, address);
    node_start(&a, "a", "shm", NULL);
    EXPECT((peers_get(a.peers, address, 0), a.ups == 1));
    process_kill(&first);
    RUN_UNTIL((peers_get(a.peers, address, 0), false), away_ms[_i]);
    ck_assert_uint_eq(1, a.quiets);
    process_listen(&second, address);
    const uint64_t begun = uv_hrtime(), late = machine_late_ms();
    EXPECT((peers_get(a.peers, address, 0), a.ups == 2));
    ck_assert_uint_le(ms_since(begun), away_ms[_i] / 16 + DIAL_MS + machine_late_ms() - late);
    process_kill(&second);
    close(reserved);
}

/* ---- What time heals, and what it does not ----------------------------------------------------------------------- */

static char where[MESSAGE_ADDRESS_MAX]; /* that a dials */
static int held = -1;                   /* a socket that stands in for a peer */

static void is_b(void)
{
    pair_open();
    snprintf(where, sizeof(where), "%s", peers_address(b.peers));
}

static void other_secret(void)
{
    pair_init("shm");
    node_secret(&a, SECRET);
    node_secret(&b, "another secret of enough bytes");
    is_b();
}

static void pages_encrypted_here(void)
{
    pair_init("shm");
    node_secret(&a, SECRET);
    node_secret(&b, SECRET);
    a.options.encrypt_pages = true;
    is_b();
}

static void no_common_transport(void)
{
    node_init(&a, "a", "shm");
    node_init(&b, "b", "loopback");
    is_b();
}

/* All that b says in its hellos is newer than what a knows. */
static bool on_fault(enum fault_point point, void *peer, const void *what)
{
    const struct message *message = what;
    if (point != FAULT_SEND || message->type != MESSAGE_PEER_HELLO || ((const struct peer *)peer)->peers != b.peers)
        return false;
    struct message_peer_hello *hello = &((struct message *)what)->peer_hello; /* the connection's own, on its stack */
    hello->version = PROTOCOL_VERSION + 5;
    hello->version_min = PROTOCOL_VERSION + 1;
    return false;
}

static void other_versions(void)
{
    pair_init("shm");
    is_b();
    atomic_store(&fault_hook, on_fault);
}

static void itself(void)
{
    node_start(&a, "a", "shm", NULL);
    snprintf(where, sizeof(where), "localhost%s", strrchr(peers_address(a.peers), ':'));
}

static void nobody(void)
{
    node_start(&a, "a", "shm", NULL);
    snprintf(where, sizeof(where), "127.0.0.1:1");
}

static void no_name(void)
{
    node_start(&a, "a", "shm", NULL);
    snprintf(where, sizeof(where), "no.such.name.invalid:7350");
}

/* It accepts, and says nothing. */
static void silence(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert(bind(held, (struct sockaddr *)&at, size) == 0 && listen(held, 1000) == 0);
    ck_assert_int_eq(0, getsockname(held, (struct sockaddr *)&at, &size));
    snprintf(where, sizeof(where), "127.0.0.1:%u", ntohs(at.sin_port));
    node_init(&a, "a", "shm");
    a.options.connect_ms = 100;
    node_open(&a);
}

/* Hangs up on who connects: a daemon that stops, or one that has too many peers. */
static void hang_up(void)
{
    const int fd = held >= 0 ? accept4(held, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd >= 0)
        close(fd);
}

static const struct {
    void (*prepare)(void);
    const char *why;
    bool hopeless, hangs_up;
} troubles[] = {
    {other_secret, "the secrets differ", true, false},
    {pages_encrypted_here, "encrypted pages are demanded here", true, false},
    {no_common_transport, "not offered by the peer", true, false},
    {other_versions, "protocol versions differ", true, false},
    {itself, "leads back to this daemon", true, false},
    {nobody, "refused", false, false},
    {no_name, "name look-up", false, false},
    {silence, "no connection in time", false, false},
    {silence, "closed by the peer", false, true},
};

/* One who asks, as requests do. */
static bool asks(uint32_t *since)
{
    const struct peer *peer = peers_get(a.peers, where, 0);
    return peer_is_hopeless(peer, since);
}

TEST_LOOP(what_only_people_mend_is_not_waited_for, COUNT(troubles))
{
    uint32_t since = UINT32_MAX, later = UINT32_MAX;
    uint64_t begun = uv_hrtime();
    troubles[_i].prepare();
    while (!asks(&since) && (ms_since(begun) < 1500 || peers_get(a.peers, where, 0)->attempts < 5)) {
        if (troubles[_i].hangs_up)
            hang_up();
        uv_run(&loop, UV_RUN_ONCE);
    }
    const struct peer *peer = peers_find(a.peers, where);
    ck_assert_ptr_nonnull(peer);
    ck_assert_msg(strstr(peer->why, troubles[_i].why) != NULL, "%s", peer->why);
    ck_assert_int_eq(troubles[_i].hopeless, asks(&since));
    if (troubles[_i].hopeless) {
        ck_assert_uint_ge(ms_since(begun), 1000 - 5); /* the loop counts whole milliseconds, from its own last look */
        const uint32_t attempts = peer->attempts;
        ck_assert(!asks(&later)); /* it may have been mended: who asks now has it tried again */
        EXPECT(asks(&later));
        ck_assert_uint_ge(peers_find(a.peers, where)->attempts, attempts + 2);
    }
    atomic_store(&fault_hook, NULL);
    if (held >= 0)
        close(held);
}

/* A secret that is being changed on one node after the other lets nobody fail. */
TEST(what_is_mended_within_a_second_has_not_happened)
{
    char why[256];
    struct credentials *credentials;
    uint32_t since = UINT32_MAX;
    other_secret();
    EXPECT((asks(&since), peers_get(a.peers, where, 0)->refusals >= 4));
    ck_assert(!asks(&since));
    node_secret(&b, SECRET);
    ck_assert_int_eq(STRAIT_OK, options_credentials(&b.options, &credentials, why, sizeof(why)));
    ck_assert_int_eq(STRAIT_OK, peers_reload(b.peers, credentials, why, sizeof(why)));
    EXPECT((ck_assert(!asks(&since)), a.ups == 1));
}

int main(void)
{
    return peer_main("peer_away");
}
