/* A pool as one side of a reshaped leg sees it: its pages as the tiles of a reshape, without memory of its own. */
#ifndef STRAIT_DAEMON_MEMORY_VIEW_H
#define STRAIT_DAEMON_MEMORY_VIEW_H

#include "daemon/memory/pool.h"
#include "proto/reshape.h"

/* Tile t of page p has the id p * scale + t * step in its group of the view. */
struct view_group {
    uint32_t own; /* group of the pool */
    uint32_t tiles, scale, step;
};

struct pool_view {
    struct pool pool; /* groups are those of the reshape, pages are tiles; marks no pages */
    struct view_group groups[STRAIT_GROUPS_MAX];
};

/* The pool as reshape_make takes it; borrows from the pool. */
struct pool_blob view_described(const struct pool *pool);

/* Makes the view of `pool` on that side of a reshape, which was made from the pool's description. On OK the caller owns
 * *view; the pool must outlive it. ERR_INVALID: rows or pages of a layer lie so that its tiles have no regular
 * distance; `why` (may have size 0) then names it. ERR_NO_MEMORY. */
enum strait_status view_create(const struct pool *pool, const struct reshape *reshape, enum reshape_side side,
                               struct pool_view **view, char *why, size_t why_size);
void view_destroy(struct pool_view *view); /* NULL is allowed */

/* Makes the tiles of all pages of a set; logical index i of a page is i * tiles in the view. On OK the caller calls
 * page_set_fini. ERR_INVALID (indexes beyond 32 bits), ERR_NO_MEMORY. */
enum strait_status view_pages(const struct pool_view *view, const struct page_set *pages, struct page_set *tiles);

#endif
