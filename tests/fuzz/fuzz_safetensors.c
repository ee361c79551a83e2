/* Foreign bytes as the beginning of a safetensors file. */
#include <string.h>

#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tools/input.h"

/* What the header promises: tensors in order, apart, inside the file, after the header. */
static void check(const struct safetensors *list, uint64_t head_size, uint64_t file_size)
{
    uint64_t end = list->data_begin;
    require(list->data_begin >= 8 && list->data_begin <= head_size && list->data_begin <= file_size);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct safetensor *tensor = &list->tensors[i];
        require(tensor->begin >= end || tensor->begin == tensor->end);
        require(tensor->begin <= tensor->end && tensor->end <= file_size && tensor->begin >= list->data_begin);
        require(tensor->name != NULL && memchr(tensor->dtype, 0, sizeof(tensor->dtype)) != NULL);
        safetensors_element(tensor->dtype);
        end = tensor->end > end ? tensor->end : end;
    }
}

static void parse(const uint8_t *head, size_t head_size, uint64_t file_size)
{
    struct safetensors list;
    const char *why = NULL;
    safetensors_probe(head, head_size, file_size);
    if (safetensors_init(&list, head, head_size, file_size, &why) != STRAIT_OK) {
        require(why != NULL && why[0] != 0);
        return;
    }
    check(&list, head_size, file_size);
    safetensors_fini(&list);
}

/* The length of the header comes right when it is left out: the fuzzer then sees to the JSON. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(data, size, size);
    parse(data, size, size + 65536);
    uint8_t *whole = malloc(size + 8);
    require(whole != NULL);
    store_le64(whole, size);
    memcpy(whole + 8, data, size);
    parse(whole, size + 8, size + 8 + 65536);
    free(whole);
    return 0;
}
