#include "bench/measure.h"

#include <string.h>

#include "tools/util.h"

#define STALE_CODED 0xA5
#define STALE_BACK  0x5A

static void warm_up(struct bench_case *one)
{
    uint32_t items = one->items < one->threads ? one->items : one->threads;

    time_items(one->threads, items, one->kind->encode, one->state, &one->ok);
    time_items(one->threads, items, one->kind->decode, one->state, &one->ok);
}

static uint64_t time_case(struct bench_case *one, work_item *fn)
{
    struct elapsed elapsed = time_items(one->threads, one->items, fn, one->state, &one->ok);

    one->wall_ns += elapsed.wall_ns;
    one->cpu_ns += elapsed.cpu_ns;
    return elapsed.wall_ns;
}

static void measure_case(struct bench_case *one, const struct buffers *buffers, unsigned repeat)
{
    uint64_t bytes;

    memset(buffers->coded, STALE_CODED, one->coded_capacity);
    one->encode_ns[repeat] = time_case(one, one->kind->encode);
    bytes = one->kind->coded_bytes(one->state);
    if (repeat > 0 && bytes != one->coded_bytes)
        one->ok = false;
    one->coded_bytes = bytes;
    memset(buffers->back, STALE_BACK, one->raw_bytes);
    one->decode_ns[repeat] = time_case(one, one->kind->decode);
    if (memcmp(buffers->back, buffers->raw, one->raw_bytes) != 0)
        one->ok = false;
}

static uint64_t bytes_of_repeat(const struct case_list *cases)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < cases->count; i++)
        bytes += cases->list[i].raw_bytes;
    return bytes;
}

void measure_cases(struct case_list *cases, const struct buffers *buffers)
{
    struct progress progress;

    progress_begin(&progress, "measuring", cases->repeats * bytes_of_repeat(cases), false);
    for (unsigned i = 0; i < cases->count; i++)
        if (cases->list[i].kind != NULL)
            warm_up(&cases->list[i]);
    for (unsigned repeat = 0; repeat < cases->repeats; repeat++) {
        for (unsigned i = 0; i < cases->count; i++) {
            if (cases->list[i].kind == NULL)
                continue;
            measure_case(&cases->list[i], buffers, repeat);
            progress_add(&progress, cases->list[i].raw_bytes);
        }
    }
    progress_end(&progress);
}

bool measure_passed(const struct case_list *cases)
{
    for (unsigned i = 0; i < cases->count; i++)
        if (!cases->list[i].ok)
            return false;
    return true;
}
