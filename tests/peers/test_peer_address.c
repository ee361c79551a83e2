/* Addresses that nodes dial: those that lead nowhere, names, lists, and daemons that are known by several of them. */
#include "tests/peers/peer_node.h"

#include <sys/socket.h>
#include <unistd.h>

static const struct {
    const char *address, *why;
} dead_ends[] = {
    {"127.0.0.1:1", "refused"},
    {"no.such.name.invalid:7350", "name look-up"},
    {"[::ffff:127.0.0.1]:1", "refused"},
};

TEST_LOOP(why_an_address_cannot_be_reached_is_kept, COUNT(dead_ends))
{
    node_init(&a, "a", "shm");
    a.options.connect_ms = 300;
    node_open(&a);
    const char *address = dead_ends[_i].address;
    struct peer *peer = peers_get(a.peers, address, 0);
    ck_assert_ptr_nonnull(peer);
    ck_assert_ptr_eq(peer, peers_get(a.peers, address, 0));
    EXPECT(strstr((peer = peers_get(a.peers, address, 0))->why, dead_ends[_i].why) != NULL);
    ck_assert_str_eq(address, peer->address);
    ck_assert_uint_eq(0, a.ups);
}

TEST(an_attempt_that_fails_is_not_repeated_at_once)
{
    node_start(&a, "a", "shm", NULL);
    struct peer *last = NULL, *peer;
    uint32_t attempts = 0;
    uint64_t end = uv_hrtime() + 500000000u;
    while (uv_hrtime() < end || attempts < 2) {
        peer = peers_get(a.peers, "127.0.0.1:1", 0);
        attempts += peer->state != PEER_IDLE && peer != last;
        last = peer->state != PEER_IDLE ? peer : NULL;
        uv_run(&loop, UV_RUN_ONCE);
    }
    ck_assert_uint_le(attempts, 25); /* 20 ms between them, later a sixteenth of the time that has passed */
}

static const char *const malformed[] = {"a:1,",  "a:1,,b:1", "0.0.0.0:1",  "*:1",    "",       ":",     "host",
                                        "host:", "host:0",   "host:65536", "host:x", "[::1:5", "::1:5", "a b:1"};

TEST_LOOP(a_malformed_address_is_refused, COUNT(malformed))
{
    node_start(&a, "a", "shm", NULL);
    ck_assert(!peers_address_ok(malformed[_i]));
    ck_assert_ptr_null(peers_get(a.peers, malformed[_i], 0));
}

/* The addresses that are on record when the user is refused one more. Each is dialled, in vain. */
static uint32_t name_many(uint32_t uid)
{
    char address[32];
    uint32_t count = 0;
    do {
        snprintf(address, sizeof(address), "127.%u.%u.%u:1", 1 + uid, count / 250, 1 + count % 250);
        count++;
        if (count % 100 == 0)
            (void)uv_run(&loop, UV_RUN_NOWAIT);
    } while (peers_get(a.peers, address, uid) != NULL);
    return count - 1;
}

TEST(a_user_leaves_room_for_the_peers_of_others)
{
    node_start(&a, "a", "shm", NULL);
    ck_assert_uint_eq(2048, name_many(1));
    ck_assert_uint_eq(1024, name_many(2));
    ck_assert_uint_eq(2, a.metrics.peer_records_refused);
    ck_assert_ptr_nonnull(peers_get(a.peers, "127.0.0.1:1", 3));
    ck_assert_ptr_nonnull(peers_get(a.peers, "127.0.0.1:1", 1)); /* it is on record */
    ck_assert_ptr_null(peers_get(a.peers, "127.0.0.2:1", 1));
}

/* Sets the address to a port on the loopback where nothing is accepted and no connection is refused. */
static int swallow(char address[32])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(bind(fd, (struct sockaddr *)&at, size) == 0 && listen(fd, 0) == 0);
    ck_assert_int_eq(0, getsockname(fd, (struct sockaddr *)&at, &size));
    for (int i = 0; i < 4; i++) { /* they fill its backlog until the process ends */
        int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(client, (struct sockaddr *)&at, size);
    }
    snprintf(address, 32, "127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

/* Neither an address that swallows packets nor one that refuses takes the time that the next one needs. */
TEST(the_next_address_of_a_list_does_not_wait_for_the_one_before)
{
    char hole[32], list[MESSAGE_ADDRESS_MAX];
    pair_init("shm");
    a.options.connect_ms = SECONDS(20);
    pair_open();
    int fd = swallow(hole);
    snprintf(list, sizeof(list), "127.0.0.1:1,%s,%s", hole, peers_address(b.peers));
    uint64_t begin = uv_hrtime();
    EXPECT((peers_get(a.peers, list, 0), a.ups == 1));
    uint64_t took_ms = (uv_hrtime() - begin) / 1000000;
    ck_assert_uint_ge(took_ms, 200); /* it did wait for the second, for a share of the time */
    ck_assert_uint_lt(took_ms, SECONDS(10));
    ck_assert_str_eq(list, a.up->address);
    close(fd);
}

TEST(every_address_of_a_list_says_why_it_cannot_be_reached)
{
    static const char expected[] = "127.0.0.1:1: Connection refused; "
                                   "[fe80::1%no-such-if]:2: its zone is no interface of this host; 127.0.0.1:";
    char hole[32], list[MESSAGE_ADDRESS_MAX];
    node_init(&a, "a", "shm");
    a.options.connect_ms = 300;
    node_open(&a);
    int fd = swallow(hole);
    snprintf(list, sizeof(list), "127.0.0.1:1,[fe80::1%%no-such-if]:2,%s", hole);
    EXPECT(strncmp(peers_get(a.peers, list, 0)->why, expected, strlen(expected)) == 0);
    close(fd);
}

/* A peer known as a number, as a name and in a list is connected to once; and when that ends, each finds the next one.
 */
TEST(a_daemon_with_several_addresses_is_one_peer)
{
    char name[MESSAGE_ADDRESS_MAX], list[MESSAGE_ADDRESS_MAX];
    pair_start("shm");
    const char *number = peers_address(b.peers);
    snprintf(name, sizeof(name), "localhost%s", strrchr(number, ':'));
    snprintf(list, sizeof(list), "127.0.0.1:1,%s", number);
    EXPECT(peers_get(a.peers, name, 0) == a.up && peers_get(a.peers, list, 0) == a.up);
    ck_assert_ptr_eq(a.up, peers_get(a.peers, number, 0));
    ck_assert_uint_eq(1, a.ups);
    ck_assert_uint_eq(1, b.ups);
    peer_drop(a.up, "over");
    EXPECT(a.quiets == 1 && b.quiets == 1);
    EXPECT(peers_get(a.peers, name, 0)->state == PEER_UP);
    EXPECT(peers_get(a.peers, number, 0) == peers_get(a.peers, name, 0));
    ck_assert_uint_eq(2, b.ups);
}

TEST(a_daemon_does_not_dial_itself)
{
    char name[MESSAGE_ADDRESS_MAX];
    node_start(&a, "a", "shm", NULL);
    snprintf(name, sizeof(name), "localhost%s", strrchr(peers_address(a.peers), ':'));
    EXPECT(strstr(peers_get(a.peers, name, 0)->why, "leads back to this daemon") != NULL);
    ck_assert_uint_eq(0, a.ups);
    ck_assert(peers_is_own(a.peers, peers_address(a.peers)));
    ck_assert(!peers_is_own(a.peers, name));
}

TEST(a_node_that_listens_at_several_addresses_is_reached_at_each)
{
    char list[MESSAGE_ADDRESS_MAX], one[ADDRESS_TEXT_MAX];
    pair_init("shm");
    snprintf(b.options.listen, sizeof(b.options.listen), "127.0.0.1:0,127.0.0.2:0");
    pair_open();
    snprintf(list, sizeof(list), "%s", peers_address(b.peers));
    const char *second = address_next(list, one);
    ck_assert_str_eq(strrchr(one, ':'), strrchr(second, ':'));
    ck_assert_int_eq(0, strncmp(second, "127.0.0.2:", 10));
    for (uint32_t i = 1; i <= 2; i++) {
        const char *address = i == 1 ? one : second;
        EXPECT((peers_get(a.peers, address, 0), a.ups == i));
        peer_drop(a.up, "over");
        EXPECT(a.quiets == i && b.quiets == i);
    }
}

TEST(without_a_secret_only_the_loopback_is_listened_at)
{
    char why[256] = "";
    node_init(&a, "a", "shm");
    snprintf(a.options.listen, sizeof(a.options.listen), "0.0.0.0:0");
    ck_assert_int_eq(STRAIT_ERR_INVALID, node_try(&a, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "0.0.0.0:"));
    ck_assert_ptr_nonnull(strstr(why, "is not a loopback address: it needs secret-file"));
}

TEST(an_address_in_use_is_told)
{
    char why[256] = "";
    pair_init("shm");
    node_open(&a);
    snprintf(b.options.listen, sizeof(b.options.listen), "%s", peers_address(a.peers));
    ck_assert_int_eq(STRAIT_ERR_IO, node_try(&b, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "in use"));
}

int main(void)
{
    return peer_main("peer_address");
}
