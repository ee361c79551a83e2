#include "tools/tensors.h"

#include <stdlib.h>

#include "internal/element.h"
#include "tools/safetensors.h"

static bool out_of_memory(const char *file)
{
    print_error(file, "out of memory");
    return false;
}

static bool add_values(struct tensors *tensors, const struct input *input, struct strait_class class,
                       enum strait_element element, uint64_t begin, uint64_t end)
{
    uint64_t values = (end - begin) / element_bytes(element);

    tensors->bytes += element_bytes(element) * values;
    return spans_add(&tensors->spans, class, element, input->data + begin, values) || out_of_memory(input->path);
}

static bool is_wanted(const struct tensors *tensors, const char *name)
{
    return tensors->wanted == NULL || tensors->wanted(name, tensors->kind);
}

static struct strait_class class_by(const struct class_rules *rules, const char *name)
{
    return rules != NULL ? class_of(rules, name) : (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
}

static bool take_list(struct tensors *tensors, const struct input *input, const struct safetensors *list,
                      const struct class_rules *rules)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct safetensor *tensor = &list->tensors[i];

        enum strait_element element = safetensors_element(tensor->dtype);

        if ((tensors->elements >> element & 1) == 0 || !is_wanted(tensors, tensor->name))
            tensors->skipped++;
        else if (!add_values(tensors, input, class_by(rules, tensor->name), element, tensor->begin, tensor->end))
            return false;
    }
    return true;
}

bool tensors_take_safetensors(struct tensors *tensors, const struct input *input, const struct class_rules *rules)
{
    struct safetensors list;
    const char *why = "out of memory";
    bool taken;

    if (!safetensors_probe(input->data, input->size, input->size)) {
        print_error(input->path, "not a safetensors file");
        return false;
    }
    if (safetensors_init(&list, input->data, input->size, input->size, &why) != STRAIT_OK) {
        print_error(input->path, "bad safetensors file: %s", why);
        return false;
    }
    taken = take_list(tensors, input, &list, rules);
    safetensors_fini(&list);
    return taken;
}

bool tensors_take_raw(struct tensors *tensors, const struct input *input, const struct class_rules *rules)
{
    struct strait_class class = {.role = STRAIT_ROLE_OTHER, .layer = -1};

    enum strait_element element = (enum strait_element)__builtin_ctz(tensors->elements);

    (void)rules;
    if (input->size % element_bytes(element) != 0) {
        print_error(input->path, element_bytes(element) == 2 ? "an odd number of bytes cannot be values of two"
                                                             : "its size is no multiple of the four bytes of a value");
        return false;
    }
    return add_values(tensors, input, class, element, 0, input->size);
}

/* ---- All files ------------------------------------------------------------------------------------------------- */

static bool take_files(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                       const struct class_rules *rules)
{
    tensors->inputs = calloc(count, sizeof(tensors->inputs[0]));
    if (tensors->inputs == NULL)
        return out_of_memory(NULL);
    for (unsigned i = 0; i < count; i++) {
        if (!input_open(&tensors->inputs[i], paths[i]))
            return false;
        tensors->input_count++;
        if (!take(tensors, &tensors->inputs[i], rules))
            return false;
    }
    return true;
}

static bool take_or_close(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                          const struct class_rules *rules)
{
    const bool taken = take_files(tensors, paths, count, take, rules);

    if (!taken)
        tensors_close(tensors);
    return taken;
}

bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                  const struct class_rules *rules, uint32_t elements)
{
    *tensors = (struct tensors){.elements = elements};
    return take_or_close(tensors, paths, count, take, rules);
}

bool tensors_open_wanted(struct tensors *tensors, const char *const *paths, unsigned count, uint32_t elements,
                         bool (*wanted)(const char *name, int kind), int kind)
{
    *tensors = (struct tensors){.elements = elements, .wanted = wanted, .kind = kind};
    return take_or_close(tensors, paths, count, tensors_take_safetensors, NULL);
}

void tensors_close(struct tensors *tensors)
{
    for (unsigned i = 0; i < tensors->input_count; i++)
        input_close(&tensors->inputs[i]);
    free(tensors->inputs);
    spans_fini(&tensors->spans);
    *tensors = (struct tensors){0};
}
