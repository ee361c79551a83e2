/* The second half of plan.h: cuts chunks off a plan, one after another. */
#include "tools/plan.h"

#include <stdlib.h>

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

        if (bytes == 0 || (cut->run_count > 0 && (segment->element != cut->element || !rows_are_few(&more))))
            break;
        cut->element = segment->element;
        if (!add_run(cut, (struct run){cutter->offset, bytes, segment->table}))
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
