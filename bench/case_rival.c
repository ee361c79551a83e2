/* General compressors, on the unchanged bytes or on the exponents alone. */
#include "bench/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/planes.h"
#include "bench/rivals.h"
#include "tools/input.h"
#include "tools/util.h"

#define SAMPLE_BYTES (8u * 1024 * 1024) /* for each thread, of slow compressors */

struct rival_thread {
    void *context;
    struct buffer exponents; /* of one piece */
};

struct rival_state {
    const struct buffers *buffers;
    const struct rival_ops *ops;
    bool split;
    uint64_t raw_bytes;
    uint64_t piece_bytes;
    uint64_t slot_bytes; /* of a coded piece */
    uint32_t pieces;
    uint64_t *sizes; /* one per piece, set by encode */
    unsigned threads;
    struct rival_thread *thread;
};

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

static size_t piece_size(const struct rival_state *state, uint32_t item)
{
    uint64_t left = state->raw_bytes - item * state->piece_bytes;
    return left < state->piece_bytes ? left : state->piece_bytes;
}

/* A split piece consists of the sign+mantissa plane, then the compressed exponents. */
static bool encode_piece(void *arg, unsigned thread, uint32_t item)
{
    struct rival_state *state = arg;
    struct rival_thread *own = &state->thread[thread];
    const uint8_t *src = state->buffers->raw + item * state->piece_bytes;
    uint8_t *dst = state->buffers->coded + item * state->slot_bytes;
    size_t size = piece_size(state, item);
    size_t kept = state->split ? size / 2 : 0;
    size_t made;

    if (state->split) {
        planes_split(dst, own->exponents.data, src, size / 2);
        src = own->exponents.data;
    }
    made = state->ops->compress(own->context, dst + kept, state->slot_bytes - kept, src, size - kept);
    state->sizes[item] = kept + made;
    return made > 0;
}

static bool decode_piece(void *arg, unsigned thread, uint32_t item)
{
    struct rival_state *state = arg;
    struct rival_thread *own = &state->thread[thread];
    const uint8_t *src = state->buffers->coded + item * state->slot_bytes;
    uint8_t *dst = state->buffers->back + item * state->piece_bytes;
    size_t size = piece_size(state, item);
    size_t kept = state->split ? size / 2 : 0;
    bool ok = state->ops->decompress(own->context, state->split ? own->exponents.data : dst, size - kept, src + kept,
                                     state->sizes[item] - kept);

    if (ok && state->split)
        planes_join(dst, src, own->exponents.data, size / 2);
    return ok;
}

static uint64_t coded_bytes(const void *arg)
{
    const struct rival_state *state = arg;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < state->pieces; i++)
        bytes += state->sizes[i];
    return bytes;
}

/* ---- States ---------------------------------------------------------------------------------------------------- */

static void destroy(void *arg)
{
    struct rival_state *state = arg;

    for (unsigned t = 0; state->thread != NULL && t < state->threads; t++) {
        if (state->thread[t].context != NULL)
            state->ops->destroy(state->thread[t].context);
        buffer_fini(&state->thread[t].exponents);
    }
    free(state->thread);
    free(state->sizes);
    free(state);
}

static bool make_thread(struct rival_thread *own, const struct rival *rival, bool split, uint64_t piece_bytes)
{
    own->context = rival->ops->create(rival->level);
    if (own->context == NULL || (split && !buffer_reserve(&own->exponents, 0, piece_bytes / 2)))
        return false;
    if (split)
        memset(own->exponents.data, 0, piece_bytes / 2);
    return true;
}

static void set_sizes(struct rival_state *state, const struct rival *rival, uint64_t piece_bytes)
{
    uint64_t half = piece_bytes / 2;
    uint64_t sample = (uint64_t)SAMPLE_BYTES * state->threads;

    state->raw_bytes = state->buffers->raw_bytes;
    if (rival->slow && sample < state->raw_bytes)
        state->raw_bytes = sample;
    state->piece_bytes = piece_bytes;
    state->pieces = (uint32_t)((state->raw_bytes + piece_bytes - 1) / piece_bytes);
    state->slot_bytes = state->split ? half + rival->ops->bound(half) : rival->ops->bound(piece_bytes);
}

static struct rival_state *create(const struct buffers *buffers, const struct rival *rival, bool split,
                                  uint64_t piece_bytes, unsigned threads)
{
    struct rival_state *state = calloc(1, sizeof(*state));
    bool ok = state != NULL;

    if (ok) {
        *state = (struct rival_state){.buffers = buffers, .ops = rival->ops, .split = split, .threads = threads};
        set_sizes(state, rival, piece_bytes);
        state->sizes = calloc(state->pieces, sizeof(state->sizes[0]));
        state->thread = calloc(threads, sizeof(state->thread[0]));
        ok = state->sizes != NULL && state->thread != NULL;
    }
    for (unsigned t = 0; ok && t < threads; t++)
        ok = make_thread(&state->thread[t], rival, split, piece_bytes);
    if (ok)
        return state;
    print_error(NULL, "out of memory");
    if (state != NULL)
        destroy(state);
    return NULL;
}

static const struct case_kind rival_kind = {encode_piece, decode_piece, coded_bytes, destroy};

bool rival_case_add(struct case_list *cases, const struct buffers *buffers, const struct rival *rival, bool split,
                    uint64_t piece_bytes, unsigned threads)
{
    struct rival_state *state = create(buffers, rival, split, piece_bytes, threads);
    struct bench_case *added = state == NULL ? NULL : case_list_add(cases);

    if (added == NULL) {
        if (state != NULL)
            destroy(state);
        return false;
    }
    added->kind = &rival_kind;
    added->state = state;
    snprintf(added->name, sizeof(added->name), "%s", rival->name);
    added->mode = split ? "split" : "bytes";
    added->threads = threads;
    added->items = state->pieces;
    added->raw_bytes = state->raw_bytes;
    added->coded_capacity = state->pieces * state->slot_bytes;
    return true;
}
