#include "tools/checkpoint_survey.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/reader.h"
#include "tools/report.h"
#include "tools/util.h"

#define FILES_AT_ONCE 16u /* whose metadata are read: most of the time is the disk's */

/* ---- Kinds ------------------------------------------------------------------------------------------------------- */

/* Parts of names by which optimizers call what they keep: the first that a name has decides. */
static const struct {
    const char *part;
    const char *kind;
} kinds_of_names[] = {
    {"exp_avg_sq", "second moments"},  {"second_moment", "second moments"},
    {"max_exp_avg", "second moments"}, {"exp_avg", "first moments"},
    {"first_moment", "first moments"}, {"momentum_buffer", "first moments"},
    {"master", "master weights"},      {"fp32_from_fp16", "master weights"},
    {"optim", "optimizer, others"},    {"grad", "gradients"},
};

static const char *kind_of_name(const char *name, const char *dtype)
{
    if (strcmp(dtype, "BYTES") == 0)
        return "bytes";
    for (size_t i = 0; i < sizeof(kinds_of_names) / sizeof(kinds_of_names[0]); i++)
        if (strstr(name, kinds_of_names[i].part) != NULL)
            return kinds_of_names[i].kind;
    return "weights";
}

static int compare_kinds(const struct survey_kind *kind, const char *name, const char *dtype)
{
    const int order = strcmp(kind->name, name);
    return order != 0 ? order : strcmp(kind->dtype, dtype);
}

/* The place of a kind, which is added in the order of names; UINT32_MAX: no memory. */
static uint32_t find_kind(struct checkpoint_survey *survey, const char *name, const char *dtype)
{
    uint32_t at = 0;
    while (at < survey->kind_count && compare_kinds(&survey->kinds[at], name, dtype) < 0)
        at++;
    if (at < survey->kind_count && compare_kinds(&survey->kinds[at], name, dtype) == 0)
        return at;
    struct survey_kind *grown = realloc(survey->kinds, (survey->kind_count + (size_t)1) * sizeof(*grown));
    if (grown == NULL)
        return UINT32_MAX;
    survey->kinds = grown;
    memmove(grown + at + 1, grown + at, (survey->kind_count - at) * sizeof(*grown));
    grown[at] = (struct survey_kind){.name = name, .dtype = dtype};
    survey->kind_count++;
    return at;
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static void add_bytes(struct survey_bytes *sum, uint64_t raw, uint64_t stored)
{
    sum->raw += raw;
    sum->stored += stored;
}

static unsigned mode_of(uint32_t modes)
{
    unsigned mode = 0;
    while (modes >> 1 >> mode != 0)
        mode++;
    return mode;
}

/* Adds a shard that is stored, page by page. Of a page that it shares it has as much as of its values. */
static void add_pages(struct survey_kind *kind, struct survey_tensor *tensor,
                      const struct strait_checkpoint_reader *reader, const struct checkpoint_shard *shard,
                      const struct reader_page *pages)
{
    const uint64_t first = reader_first_page(reader, shard), count = checkpoint_shard_pages(shard);
    for (uint64_t p = 0; p < count; p++) {
        const struct reader_page *page = &pages[first + p];
        const uint64_t left = shard->bytes - p * shard->page_bytes;
        const uint64_t raw = left < shard->page_bytes ? left : shard->page_bytes;
        uint64_t stored = page[1].stored_before - page->stored_before;
        if (raw < page->raw_bytes)
            stored = stored * raw / page->raw_bytes; /* both below 2^25 */
        add_bytes(&tensor->all, raw, stored);
        add_bytes(&kind->all, raw, stored);
        add_bytes(&kind->modes[mode_of(page->modes)], raw, stored);
    }
}

static void add_shard(struct checkpoint_survey *survey, struct strait_checkpoint_reader *reader, uint32_t number,
                      const struct checkpoint_shard *shard)
{
    struct survey_tensor *tensor = &survey->tensors[number];
    struct survey_kind *kind = &survey->kinds[tensor->kind];
    const struct reader_page *pages = reader_pages(reader, shard->file);
    if (shard->bytes > 0 && shard->rounded_from != 0) {
        add_bytes(&tensor->all, shard->bytes, 0);
        add_bytes(&kind->all, shard->bytes, 0);
        add_bytes(&kind->modes[SURVEY_ROUNDED], shard->bytes, 0);
    } else if (pages == NULL) {
        tensor->unreadable = true;
    } else {
        add_pages(kind, tensor, reader, shard, pages);
    }
}

static const struct checkpoint_shard *shard_of(const struct strait_checkpoint_reader *reader, uint32_t tensor,
                                               uint32_t number)
{
    return &reader->index.shards[reader_shards(reader, tensor)[number]];
}

/* Files whose metadata threads read. */
struct file_queue {
    struct strait_checkpoint_reader *reader;
    _Atomic uint32_t next;
};

static void read_files(void *arg, unsigned index)
{
    struct file_queue *queue = arg;
    (void)index;
    for (uint32_t file; (file = atomic_fetch_add(&queue->next, 1)) < queue->reader->index.file_count;)
        (void)reader_pages(queue->reader, file);
}

bool checkpoint_survey_make(struct checkpoint_survey *survey, struct strait_checkpoint_reader *reader)
{
    const uint32_t count = reader->index.tensor_count;
    *survey = (struct checkpoint_survey){.tensors = calloc(count + (size_t)1, sizeof(*survey->tensors))};
    if (survey->tensors == NULL)
        return false;
    struct file_queue queue = {.reader = reader};
    const unsigned threads = reader->index.file_count < FILES_AT_ONCE ? reader->index.file_count : FILES_AT_ONCE;
    parallel_run(threads, read_files, &queue);
    for (uint32_t t = 0; t < count; t++) { /* all kinds first: their places change */
        const struct checkpoint_shard *shard = shard_of(reader, t, 0);
        if (find_kind(survey, kind_of_name(shard->name, shard->dtype->name), shard->dtype->name) == UINT32_MAX)
            return false;
    }
    for (uint32_t t = 0; t < count; t++) {
        const struct checkpoint_shard *shard = shard_of(reader, t, 0);
        survey->tensors[t].kind = find_kind(survey, kind_of_name(shard->name, shard->dtype->name), shard->dtype->name);
        survey->kinds[survey->tensors[t].kind].tensors++;
        for (uint32_t s = 0; s < reader->index.tensors[t].count; s++)
            add_shard(survey, reader, t, shard_of(reader, t, s));
    }
    for (uint32_t f = 0; f < reader->index.file_count; f++)
        survey->unreadable_files += reader_pages(reader, f) == NULL;
    return true;
}

void checkpoint_survey_fini(struct checkpoint_survey *survey)
{
    free(survey->tensors);
    free(survey->kinds);
    *survey = (struct checkpoint_survey){.tensors = NULL};
}

const char *survey_mode_name(unsigned mode)
{
    return mode == SURVEY_ROUNDED ? "rounded" : block_mode_names[mode];
}
