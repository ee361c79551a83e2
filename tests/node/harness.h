/* Shared by the tests of the whole service: up to four nodes, each on a loop in its own thread, and their clients,
 * driven by the test's thread. Every pool has an image of what its memory should hold, so that a byte that landed
 * elsewhere fails the test.
 *
 * Objects live until the end of the test, which frees them. */
#ifndef STRAIT_TESTS_NODE_HARNESS_H
#define STRAIT_TESTS_NODE_HARNESS_H

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/codec.h>
#include <strait/strait.h>
#include <string.h>
#include <uv.h>

#include "daemon/reload.h"
#include "tests/fakes/device.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { SLOW = SANITIZED ? 4 : 1 }; /* factor for time limits */

/* How two parties reach each other. */
enum wire {
    SAME, /* one daemon */
    SHM,
    TCP,
    WIRES,
#ifdef STRAIT_HAVE_UCX
    UCX = WIRES, /* in tests of its own */
    ALL_WIRES
#else
    ALL_WIRES = WIRES
#endif
};

enum { NODES_MAX = 4, PARTIES_MAX = 40, POOLS_MAX = 48, LAYERS_MAX = 256, GROUPS_MAX = 8 };

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

struct test_node {
    struct node_options options;
    struct log *log; /* borrowed; NULL: none */
    bool running, started, drain;
    uint32_t gpu_failed; /* how often the node reported a stop because a GPU failed; read it atomically */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ready;
    uv_loop_t loop;
    uv_async_t stop;
    const struct node_options *reload; /* asked for, not applied yet; NULL: none */
    bool frozen;
    struct node *node;
    enum strait_status status;
    int loop_closed; /* result of uv_loop_close */
    char why[256];
};

/* Options of small arenas and short times, with a socket in the test's folder. */
void test_node_init(struct test_node *node, const char *name, const char *transports);
/* Gives the node the secret that all tests use, and lets it encrypt pages. */
void test_node_encrypt(struct test_node *node);
void test_node_start(struct test_node *node);
void test_node_ask_stop(struct test_node *node, bool drain); /* returns at once */
/* Its loop stands still until it is thawed, as that of a stopped process. */
void test_node_freeze(struct test_node *node, bool frozen);
void test_node_join(struct test_node *node);
void test_node_stop(struct test_node *node); /* without drain, and waits */
unsigned reserve_port(void); /* of loopback, for nodes that restart; reserved until the end of the test */
/* Applies the node's options, which the test has changed, as SIGHUP does, and waits until that is done. */
void test_node_reload(struct test_node *node);
/* Gives the node a set whose exponents are ranked first, first + 1, ...; pool_fill's values have 0x7c to 0x7f. */
void use_codebook(struct test_node *node, const char *name, uint8_t first);
void use_ranking(struct test_node *node, const char *name, const uint8_t ranking[256]); /* the same, by this ranking */

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

struct party {
    struct strait_client *client;
    uint32_t connects, disconnects;
    char lost[128]; /* text of the last disconnect */
    char *stats;    /* of the latest answer */
    uint32_t notes, notes_failed;
    uint32_t notes_astray; /* notes whose text is a number, and not the next one */
    uint32_t notes_back;   /* those of them whose number has come before, or should have */
    uint32_t next_note;
    char note_text[128];  /* of the latest that failed, */
    char first_text[128]; /* and of the first */
    char note_key[STRAIT_KEY_BYTES_MAX + 1], note[256];
    size_t note_size;
    bool deaf; /* not polled */
};

struct party *party_open(const struct test_node *node);
struct party *party_embedded(const char *options);
void party_close(struct party *party);
/* A figure of the party's node, such as "counters.source_done"; waits for the answer. -1: no number at that path. */
double stat_of(struct party *party, const char *path);
char *stats_text(struct party *party); /* borrowed, valid until the next request */
void wait_quiet(struct party *party);  /* until its node has no transfer, no slot in use and no page in quarantine */

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

/* Each group has `layers` layers of `roles` regions. 0 means 1, except row_bytes: 4096, pages: 16. */
struct geometry {
    uint32_t groups, layers, roles, pages, rows, row_bytes, element;
    uint32_t layout, tokens;
    const char *compat;
    bool pointers, apart;   /* apart: a memfd for each region */
    bool hybrid;            /* groups are BF16, FP32 and FP16 in turn, with pages of row_bytes, its half, its fourth */
    uint32_t sink_gpu;      /* not 0: `gpu` of a pair's sink, where that is another one */
    uint32_t gpu, gpu_step; /* not 0: on device gpu - 1 of the fake plugin, each next group gpu_step further */
    enum strait_handle handle; /* how GPU memory is named: CUDA_IPC, unless pointers */
};

struct test_pool {
    struct party *party;
    struct strait_pool *pool;
    struct geometry geometry;
    struct strait_memory memory, *parts; /* parts: of `apart` */
    uint8_t *bytes, *image;
    size_t size;
    bool told, removed;
    enum strait_status status;
    char text[256];
};

struct test_pool *pool_try(struct party *party, struct geometry geometry);
struct test_pool *pool_open(struct party *party, struct geometry geometry); /* waits until the daemon has it */
void pool_refused(struct party *party, struct geometry geometry, enum strait_status status, const char *text);
void pool_fill(struct test_pool *pool, uint64_t seed); /* with values like those of a KV cache, or from a real one: */
/* Values of tests/data/kv-slice.safetensors fill all pools from now on. They are BF16; what FP16 and FP32 have more is
 * random. Borrowed, until the end of the test. */
const uint16_t *pools_use_slice(size_t *count);
void pools_use_zero_rests(void); /* it is zero instead: as in values that were BF16 before; until the end of the test */
enum strait_element pool_element(const struct test_pool *pool, uint32_t group);
uint32_t pool_page_bytes(const struct test_pool *pool, uint32_t group); /* of pages of one row */
bool pool_as_imagined(const struct test_pool *pool);
const uint8_t *pool_page(const struct test_pool *pool, uint32_t region, uint32_t id); /* its first row */
struct strait_peer *peer_of(struct party *party, struct test_pool *pool);

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

struct flow {
    struct test_pool *pool;
    struct strait_transfer *transfer; /* NULL: released */
    struct strait_page_list *lists;
    uint32_t list_count, list_room;
    bool sink;
    enum strait_state state;
    enum strait_reason reason;
    bool decided, drained, moved;    /* moved: pages were under way */
    uint64_t decided_at, drained_at; /* uv_hrtime */
    char text[512];
    uint8_t *aux;
    size_t aux_size;
    uint64_t raw_bytes, wire_bytes;
    char peer[MESSAGE_ADDRESS_MAX + 1];
    struct strait_failed_page *failed;
    uint32_t failed_count;
    uint32_t layers[LAYERS_MAX], layer_count;
    bool tells;     /* events tell of pages */
    uint64_t *told; /* sink, by group and page id: a sum of the page when it was told of; 0: it was not */
    uint32_t told_count;
    char name[STRAIT_KEY_BYTES_MAX];
    uint32_t name_size;
};

#define KEY(text) .key = (text), .key_size = strlen(text)
#define LISTS(...)                                           \
    .lists = (const struct strait_page_list[]){__VA_ARGS__}, \
    .list_count = sizeof((struct strait_page_list[]){__VA_ARGS__}) / sizeof(struct strait_page_list)

/* Fills in sizes, contexts and times that are 0; the times are longer than any test waits. Sinks are told of their
 * pages: each once, those that are not among the failed ones, all with DONE, and no page changes after that. */
struct flow *flow_expect(struct test_pool *pool, struct strait_expect_params params);
struct flow *flow_offer(struct test_pool *pool, struct strait_offer_params params);
void flow_append(struct flow *flow, struct strait_append_params params);
#define OFFER(pool, name, ...)  flow_offer(pool, (struct strait_offer_params){KEY(name), __VA_ARGS__})
#define EXPECT(pool, name, ...) flow_expect(pool, (struct strait_expect_params){KEY(name), __VA_ARGS__})
#define APPEND(flow, ...)       flow_append(flow, (struct strait_append_params){__VA_ARGS__})
/* Expects an offer under its name, and starts. */
#define PULL(pool, offer, ...) flow_pull(pool, offer, (struct strait_expect_params){__VA_ARGS__})
struct flow *flow_pull(struct test_pool *pool, const struct flow *offer, struct strait_expect_params params);
/* Reads pages that the peer serves: `from` of its pool to `to` of this one. Fills in what is 0 as flow_expect does. */
struct flow *flow_read(struct test_pool *pool, struct test_pool *peer, struct strait_page_list to,
                       struct strait_page_list from, uint32_t deadline_ms);
struct flow *flow_read_traced(struct test_pool *pool, struct test_pool *peer, struct strait_page_list to,
                              struct strait_page_list from, const char *traceparent);
/* It ends DONE, with exactly these pages. */
void reads(struct flow *flow, const struct test_pool *peer, struct strait_page_list from);
/* A fence, which adds 1 to *fenced when it is over; or what the call returns. */
enum strait_status pool_fence(struct test_pool *pool, struct strait_page_list list, uint32_t grace_ms,
                              uint32_t *fenced);
/* All pages of the pool, in order; flow_expect's deadline when it is 0. */
struct flow *offer_all(struct test_pool *pool, const char *name);
struct flow *expect_all(struct test_pool *pool, const char *name, uint32_t deadline_ms);
const char *name_of(uint32_t number); /* valid until the next call */

void flow_start(struct flow *flow, struct test_pool *peer);
void flow_start_as(struct flow *flow, struct test_pool *peer, const char *peer_key);
void flow_start_one_of(struct flow *flow, struct test_pool *peer, const char *peer_key, uint32_t consumers);
void flow_release(struct flow *flow);

/* Runs the clients until the expression is true, or fails the test. */
#define WAIT(expression) WAIT_MS(expression, 15000 * SLOW)
#define WAIT_MS(expression, ms)                                     \
    do {                                                            \
        uint64_t wait_end = wait_clock() + (uint64_t)(ms)*1000000u; \
        while (!(expression) && wait_clock() < wait_end)            \
            pump(20);                                               \
        ck_assert_msg(expression, #expression);                     \
    } while (0)
uint64_t wait_clock(void);              /* uv_hrtime less the time during which the machine stalled */
uint64_t ms_since(uint64_t wait_clock); /* of that clock */
void pump(int ms);                      /* handles pending events; waits up to `ms` for the first one */
void pump_for(int ms);
/* The next message of this type that comes by a client's own channel; others before it are dropped. Fails after 15 s.
 */
struct message channel_await(struct channel *channel, enum message_type type);

void stays_undecided(struct flow *flow, int ms);
void ends_done(struct flow *flow);
void ends_failed(struct flow *flow, enum strait_reason reason); /* and drained */
void ends(struct flow *sink, struct flow *source);              /* however, and drained */
/* Requires DONE on both sides, and that exactly the pages that both list have landed. */
void arrives(struct flow *sink, struct flow *source);
void pull(struct flow *sink, struct flow *source);         /* starts the sink, and requires that it arrives */
void landed(struct flow *sink, const struct flow *source); /* the pages of one of several sources */
void undefined(struct flow *sink);                         /* its pages may hold anything */
bool failed_page(const struct flow *sink, uint32_t group, uint32_t id);

/* ---- A pair of parties ------------------------------------------------------------------------------------------- */

/* Two nodes, or one, a client of each, and a pool of each client. */
struct pair {
    enum wire wire;
    struct test_node *a, *b; /* the source's and the sink's */
    struct party *from, *to; /* their clients */
    struct test_pool *source, *sink;
};

extern struct test_node nodes[NODES_MAX];
extern char folder[64];

struct pair pair_init(int wire);                              /* nodes are not started: options may be changed */
struct pair pair_coded(int wire, const char *coding);         /* the same, with equal codebooks */
void pair_connect(struct pair *pair);                         /* starts nodes and opens clients */
void pair_pools(struct pair *pair, struct geometry geometry); /* the source's is filled */
void pair_start(struct pair *pair, struct geometry geometry); /* both */
struct pair pair_open(int wire, struct geometry geometry);    /* all of these */
/* A client that embeds a node of its own and has both pools. */
struct pair pair_embedded(const char *options, struct geometry geometry);
void pair_quiet(struct pair *pair); /* wait_quiet for both */

/* ---- Transfers of all pages, filled anew and under a name of its own --------------------------------------------- */

struct move {
    struct flow *offer, *expectation;
};

struct move move_begin(struct test_pool *source, struct test_pool *sink);
void move_all(struct test_pool *source, struct test_pool *sink); /* until it has arrived */

/* Bytes that the source's node has sent over a wire: "peer", "nccl", "pinned", ... A chunk counts once its slot is
 * free, possibly after its transfer is DONE, so this waits. */
double wire_bytes(struct test_pool *source, const char *wire);
/* Repeats moves until some bytes have gone over that wire, which is set up by a few messages. */
void move_until(struct test_pool *source, struct test_pool *sink, const char *wire);
/* Moves a few times; everything must go through the host, and nothing over that wire. */
void move_without(struct test_pool *source, struct test_pool *sink, const char *wire);

/* ---- Devices of the fake plugin ---------------------------------------------------------------------------------- */

extern const char *const codings[4];
extern const struct geometry gpu_small, gpu_large; /* of the first device, to the second one */

struct fake_control *fake_control(void); /* of this process's devices */
struct fake_handle event_make(void);     /* an eventfd */
void event_complete(const struct fake_handle *event);
void event_fail(const struct fake_handle *event);
/* Begins a move whose device work is slow, and waits until some of it has begun. */
struct move move_slowly(const struct pair *pair);
/* Makes the first device (the source's) or the second (the sink's) fail: this move must fail, and nothing else. */
void fail_device(struct pair *pair, int device, struct move move);

uint64_t now_ms(void);

/* The fixture: a descriptor, a byte or a handle of a loop that is left over fails the test. */
void node_setup(void);
void node_teardown(void);

/* Runs all tests of the program, or the case that CK_RUN_CASE names. */
static inline int node_main(const char *name)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    (void)machine_watch();
    return run_tests(name, node_setup, node_teardown);
}

/* Memory that lives until the end of the test. */
void *keep(size_t size);

/* Shared by the files of the harness. */

void pools_event(const struct strait_event *event);
void pools_close(void);
void flow_event(struct flow *flow, const struct strait_event *event);

#endif
