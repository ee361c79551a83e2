/* How an input is cut: into segments (tensors and the gaps between them), these into pages, and pages of equal element
 * type into chunks. All offsets are in the data: the input after its preamble. */
#ifndef STRAIT_TOOLS_PLAN_H
#define STRAIT_TOOLS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/classes.h"
#include "tools/safetensors.h"

#define PLAN_PAGE_MULTIPLE 16u /* of page sizes: pages of a run then stay aligned */

struct segment {
    uint64_t begin;
    uint64_t end; /* the last one of an input of unknown size ends at UINT64_MAX */
    enum strait_element element;
    struct strait_class class;
    uint32_t table; /* set by plan_use_tables or plan_number_tables */
};

/* What an input holds of one data type, for the report. */
struct dtype_sum {
    char name[16];
    enum strait_element element;
    uint64_t tensors;
    uint64_t bytes;
};

struct plan {
    uint64_t preamble_bytes;
    enum strait_mode mode; /* that it is encoded in; set after init */
    struct segment *segments;
    uint32_t segment_count;
    struct dtype_sum *dtypes; /* empty unless the input is a safetensors file */
    uint32_t dtype_count;
};

/* The whole input as one segment; size may be unknown (UINT64_MAX). False when out of memory, told nowhere. */
bool plan_init_plain(struct plan *plan, uint64_t size, enum strait_element element);
/* A segment for each tensor and each gap of a safetensors file of so many bytes, or UINT64_MAX. */
bool plan_init_tensors(struct plan *plan, uint64_t size, const struct safetensors *list,
                       const struct class_rules *rules);
void plan_fini(struct plan *plan);

/* Whether values of the type are coded in the plan's mode, and by tables. */
bool plan_codes(const struct plan *plan, enum strait_element element);
bool plan_tables(const struct plan *plan, enum strait_element element);
bool plan_has_tables(const struct plan *plan);

/* Gives every segment that has one the codebook's table for its class. */
void plan_use_tables(struct plan *plan, const struct strait_codebook *codebook);

/* Numbers the tables that a set made for this input alone has: one for each tensor coded by tables of
 * PLAN_OWN_TABLE_BYTES or more, one for each class of smaller ones. (Within a layer, weights and their gradients have
 * little in common: the BF16 tensors of a training state shrink 1.27 times with a table per class, 1.49 times with one
 * per tensor.) Returns how many, 0 when out of memory; the plan has tables. */
#define PLAN_OWN_TABLE_BYTES (32u * 1024) /* below, a table's 256 bytes are rarely earned back */
uint32_t plan_number_tables(struct plan *plan);

/* ---- Cutting --------------------------------------------------------------------------------------------------- */

/* Bytes of one segment that lie one after another; a segment may have many runs, each but its last of whole pages. */
struct run {
    uint64_t offset;
    uint64_t bytes;
    uint32_t table;
};

/* The runs of one chunk. Starts as zeroes; its memory is used again. */
struct cut {
    struct run *runs;
    uint32_t run_count;
    uint32_t run_capacity;
    enum strait_element element;
};

struct cutter {
    const struct plan *plan;
    uint64_t page_bytes;  /* a multiple of PLAN_PAGE_MULTIPLE */
    uint64_t chunk_bytes; /* at least page_bytes */
    uint32_t segment;     /* where the next chunk begins */
    uint64_t offset;
};

enum cut_result { CUT_OK, CUT_END, CUT_NO_MEMORY };

/* Cuts the next chunk off the plan. Its rows of blocks take at most 1/64 of what it holds and 4 KiB. */
enum cut_result cutter_next(struct cutter *cutter, struct cut *cut);
/* Pages of a cut, at most STRAIT_CHUNK_PAGES_MAX. */
uint32_t cut_pages(const struct cut *cut, uint64_t page_bytes);
void cut_fini(struct cut *cut);

#endif
