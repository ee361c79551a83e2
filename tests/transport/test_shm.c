#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/transport/sides.h"

#define HELLO 24u
#define PAGE  4096u

/* A peer played by hand, at the other end of the link's socket. */
static struct side side;
static int peer;

static void open_side(enum link_side which)
{
    peer = side_open_by_hand(&side, which, NULL, 0);
}

static void close_side(void)
{
    side_close_by_hand(&side, peer);
}

static void step(int times)
{
    for (int i = 0; i < times; i++)
        sides_step(&side, 1, 5);
}

static void hello_bytes(uint8_t hello[HELLO], uint64_t size)
{
    memset(hello, 0, HELLO);
    memcpy(hello, "SHM1", 4);
    store_le64(hello + 8, size);
}

/* ---- Hellos ---------------------------------------------------------------------------------------------------- */

/* Not every kernel has them. */
static int huge_pages(void)
{
    int fd = memfd_create("strait-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0 || ftruncate(fd, 2 << 20) != 0)
        return fd < 0 ? sealed_memory(PAGE, 0, NULL) : fd;
    ck_assert_int_eq(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    return fd;
}

static int plain_file(void)
{
    char name[] = "/tmp/strait-test-shm-XXXXXX";
    int fd = mkstemp(name);
    ck_assert_int_ge(fd, 0);
    unlink(name);
    ck_assert_int_eq(0, ftruncate(fd, PAGE));
    return fd;
}

static int pipe_end(void)
{
    int fds[2];
    ck_assert_int_eq(0, pipe(fds));
    close(fds[1]);
    return fds[0];
}

enum arena {
    GOOD,
    NONE,
    UNSEALED,
    MAY_GROW,
    MAY_SHRINK,
    WRITE_SEALED,
    DIRECTORY,
    PIPE,
    REGULAR,
    HUGE,
};

static int make(enum arena what)
{
    static const int seals[] = {[MAY_GROW] = F_SEAL_SHRINK,
                                [MAY_SHRINK] = F_SEAL_GROW,
                                [WRITE_SEALED] = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE,
                                [GOOD] = F_SEAL_SHRINK | F_SEAL_GROW,
                                [NONE] = F_SEAL_SHRINK | F_SEAL_GROW};
    if (what == DIRECTORY)
        return open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (what == PIPE)
        return pipe_end();
    if (what == REGULAR)
        return plain_file();
    return what == HUGE ? huge_pages() : sealed_memory(PAGE, seals[what], NULL);
}

static const struct hello_case {
    enum arena arena;
    uint64_t claimed;
    const char *magic;
    uint32_t at, value; /* a word of the hello to overwrite */
    bool good;
} hellos[] = {
    {GOOD, PAGE, "SHM1", 0, 0, true},          {GOOD, 1, "SHM1", 0, 0, true},
    {NONE, PAGE, "SHM1", 0, 0, false},         {UNSEALED, PAGE, "SHM1", 0, 0, false},
    {MAY_GROW, PAGE, "SHM1", 0, 0, false},     {MAY_SHRINK, PAGE, "SHM1", 0, 0, false},
    {WRITE_SEALED, PAGE, "SHM1", 0, 0, false}, {DIRECTORY, PAGE, "SHM1", 0, 0, false},
    {PIPE, PAGE, "SHM1", 0, 0, false},         {REGULAR, PAGE, "SHM1", 0, 0, false},
    {GOOD, PAGE + 1, "SHM1", 0, 0, false},     {GOOD, 0, "SHM1", 0, 0, false},
    {GOOD, UINT64_MAX, "SHM1", 0, 0, false},   {GOOD, PAGE, "SHM2", 0, 0, false},
    {GOOD, PAGE, "SHM1", 4, 1, false},         {GOOD, PAGE, "SHM1", 16, 1, false},
    {HUGE, PAGE, "SHM1", 0, 0, false},
};

TEST_LOOP(only_a_sealed_memfd_is_an_arena, 2 * COUNT(hellos))
{
    const struct hello_case *test = &hellos[_i / 2];
    enum link_side which = _i % 2 == 0 ? LINK_ACCEPTED : LINK_DIALLED;
    uint8_t hello[HELLO];
    open_side(which);
    int fd = make(test->arena), before = open_descriptors();
    hello_bytes(hello, test->claimed);
    memcpy(hello, test->magic, 4);
    if (test->at != 0)
        store_le32(hello + test->at, test->value);
    send_with_rights(peer, hello, HELLO, fd, test->arena == NONE ? 0 : 1);
    WAIT_UNTIL(&side, 1, side.connected || side.broken);
    ck_assert_uint_eq(test->good, side.connected);
    ck_assert_uint_eq(!test->good, side.broken);
    ck_assert_int_eq(before, open_descriptors());
    close(fd);
}

TEST(a_hello_may_come_in_pieces_with_many_descriptors)
{
    uint8_t hello[HELLO];
    open_side(LINK_DIALLED);
    int fd = make(GOOD), before = open_descriptors();
    hello_bytes(hello, PAGE);
    send_with_rights(peer, hello, 5, fd, 12); /* the first counts */
    step(2);
    send_with_rights(peer, hello + 5, 10, fd, 1);
    step(2);
    ck_assert_uint_eq(0, side.connected);
    send_with_rights(peer, hello + 15, HELLO - 15, fd, 0);
    WAIT_UNTIL(&side, 1, side.connected);
    ck_assert_int_eq(before, open_descriptors());
    close(fd);
}

/* The dialling side's last word of the other protocol may still be on its way to it. */
TEST(the_accepted_side_speaks_first)
{
    struct pollfd input;
    open_side(LINK_DIALLED);
    step(5);
    input = (struct pollfd){.fd = peer, .events = POLLIN};
    ck_assert_int_eq(0, poll(&input, 1, 50));
    close_side();

    open_side(LINK_ACCEPTED);
    input.fd = peer;
    WAIT_UNTIL(&side, 1, poll(&input, 1, 0) == 1);
}

/* ---- Records --------------------------------------------------------------------------------------------------- */

static void connect_by_hand(void)
{
    uint8_t hello[HELLO];
    open_side(LINK_ACCEPTED);
    int fd = make(GOOD);
    hello_bytes(hello, PAGE);
    send_with_rights(peer, hello, HELLO, fd, 1);
    close(fd);
    WAIT_UNTIL(&side, 1, side.connected);
}

/* A record with the header that the sides agree on; returns its length. */
static size_t make_record(uint8_t *dst, uint64_t sequence, uint64_t slot)
{
    memcpy(dst, "CHNK", 4);
    store_le32(dst + 4, 24);
    store_le64(dst + 8, 0);
    store_le64(dst + 16, sequence);
    store_le64(dst + 24, slot);
    store_le64(dst + 32, 0);
    return 40;
}

TEST(records_may_come_in_any_pieces)
{
    static uint8_t stream[40 * 500];
    size_t size = 0;
    connect_by_hand();
    for (uint64_t i = 0; i < 500; i++)
        size += make_record(stream + size, i, i % SLOTS);
    for (size_t at = 0, piece = 1; at < size; at += piece, piece = piece % 997 + 13) {
        piece = piece < size - at ? piece : size - at;
        send_with_rights(peer, stream + at, piece, -1, 0);
        step(1);
    }
    WAIT_UNTIL(&side, 1, side.arrived == 500);
    ck_assert_uint_eq(499, side.last_sequence);
    ck_assert_uint_eq(0, side.broken);
}

static const struct record_case {
    uint32_t at;
    uint64_t value;
} records[] = {
    {0, 0x4b4e4844},               /* another word than CHNK */
    {4, TRANSPORT_HEADER_MAX + 1}, /* header */
    {4, UINT32_MAX},
    {8, (uint64_t)UINT32_MAX + 1}, /* no chunk is so large */
    {8, UINT64_MAX},
};

TEST_LOOP(a_malformed_record_breaks_the_link, COUNT(records))
{
    uint8_t record[80];
    connect_by_hand();
    size_t size = make_record(record, 1, 0);
    make_record(record + size, 2, 1);
    if (records[_i].at < 8)
        store_le32(record + records[_i].at, (uint32_t)records[_i].value);
    else
        store_le64(record + records[_i].at, records[_i].value);
    send_with_rights(peer, record, 2 * size, -1, 0);
    WAIT_UNTIL(&side, 1, side.broken);
    ck_assert_uint_eq(0, side.arriving); /* nor anything that follows it */
}

TEST(descriptors_with_a_record_are_dropped)
{
    uint8_t record[40];
    connect_by_hand();
    int before = open_descriptors();
    size_t size = make_record(record, 1, 0);
    send_with_rights(peer, record, size, peer, 3);
    WAIT_UNTIL(&side, 1, side.arrived == 1);
    ck_assert_int_eq(before, open_descriptors());
}

/* ---- The end --------------------------------------------------------------------------------------------------- */

TEST(the_end_of_the_socket_breaks_a_link_at_once)
{
    uint8_t record[40];
    connect_by_hand();
    send_with_rights(peer, record, make_record(record, 1, 0) - 1, -1, 0); /* in the middle of a record */
    close(peer);
    WAIT_UNTIL(&side, 1, side.broken);
    ck_assert_uint_eq(0, side.arriving);
    link_close(side.link);
    WAIT_UNTIL(&side, 1, side.closed);
    side_fini(&side);
}

/* What the peer says while this side closes is not looked at, malformed or not. */
TEST(a_closing_link_waits_for_the_end_of_the_socket)
{
    uint8_t record[40];
    connect_by_hand();
    link_close(side.link);
    char byte;
    WAIT_UNTIL(&side, 1, recv(peer, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1); /* our hello, then our end */
    for (int i = 0; i < 50; i++) {
        send_with_rights(peer, record, make_record(record, 1, 0) - (i == 25), -1, 0);
        step(1);
    }
    ck_assert_uint_eq(0, side.arriving + side.broken + side.closed);
    close(peer);
    WAIT_UNTIL(&side, 1, side.closed);
    side_fini(&side);
}

/* Not before link_close, though: nobody gives up an arena that is in use. */
TEST(an_abandoned_link_does_not_wait_for_the_end_of_the_socket)
{
    connect_by_hand();
    link_abandon(side.link);
    step(20);
    ck_assert_uint_eq(1, side.connected);
    ck_assert_uint_eq(0, side.broken + side.closed);
    ck_assert_int_eq(STRAIT_OK, side_send(&side, 0, 1));
    WAIT_UNTIL(&side, 1, side.sent == 1);
    link_close(side.link);
    step(20);
    ck_assert_uint_eq(0, side.closed);
    link_abandon(side.link);
    link_abandon(side.link); /* does no harm */
    WAIT_UNTIL(&side, 1, side.closed);
    ck_assert_uint_eq(0, side.broken);
    close(peer);
    side_fini(&side);
}

/* Until one has to wait. */
static void fill_socket(void)
{
    uint8_t header[TRANSPORT_HEADER_MAX] = {0};
    unsigned queued = 0;
    for (unsigned i = 0; i < 5000; i++) {
        side.sending[0] = true;
        ck_assert_int_eq(STRAIT_OK, link_send(side.link, header, sizeof(header), NULL, 0, NULL, 0));
        for (int k = 0; k < 3; k++)
            transport_progress(side.transport);
        queued += side.sending[0];
        if (side.sending[0])
            break;
    }
    ck_assert_uint_eq(1, queued);
    ck_assert_uint_eq(0, side.sent_badly);
}

/* A peer that does not read: sends are kept, and end with the link. */
TEST(a_full_socket_delays_sends)
{
    connect_by_hand();
    fill_socket();
    uint8_t sink[4096];
    WAIT_UNTIL(&side, 1, recv(peer, sink, sizeof(sink), MSG_DONTWAIT) > 0 && !side.sending[0]);
    ck_assert_uint_eq(0, side.sent_badly + side.broken);
}

/* All that a link sends, after its hello, to its end: whole records, and the farewell. */
TEST_LOOP(a_link_ends_with_a_farewell, 2)
{
    static const char farewell[] = "CHNK good bye.\0";
    uint8_t bytes[8192], last[16] = {0};
    size_t total = 0;
    ssize_t got;
    connect_by_hand();
    if (_i == 1)
        fill_socket();
    link_close(side.link);
    for (;;) {
        step(1);
        got = recv(peer, bytes, 16 * (sizeof(bytes) / 16), MSG_DONTWAIT);
        if (got == 0)
            break;
        if (got < 0)
            continue;
        for (ssize_t i = 0; i < got; i++) {
            memmove(last, last + 1, 15);
            last[15] = bytes[i];
        }
        total += (size_t)got;
    }
    ck_assert_mem_eq(last, farewell, sizeof(last));
    ck_assert_uint_eq(0, (total - HELLO - 16) % (16 + TRANSPORT_HEADER_MAX));
    ck_assert_uint_eq(_i == 1, total > HELLO + 16);
    close(peer);
    WAIT_UNTIL(&side, 1, side.closed);
    side_fini(&side);
}

/* In a child: connects, says hello, ends the socket, and lives on until it is told. */
static void play_peer(const struct sockaddr_un *address, bool farewell, int until)
{
    uint8_t hello[HELLO], byte;
    peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(peer, (const struct sockaddr *)address, sizeof(*address)) != 0)
        _exit(1);
    hello_bytes(hello, PAGE);
    send_with_rights(peer, hello, HELLO, make(GOOD), 1);
    if (farewell)
        send_with_rights(peer, "CHNK good bye.\0", 16, -1, 0);
    shutdown(peer, SHUT_WR);
    (void)!read(until, &byte, 1);
    _exit(0);
}

/* A socket can end before what its process has set going: only a farewell, or the end of the process, is believed. */
TEST_LOOP(without_a_farewell_the_end_of_the_process_counts, 2)
{
    bool farewell = _i == 1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[] = "/tmp/strait-test-shm-XXXXXX";
    int until[2], listener = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", folder);
    ck_assert_int_eq(0, bind(listener, (struct sockaddr *)&address, sizeof(address)));
    ck_assert_int_eq(0, listen(listener, 1));
    ck_assert_int_eq(0, pipe(until));
    pid_t child = fork();
    if (child == 0)
        play_peer(&address, farewell, until[0]);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    ck_assert_int_ge(fd, 0);
    side_init(&side, transport_find("shm"), NULL);
    side.close_on_broken = false;
    ck_assert_int_eq(STRAIT_OK, link_open(side.transport, fd, LINK_ACCEPTED, &side, &side.link));
    ck_assert(link_sees_end(side.link));
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, NULL, 0));
    WAIT_UNTIL(&side, 1, side.broken);
    link_close(side.link);
    step(30);
    ck_assert_uint_eq(farewell, side.closed);
    ck_assert_int_eq(0, kill(child, SIGKILL));
    ck_assert_int_eq(child, waitpid(child, NULL, 0));
    WAIT_UNTIL(&side, 1, side.closed);
    side_fini(&side);
    close(listener);
    unlink(address.sun_path);
    rmdir(folder);
}

int main(void)
{
    return run_tests("shm", NULL, close_side);
}
