/* A bare chunk, and how pages and tables are shown. */
#include "tools/inspect.h"

#include <inttypes.h>

#include <cjson/cJSON.h>

#include "tools/json.h"
#include "tools/totals.h"

#define TOP_RANKS 16u

/* ---- Pages and tables ------------------------------------------------------------------------------------------ */

void print_pages_title(FILE *stream)
{
    fprintf(stream, "%8s %7s %14s %9s %9s %7s %6s %-16s  %s\n", "chunk", "page", "offset", "raw", "coded", "ratio",
            "table", "sum", "modes, tensor");
}

void print_page(FILE *stream, const struct page_place *place, const struct strait_page_info *info)
{
    char modes[SURVEY_MODES_BYTES];

    survey_modes(modes, info->block_modes);
    fprintf(stream,
            "%8" PRIu64 " %7" PRIu32 " %14" PRIu64 " %9" PRIu32 " %9" PRIu32 " %7.4f %6" PRIu32 " %016" PRIx64
            "  %s %s\n",
            place->chunk, place->page, place->offset, info->page_bytes, info->coded_bytes,
            ratio_of(info->page_bytes, info->coded_bytes), info->table, info->sum, modes,
            place->tensor == NULL ? "" : place->tensor);
}

static cJSON *modes_json(uint32_t block_modes)
{
    cJSON *list = cJSON_CreateArray();

    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (block_modes >> m & 1)
            cJSON_AddItemToArray(list, cJSON_CreateString(block_mode_names[m]));
    return list;
}

cJSON *page_json(const struct page_place *place, const struct strait_page_info *info)
{
    cJSON *object = cJSON_CreateObject();
    char sum[17];

    snprintf(sum, sizeof(sum), "%016" PRIx64, info->sum);
    cJSON_AddNumberToObject(object, "chunk", (double)place->chunk);
    cJSON_AddNumberToObject(object, "page", place->page);
    cJSON_AddNumberToObject(object, "offset", (double)place->offset);
    cJSON_AddNumberToObject(object, "raw_bytes", info->page_bytes);
    cJSON_AddNumberToObject(object, "coded_bytes", info->coded_bytes);
    cJSON_AddNumberToObject(object, "table", info->table);
    cJSON_AddStringToObject(object, "sum", sum);
    cJSON_AddItemToObject(object, "modes", modes_json(info->block_modes));
    if (place->tensor != NULL)
        cJSON_AddStringToObject(object, "tensor", place->tensor);
    return object;
}

void print_top(FILE *stream, const uint8_t *ranking)
{
    for (unsigned r = 0; r < TOP_RANKS; r++)
        fprintf(stream, "%s%u", r > 0 ? " " : "", ranking[r]);
}

cJSON *top_json(const uint8_t *ranking)
{
    cJSON *list = cJSON_CreateArray();

    for (unsigned r = 0; r < TOP_RANKS; r++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(ranking[r]));
    return list;
}

void print_hex(FILE *stream, const uint8_t *bytes, unsigned size)
{
    for (unsigned i = 0; i < size; i++)
        fprintf(stream, "%02x", bytes[i]);
}

/* ---- The chunk ------------------------------------------------------------------------------------------------- */

static void print_chunk_pages(const struct survey *survey)
{
    struct page_place place = {0};

    print_pages_title(stdout);
    for (; place.page < survey->info.page_count; place.page++) {
        print_page(stdout, &place, survey_page(survey, place.page));
        place.offset += survey_page(survey, place.page)->page_bytes;
    }
}

static cJSON *chunk_pages_json(const struct survey *survey)
{
    struct page_place place = {0};
    cJSON *list = cJSON_CreateArray();

    for (; place.page < survey->info.page_count; place.page++) {
        cJSON_AddItemToArray(list, page_json(&place, survey_page(survey, place.page)));
        place.offset += survey_page(survey, place.page)->page_bytes;
    }
    return list;
}

static bool print_chunk(const struct input *input, const struct survey *survey, const struct inspect_options *options)
{
    printf("%s: Strait chunk, format %u\n", input->path, survey->info.version);
    printf("  size        %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f\n", survey->all.raw_bytes,
           survey->info.chunk_bytes, ratio_of(survey->all.raw_bytes, survey->info.chunk_bytes));
    printf("  codebook    ");
    print_hex(stdout, survey->info.codebook_id, STRAIT_CODEBOOK_ID_BYTES);
    putchar('\n');
    survey_print(survey, stdout);
    if (options->pages)
        print_chunk_pages(survey);
    return true;
}

static bool print_chunk_json(const struct input *input, const struct survey *survey,
                             const struct inspect_options *options)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "input", input->path);
    cJSON_AddStringToObject(object, "kind", "chunk");
    cJSON_AddNumberToObject(object, "format", survey->info.version);
    cJSON_AddNumberToObject(object, "chunk_bytes", (double)survey->info.chunk_bytes);
    json_add_hex(object, "codebook_id", survey->info.codebook_id, STRAIT_CODEBOOK_ID_BYTES);
    survey_json(survey, object);
    if (options->pages)
        cJSON_AddItemToObject(object, "page_list", chunk_pages_json(survey));
    return json_print(object, stdout);
}

bool inspect_chunk(const struct input *input, const struct inspect_options *options)
{
    struct survey survey;
    enum strait_status status = survey_init(&survey) ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    bool ok;

    if (status == STRAIT_OK)
        status = survey_add(&survey, input->data, input->size);
    ok = status == STRAIT_OK;
    if (!ok)
        print_error(input->path, "chunk: %s", strait_status_string(status));
    else
        ok = (options->json ? print_chunk_json : print_chunk)(input, &survey, options);
    survey_fini(&survey);
    return ok;
}
