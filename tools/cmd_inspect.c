/* strait inspect */
#include "tools/commands.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal/element.h"
#include "kernels/codebook_file.h"
#include "kernels/container.h"
#include "tools/decode_file.h"
#include "tools/files.h"
#include "tools/input.h"
#include "tools/kinds.h"
#include "tools/report.h"

static const char usage[] =
    "usage: strait inspect [OPTION]... FILE (- is stdin)\n"
    "\n"
    "Tells what is in a compressed file, a bare chunk or a codebook set, without decoding it. Headers, footer and\n"
    "sums of metadata are checked; strait decode --verify checks the values too.\n"
    "\n"
    "  --pages              one line for each page\n"
    "  --json               report as JSON\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data or failed input or output, 2 bad usage.\n";

struct inspect_options {
    bool json;
    bool pages; /* one line, or object, for each page */
};

/* ---- Statistics of chunks, from their tables, without decoding -------------------------------------------------- */

#define SURVEY_TABLES 65536u /* number of values of a page's table index */

/* Sums over the pages of one element type or table. */
struct survey_sum {
    uint64_t pages;
    uint64_t raw_bytes;
    uint64_t coded_bytes;
    uint64_t first_offset; /* in the data, of the first page */
};

struct survey {
    uint64_t chunks;
    uint64_t metadata_bytes;
    struct survey_sum all;
    struct survey_sum elements[ELEMENTS];
    struct survey_sum *tables;                   /* owned, SURVEY_TABLES of them; BF16 pages only */
    uint64_t mode_pages[STRAIT_BLOCK_MODES_ALL]; /* pages with a block of this mode: one page may count for several */

    struct strait_chunk_info info; /* of the last chunk added */
    struct buffer pages;           /* struct strait_page_info, info.page_count of them */
};

static const struct strait_page_info *survey_page(const struct survey *survey, uint32_t index)
{
    return (const struct strait_page_info *)survey->pages.data + index;
}

static bool survey_init(struct survey *survey)
{
    *survey = (struct survey){.tables = calloc(SURVEY_TABLES, sizeof(struct survey_sum))};
    return survey->tables != NULL;
}

static void survey_fini(struct survey *survey)
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
    const uint32_t coded = 1u << STRAIT_BLOCK_SPLIT | 1u << STRAIT_BLOCK_FP32Z | 1u << STRAIT_BLOCK_PARTS;
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

/* Adds a whole chunk. On failure nothing is added. */
static enum strait_status survey_add(struct survey *survey, const void *chunk, uint64_t chunk_bytes)
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

#define SURVEY_MODES_BYTES 64

/* "raw+tiered": the modes of a page. */
static void survey_modes(char text[SURVEY_MODES_BYTES], uint32_t block_modes)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (block_modes >> m & 1)
            used += (size_t)snprintf(text + used, SURVEY_MODES_BYTES - used, "%s%s", used > 0 ? "+" : "",
                                     block_mode_names[m]);
}

static void survey_print(const struct survey *survey, FILE *stream)
{
    fprintf(stream, "  chunks      %" PRIu64 ", of %" PRIu64 " pages, with %" PRIu64 " bytes of metadata\n",
            survey->chunks, survey->all.pages, survey->metadata_bytes);
    for (unsigned e = 0; e < ELEMENTS; e++) {
        const struct survey_sum *sum = &survey->elements[e];
        if (sum->pages > 0)
            fprintf(stream, "  %-11s %" PRIu64 " pages, %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f\n",
                    element_name(e), sum->pages, sum->raw_bytes, sum->coded_bytes,
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

static void survey_json(const struct survey *survey, cJSON *object)
{
    cJSON *list;

    cJSON_AddNumberToObject(object, "chunks", (double)survey->chunks);
    cJSON_AddNumberToObject(object, "metadata_bytes", (double)survey->metadata_bytes);
    sum_json(object, &survey->all);
    list = cJSON_AddObjectToObject(object, "elements");
    for (unsigned e = 0; e < ELEMENTS; e++)
        if (survey->elements[e].pages > 0)
            sum_json(cJSON_AddObjectToObject(list, element_name(e)), &survey->elements[e]);
    list = cJSON_AddObjectToObject(object, "mode_pages");
    for (unsigned m = 0; m < STRAIT_BLOCK_MODES_ALL; m++)
        if (block_mode_names[m] != NULL)
            cJSON_AddNumberToObject(list, block_mode_names[m], (double)survey->mode_pages[m]);
}

/* Where a page lies. */
struct page_place {
    uint64_t chunk;
    uint32_t page;
    uint64_t offset;    /* in the uncompressed bytes, of its first one */
    const char *tensor; /* NULL: unknown */
};

#define TOP_RANKS 16u

/* ---- Pages and tables ------------------------------------------------------------------------------------------ */

static void print_pages_title(FILE *stream)
{
    fprintf(stream, "%8s %7s %14s %9s %9s %7s %6s %-16s  %s\n", "chunk", "page", "offset", "raw", "coded", "ratio",
            "table", "sum", "modes, tensor");
}

static void print_page(FILE *stream, const struct page_place *place, const struct strait_page_info *info)
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

static cJSON *page_json(const struct page_place *place, const struct strait_page_info *info)
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

static void print_top(FILE *stream, const uint8_t *ranking)
{
    for (unsigned r = 0; r < TOP_RANKS; r++)
        fprintf(stream, "%s%u", r > 0 ? " " : "", ranking[r]);
}

static cJSON *top_json(const uint8_t *ranking)
{
    cJSON *list = cJSON_CreateArray();

    for (unsigned r = 0; r < TOP_RANKS; r++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(ranking[r]));
    return list;
}

static void print_hex(FILE *stream, const uint8_t *bytes, unsigned size)
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
    text_put(input->path, stdout);
    printf(": Strait chunk, format %u\n", survey->info.version);
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

static bool inspect_chunk(const struct input *input, const struct inspect_options *options)
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

/* A codebook set, or the histograms that sets are made of. */

/* ---- Sets ------------------------------------------------------------------------------------------------------ */

static bool print_set(const struct input *input, const struct strait_codebook *codebook)
{
    uint32_t count = strait_codebook_count(codebook);

    text_put(input->path, stdout);
    printf(": codebook set of %" PRIu32 " tables, id ", count);
    print_hex(stdout, strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    printf("\n%5s %-12s %13s  exponents, most frequent first\n", "table", "class", "expected bits");
    for (uint32_t t = 0; t < count; t++) {
        const uint32_t expected = strait_codebook_expected(codebook, t);
        char name[CLASS_NAME_BYTES] = "fallback";
        if (t > 0)
            class_name(name, strait_codebook_class(codebook, t));
        printf("%5" PRIu32 " %-12s ", t, name);
        if (expected > 0)
            printf("%13.3f  ", expected / 1000.0);
        else
            printf("%13s  ", "-");
        print_top(stdout, strait_codebook_ranking(codebook, t));
        putchar('\n');
    }
    return true;
}

static bool print_set_json(const struct input *input, const struct strait_codebook *codebook)
{
    cJSON *object = cJSON_CreateObject(), *list;

    cJSON_AddStringToObject(object, "input", input->path);
    cJSON_AddStringToObject(object, "kind", "codebook_set");
    json_add_hex(object, "codebook_id", strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES);
    list = cJSON_AddArrayToObject(object, "tables");
    for (uint32_t t = 0; t < strait_codebook_count(codebook); t++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "table", t);
        class_json(item, strait_codebook_class(codebook, t));
        json_add_known(item, "expected_bits", strait_codebook_expected(codebook, t) / 1000.0);
        cJSON_AddItemToObject(item, "top", top_json(strait_codebook_ranking(codebook, t)));
        cJSON_AddItemToArray(list, item);
    }
    return json_print(object, stdout);
}

/* ---- Histograms ------------------------------------------------------------------------------------------------ */

static uint64_t values_of(const struct codebook_histogram *histogram)
{
    uint64_t values = 0;

    for (unsigned e = 0; e < 256; e++)
        values += histogram->counts[e];
    return values;
}

static bool print_partial(const struct input *input, const struct codebook_histogram *list, uint32_t count)
{
    text_put(input->path, stdout);
    printf(": histograms of %" PRIu32 " classes\n%-20s %16s  exponents, most frequent first\n", count, "class",
           "values");
    for (uint32_t i = 0; i < count; i++) {
        uint8_t ranking[256];
        char name[CLASS_NAME_BYTES];
        strait_histogram_rank(ranking, list[i].counts);
        class_name(name, list[i].class);
        printf("%-20s %16" PRIu64 "  ", name, values_of(&list[i]));
        print_top(stdout, ranking);
        putchar('\n');
    }
    return true;
}

static bool print_partial_json(const struct input *input, const struct codebook_histogram *list, uint32_t count)
{
    cJSON *object = cJSON_CreateObject(), *classes;

    cJSON_AddStringToObject(object, "input", input->path);
    cJSON_AddStringToObject(object, "kind", "histograms");
    classes = cJSON_AddArrayToObject(object, "classes");
    for (uint32_t i = 0; i < count; i++) {
        cJSON *item = cJSON_CreateObject();
        class_json(item, list[i].class);
        cJSON_AddNumberToObject(item, "values", (double)values_of(&list[i]));
        cJSON_AddItemToArray(classes, item);
    }
    return json_print(object, stdout);
}

static bool inspect_partial(const struct input *input, const struct inspect_options *options)
{
    struct codebook_histogram *list;
    uint32_t count;
    bool ok;

    if (codebook_partial_parse(input->data, input->size, &list, &count) != STRAIT_OK)
        return false;
    ok = (options->json ? print_partial_json : print_partial)(input, list, count);
    free(list);
    return ok;
}

/* An input that is no set may be a partial file; if it is neither, the error is the one from reading it as a set. */
static bool inspect_set(const struct input *input, const struct inspect_options *options)
{
    struct strait_codebook *codebook;
    enum strait_status status = strait_codebook_parse(input->data, input->size, &codebook);
    bool ok;

    if (status != STRAIT_OK) {
        ok = inspect_partial(input, options);
        if (!ok && status == STRAIT_ERR_NO_MEMORY)
            print_error(input->path, "%s", strait_status_string(status));
        else if (!ok) {
            size_t offset;
            const char *fault = codebook_file_why(input->data, input->size, &offset);
            print_error(input->path, "codebook set: offset %zu: %s", offset, fault);
        }
        return ok;
    }
    ok = (options->json ? print_set_json : print_set)(input, codebook);
    strait_codebook_destroy(codebook);
    return ok;
}

/* A whole Strait file, read through its footer. */

struct file_view {
    const struct input *input;
    const struct inspect_options *options;
    struct container_header header;
    struct container_tail tail;
    const uint8_t *footer;
    uint32_t chunk_count;
    struct strait_codebook *codebook; /* NULL: no tables */
    struct safetensors tensors;       /* none unless the preamble is a safetensors header */
    struct survey survey;
    cJSON *page_list; /* with --json --pages */
};

static bool fail(const struct file_view *view, const char *where, enum strait_status status)
{
    print_error(view->input->path, "%s: %s", where, strait_status_string(status));
    return false;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static bool open_footer(struct file_view *view)
{
    uint64_t size = view->input->size;
    uint64_t begin = container_chunks_offset(&view->header);
    struct container_tail tail;
    enum strait_status status;

    if (size < begin + container_footer_bytes(0))
        return fail(view, "file", STRAIT_ERR_TRUNCATED);
    status = container_read_tail(&tail, view->input->data + size - CONTAINER_TAIL_BYTES);
    if (status != STRAIT_OK)
        return fail(view, "file has no footer", status);
    if (tail.footer_offset < begin || tail.footer_offset > size - container_footer_bytes(0))
        return fail(view, "footer", STRAIT_ERR_CORRUPT);
    view->footer = view->input->data + tail.footer_offset;
    status =
        container_check_footer(view->footer, size - tail.footer_offset, &view->header, &view->chunk_count, &view->tail);
    return status == STRAIT_OK || fail(view, "footer", status);
}

static bool open_tables(struct file_view *view)
{
    const uint8_t *tables = view->input->data + container_tables_offset(&view->header);
    enum strait_status status;

    if (view->header.table_count == 0)
        return true;
    status = strait_codebook_create((const uint8_t(*)[256])tables, NULL, view->header.table_count, &view->codebook);
    if (status != STRAIT_OK)
        return fail(view, "tables", status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_CORRUPT);
    if (memcmp(strait_codebook_id(view->codebook), view->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES) != 0)
        return fail(view, "tables", STRAIT_ERR_INTEGRITY);
    return true;
}

/* Takes names for the pages from the preamble, if it is a safetensors header. It may be anything else: no error. */
static void open_tensors(struct file_view *view)
{
    const uint8_t *preamble = view->input->data + CONTAINER_HEADER_BYTES;
    uint64_t size = view->header.preamble_bytes;
    const char *why;

    if (!safetensors_probe(preamble, size, view->tail.original_bytes) ||
        safetensors_init(&view->tensors, preamble, size, view->tail.original_bytes, &why) != STRAIT_OK)
        view->tensors = (struct safetensors){0};
    for (uint32_t i = 0; !view->options->json && i < view->tensors.count; i++) {
        struct safetensor *tensor = &view->tensors.tensors[i];
        char *printable = text_printable(tensor->name);
        if (printable != NULL) {
            free(tensor->name);
            tensor->name = printable;
        } else {
            tensor->name[0] = '\0';
        }
    }
}

/* The tensor at an offset of the uncompressed bytes, or NULL. Tensors are sorted by offset. */
static const char *tensor_at(const struct file_view *view, uint64_t offset)
{
    uint32_t low = 0, high = view->tensors.count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct safetensor *tensor = &view->tensors.tensors[middle];
        if (offset < tensor->begin)
            high = middle;
        else if (offset >= tensor->end)
            low = middle + 1;
        else
            return tensor->name;
    }
    return NULL;
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static void show_pages(struct file_view *view, uint32_t chunk, uint64_t offset)
{
    for (uint32_t i = 0; i < view->survey.info.page_count; i++) {
        const struct strait_page_info *info = survey_page(&view->survey, i);
        struct page_place place = {.chunk = chunk, .page = i, .offset = offset, .tensor = tensor_at(view, offset)};

        if (view->options->json)
            cJSON_AddItemToArray(view->page_list, page_json(&place, info));
        else
            print_page(stdout, &place, info);
        offset += info->page_bytes;
    }
}

/* Where the chunk lies was checked with the footer; what the footer says about the chunk is checked here. */
static enum strait_status add_chunk(struct file_view *view, const struct container_chunk *chunk)
{
    uint64_t raw_before = view->survey.all.raw_bytes;
    enum strait_status status;

    if (chunk->raw_offset != raw_before)
        return STRAIT_ERR_CORRUPT;
    status = survey_add(&view->survey, view->input->data + chunk->file_offset, chunk->chunk_bytes);
    if (status == STRAIT_OK && chunk->page_count != view->survey.info.page_count)
        return STRAIT_ERR_CORRUPT;
    return status;
}

static bool survey_chunks(struct file_view *view)
{
    uint64_t preamble = view->header.preamble_bytes;

    if (view->options->pages && !view->options->json)
        print_pages_title(stdout);
    for (uint32_t i = 0; i < view->chunk_count; i++) {
        struct container_chunk chunk = container_footer_chunk(view->footer, i);
        enum strait_status status = add_chunk(view, &chunk);

        if (status != STRAIT_OK) {
            print_error(view->input->path, "chunk %" PRIu32 " at byte %" PRIu64 ": %s", i, chunk.file_offset,
                        strait_status_string(status));
            return false;
        }
        if (view->options->pages)
            show_pages(view, i, preamble + chunk.raw_offset);
    }
    if (view->survey.all.raw_bytes == view->tail.original_bytes - preamble)
        return true;
    return fail(view, "pages do not add up to the original's length", STRAIT_ERR_CORRUPT);
}

/* ---- For people ------------------------------------------------------------------------------------------------ */

/* Tables have no names in a file, so each is shown with the first tensor that uses it. */
static void print_tables(const struct file_view *view)
{
    printf("%5s %9s %14s %14s %7s  %-28s %s\n", "table", "pages", "raw bytes", "coded bytes", "ratio", "first used by",
           "exponents, most frequent first");
    for (uint32_t t = 0; t < view->header.table_count; t++) {
        const struct survey_sum *sum = &view->survey.tables[t];
        const char *name = sum->pages == 0 ? NULL : tensor_at(view, view->header.preamble_bytes + sum->first_offset);

        printf("%5" PRIu32 " %9" PRIu64 " %14" PRIu64 " %14" PRIu64 " %7.4f  %-28s ", t, sum->pages, sum->raw_bytes,
               sum->coded_bytes, ratio_of(sum->raw_bytes, sum->coded_bytes), name == NULL ? "-" : name);
        print_top(stdout, strait_codebook_ranking(view->codebook, t));
        putchar('\n');
    }
}

static void print_file(const struct file_view *view)
{
    const struct container_tail *tail = &view->tail;
    char hex[DIGEST_HEX_BYTES];

    digest_hex(hex, tail->hash);
    text_put(view->input->path, stdout);
    printf(": Strait file, format %u\n", CONTAINER_VERSION);
    printf("  size        %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f\n", tail->original_bytes, view->input->size,
           ratio_of(tail->original_bytes, view->input->size));
    printf("  XXH3-128    %s\n", hex);
    printf("  preamble    %" PRIu64 " bytes", view->header.preamble_bytes);
    if (view->tensors.count > 0)
        printf(", a safetensors header of %" PRIu32 " tensors", view->tensors.count);
    printf("\n  codebook    %" PRIu32 " tables, %" PRIu32 " bytes, id ", view->header.table_count,
           view->header.table_count * CONTAINER_TABLE_BYTES);
    print_hex(stdout, view->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES);
    putchar('\n');
    survey_print(&view->survey, stdout);
    if (view->header.table_count > 0)
        print_tables(view);
}

/* ---- For machines ---------------------------------------------------------------------------------------------- */

static cJSON *tables_json(const struct file_view *view)
{
    cJSON *list = cJSON_CreateArray();

    for (uint32_t t = 0; t < view->header.table_count; t++) {
        const struct survey_sum *sum = &view->survey.tables[t];
        const char *name = sum->pages == 0 ? NULL : tensor_at(view, view->header.preamble_bytes + sum->first_offset);
        cJSON *item = cJSON_CreateObject();

        cJSON_AddNumberToObject(item, "table", t);
        cJSON_AddNumberToObject(item, "pages", (double)sum->pages);
        cJSON_AddNumberToObject(item, "raw_bytes", (double)sum->raw_bytes);
        cJSON_AddNumberToObject(item, "coded_bytes", (double)sum->coded_bytes);
        if (name != NULL)
            cJSON_AddStringToObject(item, "first_tensor", name);
        cJSON_AddItemToObject(item, "top", top_json(strait_codebook_ranking(view->codebook, t)));
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static bool print_file_json(struct file_view *view)
{
    const struct container_tail *tail = &view->tail;
    cJSON *object = cJSON_CreateObject();
    char hex[DIGEST_HEX_BYTES];

    digest_hex(hex, tail->hash);
    cJSON_AddStringToObject(object, "input", view->input->path);
    cJSON_AddStringToObject(object, "kind", "file");
    cJSON_AddNumberToObject(object, "format", CONTAINER_VERSION);
    cJSON_AddNumberToObject(object, "original_bytes", (double)tail->original_bytes);
    cJSON_AddNumberToObject(object, "plain_bytes", (double)view->input->size);
    cJSON_AddStringToObject(object, "xxh3_128", hex);
    cJSON_AddNumberToObject(object, "preamble_bytes", (double)view->header.preamble_bytes);
    cJSON_AddNumberToObject(object, "tensors", view->tensors.count);
    json_add_hex(object, "codebook_id", view->header.codebook_id, STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(object, "table_bytes", (double)view->header.table_count * CONTAINER_TABLE_BYTES);
    survey_json(&view->survey, object);
    cJSON_AddItemToObject(object, "tables", tables_json(view));
    if (view->options->pages)
        cJSON_AddItemToObject(object, "page_list", view->page_list);
    view->page_list = NULL; /* owned by the object from here on */
    return json_print(object, stdout);
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static bool inspect_view(struct file_view *view)
{
    enum strait_status status = container_read_header(&view->header, view->input->data, view->input->size);

    if (status != STRAIT_OK)
        return fail(view, "file header", status);
    if (!survey_init(&view->survey))
        return fail(view, "file", STRAIT_ERR_NO_MEMORY);
    if (!open_footer(view) || !open_tables(view))
        return false;
    open_tensors(view);
    if (view->options->json && view->options->pages)
        view->page_list = cJSON_CreateArray();
    if (!survey_chunks(view))
        return false;
    if (view->options->json)
        return print_file_json(view);
    print_file(view);
    return true;
}

static bool inspect_file(const struct input *input, const struct inspect_options *options)
{
    struct file_view view = {.input = input, .options = options};
    bool ok = inspect_view(&view);

    cJSON_Delete(view.page_list);
    survey_fini(&view.survey);
    safetensors_fini(&view.tensors);
    strait_codebook_destroy(view.codebook);
    return ok;
}

/* ---- The command ----------------------------------------------------------------------------------------------- */

static bool is_chunk(const struct input *input)
{
    return input->size >= 4 && memcmp(input->data, "STRC", 4) == 0;
}

static bool inspect(const char *path, const struct inspect_options *options)
{
    struct input input;
    bool ok = false;

    if (!input_open(&input, path))
        return false;
    if (container_is_file(input.data, input.size))
        ok = inspect_file(&input, options);
    else if (is_chunk(&input))
        ok = inspect_chunk(&input, options);
    else if (codebook_file_probe(input.data, input.size))
        ok = inspect_set(&input, options);
    else
        print_error(path, "neither a Strait file nor a chunk nor a codebook set");
    input_close(&input);
    return ok;
}

int cmd_inspect(int argc, char **argv)
{
    static char name[] = "strait inspect";
    struct inspect_options options = {0};
    const struct cli_option list[] = {{"pages", .flag = &options.pages}, {"json", .flag = &options.json}};
    enum exit_code code;

    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 1, "one FILE"))
        return EXIT_CODE_USAGE;
    return inspect(argv[optind], &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
