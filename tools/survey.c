#include "tools/survey.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tools/totals.h"

const char *const element_names[SURVEY_ELEMENTS] = {
    [STRAIT_ELEMENT_BYTES] = "bytes", [STRAIT_ELEMENT_BF16] = "bf16",         [STRAIT_ELEMENT_FP16] = "fp16",
    [STRAIT_ELEMENT_FP32] = "fp32",   [STRAIT_ELEMENT_FP8_E4M3] = "fp8_e4m3", [STRAIT_ELEMENT_FP8_E5M2] = "fp8_e5m2",
};

bool survey_init(struct survey *survey)
{
    *survey = (struct survey){.tables = calloc(SURVEY_TABLES, sizeof(struct survey_sum))};
    return survey->tables != NULL;
}

void survey_fini(struct survey *survey)
{
    free(survey->tables);
    survey->tables = NULL;
    buffer_fini(&survey->pages);
}

static void add(struct survey_sum *sum, const struct strait_page_info *page, uint64_t offset)
{
    if (sum->pages == 0)
        sum->first_offset = offset;
    sum->pages++;
    sum->raw_bytes += page->page_bytes;
    sum->coded_bytes += page->coded_bytes;
}

/* Pages of types other than BF16 name table 0 also when they use none. */
static bool has_table(enum strait_element element, const struct strait_page_info *page)
{
    const uint32_t coded = 1u << STRAIT_BLOCK_SPLIT | 1u << STRAIT_BLOCK_FP32Z;
    return element == STRAIT_ELEMENT_BF16 || (page->block_modes & coded) != 0;
}

static void add_page(struct survey *survey, const struct strait_page_info *page)
{
    uint64_t offset = survey->all.raw_bytes;

    add(&survey->all, page, offset);
    add(&survey->elements[survey->info.element], page, offset);
    if (has_table(survey->info.element, page))
        add(&survey->tables[page->table], page, offset);
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        survey->mode_pages[m] += page->block_modes >> m & 1;
}

enum strait_status survey_add(struct survey *survey, const void *chunk, uint64_t chunk_bytes)
{
    enum strait_status status = strait_chunk_info(chunk, chunk_bytes, &survey->info);
    uint32_t count = status == STRAIT_OK ? survey->info.page_count : 0;

    if (status != STRAIT_OK)
        return status;
    if (!buffer_reserve(&survey->pages, 0, (uint64_t)count * sizeof(struct strait_page_info)))
        return STRAIT_ERR_NO_MEMORY;
    status = strait_chunk_pages(chunk, chunk_bytes, count, (struct strait_page_info *)survey->pages.data);
    if (status != STRAIT_OK)
        return status;
    for (uint32_t i = 0; i < count; i++)
        add_page(survey, survey_page(survey, i));
    survey->chunks++;
    survey->metadata_bytes += survey->info.metadata_bytes;
    return STRAIT_OK;
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

void survey_modes(char text[SURVEY_MODES_BYTES], uint32_t block_modes)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (block_modes >> m & 1)
            used += (size_t)snprintf(text + used, SURVEY_MODES_BYTES - used, "%s%s", used > 0 ? "+" : "",
                                     block_mode_names[m]);
}

void survey_print(const struct survey *survey, FILE *stream)
{
    fprintf(stream, "  chunks      %" PRIu64 ", of %" PRIu64 " pages, with %" PRIu64 " bytes of metadata\n",
            survey->chunks, survey->all.pages, survey->metadata_bytes);
    for (unsigned e = 0; e < SURVEY_ELEMENTS; e++) {
        const struct survey_sum *sum = &survey->elements[e];
        if (sum->pages > 0)
            fprintf(stream, "  %-11s %" PRIu64 " pages, %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f\n",
                    element_names[e], sum->pages, sum->raw_bytes, sum->coded_bytes,
                    ratio_of(sum->raw_bytes, sum->coded_bytes));
    }
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (survey->mode_pages[m] > 0)
            fprintf(stream, "  %-13s blocks in %" PRIu64 " pages\n", block_mode_names[m], survey->mode_pages[m]);
}

static void sum_json(cJSON *object, const struct survey_sum *sum)
{
    cJSON_AddNumberToObject(object, "pages", (double)sum->pages);
    cJSON_AddNumberToObject(object, "raw_bytes", (double)sum->raw_bytes);
    cJSON_AddNumberToObject(object, "coded_bytes", (double)sum->coded_bytes);
    cJSON_AddNumberToObject(object, "ratio", ratio_of(sum->raw_bytes, sum->coded_bytes));
}

void survey_json(const struct survey *survey, cJSON *object)
{
    cJSON *list;

    cJSON_AddNumberToObject(object, "chunks", (double)survey->chunks);
    cJSON_AddNumberToObject(object, "metadata_bytes", (double)survey->metadata_bytes);
    sum_json(object, &survey->all);
    list = cJSON_AddObjectToObject(object, "elements");
    for (unsigned e = 0; e < SURVEY_ELEMENTS; e++)
        if (survey->elements[e].pages > 0)
            sum_json(cJSON_AddObjectToObject(list, element_names[e]), &survey->elements[e]);
    list = cJSON_AddObjectToObject(object, "mode_pages");
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (block_mode_names[m] != NULL)
            cJSON_AddNumberToObject(list, block_mode_names[m], (double)survey->mode_pages[m]);
}
