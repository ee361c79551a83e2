#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "proto/channel.h"
#include "tests/proto/frames.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define QUEUE_MAX ((size_t)32 * 1024 * 1024)

/* Sanitizers need time and memory of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 };
#else
enum { MEASURES = 1 };
#endif

/* ---- Two ends -------------------------------------------------------------------------------------------------- */

/* `raw` is an end without a channel, for tests that play a peer who breaks the rules. */
static struct pair {
    struct channel *a, *b;
    int raw;
    int open_before; /* descriptors */
} pair;

static void connect_tcp(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    require(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    require(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(fds[0], (struct sockaddr *)&address, size) == 0);
    fds[1] = accept(listener, NULL, NULL);
    require(fds[1] >= 0);
    close(listener);
}

static void setup(void)
{
    pair = (struct pair){.raw = -1, .open_before = open_descriptors()};
}

/* Every descriptor that was opened is closed again. */
static void teardown(void)
{
    channel_destroy(pair.a);
    channel_destroy(pair.b);
    if (pair.raw >= 0)
        close(pair.raw);
    ck_assert_int_eq(pair.open_before, open_descriptors());
}

static void open_pair(bool tcp)
{
    int fds[2];
    if (tcp)
        connect_tcp(fds);
    else
        require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    ck_assert_int_eq(STRAIT_OK, channel_create(fds[0], MESSAGE_BYTES_MAX, QUEUE_MAX, &pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_create(fds[1], MESSAGE_BYTES_MAX, QUEUE_MAX, &pair.b));
}

/* Only b is a channel. */
static void open_raw(size_t body_max)
{
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    pair.raw = fds[0];
    ck_assert_int_eq(STRAIT_OK, channel_create(fds[1], body_max, QUEUE_MAX, &pair.b));
}

static void wait_for_either(void)
{
    struct pollfd ends[] = {{.fd = channel_fd(pair.a), .events = POLLOUT},
                            {.fd = channel_fd(pair.b), .events = POLLIN}};
    poll(ends, COUNT(ends), 1000);
}

/* Reads until there is a message, lets the other side write meanwhile. */
static enum strait_status next(struct message *message, int *fds, uint32_t *fd_count)
{
    enum strait_status status = STRAIT_ERR_AGAIN;
    for (int rounds = 0; rounds < 10000 && status == STRAIT_ERR_AGAIN; rounds++) {
        if (pair.a != NULL)
            channel_flush(pair.a);
        if (channel_read(pair.b) != STRAIT_OK)
            rounds = 10000;
        status = channel_next(pair.b, message, fds, fd_count);
        if (status == STRAIT_ERR_AGAIN && pair.a != NULL && channel_wants_write(pair.a))
            wait_for_either();
    }
    return status;
}

static void require_next(const struct message *wanted)
{
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count = 99;
    ck_assert_int_eq(STRAIT_OK, next(&message, fds, &fd_count));
    require_same_message(wanted, &message);
    message_fini(&message);
    for (uint32_t i = 0; i < fd_count; i++)
        close(fds[i]);
}

static void require_status(enum strait_status status)
{
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    ck_assert_int_eq(status, next(&message, fds, &fd_count));
}

/* ---- Descriptors that can be told apart ------------------------------------------------------------------------- */

static int fd_numbered(int number)
{
    int fd = memfd_create("strait-test", MFD_CLOEXEC);
    require(fd >= 0 && ftruncate(fd, number) == 0);
    return fd;
}

static void require_fd_numbered(int fd, int number)
{
    struct stat file;
    ck_assert_int_eq(0, fstat(fd, &file));
    ck_assert_int_eq(number, (int)file.st_size);
    ck_assert_int_eq(FD_CLOEXEC, fcntl(fd, F_GETFD));
    close(fd);
}

static void send_with_fds(struct channel *channel, int first, uint32_t count)
{
    struct message message = *golden_message("pool-register");
    int fds[CHANNEL_FDS_MAX];
    for (uint32_t i = 0; i < count; i++)
        fds[i] = fd_numbered(first + (int)i);
    message.pool_register.fd_count = count;
    ck_assert_int_eq(STRAIT_OK, channel_send(channel, &message, fds, count));
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
}

static void require_next_with_fds(int first, uint32_t count)
{
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    ck_assert_int_eq(STRAIT_OK, next(&message, fds, &fd_count));
    ck_assert_int_eq(MESSAGE_POOL_REGISTER, message.type);
    ck_assert_uint_eq(count, fd_count);
    for (uint32_t i = 0; i < fd_count; i++)
        require_fd_numbered(fds[i], first + (int)i);
    message_fini(&message);
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

TEST_LOOP(every_message_arrives_in_order, 2)
{
    int count;
    const struct golden *frames = golden_frames(&count);
    open_pair(_i == 1);
    const int null[3] = {STDIN_FILENO, STDIN_FILENO, STDIN_FILENO};
    for (int i = 0; i < count; i++)
        if (_i == 0 || channel_fds_of(&frames[i].message) == 0)
            ck_assert_int_eq(STRAIT_OK,
                             channel_send(pair.a, &frames[i].message, null, channel_fds_of(&frames[i].message)));
    ck_assert(channel_wants_write(pair.a));
    for (int i = 0; i < count; i++)
        if (_i == 0 || channel_fds_of(&frames[i].message) == 0)
            require_next(&frames[i].message);
    ck_assert(!channel_wants_write(pair.a));
    ck_assert_uint_eq(0, channel_queued(pair.a));
    require_status(STRAIT_ERR_AGAIN);
}

TEST_LOOP(large_frames_arrive_piece_by_piece, 2)
{
    open_pair(_i == 1);
    size_t size = 4 * 1024 * 1024;
    char *text = malloc(size);
    struct message large = {.type = MESSAGE_STATS_TEXT, .text = {view_of(text, size)}};
    memset(text, 'x', size);
    if (_i == 0)
        setsockopt(channel_fd(pair.a), SOL_SOCKET, SO_SNDBUF, &(int){8192}, sizeof(int));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, &large, NULL, 0));
        ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("heartbeat"), NULL, 0));
    }
    for (int i = 0; i < 3; i++) {
        require_next(&large);
        require_next(golden_message("heartbeat"));
    }
    free(text);
}

/* Bytes one by one, as a slow peer's, or two frames and a half at once. */
static const size_t pieces[] = {1, 2, 3, 4, 5, 6, 7, 8, 97, 98, 99};

TEST_LOOP(frames_are_found_however_the_bytes_are_cut, COUNT(pieces))
{
    int count;
    const struct golden *frames = golden_frames(&count);
    open_raw(MESSAGE_BYTES_MAX);
    uint8_t stream[65536], *frame;
    size_t size, total = 0;
    int sent = 0;
    for (int i = 0; i < count; i++) {
        if (channel_fds_of(&frames[i].message) > 0)
            continue;
        sent++;
        ck_assert_int_eq(STRAIT_OK, message_pack(&frames[i].message, &frame, &size));
        memcpy(stream + total, frame, size);
        total += size;
        free(frame);
    }
    struct message message;
    int fds[CHANNEL_FDS_MAX], came = 0, wanted = 0;
    uint32_t fd_count;
    for (size_t at = 0, piece; at < total; at += piece) {
        piece = at + pieces[_i] > total ? total - at : pieces[_i];
        ck_assert_int_eq((int)piece, (int)write(pair.raw, stream + at, piece));
        ck_assert_int_eq(STRAIT_OK, channel_read(pair.b));
        for (; channel_next(pair.b, &message, fds, &fd_count) == STRAIT_OK; came++) {
            while (channel_fds_of(&frames[wanted].message) > 0)
                wanted++;
            require_same_message(&frames[wanted++].message, &message);
            message_fini(&message);
        }
    }
    ck_assert_int_eq(sent, came);
}

TEST(what_was_sent_before_the_end_is_still_handed_out)
{
    open_pair(false);
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("hello"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("stats"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(pair.a));
    channel_destroy(pair.a);
    pair.a = NULL;
    ck_assert_int_eq(STRAIT_OK, channel_read(pair.b));
    require_next(golden_message("hello"));
    require_next(golden_message("stats"));
    require_status(STRAIT_ERR_AGAIN);
    ck_assert_int_eq(STRAIT_ERR_IO, channel_read(pair.b));
}

TEST(writing_to_a_peer_that_is_gone_is_an_error_and_no_signal)
{
    open_pair(false);
    channel_destroy(pair.b);
    pair.b = NULL;
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("hello"), NULL, 0));
    ck_assert_int_eq(STRAIT_ERR_IO, channel_flush(pair.a));
    ck_assert(!channel_wants_write(pair.a));
    ck_assert_int_eq(STRAIT_ERR_IO, channel_flush(pair.a));
}

TEST(a_queue_takes_what_fits_and_no_more)
{
    open_raw(0);
    uint8_t *frame;
    size_t size;
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    ck_assert_int_eq(STRAIT_OK, message_pack(golden_message("heartbeat"), &frame, &size));
    free(frame);
    ck_assert_int_eq(STRAIT_OK, channel_create(fds[0], 0, 2 * size, &pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("heartbeat"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("heartbeat"), NULL, 0));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, channel_send(pair.a, golden_message("stats"), NULL, 0));
    ck_assert_uint_eq(2 * size, channel_queued(pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_flush(pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("heartbeat"), NULL, 0));
    close(fds[1]);
}

TEST_LOOP(bad_arguments_are_refused_and_take_nothing, 2)
{
    open_pair(_i == 1);
    struct channel *none = NULL;
    int pipe_fds[2], many[CHANNEL_FDS_MAX + 1] = {0};
    require(pipe(pipe_fds) == 0);
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_create(pipe_fds[0], 0, 0, &none));
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_create(-1, 0, 0, &none));
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_create(channel_fd(pair.a), MESSAGE_BYTES_MAX + 1, 0, &none));
    ck_assert_ptr_null(none);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_send(pair.a, &(struct message){.type = MESSAGE_NONE}, NULL, 0));
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_send(pair.a, golden_message("stats"), many, 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_send(pair.a, golden_message("pool-register"), many, 1));
    struct message pool = *golden_message("pool-register");
    many[0] = -1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_send(pair.a, &pool, many, 2));
    many[0] = 0;
    ck_assert_int_eq(_i == 1 ? STRAIT_ERR_INVALID : STRAIT_OK, channel_send(pair.a, &pool, many, 2));
    pool.pool_register.fd_count = CHANNEL_FDS_MAX + 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, channel_send(pair.a, &pool, many, CHANNEL_FDS_MAX + 1));
    channel_destroy(NULL);
}

TEST_LOOP(a_unix_socket_knows_its_peer, 2)
{
    open_pair(_i == 1);
    uint32_t pid = 1, uid = 2, gid = 3;
    if (_i == 1) {
        ck_assert_int_eq(STRAIT_ERR_IO, channel_peer(pair.b, &pid, &uid, &gid));
    } else {
        ck_assert_int_eq(STRAIT_OK, channel_peer(pair.b, &pid, &uid, &gid));
        ck_assert_uint_eq((uint32_t)getpid(), pid);
        ck_assert_uint_eq(getuid(), uid);
        ck_assert_uint_eq(getgid(), gid);
    }
    ck_assert_int_eq(FD_CLOEXEC, fcntl(channel_fd(pair.b), F_GETFD));
    ck_assert_int_ne(0, fcntl(channel_fd(pair.b), F_GETFL) & O_NONBLOCK);
}

TEST_LOOP(a_channel_releases_its_socket_when_nothing_is_left_in_it, 2)
{
    open_pair(false);
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("shm-hello"), NULL, 0));
    if (_i == 0)
        require_next(golden_message("shm-hello"));
    int a = channel_release(pair.a);
    channel_read(pair.b);
    int b = channel_release(pair.b);
    pair.a = pair.b = NULL;
    if (_i == 0) {
        char byte = 0;
        ck_assert_int_eq(1, (int)write(a, "x", 1));
        ck_assert_int_eq(1, (int)read(b, &byte, 1));
        ck_assert_int_eq('x', byte);
        close(a);
        close(b);
    } else {
        ck_assert_int_eq(-1, a); /* not flushed */
    }
    if (_i == 1 && b >= 0)
        close(b);
}

TEST(a_channel_with_an_unread_frame_does_not_release_its_socket)
{
    open_pair(false);
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("shm-hello"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_read(pair.b));
    ck_assert_int_eq(-1, channel_release(pair.b));
    pair.b = NULL;
}

/* ---- Descriptors ----------------------------------------------------------------------------------------------- */

TEST(descriptors_stay_with_their_frame)
{
    open_pair(false);
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("hello"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("stats"), NULL, 0));
    send_with_fds(pair.a, 100, 3);
    send_with_fds(pair.a, 200, CHANNEL_FDS_MAX);
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("heartbeat"), NULL, 0));
    send_with_fds(pair.a, 300, 2);
    ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, golden_message("grant"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_read(pair.b)); /* all of it at once */
    require_next(golden_message("hello"));
    require_next(golden_message("stats"));
    require_next_with_fds(100, 3);
    require_next_with_fds(200, CHANNEL_FDS_MAX);
    require_next(golden_message("heartbeat"));
    require_next_with_fds(300, 2);
    require_next(golden_message("grant"));
}

/* More at once than a channel lets wait. */
TEST(many_pools_with_many_descriptors_arrive)
{
    open_pair(false);
    for (int i = 0; i < 10; i++)
        send_with_fds(pair.a, 1000 * i, CHANNEL_FDS_MAX);
    ck_assert_int_eq(STRAIT_OK, channel_flush(pair.a));
    for (int i = 0; i < 10; i++)
        require_next_with_fds(1000 * i, CHANNEL_FDS_MAX);
}

/* A frame of several hundred KiB is written in pieces: the descriptors go with the first. */
TEST(descriptors_of_a_frame_that_is_written_in_pieces_arrive_once)
{
    open_pair(false);
    struct wire_region *regions = malloc(STRAIT_REGIONS_MAX * sizeof(*regions));
    struct message pool = *golden_message("pool-register");
    for (uint32_t i = 0; i < STRAIT_REGIONS_MAX; i++)
        regions[i] = pool.pool_register.regions[2];
    pool.pool_register.regions = regions;
    pool.pool_register.region_count = STRAIT_REGIONS_MAX;
    int fds[2] = {fd_numbered(7), fd_numbered(8)};
    setsockopt(channel_fd(pair.a), SOL_SOCKET, SO_SNDBUF, &(int){8192}, sizeof(int));
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(STRAIT_OK, channel_send(pair.a, &pool, fds, 2));
    close(fds[0]);
    close(fds[1]);
    for (int i = 0; i < 3; i++)
        require_next_with_fds(7, 2);
    free(regions);
}

TEST(descriptors_in_transit_are_closed_with_the_channel)
{
    open_pair(false);
    send_with_fds(pair.a, 1, 5);
    ck_assert_int_eq(STRAIT_OK, channel_flush(pair.a));
    ck_assert_int_eq(STRAIT_OK, channel_read(pair.b));
    send_with_fds(pair.a, 1, 6); /* not even written */
}

static bool raw_send(int fd, const void *bytes, size_t size, uint32_t fd_count)
{
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE(253 * sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = (void *)bytes, .iov_len = size};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control)); /* all of them standard input */
    if (fd_count > 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        *CMSG_FIRSTHDR(&header) = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
    }
    return sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

static const uint32_t too_many[] = {CHANNEL_FDS_MAX + 1, CHANNEL_FDS_MAX + 2, 253};

TEST_LOOP(more_descriptors_than_a_frame_may_have_break_the_channel, COUNT(too_many))
{
    open_raw(1024);
    ck_assert(raw_send(pair.raw, "\x05", 1, too_many[_i]));
    require_status(STRAIT_ERR_CORRUPT);
    require_status(STRAIT_ERR_CORRUPT);
}

TEST(a_flood_of_descriptors_is_refused_before_it_takes_many)
{
    open_raw(1024);
    uint8_t head[4] = {0, 4, 0, 0};
    struct message message;
    int fds[CHANNEL_FDS_MAX], sent = 0;
    uint32_t fd_count;
    ck_assert(raw_send(pair.raw, head, 4, 0));
    while (sent < 100 && raw_send(pair.raw, "x", 1, 40))
        sent++;
    ck_assert_int_gt(sent, 1);
    enum strait_status status;
    do {
        channel_read(pair.b);
        ck_assert_int_le(open_descriptors(), pair.open_before + 2 + 40);
        status = channel_next(pair.b, &message, fds, &fd_count);
    } while (status == STRAIT_ERR_AGAIN && sent-- > 0);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, status);
}

static const struct wrong_fds {
    const char *golden;
    uint32_t count;
} wrong_fds[] = {
    {"hello", 1}, {"pool-register", 1}, {"pool-register", 3}, {"pool-register", 0}, {"shm-hello", 1},
};

TEST_LOOP(a_frame_with_other_descriptors_than_its_message_has_is_refused, COUNT(wrong_fds))
{
    open_raw(MESSAGE_BYTES_MAX);
    uint8_t *frame;
    size_t size;
    ck_assert_int_eq(STRAIT_OK, message_pack(golden_message(wrong_fds[_i].golden), &frame, &size));
    ck_assert(raw_send(pair.raw, frame, size, wrong_fds[_i].count));
    require_status(STRAIT_ERR_CORRUPT);
    free(frame);
}

TEST(a_process_without_free_descriptors_refuses_and_leaks_none)
{
    open_raw(1024);
    struct rlimit before, limit;
    require(getrlimit(RLIMIT_NOFILE, &before) == 0);
    limit = before;
    limit.rlim_cur = (rlim_t)channel_fd(pair.b) + 1;
    ck_assert(raw_send(pair.raw, "\x05", 1, 20));
    require(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    require_status(STRAIT_ERR_CORRUPT);
    require(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

/* ---- Frames that are too long ----------------------------------------------------------------------------------- */

static void raw_frame(int fd, const struct message *message)
{
    uint8_t *frame;
    size_t size;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
    ck_assert(raw_send(fd, frame, size, 0));
    free(frame);
}

TEST(a_frame_beyond_the_cap_is_refused_when_it_is_its_turn)
{
    open_raw(64);
    raw_frame(pair.raw, golden_message("stats"));
    ck_assert(raw_send(pair.raw, "\x41\x00\x00\x00", 4, 0));
    require_next(golden_message("stats"));
    require_status(STRAIT_ERR_NO_SPACE);
    require_status(STRAIT_ERR_NO_SPACE);
    ck_assert_str_eq("frame of 65 bytes, at most 64", channel_why(pair.b));
}

/* The large frame is there before the one that makes it welcome is looked at. */
TEST(a_cap_that_is_raised_in_time_lets_a_longer_frame_in)
{
    open_raw(64);
    raw_frame(pair.raw, golden_message("heartbeat"));
    raw_frame(pair.raw, golden_message("request"));
    raw_frame(pair.raw, golden_message("stats"));
    ck_assert_int_eq(STRAIT_OK, channel_read(pair.b));
    require_next(golden_message("heartbeat"));
    channel_set_body_max(pair.b, SIZE_MAX);
    require_next(golden_message("request"));
    require_next(golden_message("stats"));
}

static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

TEST_LOOP(an_announced_frame_takes_no_memory_until_it_comes, MEASURES)
{
    enum { CHANNELS = 64 };
    struct pair pairs[CHANNELS];
    size_t before = address_space();
    for (int i = 0; i < CHANNELS; i++) {
        setup();
        open_raw(MESSAGE_BYTES_MAX);
        ck_assert(raw_send(pair.raw, "\x00\x00\x80\x00xx", 6, 0));
        require_status(STRAIT_ERR_AGAIN);
        pairs[i] = pair;
    }
    ck_assert_uint_lt(address_space() - before, CHANNELS * MESSAGE_BYTES_MAX / 8);
    for (int i = CHANNELS - 1; i > 0; i--) {
        teardown();
        pair = pairs[i - 1];
    }
}

static const char *const bad_frames[] = {"\x00\x00\x00\x00", "\x02\x00\x00\x00\x00\x00",
                                         "\x03\x00\x00\x00\x9a\x06\x00"};
static const struct bad_frame {
    size_t size;
    enum strait_status status;
} bad_frame_cases[] = {{4, STRAIT_ERR_CORRUPT}, {6, STRAIT_ERR_CORRUPT}, {7, STRAIT_ERR_UNSUPPORTED}};

TEST_LOOP(a_frame_that_is_no_message_breaks_the_channel, COUNT(bad_frame_cases))
{
    open_raw(1024);
    ck_assert(raw_send(pair.raw, bad_frames[_i], bad_frame_cases[_i].size, 0));
    raw_frame(pair.raw, golden_message("stats"));
    require_status(bad_frame_cases[_i].status);
    require_status(bad_frame_cases[_i].status);
}

/* A reader that does not take its frames is not buried under them. */
TEST(no_more_is_read_than_a_frame_of_the_largest_size)
{
    open_raw(4096);
    static const uint8_t stream[8 * 4096]; /* frames of no bytes */
    size_t sent = 0;
    for (int i = 0; i < 100; i++) {
        ssize_t written = send(pair.raw, stream, sizeof(stream), MSG_DONTWAIT);
        sent += written > 0 ? (size_t)written : 0;
        ck_assert_int_eq(STRAIT_OK, channel_read(pair.b));
    }
    int filled = 0;
    socklen_t size = sizeof(filled);
    ck_assert_int_eq(0, getsockopt(pair.raw, SOL_SOCKET, SO_SNDBUF, &filled, &size));
    ck_assert_uint_le(sent, (size_t)filled + 2 * sizeof(stream));
}

int main(void)
{
    return run_tests("channel", setup, teardown);
}
