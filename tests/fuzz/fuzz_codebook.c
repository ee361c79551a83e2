/* Foreign bytes as a codebook set or a partial file: what is read is written and read again. */
#include <string.h>

#include "kernels/codebook_file.h"
#include "tests/fuzz/fuzz.h"

static void compare_sets(const struct strait_codebook *a, const struct strait_codebook *b)
{
    require(strait_codebook_count(a) == strait_codebook_count(b));
    require(memcmp(strait_codebook_id(a), strait_codebook_id(b), STRAIT_CODEBOOK_ID_BYTES) == 0);
    for (uint32_t t = 0; t < strait_codebook_count(a); t++) {
        struct strait_class x = strait_codebook_class(a, t), y = strait_codebook_class(b, t);
        require(memcmp(strait_codebook_ranking(a, t), strait_codebook_ranking(b, t), 256) == 0);
        require(x.role == y.role && x.layer == y.layer);
        require(strait_codebook_find(a, x) == strait_codebook_find(b, x));
    }
}

static void check_set(const struct strait_codebook *set)
{
    size_t size = strait_codebook_serialized_size(set);
    struct strait_codebook *back = NULL;
    uint8_t *bytes = malloc(size), *again = malloc(size);
    require(bytes != NULL && again != NULL);
    require(strait_codebook_serialize(set, bytes, size - 1) == STRAIT_ERR_NO_SPACE);
    require(strait_codebook_serialize(set, bytes, size) == STRAIT_OK);
    require(strait_codebook_parse(bytes, size, &back) == STRAIT_OK);
    compare_sets(set, back);
    require(strait_codebook_serialized_size(back) == size && strait_codebook_serialize(back, again, size) == STRAIT_OK);
    require(memcmp(bytes, again, size) == 0);
    strait_codebook_destroy(back);
    free(bytes);
    free(again);
}

static void check_partial(const struct codebook_histogram *list, uint32_t count)
{
    size_t size = codebook_partial_serialized_size(list, count);
    struct codebook_histogram *back = NULL;
    uint32_t back_count = 0;
    uint8_t *bytes = malloc(size);
    require(bytes != NULL && count > 0);
    require(codebook_partial_serialize(list, count, bytes, size - 1) == STRAIT_ERR_NO_SPACE);
    require(codebook_partial_serialize(list, count, bytes, size) == STRAIT_OK);
    require(codebook_partial_parse(bytes, size, &back, &back_count) == STRAIT_OK);
    require(back_count == count && memcmp(back, list, sizeof(*list) * count) == 0);
    free(back);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct strait_codebook *set = NULL;
    struct codebook_histogram *list = NULL;
    uint32_t count = 0;
    if (strait_codebook_parse(data, size, &set) == STRAIT_OK)
        check_set(set);
    else
        require(set == NULL);
    if (codebook_partial_parse(data, size, &list, &count) == STRAIT_OK)
        check_partial(list, count);
    else
        require(list == NULL && count == 0);
    require(set == NULL || list == NULL);
    strait_codebook_destroy(set);
    free(list);
    return 0;
}
