/* Words that streams of GPUs wait for: memory that the library shares with the daemon and, pinned, with GPUs.
 *
 * A word is only ever raised. Each use of it is for the next value, so it is free again as soon as it has that value,
 * whoever raised it and whether or not the stream has looked yet: a stream that comes late finds that value or more. */
#ifndef STRAIT_CLIENT_WORDS_H
#define STRAIT_CLIENT_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/message.h"

#define WORDS_COUNT MESSAGE_WORDS_MAX
#define WORDS_BYTES (WORDS_COUNT * sizeof(uint32_t))

struct words {
    struct words *next; /* of those that nobody uses */
    pid_t process;
    int fd;
    uint32_t *at;
    bool pinned;
    uint32_t cursor;
    uint32_t issued[WORDS_COUNT]; /* the value of the latest use */
};

/* Streams may still be about to look at words when a client is closed: no words are ever unmapped, the next client gets
 * them. NULL: no memory, no descriptors. Any thread. */
struct words *words_get(void);
void words_put(struct words *words); /* NULL is allowed */

/* A word that nobody waits for, and the value to wait for. False: all are in use. */
bool words_take(struct words *words, uint32_t *word, uint32_t *value);
/* Raises it, unless somebody has. */
void words_raise(struct words *words, uint32_t word, uint32_t value);

#endif
