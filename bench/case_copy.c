/* memcpy, with which everything is compared. */
#include "bench/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/util.h"

struct copy_state {
    const struct buffers *buffers;
    uint64_t item_bytes;
    uint64_t call_bytes;
};

static void copy_item(const struct copy_state *state, uint8_t *dst, const uint8_t *src, uint32_t item)
{
    uint64_t begin = item * state->item_bytes;
    uint64_t end = begin + state->item_bytes;

    if (end > state->buffers->raw_bytes)
        end = state->buffers->raw_bytes;
    for (uint64_t at = begin; at < end; at += state->call_bytes)
        memcpy(dst + at, src + at, end - at < state->call_bytes ? end - at : state->call_bytes);
}

static bool copy_encode(void *arg, unsigned thread, uint32_t item)
{
    const struct copy_state *state = arg;

    (void)thread;
    copy_item(state, state->buffers->coded, state->buffers->raw, item);
    return true;
}

static bool copy_decode(void *arg, unsigned thread, uint32_t item)
{
    const struct copy_state *state = arg;

    (void)thread;
    copy_item(state, state->buffers->back, state->buffers->coded, item);
    return true;
}

static uint64_t copy_coded_bytes(const void *arg)
{
    const struct copy_state *state = arg;
    return state->buffers->raw_bytes;
}

static const struct case_kind copy_kind = {copy_encode, copy_decode, copy_coded_bytes, free};

static uint64_t round_up(uint64_t bytes, uint64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

bool copy_case_add(struct case_list *cases, const struct buffers *buffers, uint64_t page_bytes, uint64_t chunk_bytes,
                   unsigned threads)
{
    struct copy_state *state = calloc(1, sizeof(*state));
    struct bench_case *added = state == NULL ? NULL : case_list_add(cases);

    if (added == NULL) {
        free(state);
        return false;
    }
    state->buffers = buffers;
    state->item_bytes = page_bytes == 0 ? round_up((buffers->raw_bytes + threads - 1) / threads, 4096)
                                        : round_up(chunk_bytes, page_bytes);
    state->call_bytes = page_bytes == 0 ? state->item_bytes : page_bytes;
    added->kind = &copy_kind;
    added->is_memcpy = true;
    added->state = state;
    snprintf(added->name, sizeof(added->name), "memcpy");
    added->variant = page_bytes == 0 ? "one call" : "per page";
    added->threads = threads;
    added->items = (uint32_t)((buffers->raw_bytes + state->item_bytes - 1) / state->item_bytes);
    added->page_bytes = page_bytes;
    added->raw_bytes = buffers->raw_bytes;
    added->coded_capacity = buffers->raw_bytes;
    return true;
}
