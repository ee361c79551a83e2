#include "bench/tensors.h"

#include <stdlib.h>

#include "tools/classes.h"
#include "tools/safetensors.h"

static bool out_of_memory(void)
{
    print_error(NULL, "out of memory");
    return false;
}

static bool take_list(struct tensors *tensors, const struct input *input, const struct safetensors *list,
                      const struct class_rules *rules)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct safetensor *tensor = &list->tensors[i];
        uint64_t values = (tensor->end - tensor->begin) / 2;

        if (safetensors_element(tensor->dtype) != STRAIT_ELEMENT_BF16) {
            tensors->skipped++;
            continue;
        }
        if (!spans_add(&tensors->spans, class_of(rules, tensor->name), input->data + tensor->begin, values))
            return out_of_memory();
        tensors->bytes += 2 * values;
    }
    return true;
}

static bool take_file(struct tensors *tensors, const struct input *input, const struct class_rules *rules)
{
    struct safetensors list;
    const char *why = "not a safetensors file";
    bool taken;

    if (!safetensors_probe(input->data, input->size, input->size) ||
        safetensors_init(&list, input->data, input->size, input->size, &why) != STRAIT_OK) {
        print_error(input->path, "%s", why);
        return false;
    }
    taken = take_list(tensors, input, &list, rules);
    safetensors_fini(&list);
    return taken;
}

static bool take_files(struct tensors *tensors, const char *const *paths, unsigned count,
                       const struct class_rules *rules)
{
    tensors->inputs = calloc(count, sizeof(tensors->inputs[0]));
    if (tensors->inputs == NULL || rules == NULL)
        return out_of_memory();
    for (unsigned i = 0; i < count; i++) {
        if (!input_open(&tensors->inputs[i], paths[i]))
            return false;
        tensors->input_count++;
        if (!take_file(tensors, &tensors->inputs[i], rules))
            return false;
    }
    if (tensors->bytes == 0)
        print_error(paths[0], "no BF16 values");
    return tensors->bytes > 0;
}

bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count)
{
    struct class_rules *rules = class_rules_create();
    bool taken;

    *tensors = (struct tensors){0};
    taken = take_files(tensors, paths, count, rules);
    class_rules_destroy(rules);
    if (!taken)
        tensors_close(tensors);
    return taken;
}

void tensors_close(struct tensors *tensors)
{
    for (unsigned i = 0; i < tensors->input_count; i++)
        input_close(&tensors->inputs[i]);
    free(tensors->inputs);
    spans_fini(&tensors->spans);
    *tensors = (struct tensors){0};
}
