#ifndef STRAIT_TOOLS_PIPELINE_H
#define STRAIT_TOOLS_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/codec.h>

#include "tools/input.h"

/* A pipeline whose results come out in the order in which the work went in: every thread takes the next piece, works on
 * it in parallel with the others, waits for its turn and gives the result away. */

struct ordered_steps {
    /* Fills the slot with the next piece; one thread at a time. False: there is none, or it failed. */
    bool (*take)(void *job, void *slot);
    /* Any number of threads at a time. Failures are recorded in the slot, for `give` to report. */
    void (*work)(void *job, void *slot);
    /* One thread at a time, in the order of `take`. False: nothing more is taken or given. */
    bool (*give)(void *job, void *slot);
    /* Frees what the slot holds. */
    void (*release)(void *slot);
};

/* Runs until `take` has no more or `give` stops it. Each thread has a slot of slot_bytes, which starts as zeroes. Which
 * thread does what varies between runs; what is taken and given, and in which order, does not. No `take` begins after
 * the `give` that stops the run; pieces taken before may be worked on and then dropped. False: out of memory, which was
 * printed to stderr. */
bool ordered_run(const struct ordered_steps *steps, void *job, size_t slot_bytes, unsigned threads);

/* How an input is cut: into segments (tensors and the gaps between them), these into pages, and pages of equal element
 * type into chunks. All offsets are in the data: the input after its preamble. */

#define PLAN_PAGE_MULTIPLE 16u /* page sizes are multiples of this, so that pages of a run stay aligned */

struct segment {
    uint64_t begin;
    uint64_t end; /* UINT64_MAX for the last segment of an input of unknown size */
    enum strait_element element;
    struct strait_class class;
    enum strait_mode mode; /* set by plan_set_mode; auto has become split or base */
    uint32_t table;        /* set by plan_use_tables or plan_number_tables */
};

/* Sums over an input's tensors of one data type, for the report. */
struct dtype_sum {
    char name[16];
    enum strait_element element;
    uint64_t tensors;
    uint64_t bytes;
};

struct plan {
    uint64_t preamble_bytes;
    enum strait_mode mode; /* that was asked for */
    struct segment *segments;
    uint32_t segment_count;
    struct dtype_sum *dtypes; /* empty unless the input is a safetensors file */
    uint32_t dtype_count;
};

/* The whole input as one segment; size may be unknown (UINT64_MAX). False when out of memory; prints nothing. */
bool plan_init_plain(struct plan *plan, uint64_t size, enum strait_element element);
/* A segment for each tensor and each gap of a safetensors file of `size` bytes (UINT64_MAX: unknown). */
bool plan_init_tensors(struct plan *plan, uint64_t size, const struct safetensors *list,
                       const struct class_rules *rules);
void plan_fini(struct plan *plan);

/* Sets the mode that was asked for: auto is split for now, and base for values that are not coded. */
void plan_set_mode(struct plan *plan, enum strait_mode mode);

/* Joins tensors that cost more as pages or chunks of their own than telling them apart gains: each is a page entry, a
 * block's padding and, where the element type changes, a chunk. Tensors of up to PLAN_SMALL_BYTES become one segment
 * with others beside them, of no class if theirs differ; those of up to PLAN_TINY_BYTES (of types that are coded: half
 * of that) with anything before them. */
#define PLAN_SMALL_BYTES 3072u
#define PLAN_TINY_BYTES  1024u
void plan_join(struct plan *plan);

/* plan_codes: whether values of the type are coded in the plan's mode; plan_tables: whether with tables. */
bool plan_codes(const struct plan *plan, enum strait_element element);
bool plan_tables(const struct plan *plan, enum strait_element element);
bool plan_has_tables(const struct plan *plan);

/* Gives every segment that is coded with a table the codebook's table for its class. */
void plan_use_tables(struct plan *plan, const struct strait_codebook *codebook);

/* Numbers the tables that a set made for this input alone may have: among tensors coded with tables, one for each of
 * PLAN_OWN_TABLE_BYTES or more, and one for each class of smaller ones; those beyond STRAIT_CODEBOOK_TABLES_MAX share
 * the first. (Within a layer, weights and their gradients
 * have little in common: the BF16 tensors of a training state shrink 1.27 times with a table per class, 1.49 times with
 * one per tensor.) Returns the number of tables, 0 when out of memory. The plan must have values coded with tables. */
#define PLAN_OWN_TABLE_BYTES (32u * 1024) /* a smaller tensor rarely saves the 256 bytes of a table of its own */
uint32_t plan_number_tables(struct plan *plan);

/* ---- Cutting --------------------------------------------------------------------------------------------------- */

/* Bytes of one segment that lie one after another; a segment may have many runs, each but its last of whole pages. */
struct run {
    uint64_t offset;
    uint64_t bytes;
    uint32_t table;
    bool fits; /* any table that fits will do: the class has none, is of role other, or may be of BF16 values alone */
};

/* The runs of one chunk. Starts as zeroes; its memory is reused. */
struct cut {
    struct run *runs;
    uint32_t run_count;
    uint32_t run_capacity;
    enum strait_element element;
    enum strait_mode mode;
};

struct cutter {
    const struct plan *plan;
    uint64_t page_bytes;  /* a multiple of PLAN_PAGE_MULTIPLE */
    uint64_t chunk_bytes; /* at least page_bytes */
    uint64_t apart_bytes; /* segments of so many bytes begin a chunk; 0: none does */
    uint32_t segment;     /* where the next chunk begins */
    uint64_t offset;
};

enum cut_result { CUT_OK, CUT_END, CUT_NO_MEMORY };

/* Cuts the next chunk off the plan. Its rows of blocks take at most 4 KiB plus 1/64 of the bytes that it holds. */
enum cut_result cutter_next(struct cutter *cutter, struct cut *cut);
/* Pages of a cut, at most STRAIT_CHUNK_PAGES_MAX. */
uint32_t cut_pages(const struct cut *cut, uint64_t page_bytes);
void cut_fini(struct cut *cut);

/* Plans an input by its first bytes: a safetensors file tensor by tensor, anything else as one piece. */

/* Makes the plan and peeks at all of the preamble. An input that looks like a safetensors file but is none becomes one
 * piece, with a warning. raw: one piece, whatever the input is. On failure (I/O, memory) the error is on stderr. The
 * caller calls plan_fini. */
bool examine(struct plan *plan, struct source *source, const struct class_rules *rules, enum strait_element element,
             bool raw);

#endif
