/* Pages to pages under one daemon. On one GPU they are copied where they are; otherwise they are gathered into a stage,
 * which crosses in one piece, and scattered from there: only memory of our own has to be reachable from both sides. */
#include <string.h>

#include "daemon/device/cuda/cuda.h"

#define STAGE_BYTES ((size_t)STRAIT_PAGE_BYTES_MAX)
#define MOVES_MAX   16384u
#define PIECE_BYTES (64u * 1024) /* of a page without gaps: the part that one thread block copies */
#define MOST        4096u        /* moves of a page: pieces, or the fewer of its rows and columns, which have 2 bytes */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

cudaError_t copier_init(struct copier *copier)
{
    cudaError_t error = cudaStreamCreateWithFlags(&copier->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&copier->event, cudaEventDisableTiming);
    return error;
}

void copier_fini(struct copier *copier)
{
    cudaFreeHost(copier->moves);
    cudaFreeHost(copier->host_stage);
    cudaFree(copier->device_stage);
    if (copier->event != NULL)
        cudaEventDestroy(copier->event);
    if (copier->stream != NULL)
        cudaStreamDestroy(copier->stream);
    pthread_mutex_destroy(&copier->lock);
}

/* Allocates on first use: most daemons never copy this way. */
static cudaError_t prepare(struct device *device, bool host_stage, bool device_stage)
{
    struct copier *copier = &device->copier;
    cudaError_t error = cudaSetDevice(device->number);
    if (error == cudaSuccess && copier->moves == NULL)
        error = cudaHostAlloc((void **)&copier->moves, 2 * MOVES_MAX * sizeof(struct move),
                              cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess && host_stage && copier->host_stage == NULL)
        error = cudaHostAlloc((void **)&copier->host_stage, STAGE_BYTES, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess && device_stage && copier->device_stage == NULL)
        error = cudaMalloc((void **)&copier->device_stage, STAGE_BYTES);
    return error;
}

/* ---- What is to be moved ----------------------------------------------------------------------------------------- */

/* Position of a copy: page `page` of the lists, in their order. */
struct walk {
    const struct strait_pages *to, *from;
    uint32_t page, pages;
};

static bool has_columns(const struct strait_region *region)
{
    return region->columns > 1;
}

static bool is_plain(const struct strait_region *region)
{
    return !has_columns(region) && (region->rows == 1 || region->row_stride == region->row_bytes);
}

/* Pages that are moved row by row: those of one list have no gaps, or both have the same rows. */
static bool is_direct(const struct strait_region *to, const struct strait_region *from)
{
    return !has_columns(to) && !has_columns(from) &&
           (is_plain(to) || is_plain(from) || (to->rows == from->rows && to->row_bytes == from->row_bytes));
}

static bool all_direct(const struct walk *walk)
{
    for (uint32_t r = 0; r < walk->to->region_count; r++)
        if (!is_direct(&walk->to->regions[r], &walk->from->regions[r]))
            return false;
    return true;
}

static uint8_t *page_of(const struct strait_pages *pages, uint32_t page)
{
    const struct strait_region *region = &pages->regions[page / pages->id_count];
    return (uint8_t *)region->base + pages->ids[page % pages->id_count] * region->page_stride;
}

/* The move of a page to another, by the rows of one of them. */
static struct move direct_move(const struct walk *walk)
{
    const struct strait_region *to = &walk->to->regions[walk->page / walk->to->id_count];
    const struct strait_region *from = &walk->from->regions[walk->page / walk->to->id_count];
    const struct strait_region *rows = is_plain(to) ? from : to;
    return (struct move){.to = page_of(walk->to, walk->page),
                         .from = page_of(walk->from, walk->page),
                         .to_stride = is_plain(to) ? rows->row_bytes : to->row_stride,
                         .from_stride = is_plain(from) ? rows->row_bytes : from->row_stride,
                         .rows = rows->rows,
                         .row_bytes = rows->row_bytes};
}

/* Adds the moves of a page, in pieces when the page has no gaps. Returns their number. */
static uint32_t add_move(struct move *moves, struct move whole)
{
    uint32_t count = 0;
    if (whole.to_stride == whole.row_bytes && whole.from_stride == whole.row_bytes) {
        uint32_t bytes = whole.rows * whole.row_bytes;
        for (uint32_t at = 0; at < bytes; at += PIECE_BYTES) {
            struct move piece = {.to = whole.to + at, .from = whole.from + at, .rows = 1};
            piece.row_bytes = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
            piece.to_stride = piece.from_stride = piece.row_bytes;
            moves[count++] = piece;
        }
    } else {
        moves[count++] = whole;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t all = (uintptr_t)moves[i].to | (uintptr_t)moves[i].from | moves[i].row_bytes | 16;
        if (moves[i].rows > 1)
            all |= moves[i].to_stride | moves[i].from_stride;
        moves[i].width = (uint32_t)(all & -all);
    }
    return count;
}

/* How a part of a page, of equal pieces at one distance, lies in memory and in the stage. */
struct part {
    uint8_t *memory;
    uint64_t offset; /* in the stage */
    uint64_t stride, stage_stride;
    uint32_t rows, row_bytes;
};

/* Rows of columns are several moves: one for each row, or for each column. */
static uint32_t parts_of(const struct strait_region *region)
{
    return !has_columns(region) ? 1 : region->rows < region->columns ? region->rows : region->columns;
}

static struct part part_of(const struct strait_region *region, uint8_t *page, uint32_t i)
{
    if (!has_columns(region))
        return (struct part){page,
                             0,
                             is_plain(region) ? region->row_bytes : region->row_stride,
                             region->row_bytes,
                             region->rows,
                             region->row_bytes};
    const uint32_t piece = region->row_bytes / region->columns;
    if (region->rows < region->columns)
        return (struct part){page + i * region->row_stride,
                             (uint64_t)i * region->row_bytes,
                             region->column_stride,
                             piece,
                             region->columns,
                             piece};
    return (struct part){page + (uint64_t)i * region->column_stride,
                         (uint64_t)i * piece,
                         region->row_stride,
                         region->row_bytes,
                         region->rows,
                         piece};
}

/* Adds the moves of a page to the stage, or from there. Returns their number. */
static uint32_t add_staged(struct move *moves, const struct strait_pages *pages, uint32_t page, uint8_t *stage, bool in)
{
    const struct strait_region *region = &pages->regions[page / pages->id_count];
    uint32_t count = 0;
    for (uint32_t i = 0; i < parts_of(region); i++) {
        const struct part part = part_of(region, page_of(pages, page), i);
        uint8_t *staged = stage + part.offset;
        count += add_move(moves + count, (struct move){.to = in ? staged : part.memory,
                                                       .from = in ? part.memory : staged,
                                                       .to_stride = in ? part.stage_stride : part.stride,
                                                       .from_stride = in ? part.stride : part.stage_stride,
                                                       .rows = part.rows,
                                                       .row_bytes = part.row_bytes});
    }
    return count;
}

/* The moves of the next pages that fit; each page is moved to the stage and from there, or (stages NULL) directly. */
static void next_moves(struct walk *walk, uint8_t *gather_stage, uint8_t *scatter_stage, struct move *gather,
                       uint32_t *gathers, struct move *scatter, uint32_t *scatters, size_t *bytes)
{
    *gathers = *scatters = 0;
    *bytes = 0;
    for (; walk->page < walk->pages && *gathers + MOST <= MOVES_MAX && *scatters + MOST <= MOVES_MAX; walk->page++) {
        const struct strait_region *region = &walk->to->regions[walk->page / walk->to->id_count];
        size_t size = (size_t)region->rows * region->row_bytes, room = (size + 15) & ~(size_t)15;
        if (gather_stage == NULL) {
            *gathers += add_move(gather + *gathers, direct_move(walk));
            continue;
        }
        if (*bytes + size > STAGE_BYTES)
            return;
        *gathers += add_staged(gather + *gathers, walk->from, walk->page, gather_stage + *bytes, true);
        *scatters += add_staged(scatter + *scatters, walk->to, walk->page, scatter_stage + *bytes, false);
        *bytes += room < STAGE_BYTES - *bytes ? room : STAGE_BYTES - *bytes;
    }
}

static void move_on_host(const struct move *moves, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t r = 0; r < moves[i].rows; r++)
            memcpy(moves[i].to + r * moves[i].to_stride, moves[i].from + r * moves[i].from_stride, moves[i].row_bytes);
}

/* ---- The ways ---------------------------------------------------------------------------------------------------- */

static cudaError_t move_on_device(struct device *device, const struct move *moves, uint32_t count)
{
    cudaError_t error = cudaSetDevice(device->number);
    if (error == cudaSuccess)
        error = moves_launch(moves, count, device->copier.stream);
    return error == cudaSuccess ? cudaStreamSynchronize(device->copier.stream) : error;
}

static cudaError_t copy_with_host(struct device *device, bool to_device, struct walk *walk)
{
    struct copier *copier = &device->copier;
    uint32_t gathers, scatters;
    size_t bytes;
    cudaError_t error = prepare(device, true, false);
    struct move *gather = copier->moves, *scatter = copier->moves + MOVES_MAX;
    while (error == cudaSuccess && walk->page < walk->pages) {
        next_moves(walk, copier->host_stage, copier->host_stage, gather, &gathers, scatter, &scatters, &bytes);
        if (to_device)
            move_on_host(gather, gathers);
        error = to_device ? move_on_device(device, scatter, scatters) : move_on_device(device, gather, gathers);
        if (!to_device && error == cudaSuccess)
            move_on_host(scatter, scatters);
    }
    return error;
}

static cudaError_t copy_across(struct device *to, struct device *from, struct walk *walk)
{
    uint32_t gathers, scatters;
    size_t bytes;
    cudaError_t error = prepare(to, false, true);
    if (error == cudaSuccess)
        error = prepare(from, false, true);
    /* Peer access between the two: the driver uses the shortest way between the stages that was opened. */
    int can = 0;
    if (cudaSetDevice(from->number) == cudaSuccess &&
        cudaDeviceCanAccessPeer(&can, from->number, to->number) == cudaSuccess && can)
        (void)cudaDeviceEnablePeerAccess(to->number, 0);
    (void)cudaGetLastError(); /* it may have been opened already */
    struct move *gather = from->copier.moves, *scatter = to->copier.moves;
    while (error == cudaSuccess && walk->page < walk->pages) {
        next_moves(walk, from->copier.device_stage, to->copier.device_stage, gather, &gathers, scatter, &scatters,
                   &bytes);
        error = move_on_device(from, gather, gathers);
        if (error == cudaSuccess)
            error = cudaMemcpyPeerAsync(to->copier.device_stage, to->number, from->copier.device_stage, from->number,
                                        bytes, from->copier.stream);
        if (error == cudaSuccess)
            error = cudaStreamSynchronize(from->copier.stream);
        if (error == cudaSuccess)
            error = move_on_device(to, scatter, scatters);
    }
    return error;
}

/* Rows of both sides that differ go by way of the stage. */
static cudaError_t copy_within(struct device *device, struct walk *walk)
{
    const bool staged = !all_direct(walk);
    uint32_t gathers, scatters;
    size_t bytes;
    cudaError_t error = prepare(device, false, staged);
    struct copier *copier = &device->copier;
    uint8_t *stage = staged ? copier->device_stage : NULL;
    struct move *gather = copier->moves, *scatter = copier->moves + MOVES_MAX;
    while (error == cudaSuccess && walk->page < walk->pages) {
        next_moves(walk, stage, stage, gather, &gathers, scatter, &scatters, &bytes);
        error = move_on_device(device, gather, gathers);
        if (error == cudaSuccess && scatters > 0)
            error = move_on_device(device, scatter, scatters);
    }
    return error;
}

static cudaError_t copy_any(struct device *to, struct device *from, struct walk *walk)
{
    if (to == from)
        return copy_within(to, walk);
    return to == NULL || from == NULL ? copy_with_host(to != NULL ? to : from, to != NULL, walk)
                                      : copy_across(to, from, walk);
}

/* Locks in the order of device numbers, so that two copies cannot deadlock. */
static void lock_both(struct device *a, struct device *b, int (*lock)(pthread_mutex_t *))
{
    struct device *first = a == NULL || (b != NULL && b->number < a->number) ? b : a;
    struct device *second = first == a ? b : a;
    lock(&first->copier.lock);
    if (second != NULL && second != first)
        lock(&second->copier.lock);
}

enum strait_status copy_pages(struct device *to_device, const struct strait_pages *to, struct device *from_device,
                              const struct strait_pages *from)
{
    struct walk walk = {.to = to, .from = from, .pages = to->region_count * to->id_count};
    if ((to_device != NULL && device_has_failed(to_device)) || (from_device != NULL && device_has_failed(from_device)))
        return STRAIT_ERR_DEVICE;
    lock_both(to_device, from_device, pthread_mutex_lock);
    cudaError_t error = copy_any(to_device, from_device, &walk);
    lock_both(to_device, from_device, pthread_mutex_unlock);
    if (error == cudaSuccess)
        return STRAIT_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return STRAIT_ERR_NO_MEMORY;
    if (to_device != NULL && device_is_sick(to_device, "copy"))
        device_wait_stopped(to_device);
    if (from_device != NULL && device_is_sick(from_device, "copy"))
        device_wait_stopped(from_device);
    return STRAIT_ERR_DEVICE;
}
