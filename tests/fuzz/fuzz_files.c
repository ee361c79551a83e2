/* Foreign bytes as files of the codec. */
#include <string.h>

#include <xxhash.h>

#include "internal/bytes.h"
#include "kernels/codebook_file.h"
#include "kernels/container.h"
#include "tests/fuzz/fuzz.h"

/* ---- Codebooks ------------------------------------------------------------------------------------------------- */

static void compare_sets(const struct strait_codebook *a, const struct strait_codebook *b)
{
    require(strait_codebook_count(a) == strait_codebook_count(b));
    require(memcmp(strait_codebook_id(a), strait_codebook_id(b), STRAIT_CODEBOOK_ID_BYTES) == 0);
    for (uint32_t t = 0; t < strait_codebook_count(a); t++) {
        struct strait_class x = strait_codebook_class(a, t), y = strait_codebook_class(b, t);
        require(memcmp(strait_codebook_ranking(a, t), strait_codebook_ranking(b, t), 256) == 0);
        require(x.role == y.role && x.layer == y.layer);
        require(strait_codebook_find(a, x) == strait_codebook_find(b, x));
        require(strait_codebook_expected(a, t) == strait_codebook_expected(b, t));
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

/* A codebook set or a partial file: what is read is written and read again. */
void fuzz_codebook(const uint8_t *data, size_t size)
{
    struct strait_codebook *set = NULL;
    struct codebook_histogram *list = NULL;
    uint32_t count = 0;
    size_t offset = 0;
    require(codebook_file_why(data, size, &offset) != NULL && offset <= size); /* of good ones too */
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
}

/* ---- Containers ------------------------------------------------------------------------------------------------ */

static void repair(uint8_t *header, uint8_t *footer, size_t footer_size)
{
    static const uint8_t end_mark[8] = {'S', 'T', 'R', 'F', 'E', 'N', 'D', '0'};
    store_le64(header + 40, XXH3_64bits(header, 40));
    if (footer_size < CONTAINER_TAIL_BYTES)
        return;
    memcpy(footer + footer_size - 8, end_mark, sizeof(end_mark));
    store_le64(footer + footer_size - 16, XXH3_64bits(footer, footer_size - 16));
}

static void check_header(const struct container_header *header, const uint8_t *bytes)
{
    uint8_t again[CONTAINER_HEADER_BYTES];
    container_write_header(again, header);
    require(memcmp(again, bytes, sizeof(again)) == 0);
    uint64_t tables = container_tables_offset(header);
    require(tables % 16 == 0 && tables >= CONTAINER_HEADER_BYTES + header->preamble_bytes &&
            tables < CONTAINER_HEADER_BYTES + header->preamble_bytes + 16);
    require(container_chunks_offset(header) == tables + 256ull * header->table_count);
}

/* Chunks lie back to back and hold the data back to back; written again, the footer is the same. */
static void check_footer(const struct container_header *header, const struct container_tail *tail, uint32_t count,
                         const uint8_t *footer, size_t size)
{
    uint64_t at = container_chunks_offset(header), raw = 0;
    struct container_chunk *chunks = calloc(count + 1u, sizeof(*chunks));
    uint8_t *again = malloc(size);
    require(chunks != NULL && again != NULL && size == container_footer_bytes(count));
    for (uint32_t i = 0; i < count; i++) {
        chunks[i] = container_footer_chunk(footer, i);
        require(chunks[i].file_offset == at && chunks[i].raw_offset >= raw && chunks[i].page_count > 0);
        at += chunks[i].chunk_bytes;
        raw = chunks[i].raw_offset;
    }
    require(at == tail->footer_offset && header->preamble_bytes + raw <= tail->original_bytes);
    container_write_footer(again, chunks, count, tail);
    require(memcmp(again, footer, size) == 0);
    free(chunks);
    free(again);
}

static void check(const uint8_t *header_bytes, const uint8_t *footer, size_t footer_size)
{
    struct container_header header = {0};
    struct container_tail tail;
    uint32_t count = 0;
    if (container_read_header(&header, header_bytes, CONTAINER_HEADER_BYTES) == STRAIT_OK)
        check_header(&header, header_bytes);
    else
        header = (struct container_header){.preamble_bytes = header_bytes[0]};
    container_is_footer(footer, footer_size);
    if (container_check_footer(footer, footer_size, &header, &count, &tail) == STRAIT_OK)
        check_footer(&header, &tail, count, footer, footer_size);
}

/* The ends of a file: 48 bytes of header, then the footer. The first byte of the input says whether their hashes are
 * repaired, so that the checks behind them are reached. */
void fuzz_container(const uint8_t *data, size_t size)
{
    struct container_header header;
    container_is_file(data, size);
    container_read_header(&header, data, size);
    if (size < 1 + CONTAINER_HEADER_BYTES)
        return;
    size_t footer_size = size - 1 - CONTAINER_HEADER_BYTES;
    uint8_t bytes[CONTAINER_HEADER_BYTES], *footer = malloc(footer_size + (footer_size == 0));
    require(footer != NULL);
    memcpy(bytes, data + 1, sizeof(bytes));
    memcpy(footer, data + 1 + sizeof(bytes), footer_size);
    if (data[0] % 2 != 0)
        repair(bytes, footer, footer_size);
    check(bytes, footer, footer_size);
    free(footer);
}
