#include "collective/engine/shape.h"

#include "collective/engine/gpu.h"
#include "collective/engine/levels.h"

#define LINE    128u
#define RAW_MAX (UINT64_C(1) << 31) /* a chunk is shorter than 4 GiB */

static uint64_t lines(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static enum strait_element element_of(coll_type type)
{
    return type == COLL_BF16 ? STRAIT_ELEMENT_BF16 : type == COLL_FP16 ? STRAIT_ELEMENT_FP16 : STRAIT_ELEMENT_FP32;
}

static struct strait_region region_at(void *raw, uint32_t page, uint32_t count)
{
    return (struct strait_region){
        .base = raw, .page_stride = page, .row_stride = page, .page_count = count, .rows = 1, .row_bytes = page};
}

/* A bound depends on sizes only, but the call requires an address. */
static uint64_t bound_of(uint32_t page, uint32_t count)
{
    static uint64_t somewhere;
    struct strait_region region = region_at(&somewhere, page, count);
    struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = count};
    return strait_encode_bound(&pages);
}

bool shape_of(struct shape *shape, coll_type type, uint64_t count, unsigned level)
{
    const uint64_t size = type == COLL_FP32 ? 4 : 2;
    const unsigned share = levels_share(type, level);
    if (share == 0 || count > RAW_MAX / size || count * size < SHAPE_PAGE)
        return false;
    *shape = (struct shape){.element = element_of(type), .raw = count * size};
    shape->pages = (uint32_t)(shape->raw / SHAPE_PAGE);
    shape->tail_bytes = (uint32_t)(shape->raw % SHAPE_PAGE);
    uint64_t at = HEAD_BYTES;
    if (shape->tail_bytes > 0) {
        shape->tail_at = at;
        shape->tail_room = lines(bound_of(shape->tail_bytes, 1));
        at += shape->tail_room;
    }
    shape->main_at = at;
    shape->main_bound = bound_of(SHAPE_PAGE, shape->pages);
    shape->main_room = lines((uint64_t)shape->pages * SHAPE_PAGE / 1024 * share);
    shape->message = at + shape->main_room;
    shape->encoded = at + lines(shape->main_bound);
    return shape->main_bound > shape->main_room && shape->message < shape->raw;
}

unsigned shape_parts(const struct shape *shape, void *raw, struct shape_part parts[2])
{
    uint8_t *bytes = raw;
    unsigned count = 0;
    if (shape->tail_at != 0)
        parts[count++] = (struct shape_part){
            .region = region_at(bytes + (uint64_t)shape->pages * SHAPE_PAGE, shape->tail_bytes, 1),
            .at = shape->tail_at,
            .room = shape->tail_room,
            .bound = shape->tail_room,
        };
    parts[count++] = (struct shape_part){
        .region = region_at(bytes, SHAPE_PAGE, shape->pages),
        .at = shape->main_at,
        .room = shape->main_room,
        .bound = shape->encoded - shape->main_at,
    };
    return count;
}

struct strait_pages shape_pages(const struct shape_part *part)
{
    return (struct strait_pages){.regions = &part->region, .region_count = 1, .id_count = part->region.page_count};
}
