/* Damage that a load or a verification has met. */
#ifndef STRAIT_CHECKPOINT_FAULTS_H
#define STRAIT_CHECKPOINT_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/reader.h"

#define FAULT_NO_SHARD  UINT32_MAX
#define FAULT_WHY_BYTES 128u

/* Values first..end-1 of a stored shard; without a shard, all of a file or of a chunk. */
struct fault {
    uint64_t first, end;
    uint64_t file_offset; /* of the chunk; 0: of a whole file */
    uint32_t shard;       /* place in the index */
    uint32_t file;
    enum strait_status status;
    bool lost; /* no replica has taken the place of all of it */
    char why[FAULT_WHY_BYTES];
};

/* Starts as zeroes. */
struct faults {
    struct fault *list;
    size_t count, room;
};

/* Adds one; its number, or UINT32_MAX without memory. */
uint32_t faults_add(struct faults *faults, const struct fault *fault);

/* Writes what a fault is of, for people: "00003.strait: layers.1.weight, values 0 to 4095 (chunk at byte 8192):
 * checksum mismatch". */
void fault_text(const struct strait_checkpoint_reader *reader, const struct fault *fault, char *text, size_t text_size);

/* Reports all in the order of files and places. */
void faults_report(const struct faults *faults, const struct strait_checkpoint_reader *reader,
                   const struct strait_checkpoint_load_options *options);

#endif
