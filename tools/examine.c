#include "tools/examine.h"

#include "internal/bytes.h"
#include "kernels/container.h"
#include "tools/util.h"

#define PROBE_BYTES  16u
#define LENGTH_BYTES 8u /* a safetensors file begins with the length of its header */

static bool no_memory(const struct source *source)
{
    print_error(source->name, "out of memory");
    return false;
}

static bool plan_plain(struct plan *plan, const struct source *source, enum strait_element element)
{
    return plan_init_plain(plan, source->size, element) || no_memory(source);
}

static bool plan_tensors(struct plan *plan, struct source *source, const struct class_rules *rules,
                         enum strait_element element)
{
    const char *why = "its header is too long";
    struct safetensors list;
    enum strait_status status = STRAIT_ERR_CORRUPT;
    bool planned;

    if (!source_peek(source, LENGTH_BYTES + load_le64(source->head.data)))
        return false;
    if (source->head_size <= CONTAINER_PREAMBLE_MAX)
        status = safetensors_init(&list, source->head.data, source->head_size, source->size, &why);
    if (status == STRAIT_ERR_NO_MEMORY)
        return no_memory(source);
    if (status != STRAIT_OK) {
        print_error(source->name, "warning: looks like a safetensors file, but %s; its tensors are not told apart",
                    why);
        return plan_plain(plan, source, element);
    }
    planned = plan_init_tensors(plan, source->size, &list, rules) || no_memory(source);
    safetensors_fini(&list);
    return planned;
}

bool examine(struct plan *plan, struct source *source, const struct class_rules *rules, enum strait_element element,
             bool raw)
{
    *plan = (struct plan){0};
    if (raw)
        return plan_plain(plan, source, element);
    if (!source_peek(source, PROBE_BYTES))
        return false;
    if (!safetensors_probe(source->head.data, source->head_size, source->size))
        return plan_plain(plan, source, element);
    return plan_tensors(plan, source, rules, element);
}
