#ifndef STRAIT_CLIENT_GPU_H
#define STRAIT_CLIENT_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/message.h"

/* Calls of the CUDA driver, which the library does not link: a process that has a stream has loaded the driver. */

/* Results are the driver's: 0 is success. */
struct gpu {
    int (*stream_context)(void *stream, void **context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*stream_is_capturing)(void *stream, int *status);
    int (*host_register)(void *base, size_t size, unsigned flags);
    int (*host_device_pointer)(uint64_t *address, void *host, unsigned flags);
    int (*stream_wait_value)(void *stream, uint64_t address, uint32_t value, unsigned flags);
};

#define GPU_REGISTER_FLAGS 3u /* portable: pinned for all contexts; mapped: GPUs can address it */
#define GPU_WAIT_GEQ       0u /* until (int32_t)(*address - value) >= 0 */

/* Words that GPU streams wait for: memory that the library shares with the daemon and, pinned, with GPUs.
 *
 * A word only ever rises, and each use of a word waits for its next value. So a word is free again as soon as it has
 * reached that value, whoever raised it and whether or not the stream has looked yet: a late stream finds that value or
 * a greater one. */

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

/* Raises the word to `value`, unless it is there already. */
void words_raise(struct words *words, uint32_t word, uint32_t value);

#endif
