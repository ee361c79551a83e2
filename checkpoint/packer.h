/* Cuts shards into pages and pages into chunks. */
#ifndef STRAIT_CHECKPOINT_PACKER_H
#define STRAIT_CHECKPOINT_PACKER_H

#include "checkpoint/encoder.h"
#include "checkpoint/format.h"
#include "checkpoint/pipeline.h"

#define PACKER_ELEMENTS 6u /* of enum strait_element */

/* A chunk that shards of one element type come into, until it is full. */
struct packer_chunk {
    struct contents contents;
    uint32_t piece_room;
    uint32_t page;      /* that small shards share */
    uint32_t page_used; /* bytes of it; 0: there is none */
    uint32_t *shards;   /* each piece's */
};

struct packer {
    struct pipeline *pipeline;
    const struct encoder *encoder;
    struct checkpoint_shard **shards; /* the list, whose address may change */
    uint32_t *chunk_count;            /* that the pipeline got so far */
    struct packer_chunk open[PACKER_ELEMENTS];
};

/* Gives shard `place` of the list its page, and its bytes to the pipeline, with others or alone. Sets the shard's
 * first_page, first_byte and page_bytes; first_chunk when the chunk is full or packer_flush was called. Errors are the
 * pipeline's, or ERR_NO_MEMORY. */
enum strait_status packer_add(struct packer *packer, uint32_t place, const uint8_t *data);
enum strait_status packer_flush(struct packer *packer);
void packer_fini(struct packer *packer);

#endif
