#include "proto/bump.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES_FIRST ((size_t)512)
#define BLOCK_BYTES_MAX   ((size_t)64 * 1024)

#if defined(__SANITIZE_ADDRESS__)
#define BLOCK_PER_PIECE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCK_PER_PIECE 1
#endif
#endif

struct bump_block {
    struct bump_block *next;
    alignas(max_align_t) unsigned char bytes[];
};

void bump_init(struct bump *bump, size_t budget)
{
    *bump = (struct bump){.left = budget, .block_bytes = BLOCK_BYTES_FIRST};
}

void bump_fini(struct bump *bump)
{
    for (struct bump_block *block = bump->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    *bump = (struct bump){0};
}

/* AddressSanitizer only checks what malloc returned, so in its builds every piece gets a block of its own. */
static size_t next_block_bytes(struct bump *bump, size_t size)
{
#ifdef BLOCK_PER_PIECE
    (void)bump;
    return size;
#else
    size_t bytes = bump->block_bytes;
    if (bump->block_bytes < BLOCK_BYTES_MAX)
        bump->block_bytes *= 2;
    return bytes > size ? bytes : size;
#endif
}

static bool add_block(struct bump *bump, size_t size)
{
    size_t bytes = next_block_bytes(bump, size);
    struct bump_block *block = malloc(sizeof(*block) + bytes);
    if (block == NULL) {
        bump->out_of_memory = true;
        return false;
    }
    block->next = bump->blocks;
    bump->blocks = block;
    bump->at = block->bytes;
    bump->room = bytes;
    return true;
}

void *bump_alloc(struct bump *bump, size_t size)
{
    if (size > bump->left)
        return NULL;
    size_t piece = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    if (piece < size || piece > bump->left)
        return NULL;
    if ((piece > bump->room || bump->blocks == NULL) && !add_block(bump, piece))
        return NULL;
    void *bytes = bump->at;
    bump->at += piece;
    bump->room -= piece;
    bump->left -= piece;
    return bytes;
}

void *bump_zeroed(struct bump *bump, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    void *zeroed = bump_alloc(bump, bytes);
    return zeroed == NULL ? NULL : memset(zeroed, 0, bytes);
}
