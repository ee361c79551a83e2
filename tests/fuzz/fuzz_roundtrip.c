/* Any pages, of any shape, through every variant and back. The first bytes choose shape, table and mode, the others are
 * the values: as they are, or as ranks of exponents. */
#include <string.h>

#include "tests/fuzz/fuzz.h"

enum { REGION_FIELDS = 6, HEAD = 4, TOTAL_MAX = 80 * 1024 };

static uint32_t element_bytes(enum strait_element element)
{
    static const uint8_t bytes[] = {1, 2, 2, 4, 1, 1};
    return bytes[element];
}

static struct shape read_shape(const uint8_t *field, uint32_t multiple, uint32_t ids)
{
    uint32_t rows = 1 + field[0] % 12, row_bytes = 1 + (uint32_t)(field[1] | (field[2] & 63) << 8);
    if (rows > 1)
        row_bytes = (row_bytes + multiple - 1) / multiple * multiple;
    uint32_t end = row_bytes * rows % multiple;
    return (struct shape){.page_count = ids,
                          .rows = rows,
                          .row_bytes = row_bytes,
                          .row_gap = rows > 1 ? multiple * (field[3] & 15u) : 0,
                          .page_gap = (end == 0 ? 0 : multiple - end) + multiple * (field[3] >> 4),
                          .skew = multiple * (field[4] & 15u),
                          .table = field[5] % TEST_TABLES};
}

/* Whether the pages of all regions are few enough. */
static bool read_shapes(struct shape *shapes, uint32_t regions, uint32_t ids, uint32_t multiple, bool no_tables,
                        const uint8_t *data)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < regions; r++) {
        shapes[r] = read_shape(data + HEAD + r * REGION_FIELDS, multiple, ids);
        shapes[r].table = no_tables ? 0 : shapes[r].table;
        total += (uint64_t)shapes[r].rows * shapes[r].row_bytes * ids;
    }
    return total <= TOTAL_MAX;
}

/* Goes round the input as long as there is room. */
static void fill_page(uint8_t *page, uint32_t size, const uint8_t *data, size_t data_size, const uint8_t *ranking,
                      size_t *at)
{
    for (uint32_t i = 0; i < size; i++)
        page[i] = data_size == 0 ? 0 : data[*at + i < data_size ? *at + i : (*at + i) % data_size];
    for (uint32_t i = 0; ranking != NULL && i < size / 2; i++)
        put_value(page, i, join_value(page[2 * i], ranking[page[2 * i + 1]]));
    *at += size;
}

static void fill_layout(struct layout *layout, const uint8_t *data, size_t size, bool ranks)
{
    uint8_t ranking[256], *page = malloc(TOTAL_MAX);
    size_t at = 0;
    require(page != NULL);
    for (uint32_t i = 0; i < layout_count(layout); i++) {
        test_ranking(ranking, layout->regions[i / layout->pages.id_count].table);
        fill_page(page, layout_page_bytes(layout, i), data, size, ranks ? ranking : NULL, &at);
        layout_write(layout, i, page);
    }
    free(page);
}

static void check_short_buffer(const struct asked *asked, const struct layout *src)
{
    struct strait_encode_params params = {sizeof(params), asked->element, asked->mode, asked->codebook};
    struct verdict verdict;
    struct strait_run run = verdict_begin(&verdict);
    uint8_t byte;
    require(strait_encode(NULL, &params, &byte, strait_encode_bound(&src->pages) - 1, &src->pages, &run) ==
            STRAIT_ERR_NO_SPACE);
}

/* 64: of the later modes, 32: without a codebook where that can be. */
static struct asked read_asked(const struct strait_codebook *codebook, const uint8_t *data)
{
    struct asked asked = {codebook, (enum strait_element)(data[0] % 6), (enum strait_mode)(data[1] % 4)};
    if ((data[1] & 64) != 0)
        asked.mode = data[1] % 2 == 0 ? STRAIT_MODE_BASE : STRAIT_MODE_SPLIT;
    if (asked.mode == STRAIT_MODE_BASE && (data[1] & 32) != 0)
        asked.codebook = NULL;
    return asked;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct strait_codebook *codebook;
    struct shape shapes[3];
    if (codebook == NULL)
        codebook = test_codebook();
    if (size < HEAD)
        return 0;
    const struct asked asked = read_asked(codebook, data);
    uint32_t regions = 1 + data[2] % 3, ids = 1 + data[3] % 4;
    size_t head = HEAD + regions * REGION_FIELDS;
    if (size < head || !read_shapes(shapes, regions, ids, element_bytes(asked.element), asked.codebook == NULL, data))
        return 0;
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 4, shapes, regions, NULL, ids);
    fill_layout(&src, data + head, size - head, data[1] >= 128);
    free(round_trip(&asked, &src, &verdict));
    check_short_buffer(&asked, &src);
    layout_fini(&src);
    return 0;
}
