/* How ranks on different hosts find that a connection leads to each other. Each has drawn a secret and told it to all
 * of the communicator by NCCL: who connects sends that of the one it wants, and gets back its own. A stranger who
 * connects knows neither, and is dropped. Secrets are sent as they are: who can read the network can pretend. */
#ifndef STRAIT_COLLECTIVE_ENGINE_GREET_H
#define STRAIT_COLLECTIVE_ENGINE_GREET_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/address.h"

enum { GREET_SECRET = 16, GREET_MILLISECONDS = 10000 };

/* What a rank tells the others. */
struct greet_card {
    struct address address;
    uint8_t secret[GREET_SECRET];
};

/* A listening socket; -1: there is none. */
int greet_listen(struct greet_card *card);

/* As rank `from`, whose card is `own`, to rank `to`: connects and says so. -1: it is not reached. */
int greet_connect(const struct greet_card *card, int from, int to);
/* Its answer, before anything else comes. False: it is not the one, or there is none in time. */
bool greet_await(int connected, const struct greet_card *own, int from, int to);

/* Rank `to` takes those in who are awaited (a bit for each rank) and answers them; sockets by rank. False: not all came
 * in time. */
bool greet_accept(int listener, const struct greet_card *cards, int to, uint64_t awaited, int *sockets);

#endif
