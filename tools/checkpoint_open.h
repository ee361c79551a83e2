/* What the commands for checkpoints share: opening, damage as it is told, tensors in ranges of values. */
#ifndef STRAIT_TOOLS_CHECKPOINT_OPEN_H
#define STRAIT_TOOLS_CHECKPOINT_OPEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/checkpoint.h>

struct cJSON;

/* Whether a path is a folder with checkpoints in it, and none itself. */
bool checkpoint_is_folder_of(const char *path);

/* Opens a checkpoint. Of a folder of checkpoints the error names the newest. False: printed to stderr. */
bool checkpoint_open(const char *path, struct strait_checkpoint_reader **reader);

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

/* Damage that a load or a verification reports; starts as zeroes. */
struct damage_list {
    struct damage_record {
        char *tensor; /* NULL: of a whole file or chunk */
        char *file;
        uint64_t first_value, value_count, file_offset;
        int32_t status;
        uint32_t replaced;
    } * list;
    size_t count, room;
    bool no_memory; /* there were more */
};

void damage_list_add(struct damage_list *damage, const struct strait_checkpoint_damage *one);
/* Prints one error for each to stderr. */
void damage_list_print(const struct damage_list *damage, const char *path);
/* Adds the list "damage". */
void damage_list_json(const struct damage_list *damage, struct cJSON *object);
void damage_list_fini(struct damage_list *damage);

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Values first..end-1 of a tensor in their order, and where they go. */
struct value_range {
    uint64_t first, end;
    uint8_t *data;
    uint32_t tensor;
};

/* Loads ranges. False: printed to stderr. */
bool ranges_load(struct strait_checkpoint_reader *reader, const char *path, const struct value_range *ranges,
                 size_t count, unsigned threads);

/* The next ranges of a list of tensors, whose values lie one after another in memory of `room` bytes. Starts as zeroes
 * but for tensors and count. */
struct window {
    const uint32_t *tensors;
    uint32_t count;
    uint32_t next; /* tensor, and its first value that is left */
    uint64_t first;
    struct value_range *ranges; /* owned */
    size_t range_count, range_room;
    uint64_t bytes;
};

#define WINDOW_BYTES (64u << 20)

/* False: no range is left, or no memory (then range_count is not 0). */
bool window_next(struct window *window, const struct strait_checkpoint_reader *reader, uint8_t *memory, uint64_t room);
void window_fini(struct window *window);

#endif
