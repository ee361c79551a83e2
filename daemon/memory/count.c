#include "daemon/memory/count.h"

#include <internal/element.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/memory/job.h"
#include "kernels/codebook_file.h"

#define SLICE_BYTES (32u * 1024) /* copied from a page at a time: for so long its owner may have to wait */

struct part {
    const uint8_t *page;
    uint64_t row_stride;
    uint32_t rows, row_bytes;
    enum strait_element element;
    uint32_t class; /* index of its class_count */
};

struct count {
    count_done *done;
    void *owner;
    pthread_mutex_t pages; /* held while pages are read */
    atomic_bool stopped;
    uint64_t bytes, nanoseconds;
    uint32_t part_count, class_count;
    struct part parts[COUNT_PARTS_MAX];
    struct class_count classes[COUNT_CLASSES_MAX];
};

struct count *count_create(void)
{
    struct count *count = calloc(1, sizeof(*count));
    if (count != NULL && pthread_mutex_init(&count->pages, NULL) != 0) {
        free(count);
        return NULL;
    }
    return count;
}

void count_destroy(struct count *count)
{
    if (count == NULL)
        return;
    pthread_mutex_destroy(&count->pages);
    free(count);
}

void count_clear(struct count *count)
{
    memset(count->classes, 0, count->class_count * sizeof(count->classes[0]));
    count->part_count = count->class_count = 0;
    count->bytes = 0;
    atomic_store(&count->stopped, false);
}

/* ---- Filling ----------------------------------------------------------------------------------------------------- */

bool count_takes(enum strait_element element)
{
    static const uint8_t none[1];
    uint64_t counts[256];
    return strait_histogram_add_values(counts, element, none, 0) == STRAIT_OK;
}

/* COUNT_CLASSES_MAX: there are too many. */
static uint32_t find_class(struct count *count, struct strait_class class)
{
    uint32_t at = 0;
    while (at < count->class_count && codebook_class_compare(count->classes[at].class, class) != 0)
        at++;
    if (at == count->class_count && at < COUNT_CLASSES_MAX)
        count->classes[count->class_count++].class = class;
    return at;
}

bool count_add(struct count *count, struct strait_class class, enum strait_element element,
               const struct strait_region *region, uint32_t id)
{
    const uint64_t bytes = (uint64_t)region->rows * region->row_bytes;
    if (count->part_count == COUNT_PARTS_MAX || (count->part_count > 0 && count->bytes + bytes > COUNT_BYTES))
        return false;
    const uint32_t at = find_class(count, class);
    if (at == COUNT_CLASSES_MAX)
        return false;
    count->parts[count->part_count++] = (struct part){.page = (const uint8_t *)region->base + id * region->page_stride,
                                                      .row_stride = region->row_stride,
                                                      .rows = region->rows,
                                                      .row_bytes = region->row_bytes,
                                                      .element = element,
                                                      .class = at};
    count->bytes += bytes;
    return true;
}

uint64_t count_size(const struct count *count)
{
    return count->bytes;
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/* Where in a page the next slice begins. */
struct place {
    uint32_t row, offset;
};

/* Copies the next bytes of a page, row by row, and returns how many: counting them takes longer, and needs no page. */
static uint32_t copy_slice(const struct part *part, struct place *place, uint8_t slice[SLICE_BYTES])
{
    uint32_t size = 0;
    while (size < SLICE_BYTES && place->row < part->rows) {
        const uint32_t left = part->row_bytes - place->offset, room = SLICE_BYTES - size;
        const uint32_t bytes = left < room ? left : room;
        memcpy(slice + size, part->page + place->row * part->row_stride + place->offset, bytes);
        size += bytes;
        place->offset = bytes < left ? place->offset + bytes : 0;
        place->row += bytes == left;
    }
    return size;
}

/* The next slice, with the pages locked for as long as it is copied. 0: there is none, or the pages are wanted back. */
static uint32_t take_slice(struct count *count, const struct part *part, struct place *place,
                           uint8_t slice[SLICE_BYTES])
{
    uint32_t size = 0;
    if (atomic_load(&count->stopped)) /* or count_stop might wait for several slices */
        return 0;
    pthread_mutex_lock(&count->pages);
    if (!atomic_load(&count->stopped))
        size = copy_slice(part, place, slice);
    pthread_mutex_unlock(&count->pages);
    return size;
}

static void work(void *arg)
{
    struct count *count = arg;
    const uint64_t began = uv_hrtime();
    uint8_t slice[SLICE_BYTES];
    for (uint32_t p = 0; p < count->part_count; p++) {
        const struct part *part = &count->parts[p];
        struct class_count *class = &count->classes[part->class];
        struct place place = {0};
        uint32_t size;
        while ((size = take_slice(count, part, &place, slice)) > 0) {
            (void)strait_histogram_add_values(class->counts, part->element, slice, size / element_bytes(part->element));
            class->bytes += size;
        }
    }
    count->nanoseconds = uv_hrtime() - began;
}

static void on_done(void *arg)
{
    struct count *count = arg;
    count->done(count->owner, count);
}

bool count_start(struct count *count, struct jobs *jobs, count_done *done, void *owner)
{
    count->done = done;
    count->owner = owner;
    return job_call(jobs, work, on_done, count) == STRAIT_OK;
}

void count_stop(struct count *count)
{
    atomic_store(&count->stopped, true);
    pthread_mutex_lock(&count->pages);
    pthread_mutex_unlock(&count->pages);
}

const struct class_count *count_results(const struct count *count, uint32_t *class_count)
{
    *class_count = count->class_count;
    return count->classes;
}

uint64_t count_nanoseconds(const struct count *count)
{
    return count->nanoseconds;
}
