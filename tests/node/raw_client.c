#include "tests/node/raw_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void bystander_works(struct bystander *b)
{
    char key[16];
    snprintf(key, sizeof(key), "%u", ++b->turn);
    pool_fill(b->source, b->turn);
    struct flow *o = flow_offer(b->source, (struct strait_offer_params){KEY(key), LISTS({.count = 16}), .last = true});
    struct flow *e = flow_expect(b->sink, (struct strait_expect_params){KEY(key), LISTS({.count = 16})});
    flow_start(e, b->source);
    arrives(e, o);
}

void bystander_init(struct bystander *b)
{
    memset(b, 0, sizeof(*b));
    test_node_init(&nodes[0], "a", "shm");
    nodes[0].options.clients = 4096;
    test_node_start(&nodes[0]);
    b->party = party_open(&nodes[0]);
    b->source = pool_open(b->party, (struct geometry){0});
    b->sink = pool_open(b->party, (struct geometry){0});
    bystander_works(b);
    b->descriptors = open_descriptors();
}

void bystander_fini(struct bystander *b)
{
    WAIT(stat_of(b->party, "gauges.clients") == 1);
    ck_assert_double_eq(2, stat_of(b->party, "gauges.pools"));
    bystander_works(b);
    WAIT(open_descriptors() <= b->descriptors);
    ck_assert_uint_eq(0, b->party->disconnects);
}

int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, nodes[0].options.socket, strlen(nodes[0].options.socket) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    while (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        ck_assert_int_eq(EAGAIN, errno); /* the backlog is full */
        usleep(1000);
    }
    return fd;
}

bool send_bytes(int fd, const void *bytes, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        ssize_t n = send(fd, (const uint8_t *)bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            sent += (size_t)n;
        else if (errno != EAGAIN || poll(&ready, 1, 10000) != 1)
            return false;
    }
    return true;
}

void send_message(int fd, const struct message *message)
{
    uint8_t *frame;
    size_t size;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
    (void)send_bytes(fd, frame, size);
    free(frame);
}

int dial_and_greet(void)
{
    struct message hello = {.type = MESSAGE_HELLO,
                            .hello = {.version = PROTOCOL_VERSION, .version_min = PROTOCOL_VERSION_MIN, .pid = 1}};
    int fd = dial();
    send_message(fd, &hello);
    return fd;
}

bool is_let_go(int fd)
{
    char scrap[4096];
    for (uint64_t end = now_ms() + 5000 * SLOW; now_ms() < end;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        (void)poll(&ready, 1, 100);
        ssize_t n = recv(fd, scrap, sizeof(scrap), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return true;
    }
    return false;
}

void send_with_fds(int fd, const struct message *message, int passed, uint32_t count)
{
    uint8_t *frame;
    size_t size;
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, &size));
    struct iovec bytes = {.iov_base = frame, .iov_len = size};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (count != 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (uint32_t i = 0; i < count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &passed, sizeof(int));
    }
    ck_assert_int_eq((int)size, (int)sendmsg(fd, &header, MSG_NOSIGNAL));
    free(frame);
}

static const struct pool_id own_pool = {{7}};

struct message registration(struct wire_region *region)
{
    *region = (struct wire_region){.handle = STRAIT_HANDLE_MEMFD,
                                   .device = -1,
                                   .page_stride = 4096,
                                   .page_count = 16,
                                   .rows = 1,
                                   .row_bytes = 4096,
                                   .element = STRAIT_ELEMENT_BF16,
                                   .role = STRAIT_ROLE_K};
    return (struct message){.type = MESSAGE_POOL_REGISTER,
                            .pool_register = {.pool = own_pool, .fd_count = 1, .region_count = 1, .regions = region}};
}
