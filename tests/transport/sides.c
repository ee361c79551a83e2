#include "tests/transport/sides.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/socket.h>
#include <time.h>

#include "tests/fakes/nccl_calls.h"
#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

#define HEADER_BYTES 24u /* sequence, slot, size */
#define STEPS_MAX    64

/* ---- Content --------------------------------------------------------------------------------------------------- */

#define BLOCK 256u /* bytes of a chunk's content that differ from the next ones by a constant */

static const uint8_t *block_of(uint64_t sequence, size_t i)
{
    static uint8_t blocks[256][BLOCK];
    if (blocks[1][0] == 0)
        for (unsigned first = 0; first < 256; first++)
            for (unsigned k = 0; k < BLOCK; k++)
                blocks[first][k] = (uint8_t)(first + 7 * k);
    return blocks[(uint8_t)(((sequence * 0x9e3779b97f4a7c15u) >> 24) + (i >> 8) * 13 + (i >> 16))];
}

static size_t block_size(size_t size, size_t i)
{
    return size - i < BLOCK ? size - i : BLOCK;
}

static void fill(uint8_t *dst, size_t size, uint64_t sequence)
{
    for (size_t i = 0; i < size; i += BLOCK)
        memcpy(dst + i, block_of(sequence, i), block_size(size, i));
}

static bool is_as_sent(const uint8_t *src, size_t size, uint64_t sequence)
{
    for (size_t i = 0; i < size; i += BLOCK)
        if (memcmp(src + i, block_of(sequence, i), block_size(size, i)) != 0)
            return false;
    return true;
}

/* ---- Callbacks ------------------------------------------------------------------------------------------------- */

static struct side *owner_of(void *owner, struct link *link)
{
    struct side *side = owner;
    ck_assert_ptr_eq(side, link->owner);
    side->late += side->closed > 0;
    return side;
}

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    struct side *side = owner_of(owner, link);
    ck_assert_uint_eq(1, side->connected);
    ck_assert_uint_eq(HEADER_BYTES, header_size);
    side->arriving++;
    side->last_sequence = load_le64(header);
    side->last_size = size;
    side->overtaken += side->last_sequence < side->highest_sequence;
    if (side->last_sequence > side->highest_sequence)
        side->highest_sequence = side->last_sequence;
    uint64_t slot = load_le64((const uint8_t *)header + 8);
    ck_assert_uint_lt(slot, SLOTS);
    if (side->close_on_arriving)
        link_close(link);
    if (side->refuse || size > SLOT_BYTES)
        return (struct landing){0};
    side->landing[slot]++;
    side->sequence[slot] = side->last_sequence;
    side->size[slot] = size;
    return (struct landing){.address = (uint8_t *)side->arena.base + slot * SLOT_BYTES, .cookie = slot};
}

static void on_arrived(void *owner, struct link *link, uint64_t slot, enum strait_status status)
{
    struct side *side = owner_of(owner, link);
    const uint8_t *at = (const uint8_t *)side->arena.base + slot * SLOT_BYTES;
    ck_assert_uint_lt(slot, SLOTS);
    ck_assert_uint_gt(side->landing[slot], 0);
    side->landing[slot]--;
    side->arrived += status == STRAIT_OK;
    side->arrived_badly += status != STRAIT_OK;
    if (status == STRAIT_OK && !side->unchecked)
        side->damaged += !is_as_sent(at, side->size[slot], side->sequence[slot]);
}

static void on_sent(void *owner, struct link *link, uint64_t slot, enum strait_status status)
{
    struct side *side = owner_of(owner, link);
    ck_assert_uint_lt(slot, SLOTS);
    ck_assert(side->sending[slot]);
    side->sending[slot] = false;
    side->sent += status == STRAIT_OK;
    side->sent_badly += status != STRAIT_OK;
}

static void on_connected(void *owner, struct link *link)
{
    owner_of(owner, link)->connected++;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    struct side *side = owner_of(owner, link);
    side->broken++;
    side->why = why;
    if (side->close_on_broken)
        link_close(link);
}

static void on_closed(void *owner, struct link *link)
{
    struct side *side = owner_of(owner, link);
    side->closed++;
    side->link = NULL;
    for (unsigned i = 0; i < SLOTS; i++)
        ck_assert(!side->sending[i] && side->landing[i] == 0);
}

static const struct transport_events events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};

/* ---- Sides ----------------------------------------------------------------------------------------------------- */

int make_arena(size_t size, void **base)
{
    return sealed_memory(size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, base);
}

/* Memory is the host's, whatever a kind is told: what is to be a GPU's is for fake_nccl or ucx_stand_in. */
bool sides_on_gpus;

uint32_t side_memory(const struct transport_ops *ops)
{
    const uint32_t asked = sides_on_gpus ? TRANSPORT_CUDA : TRANSPORT_HOST;
    return (ops->receive_memory & asked) != 0 ? asked : ops->receive_memory;
}

static bool only_ucx_on_gpus(void)
{
    return getenv("STRAIT_TEST_UCX_ON_GPUS") != NULL;
}

int kind_count(void)
{
    int count = 0;
    while (transport_at((uint32_t)count) != NULL)
        count++;
    return only_ucx_on_gpus() ? 1 : count;
}

const struct transport_ops *kind_at(int index)
{
    static bool prepared;
    if (!prepared)
        fake_nccl_use();
    prepared = true;
#if STRAIT_HAVE_UCX
    if (only_ucx_on_gpus()) {
        sides_on_gpus = true;
        ucx_stand_in();
        return &transport_ucx;
    }
#endif
    return transport_at((uint32_t)index);
}

static const char *options_for(const struct transport_ops *ops)
{
    bool ucx = transport_find("ucx") != NULL;
    if (strcmp(ops->name, "nccl") == 0)
        return ucx ? "carrier=ucx tls=tcp devices=lo" : "carrier=loopback";
    return strcmp(ops->name, "ucx") == 0 ? "tls=tcp devices=lo" : NULL;
}

void side_init(struct side *side, const struct transport_ops *ops, const char *options)
{
    memset(side, 0, sizeof(*side));
    side->ops = ops;
    side->close_on_broken = true;
    side->arena = (struct transport_arena){.size = SLOTS * SLOT_BYTES, .memory = side_memory(ops)};
    side->arena.fd = make_arena(side->arena.size, &side->arena.base);
    if (options == NULL)
        options = options_for(ops);
    ck_assert_int_eq(STRAIT_OK, transport_create(ops, &side->arena, &events, side, options, &side->transport));
    side->source = malloc(SLOTS * SLOT_BYTES);
    ck_assert_ptr_nonnull(side->source);
    ck_assert_int_eq(STRAIT_OK, transport_memory(side->transport, side->source, SLOTS * SLOT_BYTES, &side->handle));
}

enum strait_status transport_try(const struct transport_ops *ops, uint32_t memory, const char *options)
{
    struct transport_arena arena = {.size = 4096, .memory = memory};
    struct transport_events none = {0};
    struct transport *transport = NULL;
    arena.fd = make_arena(arena.size, &arena.base);
    enum strait_status status = transport_create(ops, &arena, &none, NULL, options, &transport);
    ck_assert((transport != NULL) == (status == STRAIT_OK));
    transport_destroy(transport);
    munmap(arena.base, arena.size);
    close(arena.fd);
    return status;
}

struct side sides[2];

void sides_init(const struct transport_ops *ops, const char *options)
{
    side_init(&sides[0], ops, options);
    side_init(&sides[1], ops, options);
}

void sides_up(const struct transport_ops *ops, const char *options)
{
    sides_init(ops, options);
    sides_connect(sides);
}

void side_fini(struct side *side)
{
    ck_assert_uint_eq(0, side->late);
    transport_memory_release(side->transport, side->handle);
    transport_destroy(side->transport);
    free(side->source);
    munmap(side->arena.base, side->arena.size);
    close(side->arena.fd);
    side->transport = NULL;
}

int side_open_by_hand(struct side *side, enum link_side which, const void *address, size_t size)
{
    int fds[2];
    side_init(side, transport_find("shm"), NULL);
    side->close_on_broken = false;
    ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    ck_assert_int_eq(STRAIT_OK, link_open(side->transport, fds[0], which, side, &side->link));
    ck_assert_int_eq(STRAIT_OK, link_connect(side->link, address, size));
    return fds[1];
}

void side_close_by_hand(struct side *side, int peer)
{
    if (side->transport == NULL)
        return;
    if (side->link != NULL)
        link_close(side->link);
    close(peer);
    WAIT_UNTIL(side, 1, side->closed);
    side_fini(side);
}

uint64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Whether all of them may sleep; those that are asked after one that may not need not be armed. */
static bool arm_all(struct side *of, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        enum strait_status status = transport_arm(of[i].transport);
        if (status == STRAIT_ERR_AGAIN)
            return false;
        ck_assert_int_eq(STRAIT_OK, status);
    }
    return true;
}

/* After progress the caller looks at its condition first: there may be nothing left to wait for. */
void sides_step(struct side *of, unsigned count, int timeout)
{
    struct pollfd fds[2];
    bool any = false, more = true;
    for (int i = 0; more && i < STEPS_MAX; i++) {
        more = false;
        for (unsigned k = 0; k < count; k++)
            more |= transport_progress(of[k].transport);
        any |= more;
    }
    if (any || !arm_all(of, count))
        return;
    for (unsigned k = 0; k < count; k++)
        fds[k] = (struct pollfd){.fd = transport_fd(of[k].transport), .events = POLLIN};
    poll(fds, count, timeout);
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

static void open_link(struct side *side, int fd, enum link_side which)
{
    ck_assert_int_eq(STRAIT_OK, link_open(side->transport, fd, which, side, &side->link));
}

void sides_open(struct side both[2])
{
    int fds[2] = {-1, -1};
    if (both[0].ops->direct)
        ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    open_link(&both[0], fds[0], LINK_ACCEPTED);
    open_link(&both[1], fds[1], LINK_DIALLED);
}

void sides_begin(struct side both[2])
{
    uint8_t address[2][LINK_ADDRESS_MAX];
    size_t size[2];
    sides_open(both);
    for (int i = 0; i < 2; i++)
        size[i] = link_address(both[i].link, address[i], LINK_ADDRESS_MAX);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(STRAIT_OK, link_connect(both[i].link, address[!i], size[!i]));
}

void sides_connect(struct side both[2])
{
    sides_begin(both);
    ck_assert_uint_eq(0, both[0].connected + both[1].connected);
    WAIT_UNTIL(both, 2, both[0].connected && both[1].connected);
}

static void read_all(int fd, void *dst, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, (char *)dst + done, size - done);
        ck_assert_int_gt(got, 0);
        done += (size_t)got;
    }
}

void side_connect(struct side *side, int fd, enum link_side which, int control)
{
    uint8_t address[LINK_ADDRESS_MAX];
    uint64_t size;
    open_link(side, fd, which);
    size = link_address(side->link, address, sizeof(address));
    ck_assert_int_eq(sizeof(size), write(control, &size, sizeof(size)));
    ck_assert_int_eq((ssize_t)size, write(control, address, size));
    read_all(control, &size, sizeof(size));
    ck_assert_uint_le(size, sizeof(address));
    read_all(control, address, size);
    ck_assert_int_eq(STRAIT_OK, link_connect(side->link, address, size));
    WAIT_UNTIL(side, 1, side->connected);
}

bool side_may_send(const struct side *side, unsigned slot)
{
    return !side->sending[slot];
}

enum strait_status side_send(struct side *side, unsigned slot, size_t size)
{
    uint8_t header[HEADER_BYTES];
    uint8_t *from = side->source + slot * SLOT_BYTES, *to = NULL;
    ck_assert(side_may_send(side, slot));
    if (side->ops->direct) {
        to = link_map(side->link, slot * SLOT_BYTES, size);
        ck_assert(to != NULL || side->broken || !side->connected);
    }
    if (to != NULL)
        fill(to, size, side->next);
    else
        fill(from, size, side->next);
    store_le64(header, side->next++);
    store_le64(header + 8, slot);
    store_le64(header + 16, size);
    enum strait_status status =
        link_send(side->link, header, sizeof(header), side->ops->direct ? NULL : from, size, side->handle, slot);
    side->sending[slot] = status == STRAIT_OK;
    return status;
}

void sides_close(struct side both[2])
{
    for (int i = 0; i < 2; i++)
        if (both[i].link != NULL)
            link_close(both[i].link);
    WAIT_UNTIL(both, 2, both[0].closed && both[1].closed);
    side_fini(&both[0]);
    side_fini(&both[1]);
}

void sides_teardown(void)
{
    if (sides[0].transport != NULL && sides[1].transport != NULL)
        sides_close(sides);
}
