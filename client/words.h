/* Words that GPU streams wait for: memory that the library shares with the daemon and, pinned, with GPUs.
 *
 * A word only ever rises, and each use of a word waits for its next value. So a word is free again as soon as it has
 * reached that value, whoever raised it and whether or not the stream has looked yet: a late stream finds that value or
 * a greater one. */
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
    struct words *next; /* in the list of unused ones */
    pid_t process;
    int fd;
    uint32_t *at;
    bool pinned;
    uint32_t cursor;
    uint32_t issued[WORDS_COUNT]; /* the value of the latest use */
};

/* Words are never unmapped, because streams may still be about to read them when a client is closed; the next client
 * gets them. NULL: no memory, or no descriptors left. Any thread. */
struct words *words_get(void);
void words_put(struct words *words); /* NULL is allowed */

/* Takes an unused word, and the value to wait for. False: all are in use. */
bool words_take(struct words *words, uint32_t *word, uint32_t *value);
/* Raises the word to `value`, unless it is there already. */
void words_raise(struct words *words, uint32_t word, uint32_t value);

#endif
