/* The NCCL transport with calls that need no GPU (fake_nccl.h): what is particular to it, beside the contract of all
 * transports (test_transport.c). */

#include <time.h>

#include "tests/fakes/nccl_calls.h"
#include "tests/transport/sides.h"
#include "transport/loopback.h"
#include "transport/nccl.h"
#include "transport/nccl_wire.h"

#define SOON    " timeout_ms=1500" /* for what hangs; a busy machine takes no other operation for so long */
#define SOON_MS 1500

TEST_CASE(nccl);

static void sides_end(void)
{
    sides_teardown();
    ck_assert_uint_eq(0, fake_nccl.live);
    ck_assert(fake_nccl.fail_join != 0 || fake_nccl.joined == fake_nccl.aborted);
}

/* Until both links are broken and closed, as the owners close them at once. */
static void await_the_end(void)
{
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(1, sides[0].broken);
    ck_assert_uint_eq(1, sides[1].broken);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(0, sides[i].damaged);
}

static void assert_one_says(const char *why)
{
    ck_assert_msg(strcmp(sides[0].why, why) == 0 || strcmp(sides[1].why, why) == 0, "they say: %s; %s", sides[0].why,
                  sides[1].why);
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* Also the peer's slot has to be free. */
static bool may_send(unsigned from, unsigned slot)
{
    return sides[from].link != NULL && !sides[from].broken && side_may_send(&sides[from], slot) &&
           sides[!from].landing[slot] == 0;
}

/* Every slot is sent from as soon as it can be, in both directions. */
static void send_many(unsigned chunks)
{
    struct rng rng = rng_init(chunks);
    for (unsigned begun[2] = {0, 0}; begun[0] + begun[1] < 2 * chunks;) {
        for (unsigned i = 0; i < 2; i++)
            for (unsigned slot = 0; slot < SLOTS && begun[i] < chunks; slot++)
                if (may_send(i, slot)) {
                    size_t size = rng_below(&rng, 5) == 0 ? 0 : rng_below(&rng, 50000);
                    ck_assert_int_eq(STRAIT_OK, side_send(&sides[i], slot, size));
                    begun[i]++;
                }
        sides_step(sides, 2, 100);
    }
    for (int i = 0; i < 2; i++) {
        WAIT_UNTIL(sides, 2, sides[i].sent == chunks && sides[i].arrived == chunks);
        ck_assert_uint_eq(0, sides[i].damaged + sides[i].arrived_badly + sides[i].sent_badly + sides[i].broken);
    }
}

TEST(messages_that_overtake_one_another_do_no_harm)
{
    sides_up(&transport_nccl, "carrier=loopback jitter_us=3000");
    send_many(500);
}

TEST(posting_and_running_may_take_time)
{
    static const uint32_t times[][2] = {{0, 300}, {300, 0}, {2000, 100}};
    for (int i = 0; i < COUNT(times); i++) {
        fake_nccl.posting_us = times[i][0];
        fake_nccl.delay_us = times[i][1];
        sides_up(&transport_nccl, "carrier=loopback");
        send_many(100);
        sides_end();
    }
}

TEST(what_is_refused_does_not_travel)
{
    sides_up(&transport_nccl, "carrier=loopback");
    sides[1].refuse = true;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, slot % 2 ? SLOT_BYTES : 0));
    WAIT_UNTIL(sides, 2, sides[0].sent == SLOTS);
    ck_assert_uint_eq(SLOTS, sides[1].arriving);
    ck_assert_uint_eq(0, fake_nccl.operations);
}

TEST(nothing_is_begun_before_both_agree)
{
    sides_up(&transport_nccl, "carrier=loopback");
    ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], 0, 1000));
    for (int i = 0; i < 20; i++)
        transport_progress(sides[0].transport); /* the peer does not hear of it */
    ck_assert_uint_eq(0, fake_nccl.operations);
    WAIT_UNTIL(sides, 2, sides[1].arrived == 1);
    ck_assert_uint_eq(2, fake_nccl.operations);
}

static uint64_t cpu_milliseconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

TEST(threads_without_work_sleep)
{
    sides_up(&transport_nccl, "carrier=loopback");
    send_many(20);
    uint64_t before = cpu_milliseconds();
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    ck_assert_uint_lt(cpu_milliseconds() - before, 20);
}

/* ---- Operations that fail ---------------------------------------------------------------------------------------- */

static void send_from_both(void)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        for (unsigned i = 0; i < 2; i++)
            if (may_send(i, slot))
                ck_assert_int_eq(STRAIT_OK, side_send(&sides[i], slot, SLOT_BYTES / 4));
}

TEST(an_operation_that_fails_breaks_the_link)
{
    for (uint32_t number = 1; number < 12; number += 3) {
        fake_nccl_use();
        fake_nccl.fail_operation = number;
        fake_nccl.posting_us = number % 2 * 100;
        sides_up(&transport_nccl, "carrier=loopback");
        send_from_both();
        await_the_end();
        assert_one_says(FAKE_NCCL_REFUSED);
        sides_end();
    }
}

TEST(a_communicator_that_fails_later_breaks_the_link)
{
    fake_nccl.late_operation = 7;
    sides_up(&transport_nccl, "carrier=loopback");
    while (!sides[0].broken && !sides[1].broken) {
        send_from_both();
        sides_step(sides, 2, 10);
    }
    await_the_end();
    assert_one_says(FAKE_NCCL_LATE);
}

/* The bytes of chunks that hang change nothing after `closed`. */
TEST(an_operation_that_hangs_is_aborted_in_time)
{
    sides_up(&transport_nccl, "carrier=loopback" SOON);
    fake_nccl.hang_operation = 1;
    uint64_t before = milliseconds();
    send_from_both();
    await_the_end();
    ck_assert_uint_ge(milliseconds() - before, SOON_MS);
    assert_one_says("the peer's GPU did not take its part in time");
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(SLOTS, sides[i].sent_badly);
        ck_assert_uint_eq(sides[i].arriving, sides[i].arrived_badly);
    }
    ck_assert_uint_eq(4, fake_nccl.aborted);
}

TEST(a_link_with_hanging_operations_can_be_closed)
{
    sides_up(&transport_nccl, "carrier=loopback timeout_ms=60000");
    fake_nccl.hang_operation = 3;
    send_from_both();
    WAIT_UNTIL(sides, 2, sides[0].arriving == SLOTS && sides[1].arriving == SLOTS);
    for (int i = 0; i < 10; i++)
        sides_step(sides, 2, 5);
    link_close(sides[0].link);
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(0, sides[0].broken);
    ck_assert_uint_eq(1, sides[1].broken);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(SLOTS, sides[i].sent + sides[i].sent_badly);
}

/* Many small ones that together take longer than the limit. */
TEST(the_limit_is_for_each_operation)
{
    sides_up(&transport_nccl, "carrier=loopback" SOON);
    fake_nccl.delay_us = 1200000 / SLOTS * 2;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, 100));
    uint64_t before = milliseconds();
    WAIT_UNTIL(sides, 2, sides[1].arrived == SLOTS && sides[0].sent == SLOTS);
    ck_assert_uint_gt(milliseconds() - before, SOON_MS);
    ck_assert_uint_eq(0, sides[0].broken + sides[1].broken);
}

/* ---- Streams that do not drain ----------------------------------------------------------------------------------- */

static void close_while_stuck(void)
{
    sides_up(&transport_nccl, "carrier=loopback");
    fake_nccl.hang_operation = 1;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        ck_assert_int_eq(STRAIT_OK, side_send(&sides[0], slot, 1000));
    WAIT_UNTIL(sides, 2, sides[1].arriving == SLOTS);
    fake_nccl.stuck = 1;
    for (int i = 0; i < 2; i++)
        link_close(sides[i].link);
    for (int i = 0; i < 20; i++)
        sides_step(sides, 2, 10);
    ck_assert_uint_eq(0, sides[0].closed + sides[1].closed + sides[0].sent_badly);
}

TEST(a_stream_that_does_not_drain_keeps_its_link)
{
    close_while_stuck();
    fake_nccl.stuck = 0;
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(SLOTS, sides[0].sent_badly);
    ck_assert_uint_eq(SLOTS, sides[1].arrived_badly);
}

TEST(a_link_that_does_not_drain_can_be_abandoned)
{
    close_while_stuck();
    for (int i = 0; i < 2; i++) {
        link_abandon(sides[i].link);
        ck_assert_int_eq(STRAIT_ERR_AGAIN, transport_arm(sides[i].transport)); /* no descriptor would tell */
    }
    WAIT_UNTIL(sides, 2, sides[0].closed && sides[1].closed);
    ck_assert_uint_eq(SLOTS, sides[0].sent_badly);
    ck_assert_uint_eq(SLOTS, sides[1].arrived_badly);
    sides_close(sides); /* the transports are gone; what is left of the engines is not */
    fake_nccl.stuck = 0;
    for (int i = 0; fake_nccl.live > 0 && i < 1000; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    ck_assert_uint_eq(0, fake_nccl.live);
}

TEST(only_a_closing_link_can_be_abandoned)
{
    sides_up(&transport_nccl, "carrier=loopback");
    link_abandon(sides[0].link);
    send_many(10);
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static void fail_to_connect(const char *why)
{
    sides_init(&transport_nccl, "carrier=loopback" SOON);
    sides_begin(sides);
    await_the_end();
    ck_assert_uint_eq(0, sides[0].connected + sides[1].connected);
    assert_one_says(why);
    sides_close(sides);
    ck_assert_uint_eq(0, fake_nccl.live);
}

TEST(communicators_that_cannot_be_made_break_the_link)
{
    fake_nccl.fail_id = 1;
    fail_to_connect(FAKE_NCCL_REFUSED);
    for (uint32_t number = 1; number <= 4; number++) {
        fake_nccl_use();
        fake_nccl.fail_join = number;
        fail_to_connect(FAKE_NCCL_REFUSED);
    }
}

TEST(communicators_that_never_come_up_break_the_link)
{
    fake_nccl.hang_join = 1;
    fail_to_connect("NCCL did not connect in time");
    ck_assert_uint_eq(fake_nccl.joined, fake_nccl.aborted);
}

/* Neither an event nor silence says how far the other side is: the owner closes when it likes. */
TEST(a_link_can_be_closed_while_it_connects)
{
    for (int steps = 0; steps < 40; steps++) {
        fake_nccl_use();
        fake_nccl.hang_join = steps % 3 == 0;
        sides_init(&transport_nccl, "carrier=loopback timeout_ms=60000");
        sides_begin(sides);
        for (int i = 0; i < steps; i++)
            sides_step(sides, 2, 1);
        link_close(sides[steps % 2].link);
        sides_end();
        ck_assert_uint_eq(0, sides[steps % 2].broken);
    }
}

TEST(ends_that_NCCL_would_not_connect_are_told_apart)
{
    static struct nccl_calls other;
    fake_nccl.same_gpu = 1;
    fail_to_connect("both ends are on the same GPU");
    ck_assert_uint_eq(0, fake_nccl.joined);

    fake_nccl_use();
    other = fake_nccl_calls;
    other.within_process = false;
    nccl_use_calls(&other);
    fail_to_connect("both ends are in the same process");

    side_init(&sides[0], &transport_nccl, "carrier=loopback");
    other.library = 21800; /* by the time it is asked for the address */
    nccl_use_calls(&fake_nccl_calls);
    side_init(&sides[1], &transport_nccl, "carrier=loopback");
    sides_begin(sides);
    await_the_end();
    assert_one_says("the peer has another version of NCCL");
}

TEST(links_share_the_GPU)
{
    struct link *third = NULL;
    fake_nccl.multiprocessors = 2 * 16;
    sides_up(&transport_nccl, "carrier=loopback blocks=16");
    ck_assert_int_eq(STRAIT_ERR_AGAIN, link_open(sides[0].transport, -1, LINK_DIALLED, &sides[0], &third));
    ck_assert_ptr_null(third);
    send_many(10);
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

TEST(options_are_checked)
{
    static const char *const bad[] = {
        "timeout_ms=0",      "timeout_ms=1s", "timeout_ms=3600001",          "blocks=0",
        "blocks=3",          "blocks=64",     "library=libnccl.so",          "library=",
        "carrier=shm",       "carrier=nccl",  "carrier=loopback colour=red", "blocks=8 carrier",
        "seed=1 carrier=ucx"};
    for (int i = 0; i < COUNT(bad); i++)
        ck_assert_msg(transport_try(&transport_nccl, TRANSPORT_CUDA, bad[i]) != STRAIT_OK, "taken: %s", bad[i]);
    const char *good = "  blocks=32 seed=7 timeout_ms=1  carrier=loopback delay_us=10 library=/libnccl.so.2 ";
    ck_assert_int_eq(STRAIT_OK, transport_try(&transport_nccl, TRANSPORT_CUDA, good));
    ck_assert_int_eq(STRAIT_ERR_INVALID, transport_try(&transport_nccl, TRANSPORT_HOST, good));
    struct transport_arena none = {.base = &none, .size = 0, .fd = -1, .memory = TRANSPORT_CUDA};
    for (int i = 0; i < 2; i++, none = (struct transport_arena){.size = 4096, .fd = -1, .memory = TRANSPORT_CUDA}) {
        struct transport *transport = NULL;
        ck_assert_int_eq(STRAIT_ERR_INVALID, transport_create(&transport_nccl, &none, &(struct transport_events){0},
                                                              NULL, good, &transport));
    }
}

TEST(texts_of_options_are_checked_without_NCCL)
{
    static const char *const bad[] = {"timeout_ms=0", "blocks=x",   "blocks=3",         "library=libnccl.so",
                                      "carrier=shm",  "blocks=8 x", "carrier=ucx foo=1"};
    char text[256];
    nccl_use_calls(NULL); /* looking for them would be told, or find the plugin */
    for (int i = 0; i < COUNT(bad); i++)
        if (strstr(bad[i], "carrier=ucx") == NULL || transport_find("ucx") != NULL)
            ck_assert_msg(transport_check(&transport_nccl, bad[i]) == STRAIT_ERR_INVALID, "taken: %s", bad[i]);
    ck_assert_int_eq(STRAIT_OK, transport_check(&transport_nccl, ""));
    ck_assert_int_eq(STRAIT_OK, transport_check(&transport_nccl, "blocks=16 carrier=loopback library=/nowhere/nccl"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_ptr_null(strstr(text, "plugin"));
    nccl_use_calls(&fake_nccl_calls);
}

TEST(what_is_missing_is_told)
{
    char text[256] = "?";
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_str_eq("", text);
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, transport_try(&transport_nccl, TRANSPORT_CUDA, "carrier=pigeon"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "pigeon"));

    nccl_use_calls(NULL); /* the plugin may be there, this library is not */
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED,
                     transport_try(&transport_nccl, TRANSPORT_CUDA, "carrier=loopback library=/nowhere/libnccl.so.2"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert(strstr(text, "no plugin") != NULL || strstr(text, "/nowhere/libnccl.so.2") != NULL);
    nccl_use_calls(&fake_nccl_calls);
    ck_assert_int_eq(STRAIT_OK, transport_try(&transport_nccl, TRANSPORT_CUDA, "carrier=loopback"));
    transport_missing(&transport_nccl, text, sizeof(text));
    ck_assert_str_eq("", text);
    transport_missing(&transport_loopback, text, sizeof(text));
    ck_assert_str_eq("", text);
}

TEST_CASE(nccl_wire);

/* What the ends of a link tell each other: its parsers, and a peer that says what it should not. The peer is the test
 * itself, behind a loopback link. */

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

static void turn(void)
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
            turn();                                                                                 \
        }                                                                                           \
    } while (0)

/* Until the side has said hello, and heard ours. */
static void send_hello(void)
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
    peer.transport = NULL;
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
    send_hello();
    speak(NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES);
    await_break("the peer said hello twice");
}

TEST(a_chunk_before_its_time_breaks_the_link)
{
    send_hello();
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
        turn();
    ck_assert_uint_eq(1, side.connected);
    ck_assert_uint_eq(0, side.broken);
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
}

static void teardown(void)
{
    if (peer.transport != NULL)
        end();
    sides_end();
}

int main(void)
{
    return run_tests("nccl", fake_nccl_use, teardown);
}
