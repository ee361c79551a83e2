/* Shared by the tests of libstrait: a fake daemon that does what a test tells it and keeps what it received, a client
 * with memory and pools, and the client's events. Both run in the test's own thread, in turns. */
#ifndef STRAIT_TESTS_CLIENT_HARNESS_H
#define STRAIT_TESTS_CLIENT_HARNESS_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait/codec.h>
#include <strait/strait.h>

#include "proto/socket_ring.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define TRACEPARENT    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" /* sampled */
#define ADDRESS        "node7.example:7470"
#define SEEN_MAX       6000
#define GOT_MAX        64
#define PING_PERIOD_MS 1000                        /* of a client to which something is due */
#define PATIENCE_MS    (SANITIZED ? 60000 : 15000) /* for what comes at once on an idle machine */
#define PAGES          4096u
#define PAGE_BYTES     256u

/* ---- A daemon that does what a test tells it --------------------------------------------------------------------- */

struct got {
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
};

struct fake_daemon {
    char folder[32], path[64];
    int listener;
    struct channel *channel;
    struct socket_ring ring; /* with STRAIT_TEST_RINGS in the environment: it takes them */
    bool ended, deaf;        /* deaf: does not read */
    uint32_t pings;          /* answered at once, and not kept */
    struct got got[GOT_MAX];
    uint32_t count;
    uint8_t codebook_id[CODEBOOK_ID_BYTES]; /* in its WELCOME */
};

extern struct fake_daemon fake;

void fake_listen(void);
void fake_stop_listening(void);
void fake_hang_up(void);
void fake_step(void);   /* its turn: it accepts, and reads what has come */
void fake_forget(void); /* drops what it received */

void fake_say(const struct message *message);
void fake_say_bytes(const void *bytes, size_t size);
void fake_welcome(uint32_t version);
void fake_greet(void); /* when the client has said hello */
void fake_state(uint64_t transfer, enum strait_state state, enum strait_reason reason, bool drained);
void fake_drained(uint64_t transfer);
void fake_pool_status(const struct strait_pool *pool, enum strait_status status, bool removed);

const struct message *find_got(enum message_type type, uint32_t nth); /* or NULL */

/* ---- What the client told, kept beyond its next poll ------------------------------------------------------------- */

struct seen {
    struct strait_event event;
    char text[256];
    struct strait_failed_page *failed;
    struct strait_page_list *landed; /* with ids of their own */
    uint8_t *data;
};

extern struct seen seen[SEEN_MAX];
extern uint32_t seen_count;

const struct seen *find_event(enum strait_event_type type, uint32_t nth); /* or NULL */
uint32_t count_events(enum strait_event_type type);
void forget_events(void);

/* Requires that this is the end of that transfer. */
void ended(const struct seen *end, const struct strait_transfer *transfer, enum strait_reason reason, bool drained,
           uint32_t failed_count);

/* ---- Running both ------------------------------------------------------------------------------------------------ */

/* Daemon and client have one turn each. */
void step(void);
/* Until everything that is under way has arrived. */
void settle(void);
void rest(void); /* for a moment */
long now_ms(void);

#define until(condition)                                                          \
    do {                                                                          \
        long end_ = now_ms() + PATIENCE_MS;                                       \
        while (step(), !(condition)) {                                            \
            ck_assert_msg(now_ms() < end_, "did not come to be: %s", #condition); \
            rest();                                                               \
        }                                                                         \
    } while (0)

/* ---- Setting up -------------------------------------------------------------------------------------------------- */

/* Made for each test, which must not leak any of it. */
extern struct strait_client *client;
extern struct strait_memory memory;
extern int descriptors_kept; /* that the library keeps for the next client, as the test expects */

void open_client(void);
void open_client_alone(void); /* no daemon is there, which an event says; it is forgotten */
void connect_client(void);    /* to a listening daemon, until both sides are connected */

struct strait_pool_region region_of(uint32_t group, int32_t layer, uint32_t role);
struct strait_pool *register_pool(void);  /* group 0, layer 0, K and V */
struct strait_pool *connected_pool(void); /* of a client that has been connected */
struct strait_pool *try_pool(struct strait_pool_region *regions, uint32_t count, enum strait_status status);
struct strait_peer *import_peer(const struct strait_pool *pool);

struct strait_expect_params expect_params(const struct strait_page_list *lists, uint32_t count);
struct strait_offer_params offer_params(const struct strait_page_list *lists, uint32_t count);
/* Reads page 0 of the pool into itself, with these other parameters. */
enum strait_status read_page(struct strait_pool *pool, struct strait_read_params params);
struct strait_transfer *expect_pages(struct strait_pool *pool, uint32_t first, uint32_t count, uint32_t deadline_ms);
/* A connected client with one pool and one expectation of three pages, both known to the daemon. */
struct expected {
    struct strait_pool *pool;
    struct strait_transfer *transfer;
    uint64_t id; /* the expectation's number */
};
struct expected expected(uint32_t deadline_ms);

/* The fixture: nothing is left behind, in any test. */
void client_setup(void);
void client_teardown(void);

static inline int client_main(const char *name)
{
    (void)machine_watch();
    return run_tests(name, client_setup, client_teardown);
}

#endif
