#include <stdlib.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/levels.h"
#include "collective/engine/plan.h"

/* How fast this GPU encodes and decodes, measured once for each process and device: GPUs with less memory bandwidth
 * gain from compression on slower links only. */

/* An H100's: assumed where it cannot be measured, and the least that is believed, as values that are measured may be in
 * the GPU's cache. */
#define USUAL_PER_BYTE 0.72e-12

/* Operations of other streams share the GPU with the codec: it is taken to be slower than alone. */
#define MARGIN 1.4

/* The time of a byte is the difference between two sizes, as launches are counted apart (decide.c); the fastest
 * of some rounds counts. */
enum { LARGE = 16 << 20, SMALL = 2 << 20, PATTERN = 512 << 10, ROUNDS = 3, DEVICES_MAX = 64 };

struct rate {
    double encode, decode; /* seconds per byte of values; 0: not known */
    bool tried;
};

static struct {
    pthread_mutex_t lock;
    struct rate of[DEVICES_MAX];
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* In the probe's memory: values | a chunk with room for any result | its result | scratch. */
struct trial {
    struct coll_ccomm *ccomm;
    struct message_part part;
    uint8_t *chunk, *result, *scratch;
    size_t scratch_size;
};

/* BF16 of a bell curve, about: each exponent is half as frequent as the next larger one. */
static void fill(uint16_t *values, size_t count)
{
    uint32_t state = 0x9e3779b9u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        const unsigned below = (unsigned)__builtin_clz(state | 1);
        values[i] = (uint16_t)((state & 0x807f) | (124 - below) << 7);
    }
}

static struct strait_encode_item encoded(const struct trial *trial)
{
    return (struct strait_encode_item){.src = message_part_pages(&trial->part),
                                       .dst = trial->chunk,
                                       .dst_capacity = trial->part.bound,
                                       .result = (void *)trial->result};
}

/* Chunks have as many bytes as they need, which the host does not know. */
static struct strait_decode_item decoded(const struct trial *trial)
{
    return (struct strait_decode_item){.dst = message_part_pages(&trial->part),
                                       .src = trial->chunk,
                                       .src_size = trial->part.bound,
                                       .result = (void *)trial->result,
                                       .flags = STRAIT_DECODE_AT_MOST};
}

/* False: there is no room for so much. */
static bool trial_of(struct trial *trial, struct coll_ccomm *ccomm, size_t bytes)
{
    struct message_layout layout;
    struct message_part parts[2];
    *trial = (struct trial){.ccomm = ccomm};
    if (!message_layout_of(&layout, COLL_BF16, bytes / 2, LEVEL_PROBE) ||
        message_parts(&layout, ccomm->probe.memory, parts) != 1)
        return false;
    trial->part = parts[0];
    trial->chunk = ccomm->probe.memory + plan_aligned(bytes);
    trial->result = trial->chunk + plan_aligned(trial->part.bound);
    trial->scratch = trial->result + plan_aligned(sizeof(struct strait_result));
    const struct strait_encode_item encode = encoded(trial);
    const struct strait_decode_item decode = decoded(trial);
    const uint64_t encoding = strait_encode_scratch_size(ccomm->codec, &encode, 1);
    const uint64_t decoding = strait_decode_scratch_size(ccomm->codec, &decode, 1);
    trial->scratch_size = encoding > decoding ? encoding : decoding;
    return encoding > 0 && decoding > 0 &&
           (size_t)(trial->scratch - ccomm->probe.memory) + trial->scratch_size <= ccomm->probe.size;
}

static bool run(const struct trial *trial, bool encoding)
{
    const struct coll_ccomm *ccomm = trial->ccomm;
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_BASE, .codebook = NULL};
    const struct strait_run with = {.size = sizeof(with),
                                    .scratch = trial->scratch,
                                    .scratch_size = trial->scratch_size,
                                    .stream = ccomm->stream,
                                    .sm_budget = ccomm->host.settings.sms};
    const struct strait_encode_item encode = encoded(trial);
    const struct strait_decode_item decode = decoded(trial);
    return (encoding ? strait_encode_batch(ccomm->codec, &params, &encode, 1, &with)
                     : strait_decode_batch(ccomm->codec, NULL, &decode, 1, &with)) == STRAIT_OK;
}

/* Returns the seconds that the GPU takes; < 0: it failed. */
static double seconds_of(const struct trial *trial, bool encoding)
{
    const struct coll_ccomm *ccomm = trial->ccomm;
    const struct gpu_ops *gpu = ccomm->gpu;
    double least = -1;
    for (int round = 0; round < ROUNDS; round++) {
        if (!gpu->zero(trial->scratch, trial->scratch_size, ccomm->stream) ||
            !gpu->event_record(ccomm->probe.begin, ccomm->stream) || !run(trial, encoding) ||
            !gpu->event_record(ccomm->probe.end, ccomm->stream) || !gpu->stream_wait(ccomm->stream))
            return -1;
        const double seconds = gpu->event_seconds(ccomm->probe.begin, ccomm->probe.end);
        least = least < 0 || seconds < least ? seconds : least;
    }
    return least;
}

static bool put_values(struct coll_ccomm *ccomm, size_t bytes)
{
    uint16_t *values = malloc(PATTERN);
    bool good = values != NULL;
    if (good)
        fill(values, PATTERN / sizeof(*values));
    for (size_t at = 0; at < bytes && good; at += PATTERN)
        good = ccomm->gpu->copy(ccomm->probe.memory + at, values, PATTERN, ccomm->stream);
    good = ccomm->gpu->stream_wait(ccomm->stream) && good;
    free(values);
    return good;
}

/* Links are measured in the same memory, which they find zero. */
static struct rate measure(struct coll_ccomm *ccomm)
{
    struct trial large, small;
    struct rate rate = {0};
    double seconds[2][2] = {{-1, -1}, {-1, -1}}; /* of decoding and encoding; small and large */
    if (!trial_of(&large, ccomm, LARGE) || !trial_of(&small, ccomm, SMALL) || !put_values(ccomm, LARGE))
        return rate;
    bool good = true;
    for (int size = 0; size < 2 && good; size++)
        for (int encoding = 1; encoding >= 0 && good; encoding--) {
            seconds[encoding][size] = seconds_of(size == 0 ? &small : &large, encoding != 0);
            good = seconds[encoding][size] >= 0;
        }
    good = ccomm->gpu->zero(ccomm->probe.memory, ccomm->probe.size, ccomm->stream) &&
           ccomm->gpu->stream_wait(ccomm->stream) && good;
    if (!good || seconds[0][1] <= seconds[0][0] || seconds[1][1] <= seconds[1][0])
        return rate;
    rate.decode = MARGIN * (seconds[0][1] - seconds[0][0]) / (LARGE - SMALL);
    rate.encode = MARGIN * (seconds[1][1] - seconds[1][0]) / (LARGE - SMALL);
    return rate;
}

void codec_rate_assume(struct coll_ccomm *ccomm)
{
    ccomm->cost.encode = ccomm->cost.decode = MARGIN * USUAL_PER_BYTE;
}

void codec_rate_measure(struct coll_ccomm *ccomm)
{
    struct rate rate = {0};
    codec_rate_assume(ccomm);
    if (ccomm->device < 0 || ccomm->device >= DEVICES_MAX)
        return;
    pthread_mutex_lock(&known.lock);
    struct rate *of = &known.of[ccomm->device];
    if (!of->tried) {
        *of = measure(ccomm);
        of->tried = true;
        if (of->encode == 0)
            ccomm->host.log("the codec's speed on GPU %d could not be measured: that of an H100 is assumed",
                            ccomm->device);
    }
    rate = *of;
    pthread_mutex_unlock(&known.lock);
    ccomm->cost.encode = rate.encode > ccomm->cost.encode ? rate.encode : ccomm->cost.encode;
    ccomm->cost.decode = rate.decode > ccomm->cost.decode ? rate.decode : ccomm->cost.decode;
}
