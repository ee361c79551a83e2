/* Parts of an expectation: what of its pages comes from sources whose pools are laid out in another way. A part is what
 * one reshape brings, from any number of sources. What two parts could both bring, such as a region that all ranks
 * have, the first brings whose source announces some of it. */
#ifndef STRAIT_DAEMON_PART_H
#define STRAIT_DAEMON_PART_H

#include "daemon/memory/view.h"
#include "daemon/protocol/coverage.h"

struct expectation;

/* What a part brings of one region of the expectation's pool. */
struct brought {
    const struct part *part;
    const struct reshape_region *region;
    bool begun;           /* some of it has been announced: no other part brings the same */
    struct brought *next; /* of this region of the pool, begun */
};

struct part {
    uint64_t geometry; /* of the sources' pools */
    struct reshape reshape;
    struct pool_view *view; /* of the expectation's pool */
    struct page_set tiles;
    struct coverage *coverage;        /* of tiles */
    struct brought *brought;          /* for each of reshape.regions */
    uint32_t ends[STRAIT_GROUPS_MAX]; /* by group of tiles: the one behind those that the request's tokens are in; 0: as
                                         far as the sources' pages go */
    struct part *next;
};

/* The part of an expectation whose pages are known that such a source brings; made if there is none. NULL: *reason is
 * GEOMETRY (the pools do not fit) or NO_MEMORY, and `why` (kept with the request, or static) says more. */
struct part *part_get(struct expectation *expectation, const struct pool_blob *source, uint64_t geometry,
                      enum strait_reason *reason, const char **why);
void parts_free(struct expectation *expectation);

/* As coverage_claim and coverage_land, with tiles; claimed is nothing either that another part brings, of which `why`
 * (kept with the request; else unchanged) says more. A page of the expectation has landed when all of its bytes have.
 */
bool part_claim(struct expectation *expectation, struct part *part, const struct segment *segment, const char **why);
bool part_land(struct expectation *expectation, struct part *part, const struct piece *piece,
               void (*layer)(void *owner, int32_t layer), void *owner);

/* All sources have brought what they have. Where a source's last page ends inside a page of the expectation, the rest
 * of that page is not missed: these tokens do not exist. Where the expectation says how many there are, that is known
 * from the beginning. The same holds of what is before a source's first page, where the expectation allows it. */
void parts_end(struct expectation *expectation, void (*layer)(void *owner, int32_t layer), void *owner);

#endif
