/* Our codec, through its public calls, with checksums. */
#include "bench/cases.h"

#include <stdio.h>
#include <stdlib.h>

#include "bench/tables.h"
#include "tools/input.h"
#include "tools/util.h"

struct strait_state {
    const struct buffers *buffers;
    struct strait_case_params params;
    struct buffer *scratch; /* one per thread */
    uint64_t *chunk_bytes;  /* one per chunk, set by encode */
};

static struct strait_run make_run(const struct strait_state *state, unsigned thread, struct strait_result *result)
{
    return (struct strait_run){
        .size = sizeof(struct strait_run),
        .scratch = state->scratch[thread].data,
        .scratch_size = state->scratch[thread].capacity,
        .result = result,
    };
}

static bool encode_chunk(void *arg, unsigned thread, uint32_t item)
{
    struct strait_state *state = arg;
    const struct strait_case_params *params = &state->params;
    const struct chunk *chunk = &params->chunks->chunks[item];
    struct strait_encode_params encode = {
        .size = sizeof(encode),
        .element = STRAIT_ELEMENT_BF16,
        .mode = params->mode,
        .codebook = params->codebook,
    };
    struct strait_result result = {0};
    struct strait_run run = make_run(state, thread, &result);
    enum strait_status status = strait_encode(params->codec, &encode, state->buffers->coded + chunk->coded_at,
                                              chunk->coded_capacity, &chunk->src, &run);

    state->chunk_bytes[item] = result.bytes;
    return status == STRAIT_OK && result.status == STRAIT_OK;
}

static bool decode_chunk(void *arg, unsigned thread, uint32_t item)
{
    const struct strait_state *state = arg;
    const struct strait_case_params *params = &state->params;
    const struct chunk *chunk = &params->chunks->chunks[item];
    struct strait_result result = {0};
    struct strait_run run = make_run(state, thread, &result);
    enum strait_status status = strait_decode(params->codec, params->codebook, &chunk->dst, NULL,
                                              state->buffers->coded + chunk->coded_at, state->chunk_bytes[item], &run);

    return status == STRAIT_OK && result.status == STRAIT_OK;
}

static uint64_t coded_bytes(const void *arg)
{
    const struct strait_state *state = arg;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < state->params.chunks->count; i++)
        bytes += state->chunk_bytes[i];
    return bytes;
}

static void destroy(void *arg)
{
    struct strait_state *state = arg;

    for (unsigned t = 0; state->scratch != NULL && t < state->params.threads; t++)
        buffer_fini(&state->scratch[t]);
    free(state->scratch);
    free(state->chunk_bytes);
    free(state);
}

static struct strait_state *create(const struct buffers *buffers, const struct strait_case_params *params)
{
    struct strait_state *state = calloc(1, sizeof(*state));
    bool ok = state != NULL;

    if (ok) {
        *state = (struct strait_state){.buffers = buffers, .params = *params};
        state->scratch = calloc(params->threads, sizeof(state->scratch[0]));
        state->chunk_bytes = calloc(params->chunks->count, sizeof(state->chunk_bytes[0]));
        ok = state->scratch != NULL && state->chunk_bytes != NULL;
    }
    for (unsigned t = 0; ok && t < params->threads; t++)
        ok = buffer_reserve(&state->scratch[t], 0, strait_scratch_size(params->codec));
    if (ok)
        return state;
    print_error(NULL, "out of memory");
    if (state != NULL)
        destroy(state);
    return NULL;
}

static const struct case_kind strait_kind = {encode_chunk, decode_chunk, coded_bytes, destroy};

bool strait_case_add(struct case_list *cases, const struct buffers *buffers, const struct strait_case_params *params)
{
    struct strait_state *state = create(buffers, params);
    struct bench_case *added = state == NULL ? NULL : case_list_add(cases);

    if (added == NULL) {
        if (state != NULL)
            destroy(state);
        return false;
    }
    added->kind = &strait_kind;
    added->state = state;
    snprintf(added->name, sizeof(added->name), "strait");
    added->variant = strait_codec_name(params->codec);
    added->mode = mode_names[params->mode];
    added->threads = params->threads;
    added->items = params->chunks->count;
    added->page_bytes = params->chunks->page_bytes;
    added->raw_bytes = buffers->raw_bytes;
    added->coded_capacity = params->chunks->coded_bytes;
    added->table_bytes = (uint64_t)strait_codebook_count(params->codebook) * TABLE_BYTES;
    return true;
}
