#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/container.h"
#include "tools/pipeline.h"
#include "tools/util.h"

#define PROBE_BYTES  16u
#define LENGTH_BYTES 8u /* a safetensors file begins with the length of its header */

static bool no_memory(const struct source *source)
{
    print_error(source->name, "out of memory");
    return false;
}

static bool plan_plain(struct plan *plan, const struct source *source, enum strait_element element)
{
    return plan_init_plain(plan, source->size, element) || no_memory(source);
}

static bool plan_tensors(struct plan *plan, struct source *source, const struct class_rules *rules,
                         enum strait_element element)
{
    const char *why = "its header is too long";
    struct safetensors list;
    enum strait_status status = STRAIT_ERR_CORRUPT;
    bool planned;

    if (!source_peek(source, LENGTH_BYTES + load_le64(source->head.data)))
        return false;
    if (source->head_size <= CONTAINER_PREAMBLE_MAX)
        status = safetensors_init(&list, source->head.data, source->head_size, source->size, &why);
    if (status == STRAIT_ERR_NO_MEMORY)
        return no_memory(source);
    if (status != STRAIT_OK) {
        print_error(source->name, "warning: looks like a safetensors file, but %s; its tensors are not told apart",
                    why);
        return plan_plain(plan, source, element);
    }
    planned = plan_init_tensors(plan, source->size, &list, rules) || no_memory(source);
    plan_join(plan);
    safetensors_fini(&list);
    return planned;
}

bool examine(struct plan *plan, struct source *source, const struct class_rules *rules, enum strait_element element,
             bool raw)
{
    *plan = (struct plan){0};
    if (raw)
        return plan_plain(plan, source, element);
    if (!source_peek(source, PROBE_BYTES))
        return false;
    if (container_is_file(source->head.data, source->head_size)) {
        print_error(source->name, "is compressed already; --raw compresses it once more");
        return false;
    }
    if (!safetensors_probe(source->head.data, source->head_size, source->size))
        return plan_plain(plan, source, element);
    return plan_tensors(plan, source, rules, element);
}

struct ordered {
    const struct ordered_steps *steps;
    void *job;
    uint8_t *slots;
    size_t slot_bytes;
    pthread_mutex_t taking; /* held during `take`; guards taken and drained */
    uint64_t taken;
    bool drained;
    pthread_mutex_t giving; /* held during `give`; guards given, and who may set stopped */
    pthread_cond_t turn;
    uint64_t given;
    atomic_bool stopped; /* also read before taking: nothing is taken that would not be given */
};

static bool take(struct ordered *o, void *slot, uint64_t *ticket)
{
    bool taken;

    pthread_mutex_lock(&o->taking);
    taken = !o->drained && !o->stopped && o->steps->take(o->job, slot);
    o->drained = !taken;
    *ticket = o->taken;
    o->taken += taken;
    pthread_mutex_unlock(&o->taking);
    return taken;
}

/* Every ticket passes here, also after a stop, so that no thread waits for a turn that never comes. */
static bool give(struct ordered *o, void *slot, uint64_t ticket)
{
    bool go_on;

    pthread_mutex_lock(&o->giving);
    while (o->given != ticket)
        pthread_cond_wait(&o->turn, &o->giving);
    go_on = !o->stopped && o->steps->give(o->job, slot);
    o->stopped = !go_on;
    o->given++;
    pthread_cond_broadcast(&o->turn);
    pthread_mutex_unlock(&o->giving);
    return go_on;
}

static void worker(void *arg, unsigned index)
{
    struct ordered *o = arg;
    void *slot = o->slots + index * o->slot_bytes;
    uint64_t ticket;

    while (take(o, slot, &ticket)) {
        o->steps->work(o->job, slot);
        if (!give(o, slot, ticket))
            return;
    }
}

bool ordered_run(const struct ordered_steps *steps, void *job, size_t slot_bytes, unsigned threads)
{
    struct ordered o = {.steps = steps, .job = job, .slots = calloc(threads, slot_bytes), .slot_bytes = slot_bytes};

    if (o.slots == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    pthread_mutex_init(&o.taking, NULL);
    pthread_mutex_init(&o.giving, NULL);
    pthread_cond_init(&o.turn, NULL);
    parallel_run(threads, worker, &o);
    pthread_cond_destroy(&o.turn);
    pthread_mutex_destroy(&o.giving);
    pthread_mutex_destroy(&o.taking);
    for (unsigned t = 0; t < threads; t++)
        steps->release(o.slots + t * slot_bytes);
    free(o.slots);
    return true;
}

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
    if (element == STRAIT_ELEMENT_BYTES || plan->mode == STRAIT_MODE_RAW)
        return false;
    return element == STRAIT_ELEMENT_BF16 || plan->mode == STRAIT_MODE_AUTO || plan->mode == STRAIT_MODE_BASE ||
           plan->mode == STRAIT_MODE_SPLIT || plan->mode == STRAIT_MODE_PARTS;
}

bool plan_tables(const struct plan *plan, enum strait_element element)
{
    bool fp8 = element == STRAIT_ELEMENT_FP8_E4M3 || element == STRAIT_ELEMENT_FP8_E5M2; /* has its own rankings */
    return plan_codes(plan, element) && plan->mode != STRAIT_MODE_BASE && !fp8;
}

bool plan_has_tables(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->segment_count; i++)
        if (plan_tables(plan, plan->segments[i].element))
            return true;
    return false;
}

void plan_set_mode(struct plan *plan, enum strait_mode mode)
{
    plan->mode = mode;
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        struct segment *segment = &plan->segments[i];
        segment->mode = mode;
        if (mode == STRAIT_MODE_AUTO)
            segment->mode = plan_tables(plan, segment->element) ? STRAIT_MODE_SPLIT : STRAIT_MODE_BASE;
    }
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

static bool has_modes(enum strait_element element)
{
    return element != STRAIT_ELEMENT_BYTES;
}

/* Whether values of the segment continue those of the one before. small: that one consists of small tensors. */
static bool joins(const struct segment *before, bool small, const struct segment *segment)
{
    uint64_t bytes = segment->end - segment->begin, length = before->end - before->begin;

    if ((bytes <= PLAN_TINY_BYTES / 2 || (bytes <= PLAN_TINY_BYTES && !has_modes(segment->element))) &&
        bytes % element_bytes(before->element) == 0 && length % element_bytes(before->element) == 0)
        return true;
    if (segment->element != before->element)
        return false;
    return !has_modes(segment->element) || (small && bytes <= PLAN_SMALL_BYTES);
}

void plan_join(struct plan *plan)
{
    uint32_t last = 0;
    bool small = false;

    for (uint32_t i = 0; i < plan->segment_count; i++) {
        const struct segment segment = plan->segments[i];
        struct segment *before = &plan->segments[last];

        if (i > 0 && segment.end != UINT64_MAX && joins(before, small, &segment)) {
            if (small && (before->class.role != segment.class.role || before->class.layer != segment.class.layer))
                before->class = no_class;
            before->end = segment.end;
            continue;
        }
        last += i > 0;
        plan->segments[last] = segment;
        small = segment.end - segment.begin <= PLAN_SMALL_BYTES;
    }
    if (plan->segment_count > 0)
        plan->segment_count = last + 1;
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
    add_segment(plan, (struct segment){begin, end, STRAIT_ELEMENT_BYTES, no_class, STRAIT_MODE_AUTO, 0});
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
                                           class_of(rules, tensor->name), STRAIT_MODE_AUTO, 0});
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
    bool used;
};

struct numbering {
    uint32_t count;              /* tables so far */
    struct shared_table *shared; /* a hash table of `slots`, a power of two above the number of segments */
    uint32_t slots;
};

/* When the set is full, all further tensors share the first table. */
static uint32_t new_table(struct numbering *numbering)
{
    return numbering->count < STRAIT_CODEBOOK_TABLES_MAX ? numbering->count++ : 0;
}

static uint32_t class_table(struct numbering *numbering, struct strait_class class)
{
    uint64_t hash = ((uint64_t) class.role << 32 | (uint32_t) class.layer) * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t at = (uint32_t)(hash >> 32) & (numbering->slots - 1);

    for (;; at = (at + 1) & (numbering->slots - 1)) {
        struct shared_table *shared = &numbering->shared[at];
        if (!shared->used)
            *shared = (struct shared_table){class, new_table(numbering), true};
        if (shared->class.role == class.role && shared->class.layer == class.layer)
            return shared->table;
    }
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
    struct numbering numbering = {.slots = 1};

    while (numbering.slots <= plan->segment_count)
        numbering.slots *= 2;
    numbering.shared = calloc(numbering.slots, sizeof(struct shared_table));
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

/* The second half of plan.h: cuts chunks off a plan, one after another. */

#define BLOCK_BYTES (2 * STRAIT_BLOCK_VALUES)

/* Contents of a chunk so far. */
struct load {
    uint64_t bytes;
    uint64_t pages;
    uint64_t blocks; /* of its longest page */
};

static bool add_run(struct cut *cut, struct run run)
{
    if (cut->run_count == cut->run_capacity) {
        uint32_t capacity = cut->run_capacity * 2 + 16;
        struct run *grown = realloc(cut->runs, capacity * sizeof(*grown));
        if (grown == NULL)
            return false;
        cut->runs = grown;
        cut->run_capacity = capacity;
    }
    cut->runs[cut->run_count++] = run;
    return true;
}

/* How many of the `left` bytes of a segment fit into a chunk with room for `room` bytes and `room_pages` pages: all of
 * them, or as many whole pages as fit. */
static uint64_t fitting(uint64_t left, uint64_t room, uint64_t room_pages, uint64_t page_bytes)
{
    uint64_t pages = room / page_bytes;

    if (left <= room && (left + page_bytes - 1) / page_bytes <= room_pages)
        return left;
    return (pages < room_pages ? pages : room_pages) * page_bytes;
}

static struct load add_load(struct load load, uint64_t bytes, uint64_t page_bytes)
{
    uint64_t longest = bytes < page_bytes ? bytes : page_bytes;
    uint64_t blocks = (longest + BLOCK_BYTES - 1) / BLOCK_BYTES;

    return (struct load){
        .bytes = load.bytes + bytes,
        .pages = load.pages + (bytes + page_bytes - 1) / page_bytes,
        .blocks = blocks > load.blocks ? blocks : load.blocks,
    };
}

/* For each page a chunk has as many block rows as its longest page has blocks (FORMAT.md, section 4), so short pages
 * next to a long one may cost more than they hold. Pages of a single segment stay far below the limit. */
static bool rows_are_few(const struct load *load)
{
    return 4 * load->pages * (load->blocks - 1) <= load->bytes / 64 + 4096;
}

/* Whether a segment cannot, or should not, be in a chunk with what the cut holds. */
static bool begins_chunk(const struct cutter *cutter, const struct segment *segment, const struct cut *cut)
{
    return segment->element != cut->element || segment->mode != cut->mode ||
           (cutter->apart_bytes > 0 && segment->end - segment->begin >= cutter->apart_bytes);
}

enum cut_result cutter_next(struct cutter *cutter, struct cut *cut)
{
    const struct plan *plan = cutter->plan;
    uint64_t page_bytes = cutter->page_bytes;
    struct load load = {0};

    cut->run_count = 0;
    while (cutter->segment < plan->segment_count) {
        const struct segment *segment = &plan->segments[cutter->segment];
        uint64_t bytes = fitting(segment->end - cutter->offset, cutter->chunk_bytes - load.bytes,
                                 STRAIT_CHUNK_PAGES_MAX - load.pages, page_bytes);
        struct load more = add_load(load, bytes, page_bytes);

        if (bytes == 0 || (cut->run_count > 0 && (begins_chunk(cutter, segment, cut) || !rows_are_few(&more))))
            break;
        cut->element = segment->element;
        cut->mode = segment->mode;
        if (!add_run(cut, (struct run){cutter->offset, bytes, segment->table,
                                       segment->table == 0 || segment->class.role == STRAIT_ROLE_OTHER ||
                                           segment->element != STRAIT_ELEMENT_BF16}))
            return CUT_NO_MEMORY;
        cutter->offset += bytes;
        load = more;
        cutter->segment += cutter->offset == segment->end;
    }
    return cut->run_count > 0 ? CUT_OK : CUT_END;
}

void cut_fini(struct cut *cut)
{
    free(cut->runs);
    *cut = (struct cut){0};
}
