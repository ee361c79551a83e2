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

#include "daemon/node.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { SLOW = SANITIZED ? 4 : 1 }; /* factor for time limits */

/* How two parties reach each other. */
enum wire {
    SAME, /* one daemon */
    SHM,
#ifdef STRAIT_HAVE_UCX
    UCX,
#endif
    WIRES
};

enum { NODES_MAX = 4, PARTIES_MAX = 40, POOLS_MAX = 48, LAYERS_MAX = 256, NODE_PATH = 96 };

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

struct test_node {
    struct node_options options;
    bool running, started, drain;
    uint32_t gpu_failed; /* how often the node reported a stop because a GPU failed; read it atomically */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ready;
    uv_loop_t loop;
    uv_async_t stop;
    struct node *node;
    enum strait_status status;
    int loop_closed; /* result of uv_loop_close */
    char why[256];
};

/* Options of small arenas and short times, with a socket in the test's folder. */
void test_node_init(struct test_node *node, const char *name, const char *transports);
void test_node_start(struct test_node *node);
void test_node_ask_stop(struct test_node *node, bool drain); /* returns at once */
void test_node_join(struct test_node *node);
void test_node_stop(struct test_node *node); /* without drain, and waits */
unsigned reserve_port(void); /* of loopback, for nodes that restart; reserved until the end of the test */
/* Gives the node a set whose exponents are ranked first, first + 1, ...; pool_fill's values have 0x7c to 0x7f. */
void use_codebook(struct test_node *node, const char *name, uint8_t first);

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

struct party {
    struct strait_client *client;
    uint32_t connects, disconnects;
    char *stats; /* of the latest answer */
    uint32_t notes;
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
    bool pointers, apart;      /* apart: a memfd for each region */
    uint32_t gpu, gpu_step;    /* not 0: on device gpu - 1 of the fake plugin, each next group gpu_step further */
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
void pool_fill(struct test_pool *pool, uint64_t seed);                      /* with values like those of a KV cache */
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
    bool decided, drained, moved;    /* moved: was TRANSFERRING */
    uint64_t decided_at, drained_at; /* uv_hrtime */
    char text[128];
    uint8_t *aux;
    size_t aux_size;
    struct strait_failed_page *failed;
    uint32_t failed_count;
    uint32_t layers[LAYERS_MAX], layer_count;
};

#define KEY(text) .key = (text), .key_size = strlen(text)
#define LISTS(...)                                           \
    .lists = (const struct strait_page_list[]){__VA_ARGS__}, \
    .list_count = sizeof((struct strait_page_list[]){__VA_ARGS__}) / sizeof(struct strait_page_list)

/* Fills in sizes, contexts and times that are 0; the times are longer than any test waits. */
struct flow *flow_expect(struct test_pool *pool, struct strait_expect_params params);
struct flow *flow_offer(struct test_pool *pool, struct strait_offer_params params);
void flow_append(struct flow *flow, struct strait_append_params params);
void flow_start(struct flow *flow, struct test_pool *peer);
void flow_start_as(struct flow *flow, struct test_pool *peer, const char *peer_key);
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
uint64_t wait_clock(void); /* uv_hrtime less the time during which the machine stalled */
void pump(int ms);         /* handles pending events; waits up to `ms` for the first one */
void pump_for(int ms);

void ends_done(struct flow *flow);
void ends_failed(struct flow *flow, enum strait_reason reason); /* and drained */
/* Requires DONE on both sides, and that exactly the pages that both list have landed. */
void arrives(struct flow *sink, struct flow *source);
void landed(struct flow *sink, const struct flow *source); /* the pages of one of several sources */
void undefined(struct flow *sink);                         /* its pages may hold anything */
bool failed_page(const struct flow *sink, uint32_t group, uint32_t id);

/* ---- A pair of parties ------------------------------------------------------------------------------------------- */

/* Two nodes, or one, and a client of each. */
struct pair {
    enum wire wire;
    struct test_node *a, *b; /* the source's and the sink's */
    struct party *source, *sink;
};

extern struct test_node nodes[NODES_MAX];
extern char folder[64];

void pair_init(struct pair *pair, enum wire wire); /* nodes are not started: options may be changed */
void pair_start(struct pair *pair);
void pair_open(struct pair *pair, enum wire wire); /* both */

uint64_t now_ms(void);
uint32_t open_descriptors(void);

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

/* Shared by the files of the harness. */

/* Memory that lives until the end of the test. */
void *keep(size_t size);

void pools_event(const struct strait_event *event);
void pools_close(void);
/* Copies all rows of a group's page; each base is that of the pool's memory, or of its image. */
void pool_copy_page(struct test_pool *to, uint8_t *to_base, uint32_t to_id, const struct test_pool *from,
                    uint8_t *from_base, uint32_t from_id, uint32_t group);

void flow_event(struct flow *flow, const struct strait_event *event);

#endif
