#include "bench/cases.h"

#include <stdlib.h>

#include "tools/util.h"

const char *const mode_names[] = {
    [STRAIT_MODE_AUTO] = "auto",     [STRAIT_MODE_RAW] = "raw",   [STRAIT_MODE_TOP16] = "top16",
    [STRAIT_MODE_TIERED] = "tiered", [STRAIT_MODE_BASE] = "base", [STRAIT_MODE_SPLIT] = "split",
};

struct bench_case *case_list_add(struct case_list *cases)
{
    struct bench_case *added;

    if (cases->count == cases->capacity) {
        unsigned capacity = 2 * cases->capacity + 16;
        struct bench_case *grown = realloc(cases->list, capacity * sizeof(*grown));
        if (grown == NULL) {
            print_error(NULL, "out of memory");
            return NULL;
        }
        cases->list = grown;
        cases->capacity = capacity;
    }
    added = &cases->list[cases->count++];
    *added = (struct bench_case){.variant = "-", .mode = "-", .threads = 1, .ok = true};
    return added;
}

bool case_list_set_repeats(struct case_list *cases, unsigned repeats)
{
    uint64_t *samples = calloc((size_t)cases->count * 2, repeats * sizeof(*samples));

    if (samples == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    cases->samples = samples;
    cases->repeats = repeats;
    for (unsigned i = 0; i < cases->count; i++) {
        cases->list[i].encode_ns = samples + (size_t)(2 * i) * repeats;
        cases->list[i].decode_ns = samples + (size_t)(2 * i + 1) * repeats;
    }
    return true;
}

void case_list_fini(struct case_list *cases)
{
    for (unsigned i = 0; i < cases->count; i++)
        if (cases->list[i].kind != NULL)
            cases->list[i].kind->destroy(cases->list[i].state);
    free(cases->list);
    free(cases->samples);
    *cases = (struct case_list){0};
}
