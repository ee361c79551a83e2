#include "tests/gpu/nccl_side.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "transport/nccl.h"

#define HEADER_BYTES 16u /* number, size */

uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t now_ms(void)
{
    return now_us() / 1000;
}

/* ---- Content ----------------------------------------------------------------------------------------------------- */

static uint64_t word_of(uint64_t sequence, size_t i)
{
    return (sequence + 1) * 0x9e3779b97f4a7c15u ^ (i * 0xbf58476d1ce4e5b9u);
}

static void fill(uint8_t *dst, size_t size, uint64_t sequence)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = word_of(sequence, at / 8);
        memcpy(dst + at, &word, size - at < 8 ? size - at : 8);
    }
}

static bool is_as_sent(const uint8_t *src, size_t size, uint64_t sequence)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = word_of(sequence, at / 8);
        if (memcmp(src + at, &word, size - at < 8 ? size - at : 8) != 0)
            return false;
    }
    return true;
}

/* Not on a multiple of anything, now and then. */
static size_t shift_of(uint64_t sequence, size_t size)
{
    size_t shift = sequence % 4 == 3 ? 13 : 0;
    return shift + size <= SLOT_BYTES ? shift : 0;
}

/* ---- Callbacks --------------------------------------------------------------------------------------------------- */

static unsigned free_slot(const bool *slots, unsigned count)
{
    unsigned slot = 0;
    while (slot < count && slots[slot])
        slot++;
    return slot;
}

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    struct nccl_side *side = owner;
    (void)link;
    require(side->connected == 1 && side->closed == 0 && header_size == HEADER_BYTES && size <= SLOT_BYTES);
    require(load_le64((const uint8_t *)header + 8) == size);
    side->arriving++;
    if (side->refuse_every != 0 && side->arriving % side->refuse_every == 0) {
        side->refused++;
        return (struct landing){.address = NULL};
    }
    unsigned slot = free_slot(side->landing, RECEIVE_SLOTS);
    require(slot < RECEIVE_SLOTS);
    side->landing[slot] = true;
    side->sequence[slot] = load_le64(header);
    side->size[slot] = size;
    return (struct landing){.address = side->arena + slot * SLOT_BYTES + shift_of(side->sequence[slot], size),
                            .cookie = slot};
}

static void check(struct nccl_side *side, unsigned slot)
{
    size_t size = side->size[slot];
    uint64_t sequence = side->sequence[slot];
    require_cuda(cudaMemcpy(side->staging, side->arena + slot * SLOT_BYTES + shift_of(sequence, size), size,
                            cudaMemcpyDeviceToHost));
    require(is_as_sent(side->staging, size, sequence));
}

static void on_arrived(void *owner, struct link *link, uint64_t slot, enum strait_status status)
{
    struct nccl_side *side = owner;
    (void)link;
    require(slot < RECEIVE_SLOTS && side->landing[slot] && side->closed == 0);
    if (status == STRAIT_OK && !side->unchecked)
        check(side, (unsigned)slot);
    side->landing[slot] = false;
    side->arrived += status == STRAIT_OK;
    side->arrived_badly += status != STRAIT_OK;
}

static void on_sent(void *owner, struct link *link, uint64_t slot, enum strait_status status)
{
    struct nccl_side *side = owner;
    (void)link;
    require(slot < SEND_SLOTS && side->sending[slot] && side->closed == 0);
    side->sending[slot] = false;
    side->sent += status == STRAIT_OK;
    side->sent_badly += status != STRAIT_OK;
}

static void on_connected(void *owner, struct link *link)
{
    (void)link;
    ((struct nccl_side *)owner)->connected++;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    struct nccl_side *side = owner;
    side->broken++;
    side->why = why;
    link_close(link);
}

static void on_closed(void *owner, struct link *link)
{
    struct nccl_side *side = owner;
    (void)link;
    side->closed++;
    side->link = NULL;
    for (unsigned i = 0; i < RECEIVE_SLOTS; i++)
        require(!side->landing[i]);
    require(side_under_way(side) == 0);
}

static const struct transport_events events = {.arriving = on_arriving,
                                               .arrived = on_arrived,
                                               .sent = on_sent,
                                               .connected = on_connected,
                                               .broken = on_broken,
                                               .closed = on_closed};

/* ---- Sides ------------------------------------------------------------------------------------------------------- */

bool side_create(struct nccl_side *side, const char *options)
{
    char why[256];
    struct transport_arena arena = {.size = RECEIVE_SLOTS * SLOT_BYTES, .fd = -1, .memory = TRANSPORT_CUDA};
    require_cuda(cudaSetDevice(side->number));
    require_cuda(cudaMalloc((void **)&side->arena, arena.size));
    require_cuda(cudaMalloc((void **)&side->source, SEND_SLOTS * SLOT_BYTES));
    require_cuda(cudaMallocHost((void **)&side->staging, SLOT_BYTES));
    arena.base = side->arena;
    enum strait_status status = transport_create(&transport_nccl, &arena, &events, side, options, &side->transport);
    transport_missing(&transport_nccl, why, sizeof(why));
    if (status != STRAIT_OK)
        printf("no transport: %s: %s\n", strait_status_string(status), why);
    require(status == STRAIT_OK || status == STRAIT_ERR_UNSUPPORTED);
    return status == STRAIT_OK;
}

void side_destroy(struct nccl_side *side)
{
    transport_destroy(side->transport);
    require_cuda(cudaFree(side->arena));
    require_cuda(cudaFree(side->source));
    require_cuda(cudaFreeHost(side->staging));
}

void side_step(struct nccl_side *side, int timeout)
{
    bool any = false;
    while (transport_progress(side->transport))
        any = true;
    if (any || transport_arm(side->transport) != STRAIT_OK)
        return;
    struct pollfd poller = {.fd = transport_fd(side->transport), .events = POLLIN};
    poll(&poller, 1, timeout);
}

void side_tell(struct nccl_side *side, const void *bytes, size_t size)
{
    require(write(side->control, bytes, size) == (ssize_t)size);
}

void side_hear(struct nccl_side *side, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(side->control, (char *)bytes + done, size - done);
        require(got > 0);
        done += (size_t)got;
    }
}

/* Works on while it waits: the link may have something to do for the other side. */
void side_meet(struct nccl_side *side)
{
    char byte = 'm';
    struct pollfd poller = {.fd = side->control, .events = POLLIN};
    side_tell(side, &byte, 1);
    while (poll(&poller, 1, 0) == 0)
        side_step(side, 0);
    side_hear(side, &byte, 1);
}

void side_open(struct nccl_side *side)
{
    uint8_t address[LINK_ADDRESS_MAX];
    enum link_side which = side->number == 0 ? LINK_ACCEPTED : LINK_DIALLED;
    require(link_open(side->transport, -1, which, side, &side->link) == STRAIT_OK);
    uint64_t size = link_address(side->link, address, sizeof(address));
    side_tell(side, &size, sizeof(size));
    side_tell(side, address, size);
    side_hear(side, &size, sizeof(size));
    require(size <= sizeof(address));
    side_hear(side, address, size);
    require(link_connect(side->link, address, size) == STRAIT_OK);
}

void side_connect(struct nccl_side *side)
{
    side_open(side);
    SIDE_AWAIT(side, 30, side->connected || side->broken);
    if (side->broken)
        printf("side %d: broken: %s\n", side->number, side->why);
    require(!side->broken);
}

void side_close(struct nccl_side *side)
{
    if (side->link != NULL)
        link_close(side->link);
    SIDE_AWAIT(side, 20, side->closed);
}

void side_forget(struct nccl_side *side)
{
    side->connected = side->broken = side->closed = side->arriving = side->refused = 0;
    side->arrived = side->arrived_badly = side->sent = side->sent_badly = 0;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

bool side_send(struct nccl_side *side, size_t size)
{
    uint8_t header[HEADER_BYTES];
    unsigned slot = free_slot(side->sending, SEND_SLOTS);
    if (slot == SEND_SLOTS || side->link == NULL || side->broken)
        return false;
    uint8_t *from = side->source + slot * SLOT_BYTES + shift_of(side->next, size);
    if (!side->unchecked && size > 0) {
        fill(side->staging, size, side->next);
        require_cuda(cudaMemcpy(from, side->staging, size, cudaMemcpyHostToDevice));
    }
    store_le64(header, side->next++);
    store_le64(header + 8, size);
    enum strait_status status = link_send(side->link, header, sizeof(header), from, size, NULL, slot);
    require(status == STRAIT_OK);
    return side->sending[slot] = true;
}

unsigned side_under_way(const struct nccl_side *side)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SEND_SLOTS; i++)
        count += side->sending[i];
    return count;
}

void side_watch_arena(struct nccl_side *side)
{
    require_cuda(cudaMemset(side->arena, 0xa5, RECEIVE_SLOTS * SLOT_BYTES));
    require_cuda(cudaDeviceSynchronize());
    for (int i = 0; i < 25; i++)
        side_step(side, 20);
    for (unsigned slot = 0; slot < RECEIVE_SLOTS; slot++) {
        require_cuda(cudaMemcpy(side->staging, side->arena + slot * SLOT_BYTES, SLOT_BYTES, cudaMemcpyDeviceToHost));
        require(is_filled(side->staging, SLOT_BYTES, 0xa5));
    }
}
