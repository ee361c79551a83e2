/* Reshaping: how the pages of a source's pool become those of a sink's pool that is laid out in another way.
 *
 * The two pools may differ in tokens per page, in the order of tokens and heads, in which KV heads and which layers
 * they hold, and in whether K and V share a region. What both have is cut into tiles, which have their bytes in one
 * order. A tile is to a reshaped leg what a page is to others: units, segments and chunks are of tiles, the source
 * gathers a tile from its pages as the codec gathers a page of rows and columns, and the sink's decoder scatters it the
 * same way. Both daemons compute the tiles from the two descriptions alone, so that they number them alike.
 *
 * Tiles of one tensor are numbered by tokens: tile i of a request has its tokens i * t to i * t + t - 1, where t is the
 * greatest common divisor of both pools' tokens per page. */
#ifndef STRAIT_PROTO_RESHAPE_H
#define STRAIT_PROTO_RESHAPE_H

#include "proto/blob.h"

enum reshape_side { RESHAPE_SOURCE, RESHAPE_SINK, RESHAPE_SIDES };

/* Where a region's tiles lie in its pages: piece c of row r of tile t are the row_bytes / columns bytes at offset + t *
 * step + r * row_stride + c * column_stride of the page's contents, which are its rows one after another. */
struct tile_place {
    uint32_t region; /* in its group's order */
    uint32_t offset, step;
    uint32_t rows, row_bytes, row_stride; /* row_stride: 0 with one row */
    uint32_t columns, column_stride;      /* 1 and 0: a row is one piece */
};

/* Tiles of one tensor: a row of units. */
struct reshape_region {
    int32_t layer;
    uint32_t role;        /* enum strait_role */
    uint32_t bytes;       /* of a tile */
    uint32_t head, heads; /* of the model, that a tile has; 0 and 0: all of a page, whatever that is */
    uint32_t half;        /* of a head's bytes in a region of K and V: 1 the first, 2 the second; 0: all of them */
    struct tile_place at[RESHAPE_SIDES];
};

/* Regions whose tiles share logical indexes and page ids at both sides. */
struct reshape_group {
    uint32_t group[RESHAPE_SIDES]; /* of the pools */
    uint32_t tiles[RESHAPE_SIDES]; /* of a page */
    uint32_t first, count;         /* in reshape.regions; rising by the source's region */
};

struct reshape {
    uint32_t group_count, region_count;
    struct reshape_group *groups;
    struct reshape_region *regions;
};

/* On OK the caller calls reshape_fini. ERR_INVALID: the pools have nothing in common, or differ in what no reshaping
 * changes; `why` (may have size 0) then names both. ERR_NO_MEMORY. */
enum strait_status reshape_make(const struct pool_blob *source, const struct pool_blob *sink, struct reshape *reshape,
                                char *why, size_t why_size);
void reshape_fini(struct reshape *reshape); /* safe on a zeroed one */

/* The spans of tiles that make up wanted pages, which are numbered as that side's; malloc'ed, sorted like them. NULL:
 * no memory, or indexes beyond 32 bits. */
struct wire_span *reshape_wanted(const struct reshape *reshape, enum reshape_side side, const struct wire_span *wanted,
                                 uint32_t count, uint32_t *tiles);

/* Calls `emit` with the segments of tiles that make up a segment of the source's pages; stops at its first error.
 * ERR_INVALID: indexes beyond 32 bits. */
enum strait_status reshape_segment(const struct reshape *reshape, const struct segment *segment,
                                   enum strait_status (*emit)(void *owner, const struct segment *tiles), void *owner);

/* Whether regions of two reshapes that bring bytes to one region of a sink bring some of the same. */
bool reshape_regions_overlap(const struct reshape_region *a, const struct reshape_region *b);

#endif
