/* Shared by the tests of peers: nodes with `peers`, a unix socket for shm and an arena, all on one loop that never
 * blocks for long, connected over loopback TCP. */
#ifndef STRAIT_TESTS_PEER_NODE_H
#define STRAIT_TESTS_PEER_NODE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/address.h"
#include "daemon/base/watch.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/poll.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define SLOT_BYTES   65536u
#define SLOTS        4u
#define HEARTBEAT_MS 40u
#define TIMEOUT_MS   400u
#define CONNECT_MS   1000u
#define SECONDS(s)   ((s)*1000u)
#define SECRET       "a secret of enough bytes"

struct node {
    struct peers *peers;
    struct node_options options;
    const char *rdma_devices; /* NULL: those of the system */
    struct metrics metrics;
    struct transport_arena arena;
    uint8_t *send;
    char story[64];  /* events in order: u(p), d(own), q(uiet) */
    struct peer *up; /* the last peer that came up, until it is quiet */
    uint32_t ups, downs, quiets, messages, arrived, sent;
    uint8_t *gpu_arena;                          /* of its GPU, if it has one */
    uint32_t gpu_links, gpu_arrived, gpu_failed; /* links reported; chunks over one that arrived, that failed */
    char why[160];                               /* of the last down */
    uint8_t header[TRANSPORT_HEADER_MAX];
    bool keep_link;       /* does not quit links */
    bool refuse;          /* says that messages break the protocol */
    bool drop_on_message; /* ends the connection from inside the callback */
    bool send_on_up;      /* at once */
    bool live, closed;    /* live: since node_init */
    int shm_listener;
    struct watch *shm_watch;
    struct watch_count watches;
};

extern uv_loop_t loop;
extern char folder[64]; /* of this test, removed in the end */

/* Runs the loop until the expression is true, for `ms` at most. */
#define RUN_UNTIL(expression, ms)                                 \
    do {                                                          \
        uint64_t run_end = uv_hrtime() + (uint64_t)(ms)*1000000u; \
        while (!(expression) && uv_hrtime() < run_end)            \
            uv_run(&loop, UV_RUN_ONCE);                           \
    } while (0)
#define EXPECT(expression)                      \
    do {                                        \
        RUN_UNTIL(expression, SECONDS(20));     \
        ck_assert_msg(expression, #expression); \
    } while (0)

/* The nodes of a test, which its end closes. */
extern struct node a, b, c;

void setup(void);
/* Closes the nodes, and fails the test if a handle is left over. */
void teardown(void);
void nodes_close(void);

/* Does not use options_default: options that are not set here are empty. */
void node_init(struct node *node, const char *name, const char *transports);
void node_secret(struct node *node, const char *secret);
enum strait_status node_try(struct node *node, char *why, size_t size);
void node_open(struct node *node); /* listens for shm where transports name it */
void shm_listen(struct node *node);
void node_close(struct node *node);
void node_start(struct node *node, const char *name, const char *transports, const char *secret); /* or NULL */

/* The same for a and b. */
void pair_init(const char *transports);
void pair_open(void);
void pair_start(const char *transports); /* and connects them: a dials */

/* Asks again until the peer is there, as users do. */
struct peer *get(struct node *from, const struct node *to);
void connect_nodes(struct node *from, struct node *to);

/* A socket that has connected to b, from this address of the loopback. */
int dial_b_from(uint32_t host);
/* Has b closed it? */
bool is_ended(int fd);

struct message note_message(const char *text);
void send_note(struct node *from, const char *text); /* to its latest peer */
uint64_t ms_since(uint64_t began);                   /* of uv_hrtime */

bool bytes_filled(const void *bytes, uint8_t with, size_t size);

static inline int peer_main(const char *name)
{
    (void)machine_watch();
    return run_tests(name, setup, teardown);
}

#endif
