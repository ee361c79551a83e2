#include "tools/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DTYPES_MAX 64u /* no real input has more types; further names count as "other" */

static const struct strait_class no_class = {STRAIT_ROLE_OTHER, -1};

bool plan_init_plain(struct plan *plan, uint64_t size, enum strait_element element)
{
    *plan = (struct plan){0};
    if (size == 0)
        return true;
    plan->segments = malloc(sizeof(*plan->segments));
    if (plan->segments == NULL)
        return false;
    plan->segments[0] = (struct segment){.end = size, .element = element, .class = no_class};
    plan->segment_count = 1;
    return true;
}

void plan_fini(struct plan *plan)
{
    free(plan->segments);
    free(plan->dtypes);
    *plan = (struct plan){0};
}

bool plan_codes(const struct plan *plan, enum strait_element element)
{
    if (element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32)
        return plan->mode == STRAIT_MODE_BASE || plan->mode == STRAIT_MODE_SPLIT;
    return element == STRAIT_ELEMENT_BF16;
}

bool plan_tables(const struct plan *plan, enum strait_element element)
{
    return plan_codes(plan, element) && plan->mode != STRAIT_MODE_BASE;
}

bool plan_has_tables(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->segment_count; i++)
        if (plan_tables(plan, plan->segments[i].element))
            return true;
    return false;
}

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* The list has room for one gap before each tensor and one after the last. Empty segments are left out. */
static void add_segment(struct plan *plan, struct segment segment)
{
    if (segment.begin < segment.end)
        plan->segments[plan->segment_count++] = segment;
}

static void add_gap(struct plan *plan, uint64_t begin, uint64_t end)
{
    add_segment(plan, (struct segment){begin, end, STRAIT_ELEMENT_BYTES, no_class, 0});
}

static struct dtype_sum *find_dtype(struct plan *plan, const char *name, enum strait_element element)
{
    struct dtype_sum *sum = plan->dtypes;

    for (uint32_t i = 0; i < plan->dtype_count; i++, sum++)
        if (strcmp(sum->name, name) == 0)
            return sum;
    if (plan->dtype_count == DTYPES_MAX) {
        name = "other";
        sum--;
    } else {
        plan->dtype_count++;
    }
    sum->element = element;
    snprintf(sum->name, sizeof(sum->name), "%s", name);
    return sum;
}

static void add_dtype(struct plan *plan, const struct safetensor *tensor, enum strait_element element)
{
    struct dtype_sum *sum = find_dtype(plan, tensor->dtype, element);
    sum->tensors++;
    sum->bytes += tensor->end - tensor->begin;
}

bool plan_init_tensors(struct plan *plan, uint64_t size, const struct safetensors *list,
                       const struct class_rules *rules)
{
    uint64_t base = list->data_begin;
    uint64_t at = 0;

    *plan = (struct plan){.preamble_bytes = base};
    plan->segments = calloc((size_t)list->count * 2 + 1, sizeof(*plan->segments));
    plan->dtypes = calloc(DTYPES_MAX, sizeof(*plan->dtypes));
    if (plan->segments == NULL || plan->dtypes == NULL) {
        plan_fini(plan);
        return false;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        const struct safetensor *tensor = &list->tensors[i];
        enum strait_element element = safetensors_element(tensor->dtype);

        add_gap(plan, at, tensor->begin - base);
        add_segment(plan, (struct segment){tensor->begin - base, tensor->end - base, element,
                                           class_of(rules, tensor->name), 0});
        add_dtype(plan, tensor, element);
        at = tensor->end - base;
    }
    add_gap(plan, at, size == UINT64_MAX ? size : size - base);
    return true;
}

/* ---- Tables ---------------------------------------------------------------------------------------------------- */

void plan_use_tables(struct plan *plan, const struct strait_codebook *codebook)
{
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        struct segment *segment = &plan->segments[i];
        segment->table = plan_tables(plan, segment->element) ? strait_codebook_find(codebook, segment->class) : 0;
    }
}

/* The table shared by tensors of a class that are too small for one of their own. */
struct shared_table {
    struct strait_class class;
    uint32_t table;
};

struct numbering {
    uint32_t count; /* tables so far */
    struct shared_table *shared;
    uint32_t shared_count;
};

/* When the set is full, all further tensors share the first table. */
static uint32_t new_table(struct numbering *numbering)
{
    return numbering->count < STRAIT_CODEBOOK_TABLES_MAX ? numbering->count++ : 0;
}

/* Searches from the newest entry back, as tensors of one class tend to be adjacent. */
static uint32_t class_table(struct numbering *numbering, struct strait_class class)
{
    for (uint32_t i = numbering->shared_count; i-- > 0;) {
        const struct shared_table *shared = &numbering->shared[i];
        if (shared->class.role == class.role && shared->class.layer == class.layer)
            return shared->table;
    }
    numbering->shared[numbering->shared_count] = (struct shared_table){class, new_table(numbering)};
    return numbering->shared[numbering->shared_count++].table;
}

static void number_segment(struct numbering *numbering, const struct plan *plan, struct segment *segment)
{
    if (!plan_tables(plan, segment->element))
        segment->table = 0;
    else if (segment->end - segment->begin >= PLAN_OWN_TABLE_BYTES)
        segment->table = new_table(numbering);
    else
        segment->table = class_table(numbering, segment->class);
}

uint32_t plan_number_tables(struct plan *plan)
{
    struct numbering numbering = {.shared = calloc((size_t)plan->segment_count + 1, sizeof(struct shared_table))};

    if (numbering.shared == NULL)
        return 0;
    for (uint32_t i = 0; i < plan->segment_count; i++)
        number_segment(&numbering, plan, &plan->segments[i]);
    free(numbering.shared);
    return numbering.count;
}

uint32_t cut_pages(const struct cut *cut, uint64_t page_bytes)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < cut->run_count; i++)
        pages += (cut->runs[i].bytes + page_bytes - 1) / page_bytes;
    return (uint32_t)pages; /* cutter_next keeps it within STRAIT_CHUNK_PAGES_MAX */
}
