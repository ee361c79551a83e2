/* How ranks on different hosts verify that a connection leads to each other. Each rank has drawn a secret and told it
 * to all ranks of the communicator through NCCL. The rank that connects sends the secret of the rank it wants, and gets
 * back its own. A stranger who connects knows neither and is dropped. Secrets are sent in the clear: anyone who can
 * read the network can impersonate a rank. */
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

/* Connects rank `from` to rank `to`, whose card is `card`, and greets it. -1: it is not reached. */
int greet_connect(const struct greet_card *card, int from, int to);
/* Waits for the answer to that, which comes before anything else. False: it is the wrong one, or none came in time. */
bool greet_await(int connected, const struct greet_card *own, int from, int to);

/* Rank `to` accepts the awaited ranks (a bit for each) and answers them; sockets are by rank. False: not all came in
 * time. */
bool greet_accept(int listener, const struct greet_card *cards, int to, uint64_t awaited, int *sockets);

#endif
