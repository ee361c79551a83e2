/* Clients whose bytes the tests write themselves, and a pair of honest clients that must not be affected. */
#ifndef STRAIT_TESTS_RAW_CLIENT_H
#define STRAIT_TESTS_RAW_CLIENT_H

#include "tests/node/harness.h"

#include "proto/channel.h"

/* A pair of clients of nodes[0] that keeps working, and the state that must be unchanged in the end. */
struct bystander {
    struct party *party;
    struct test_pool *source, *sink;
    uint32_t turn, descriptors;
};

void bystander_init(struct bystander *bystander); /* and starts the node */
void bystander_works(struct bystander *bystander);
void bystander_fini(struct bystander *bystander);

int dial(void);
int dial_and_greet(void);
/* False: the daemon has closed. */
bool send_bytes(int fd, const void *bytes, size_t size);
void send_message(int fd, const struct message *message);
/* Sends the message with `count` copies of the descriptor `passed`. */
void send_with_fds(int fd, const struct message *message, int passed, uint32_t count);
/* Waits until the daemon ends the connection. */
bool is_let_go(int fd);

/* Registers one region of 16 pages of 4 KiB as pool {7}. */
struct message registration(struct wire_region *region);

#endif
