/* What the ends of an NCCL link tell each other: its parsers, and a peer that says what it should not. The peer is the
 * test itself, behind a loopback link. */
#include "transport/nccl_wire.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakes/nccl_calls.h"
#include "tests/run_suite.h"
#include "tests/support.h"
#include "tests/transport/sides.h"
#include "transport/loopback.h"
#include "transport/nccl.h"

/* ---- Parsers ----------------------------------------------------------------------------------------------------- */

static size_t an_address(uint8_t *dst, size_t carrier_size)
{
    uint8_t carrier[NCCL_ADDRESS_CARRIER];
    struct nccl_address address = {.library = 22809, .carrier = carrier, .carrier_size = carrier_size};
    for (size_t i = 0; i < carrier_size; i++)
        carrier[i] = (uint8_t)(i * 7);
    memset(address.process, 3, sizeof(address.process));
    memset(address.identity, 4, sizeof(address.identity));
    nccl_address_write(dst, &address);
    return NCCL_ADDRESS_FIXED + carrier_size;
}

TEST(an_address_is_read_as_it_was_written)
{
    static const size_t sizes[] = {0, 1, 12, 48, NCCL_ADDRESS_CARRIER};
    uint8_t bytes[LINK_ADDRESS_MAX];
    struct nccl_address address;
    for (int i = 0; i < COUNT(sizes); i++) {
        size_t size = an_address(bytes, sizes[i]);
        ck_assert_int_eq(STRAIT_OK, nccl_address_read(bytes, size, &address));
        ck_assert_uint_eq(22809, address.library);
        ck_assert(is_filled(address.process, NCCL_PLACE_BYTES, 3) && is_filled(address.identity, NCCL_PLACE_BYTES, 4));
        ck_assert_uint_eq(sizes[i], address.carrier_size);
        for (size_t k = 0; k < sizes[i]; k++)
            ck_assert_uint_eq((uint8_t)(k * 7), address.carrier[k]);
    }
}

TEST(an_address_with_any_bit_changed_is_none)
{
    uint8_t bytes[LINK_ADDRESS_MAX];
    struct nccl_address address;
    size_t size = an_address(bytes, 48);
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_ne(STRAIT_OK, nccl_address_read(bytes, size, &address));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert_int_eq(STRAIT_OK, nccl_address_read(bytes, size, &address));
}

/* In memory that ends with the blob: a read beyond it would fault. */
TEST(an_address_of_another_size_is_none)
{
    uint8_t bytes[LINK_ADDRESS_MAX];
    struct nccl_address address;
    size_t whole = an_address(bytes, 48);
    for (size_t size = 0; size < whole; size++) {
        struct guarded guarded;
        guarded_init(&guarded, size);
        memcpy(guarded.bytes, bytes, size);
        ck_assert_int_eq(STRAIT_ERR_INVALID, nccl_address_read(guarded.bytes, size, &address));
        guarded_fini(&guarded);
    }
    ck_assert_int_eq(STRAIT_ERR_INVALID, nccl_address_read(NULL, whole, &address));
    ck_assert_int_eq(STRAIT_ERR_INVALID, nccl_address_read(bytes, LINK_ADDRESS_MAX + 1, &address));
}

TEST(messages_are_read_strictly)
{
    static const struct {
        struct nccl_message message;
        size_t payload;
        bool good;
    } cases[] = {
        {{NCCL_HELLO, 0, NCCL_VERSION}, NCCL_ID_BYTES, true},
        {{NCCL_HELLO, 0, NCCL_VERSION}, NCCL_ID_BYTES - 1, false},
        {{NCCL_HELLO, 0, NCCL_VERSION + 1}, NCCL_ID_BYTES, false},
        {{NCCL_HELLO, 1, NCCL_VERSION}, NCCL_ID_BYTES, false},
        {{NCCL_READY, 0, 0}, 0, true},
        {{NCCL_READY, 0, 0}, 1, false},
        {{NCCL_READY, 1, 0}, 0, false},
        {{NCCL_READY, 0, 1}, 0, false},
        {{NCCL_CHUNK, 1, 0}, 0, true},
        {{NCCL_CHUNK, UINT64_MAX, SIZE_MAX}, TRANSPORT_HEADER_MAX, true},
        {{NCCL_CHUNK, 1, 0}, TRANSPORT_HEADER_MAX + 1, false},
        {{NCCL_CHUNK, 0, 0}, 0, false},
        {{NCCL_GO, 1, 0}, 0, true},
        {{NCCL_GO, 1, UINT64_MAX}, 0, true},
        {{NCCL_GO, 0, 0}, 0, false},
        {{NCCL_GO, 1, 0}, 1, false},
        {{NCCL_REFUSED, 1, 0}, 0, true},
        {{NCCL_REFUSED, 1, 1}, 0, false},
        {{NCCL_REFUSED, 0, 0}, 0, false},
        {{NCCL_REFUSED, 1, 0}, 1, false},
        {{0, 0, 0}, 0, false},
        {{NCCL_REFUSED + 1, 1, 0}, 0, false},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        uint8_t bytes[NCCL_MESSAGE_BYTES];
        struct nccl_message message;
        enum strait_status wanted = cases[i].good ? STRAIT_OK : STRAIT_ERR_CORRUPT;
        nccl_message_write(bytes, &cases[i].message);
        ck_assert_msg(nccl_message_read(bytes, sizeof(bytes), cases[i].payload, &message) == wanted, "case %d", i);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, nccl_message_read(bytes, sizeof(bytes) - 1, cases[i].payload, &message));
        bytes[5] = 1;
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, nccl_message_read(bytes, sizeof(bytes), cases[i].payload, &message));
    }
}

/* ---- A peer of our own ------------------------------------------------------------------------------------------- */

static struct {
    struct transport *transport;
    struct link *link;
    uint8_t arena[4096];
    uint8_t payload[NCCL_MESSAGE_PAYLOAD];
    bool connected, closed;
    unsigned heard[NCCL_REFUSED + 1]; /* messages, by type */
    struct nccl_message last;
} peer;

static struct side side;

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    (void)owner, (void)link;
    ck_assert_int_eq(STRAIT_OK, nccl_message_read(header, header_size, size, &peer.last));
    peer.heard[peer.last.type]++;
    return (struct landing){.address = peer.payload};
}

static void on_arrived(void *owner, struct link *link, uint64_t cookie, enum strait_status status)
{
    (void)owner, (void)link, (void)cookie, (void)status;
}

static void on_connected(void *owner, struct link *link)
{
    (void)owner, (void)link;
    peer.connected = true;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    (void)owner, (void)why;
    link_close(link);
}

static void on_closed(void *owner, struct link *link)
{
    (void)owner, (void)link;
    peer.closed = true;
}

static const struct transport_events peer_events = {.arriving = on_arriving,
                                                    .arrived = on_arrived,
                                                    .sent = on_arrived,
                                                    .connected = on_connected,
                                                    .broken = on_broken,
                                                    .closed = on_closed};

static void speak(uint32_t type, uint64_t id, uint64_t value, size_t payload_size)
{
    static const uint8_t payload[2 * NCCL_MESSAGE_PAYLOAD];
    uint8_t header[NCCL_MESSAGE_BYTES];
    struct nccl_message message = {.type = type, .id = id, .value = value};
    nccl_message_write(header, &message);
    ck_assert_int_eq(STRAIT_OK, link_send(peer.link, header, sizeof(header), payload, payload_size, NULL, 0));
}

/* The side's communicators are the peer's part, too: another engine could not tell the difference. */
static void connect_peer(void)
{
    uint8_t blob[LINK_ADDRESS_MAX], carrier[LINK_ADDRESS_MAX];
    struct nccl_address address = {.library = FAKE_NCCL_LIBRARY, .carrier = carrier}, own;
    struct transport_arena arena = {.base = peer.arena, .size = sizeof(peer.arena), .fd = -1, .memory = TRANSPORT_HOST};
    side_init(&side, &transport_nccl, "carrier=loopback");
    ck_assert_int_eq(STRAIT_OK, link_open(side.transport, -1, LINK_ACCEPTED, &side, &side.link));
    ck_assert_int_eq(STRAIT_OK,
                     transport_create(&transport_loopback, &arena, &peer_events, NULL, NULL, &peer.transport));
    ck_assert_int_eq(STRAIT_OK, link_open(peer.transport, -1, LINK_DIALLED, NULL, &peer.link));
    address.carrier_size = link_address(peer.link, carrier, sizeof(carrier));
    nccl_address_write(blob, &address);
    ck_assert_int_eq(STRAIT_OK, link_connect(side.link, blob, NCCL_ADDRESS_FIXED + address.carrier_size));
    size_t size = link_address(side.link, blob, sizeof(blob));
    ck_assert_int_eq(STRAIT_OK, nccl_address_read(blob, size, &own));
    ck_assert_int_eq(STRAIT_OK, link_connect(peer.link, own.carrier, own.carrier_size));
}

static void step(void)
{
    sides_step(&side, 1, 1);
    while (transport_progress(peer.transport))
        ;
}

#define STEP_UNTIL(condition)                                                                       \
    do {                                                                                            \
        uint64_t start_ = milliseconds();                                                           \
        while (!(condition)) {                                                                      \
            ck_assert_msg(milliseconds() - start_ < WAIT_MS, "waited in vain for: %s", #condition); \
            step();                                                                                 \
        }                                                                                           \
    } while (0)

/* Until the side has said hello, and heard ours. */
static void greet(void)
{
    connect_peer();
    STEP_UNTIL(peer.heard[NCCL_HELLO] == 1);
    speak(NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES);
}

/* The peer's own communicators: without them the side would wait for them. */
static void *comms[2];

static void come_up(void)
{
    uint8_t ids[2][NCCL_ID_BYTES] = {{0}};
    connect_peer();
    STEP_UNTIL(peer.heard[NCCL_HELLO] == 1);
    memcpy(ids[1], peer.payload, NCCL_ID_BYTES); /* the side's outgoing one */
    ck_assert_int_eq(NCCL_DONE, fake_nccl_calls.enter(0));
    for (int rank = 0; rank < 2; rank++)
        ck_assert_int_eq(NCCL_BUSY, fake_nccl_calls.join(&comms[rank], ids[rank], rank, 1));
    speak(NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES); /* zeros: ids[0] */
    STEP_UNTIL(peer.heard[NCCL_READY] == 1);
    ck_assert_uint_eq(0, side.connected);
}

static void end(void)
{
    for (int i = 0; i < 2; i++)
        if (comms[i] != NULL)
            fake_nccl_calls.abort(comms[i]);
    if (side.link != NULL)
        link_close(side.link);
    STEP_UNTIL(side.closed && peer.closed);
    transport_destroy(peer.transport);
    side_fini(&side);
    ck_assert_uint_eq(0, fake_nccl.live);
}

static void await_break(const char *why)
{
    STEP_UNTIL(side.broken);
    ck_assert_str_eq(why, side.why);
    STEP_UNTIL(side.closed);
    end();
}

/* ---- What it says ------------------------------------------------------------------------------------------------ */

TEST_LOOP(what_is_no_message_breaks_the_link, 5)
{
    static const struct {
        uint32_t type;
        uint64_t id, value;
        size_t payload;
    } cases[] = {{0, 0, 0, 0},
                 {NCCL_HELLO, 0, NCCL_VERSION, 0},
                 {NCCL_HELLO, 0, NCCL_VERSION + 1, NCCL_ID_BYTES},
                 {NCCL_CHUNK, 1, 1, 2 * NCCL_MESSAGE_PAYLOAD},
                 {99, 1, 1, 1}};
    connect_peer();
    STEP_UNTIL(peer.connected);
    speak(cases[_i].type, cases[_i].id, cases[_i].value, cases[_i].payload);
    await_break("the peer does not say what it should");
}

TEST(a_second_hello_breaks_the_link)
{
    greet();
    speak(NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES);
    await_break("the peer said hello twice");
}

TEST(a_chunk_before_its_time_breaks_the_link)
{
    greet();
    speak(NCCL_CHUNK, 1, 1000, 24);
    await_break("the peer sends before its time");
    ck_assert_uint_eq(0, side.connected + side.arriving);
}

TEST_LOOP(an_answer_that_was_not_asked_for_breaks_the_link, 2)
{
    come_up();
    speak(NCCL_READY, 0, 0, 0);
    STEP_UNTIL(side.connected);
    speak(_i == 0 ? NCCL_GO : NCCL_REFUSED, 1, 0, 0);
    await_break("the peer answers what was not asked");
}

TEST(a_chunk_cannot_be_answered_twice)
{
    come_up();
    speak(NCCL_READY, 0, 0, 0);
    STEP_UNTIL(side.connected);
    ck_assert_int_eq(STRAIT_OK, side_send(&side, 0, 100));
    STEP_UNTIL(peer.heard[NCCL_CHUNK] == 1);
    ck_assert_uint_eq(100, peer.last.value);
    speak(NCCL_GO, peer.last.id, 5, 0); /* not its turn: it waits */
    speak(NCCL_GO, peer.last.id, 0, 0);
    await_break("the peer answers what was not asked");
    ck_assert_uint_eq(1, side.sent_badly);
    ck_assert_uint_eq(0, fake_nccl.operations);
}

/* A chunk of no bytes for slot 0. */
static void send_chunk(uint64_t id)
{
    static const uint8_t header[24];
    struct nccl_message message = {.type = NCCL_CHUNK, .id = id};
    uint8_t bytes[NCCL_MESSAGE_BYTES];
    nccl_message_write(bytes, &message);
    ck_assert_int_eq(STRAIT_OK, link_send(peer.link, bytes, sizeof(bytes), header, sizeof(header), NULL, 0));
}

/* In one progress of the side's: it looks at `connected` when it is asked. */
TEST(a_link_is_connected_before_its_first_chunk)
{
    come_up();
    speak(NCCL_READY, 0, 0, 0);
    send_chunk(1);
    STEP_UNTIL(side.arrived == 1);
    end();
}

/* Its word that it is ready was overtaken by its first chunk. */
TEST(a_chunk_says_that_its_sender_is_ready)
{
    come_up();
    send_chunk(1);
    STEP_UNTIL(side.arrived == 1);
    ck_assert_uint_eq(1, side.connected);
    speak(NCCL_READY, 0, 0, 0);
    for (int i = 0; i < 5; i++)
        step();
    ck_assert_uint_eq(1, side.connected);
    ck_assert_uint_eq(0, side.broken);
    end();
}

TEST(an_owner_may_refuse_any_size)
{
    come_up();
    speak(NCCL_READY, 0, 0, 0);
    STEP_UNTIL(side.connected);
    speak(NCCL_CHUNK, 7, SIZE_MAX, 24);
    STEP_UNTIL(peer.heard[NCCL_REFUSED] == 1);
    ck_assert_uint_eq(7, peer.last.id);
    ck_assert_uint_eq(SIZE_MAX, side.last_size);
    end();
}

int main(void)
{
    return run_tests("nccl_wire", fake_nccl_use, NULL);
}
