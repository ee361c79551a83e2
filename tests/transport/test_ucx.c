/* The transport over UCX: its addresses, who is let in, and memory of GPUs. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/transport/sides.h"
#include "transport/ucx.h"
#include "transport/ucx_internal.h"

#define STRANGERS 40
#define NONSENSE  16384

static void set_up(void)
{
    sides_init(&transport_ucx, NULL);
    sides[0].close_on_broken = sides[1].close_on_broken = false;
    sides_open(sides);
}

static struct ucx_address address_of(struct side *side)
{
    uint8_t bytes[UCX_ADDRESS_BYTES];
    struct ucx_address address;
    ck_assert_uint_eq(UCX_ADDRESS_BYTES, link_address(side->link, bytes, sizeof(bytes)));
    ck_assert_int_eq(STRAIT_OK, ucx_address_read(bytes, sizeof(bytes), &address));
    return address;
}

static void connect_link(struct link *link, const struct ucx_address *address)
{
    uint8_t bytes[UCX_ADDRESS_BYTES];
    ucx_address_write(bytes, address);
    ck_assert_int_eq(STRAIT_OK, link_connect(link, bytes, sizeof(bytes)));
}

/* Each with the other, whoever else is there. */
static void connect_both(void)
{
    struct ucx_address theirs = address_of(&sides[0]), ours = address_of(&sides[1]);
    connect_link(sides[0].link, &ours);
    connect_link(sides[1].link, &theirs);
    WAIT_UNTIL(sides, 2, sides[0].connected && sides[1].connected);
}

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

TEST(an_address_is_read_as_written)
{
    uint8_t bytes[UCX_ADDRESS_BYTES], again[UCX_ADDRESS_BYTES];
    struct ucx_address address = {.token = 0x0123456789abcdef}, back;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address.at;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(4242);
    v6->sin6_scope_id = 3;
    inet_pton(AF_INET6, "fe80::1:2", &v6->sin6_addr);
    ucx_address_write(bytes, &address);
    ck_assert_int_eq(STRAIT_OK, ucx_address_read(bytes, sizeof(bytes), &back));
    ck_assert_uint_eq(address.token, back.token);
    ck_assert_uint_eq(sizeof(*v6), back.at_size);
    ck_assert_mem_eq(&address.at, &back.at, sizeof(*v6));
    ucx_address_write(again, &back);
    ck_assert_mem_eq(bytes, again, sizeof(bytes));
}

TEST(every_changed_bit_of_an_address_is_noticed)
{
    uint8_t bytes[UCX_ADDRESS_BYTES];
    struct ucx_address address;
    set_up();
    link_address(sides[0].link, bytes, sizeof(bytes));
    for (unsigned bit = 0; bit < 8 * UCX_ADDRESS_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, ucx_address_read(bytes, sizeof(bytes), &address));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert_int_eq(STRAIT_ERR_INVALID, ucx_address_read(bytes, sizeof(bytes) - 1, &address));
    ck_assert_int_eq(STRAIT_ERR_INVALID, ucx_address_read(NULL, 0, &address));
}

/* ---- Who is let in --------------------------------------------------------------------------------------------- */

/* The wrong token gets nowhere and spoils nothing: the right one still connects. */
TEST(a_link_is_reached_by_its_token_only)
{
    struct link *intruder;
    set_up();
    struct ucx_address theirs = address_of(&sides[0]), ours = address_of(&sides[1]);
    connect_link(sides[0].link, &ours);
    theirs.token ^= 1;
    connect_link(sides[1].link, &theirs);
    for (int i = 0; i < 20; i++)
        sides_step(sides, 2, 10);
    ck_assert_uint_eq(0, sides[0].connected + sides[1].connected + sides[0].broken + sides[1].broken);
    intruder = sides[1].link;
    link_close(intruder);
    WAIT_UNTIL(sides, 2, sides[1].closed);
    ck_assert_uint_eq(0, sides[0].broken);
}

TEST(links_of_one_transport_do_not_mix)
{
    struct link *second[2];
    uint8_t bytes[2][UCX_ADDRESS_BYTES];
    set_up();
    connect_both();
    for (int i = 0; i < 2; i++) {
        enum link_side which = i == 0 ? LINK_DIALLED : LINK_ACCEPTED; /* the other way round this time */
        ck_assert_int_eq(STRAIT_OK, link_open(sides[i].transport, -1, which, &sides[i], &second[i]));
        link_address(second[i], bytes[i], UCX_ADDRESS_BYTES);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(STRAIT_OK, link_connect(second[i], bytes[!i], UCX_ADDRESS_BYTES));
    WAIT_UNTIL(sides, 2, sides[0].connected == 2 && sides[1].connected == 2);
    sides[0].connected = sides[1].connected = 1;

    link_close(second[0]); /* the first link does not notice */
    struct link *first = sides[0].link;
    WAIT_UNTIL(sides, 2, sides[0].closed == 1 && sides[1].broken == 1);
    sides[0].link = first;
    sides[0].closed = sides[1].broken = 0;
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, SLOT_BYTES));
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[1], 0, SLOT_BYTES));
    WAIT_UNTIL(sides, 2, sides[0].arrived == 1 && sides[1].arrived == 1 && sides[0].sent == 1 && sides[1].sent == 1);
    first = sides[1].link;
    link_close(second[1]);
    WAIT_UNTIL(sides, 2, sides[1].closed == 1);
    sides[1].link = first;
    sides[1].closed = 0;
}

/* A connection of TCP to where the first side listens. */
static int dial(void)
{
    struct ucx_address address = address_of(&sides[0]);
    struct sockaddr_in in;
    memcpy(&in, &address.at, sizeof(in));
    ck_assert_uint_eq(htonl(INADDR_LOOPBACK), in.sin_addr.s_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(0, connect(fd, (struct sockaddr *)&in, sizeof(in)));
    return fd;
}

/* More connections than are kept waiting, silent or talking nonsense: a peer gets in all the same. */
TEST(strangers_do_not_keep_peers_out)
{
    int fds[STRANGERS];
    set_up();
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = dial();
        sides_step(sides, 2, 2);
    }
    connect_both();
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    sides[0].close_on_broken = sides[1].close_on_broken = true;
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[1], 0, SLOT_BYTES));
    WAIT_UNTIL(sides, 2, sides[0].arrived == 1 && sides[1].sent == 1);
}

/* As of a browser, or of a daemon of another kind. UCX would wait for the rest of what it takes for a message, also
 * when they have gone, and never sleep meanwhile. */
TEST(strangers_who_talk_nonsense_are_let_go)
{
    static const char request[] = "GET / HTTP/1.1\r\n";
    uint8_t nonsense[NONSENSE];
    set_up();
    int before = open_descriptors();
    for (size_t i = 0; i < sizeof(nonsense); i++)
        nonsense[i] = (uint8_t)request[i % 16];
    for (int i = 0; i < STRANGERS; i++) {
        int fd = dial();
        ck_assert_int_eq(NONSENSE, (int)send(fd, nonsense, sizeof(nonsense), MSG_NOSIGNAL));
        close(fd);
    }
    WAIT_UNTIL(sides, 2, open_descriptors() == before);
}

/* Endpoints of UCX that never say whom they want: the oldest make room. */
TEST(the_oldest_stranger_makes_room)
{
    struct link *links[STRANGERS];
    set_up();
    for (int i = 0; i < STRANGERS; i++) {
        struct ucx_address wrong = address_of(&sides[0]);
        wrong.token ^= (uint64_t)i + 1;
        ck_assert_int_eq(STRAIT_OK, link_open(sides[1].transport, -1, LINK_DIALLED, &sides[1], &links[i]));
        connect_link(links[i], &wrong);
        for (int k = 0; k < 3; k++)
            sides_step(sides, 2, 5);
    }
    WAIT_UNTIL(sides, 2, sides[1].broken > 0);
    connect_both();
    struct link *link = sides[1].link;
    for (int i = 0; i < STRANGERS; i++)
        link_close(links[i]);
    sides[1].late = 0;
    WAIT_UNTIL(sides, 2, sides[1].closed == STRANGERS);
    sides[1].late = sides[1].closed = 0;
    sides[1].link = link;
}

TEST(nobody_listening_breaks_the_link)
{
    set_up();
    struct ucx_address theirs = address_of(&sides[0]);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(in);
    ck_assert_int_eq(0, bind(fd, (struct sockaddr *)&in, sizeof(in))); /* a port of ours, without listen */
    ck_assert_int_eq(0, getsockname(fd, (struct sockaddr *)&in, &size));
    memcpy(&theirs.at, &in, sizeof(in));
    connect_link(sides[1].link, &theirs);
    WAIT_UNTIL(sides, 2, sides[1].broken == 1);
    ck_assert_uint_eq(0, sides[1].connected);
    close(fd);
}

TEST(a_port_can_be_chosen_and_used_again)
{
    char options[64];
    int reserved;
    snprintf(options, sizeof(options), "tls=tcp devices=lo port=%u", port_reserve(&reserved));
    for (int i = 0; i < 2; i++) {
        side_init(&sides[0], &transport_ucx, options);
        ck_assert_int_eq(STRAIT_OK, transport_try(&transport_ucx, TRANSPORT_HOST, options)); /* no link, no listener */
        ck_assert_int_eq(STRAIT_OK, link_open(sides[0].transport, -1, LINK_ACCEPTED, &sides[0], &sides[0].link));
        ck_assert_int_eq(STRAIT_ERR_IO, transport_try(&transport_ucx, TRANSPORT_HOST, options));
        link_close(sides[0].link);
        WAIT_UNTIL(sides, 1, sides[0].closed);
        WAIT_UNTIL(sides, 1, transport_try(&transport_ucx, TRANSPORT_HOST, options) == STRAIT_OK); /* a second later */
        side_fini(&sides[0]);
    }
    close(reserved);
}

/* Segments of System V that this process made. */
static unsigned segments(void)
{
    unsigned count = 0, creator;
    char line[256];
    FILE *file = fopen("/proc/sysvipc/shm", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file) != NULL)
        count += sscanf(line, "%*d %*d %*o %*u %u", &creator) == 1 && creator == (unsigned)getpid();
    fclose(file);
    return count;
}

/* Memory that is shared with others than the peer is never used, whatever options and the environment say. */
static const char *const lists[] = {NULL, "tls=^tcp", "tls=^rc,ud"}, *const environments[] = {NULL, "all", "^rc"};

TEST_LOOP(no_memory_is_shared_through_ucx, COUNT(lists) * COUNT(environments))
{
    const char *set = environments[_i / COUNT(lists)], *list = lists[_i % COUNT(lists)];
    ck_assert_int_eq(0, set != NULL ? setenv("UCX_TLS", set, 1) : unsetenv("UCX_TLS"));
    struct transport_arena arena = {.size = 4096, .memory = TRANSPORT_HOST};
    struct transport_events none = {0};
    struct transport *transport = NULL;
    arena.fd = make_arena(arena.size, &arena.base);
    const enum strait_status status = transport_create(&transport_ucx, &arena, &none, NULL, list, &transport);
    const bool nothing_left = list != NULL && strcmp(list, "tls=^tcp") == 0; /* on a machine without RDMA */
    ck_assert(nothing_left || status == STRAIT_OK);
    ck_assert_uint_eq(0, segments());
    transport_destroy(transport);
    munmap(arena.base, arena.size);
    close(arena.fd);
}

static const char *const refused[] = {"tls=posix", "tls=tcp,sysv", "tls=all",   "tls=SM,tcp", "tls=tcp,\\self",
                                      "tls=shm",   "tls=mm",       "tls=xpmem", "tls="};

TEST_LOOP(lists_that_share_memory_are_refused, COUNT(refused))
{
    ck_assert_int_eq(0, setenv("UCX_TLS", refused[_i] + 4, 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, transport_check(&transport_ucx, refused[_i]));
    if (refused[_i][4] != '\0' && strcmp(refused[_i], "tls=all") != 0)
        ck_assert_int_eq(STRAIT_ERR_INVALID, transport_check(&transport_ucx, NULL));
    ck_assert_int_eq(STRAIT_OK, transport_check(&transport_ucx, "tls=tcp"));
}

/* What getenv() of another thread may be walking through is neither freed nor changed. */
TEST(the_environment_that_others_read_stays)
{
    char *copy[4096];
    size_t count = 0;
    ck_assert_int_eq(0, unsetenv("UCX_TCP_CONN_NB"));
    ck_assert_int_eq(0, setenv("UCX_TCP_CM_REUSEADDR", "n", 1));
    ck_assert_int_eq(0, setenv("STRAIT_TEST", "the array is the library's own now", 1));
    char **before = environ;
    for (; before[count] != NULL; count++) {
        ck_assert_uint_lt(count, 4095);
        copy[count] = before[count];
    }
    copy[count] = NULL;
    ck_assert_int_eq(STRAIT_OK, transport_try(&transport_ucx, TRANSPORT_HOST, NULL));
    ck_assert_str_eq("y", getenv("UCX_TCP_CONN_NB"));
    ck_assert_str_eq("n", getenv("UCX_TCP_CM_REUSEADDR"));
    ck_assert_mem_eq(copy, before, (count + 1) * sizeof(*copy));
}

/* ---- Memory of GPUs ---------------------------------------------------------------------------------------------- */

/* No machine without a GPU has such a UCX. */
TEST(without_cuda_ucx_says_so)
{
    static const char options[] = "tls=tcp devices=lo";
    struct transport_arena arena = {.size = 4096, .memory = TRANSPORT_CUDA};
    char why[256];
    arena.fd = make_arena(arena.size, &arena.base);
    transport_missing(&transport_ucx, why, sizeof(why));
    ck_assert_str_eq("", why);
    ucx_prepare(&arena);
    close(arena.fd);
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, transport_try(&transport_ucx, TRANSPORT_CUDA, options));
    transport_missing(&transport_ucx, why, sizeof(why));
    ck_assert_msg(strstr(why, "does not know CUDA's memory") != NULL, "%s", why);
    ck_assert_int_eq(STRAIT_OK, transport_try(&transport_ucx, TRANSPORT_HOST, options)); /* which goes on */
}

/* From a peer whose memory is the host's: the processor cannot copy it to where it is to land. */
TEST(what_comes_to_the_host_is_not_copied_to_a_gpu)
{
    ucx_stand_in();
    side_init(&sides[0], &transport_ucx, NULL);
    sides_on_gpus = true;
    side_init(&sides[1], &transport_ucx, NULL);
    sides_connect(sides);
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, SLOT_BYTES));
    WAIT_UNTIL(sides, 2, sides[1].arrived == 1 && sides[0].sent == 1);
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[1], 0, 16));
    WAIT_UNTIL(sides, 2, sides[0].arrived == 1 && sides[1].sent == 1);
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 1, 16));
    WAIT_UNTIL(sides, 2, sides[1].broken == 1 && sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(1, sides[1].arriving);
}

int main(void)
{
    return run_tests("ucx", NULL, sides_teardown);
}
