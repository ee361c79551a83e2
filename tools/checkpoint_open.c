#include "tools/checkpoint_open.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/walk.h"
#include "tools/util.h"

bool checkpoint_is_folder_of(const char *path)
{
    char index[PATH_MAX], newest[PATH_MAX];
    struct stat info;
    if (snprintf(index, sizeof(index), "%s/strait.index", path) >= (int)sizeof(index) || lstat(index, &info) == 0)
        return false;
    const enum strait_status status = strait_checkpoint_newest(path, NULL, NULL, newest, sizeof(newest));
    return status == STRAIT_OK || status == STRAIT_ERR_NO_SPACE;
}

bool checkpoint_open(const char *path, struct strait_checkpoint_reader **reader)
{
    char text[1024] = "", newest[PATH_MAX];
    const enum strait_status status = strait_checkpoint_open(path, reader, text, sizeof(text));
    if (status == STRAIT_OK)
        return true;
    if (checkpoint_is_folder_of(path) &&
        strait_checkpoint_newest(path, NULL, NULL, newest, sizeof(newest)) == STRAIT_OK)
        print_error(path, "a folder of checkpoints, of which the newest is %s", newest);
    else
        print_error(NULL, "%s", text);
    return false;
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

static bool grow(void **list, size_t count, size_t *room, size_t item)
{
    if (count < *room)
        return true;
    void *grown = realloc(*list, (2 * *room + 16) * item);
    if (grown == NULL)
        return false;
    *list = grown;
    *room = 2 * *room + 16;
    return true;
}

void damage_list_add(struct damage_list *damage, const struct strait_checkpoint_damage *one)
{
    struct damage_record record = {.first_value = one->first_value,
                                   .value_count = one->value_count,
                                   .file_offset = one->file_offset,
                                   .status = one->status,
                                   .replaced = one->replaced};
    record.tensor = one->tensor != NULL ? strdup(one->tensor) : NULL;
    record.file = strdup(one->file);
    if (record.file == NULL || (one->tensor != NULL && record.tensor == NULL) ||
        !grow((void **)&damage->list, damage->count, &damage->room, sizeof(record))) {
        free(record.tensor);
        free(record.file);
        damage->no_memory = true;
        return;
    }
    damage->list[damage->count++] = record;
}

void damage_list_print(const struct damage_list *damage, const char *path)
{
    for (size_t i = 0; i < damage->count; i++) {
        const struct damage_record *one = &damage->list[i];
        const char *why = strait_status_string(one->status);
        if (one->tensor != NULL)
            print_error(path, "%s: %s: %" PRIu64 " values from %" PRIu64 " of the shard, chunk at byte %" PRIu64 ": %s",
                        one->file, one->tensor, one->value_count, one->first_value, one->file_offset, why);
        else if (one->file_offset != 0)
            print_error(path, "%s: chunk at byte %" PRIu64 ": %s", one->file, one->file_offset, why);
        else
            print_error(path, "%s: %s", one->file, why);
    }
    if (damage->no_memory)
        print_error(path, "and more, for which there is no memory");
}

void damage_list_json(const struct damage_list *damage, cJSON *object)
{
    cJSON *list = cJSON_AddArrayToObject(object, "damage");
    for (size_t i = 0; i < damage->count; i++) {
        const struct damage_record *one = &damage->list[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "file", one->file);
        cJSON_AddNumberToObject(item, "file_offset", (double)one->file_offset);
        if (one->tensor != NULL) {
            cJSON_AddStringToObject(item, "tensor", one->tensor);
            cJSON_AddNumberToObject(item, "first_value", (double)one->first_value);
            cJSON_AddNumberToObject(item, "values", (double)one->value_count);
        }
        cJSON_AddStringToObject(item, "error", strait_status_string(one->status));
        cJSON_AddItemToArray(list, item);
    }
}

void damage_list_fini(struct damage_list *damage)
{
    for (size_t i = 0; i < damage->count; i++) {
        free(damage->list[i].tensor);
        free(damage->list[i].file);
    }
    free(damage->list);
    *damage = (struct damage_list){.count = 0};
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Boxes of ranges, with their numbers. */
struct boxes {
    struct strait_checkpoint_box *list;
    uint64_t (*numbers)[2][STRAIT_CHECKPOINT_DIMS_MAX];
    size_t count, room, numbers_room;
    const struct value_range *range;
    uint8_t *data; /* of the next box */
    uint32_t value_bytes;
};

static bool add_box(void *context, const struct checkpoint_box *box)
{
    struct boxes *boxes = context;
    if (!grow((void **)&boxes->list, boxes->count, &boxes->room, sizeof(*boxes->list)) ||
        !grow((void **)&boxes->numbers, boxes->count, &boxes->numbers_room, sizeof(*boxes->numbers)))
        return false;
    if (box->dims > 0) {
        memcpy(boxes->numbers[boxes->count][0], box->offsets, box->dims * sizeof(*box->offsets));
        memcpy(boxes->numbers[boxes->count][1], box->sizes, box->dims * sizeof(*box->sizes));
    }
    boxes->list[boxes->count++] = (struct strait_checkpoint_box){.tensor = boxes->range->tensor, .data = boxes->data};
    boxes->data += checkpoint_box_values(box) * boxes->value_bytes;
    return true;
}

static bool add_range(struct boxes *boxes, const struct strait_checkpoint_reader *reader,
                      const struct value_range *range)
{
    static const uint64_t zeroes[STRAIT_CHECKPOINT_DIMS_MAX];
    struct strait_checkpoint_tensor_info info;
    (void)strait_checkpoint_tensor_at(reader, range->tensor, &info);
    const struct checkpoint_box whole = {.offsets = zeroes, .sizes = info.shape, .dims = info.dims};
    boxes->range = range;
    boxes->data = range->data;
    boxes->value_bytes = strait_checkpoint_dtype_bytes(info.dtype);
    return checkpoint_box_range(&whole, range->first, range->end, add_box, boxes);
}

bool ranges_load(struct strait_checkpoint_reader *reader, const char *path, const struct value_range *ranges,
                 size_t count, unsigned threads)
{
    const struct strait_checkpoint_load_options options = {.size = sizeof(options), .threads = threads};
    struct boxes boxes = {.list = NULL};
    char text[1024] = "";
    bool loaded = true;
    for (size_t r = 0; r < count && loaded; r++)
        loaded = add_range(&boxes, reader, &ranges[r]);
    if (!loaded)
        print_error(path, "out of memory");
    for (size_t b = 0; b < boxes.count; b++) {
        boxes.list[b].offsets = boxes.numbers[b][0];
        boxes.list[b].sizes = boxes.numbers[b][1];
    }
    if (loaded &&
        strait_checkpoint_load(reader, boxes.list, (uint32_t)boxes.count, &options, text, sizeof(text)) != STRAIT_OK) {
        print_error(NULL, "%s", text);
        loaded = false;
    }
    free(boxes.list);
    free(boxes.numbers);
    return loaded;
}

bool window_next(struct window *window, const struct strait_checkpoint_reader *reader, uint8_t *memory, uint64_t room)
{
    window->range_count = 0;
    window->bytes = 0;
    while (window->next < window->count) {
        struct strait_checkpoint_tensor_info info;
        (void)strait_checkpoint_tensor_at(reader, window->tensors[window->next], &info);
        const uint32_t value = strait_checkpoint_dtype_bytes(info.dtype);
        const uint64_t left = info.bytes / value - window->first, most = (room - window->bytes) / value;
        const struct value_range range = {.first = window->first,
                                          .end = window->first + (left < most ? left : most),
                                          .data = memory + window->bytes,
                                          .tensor = window->tensors[window->next]};
        if (range.end > range.first) {
            if (!grow((void **)&window->ranges, window->range_count, &window->range_room, sizeof(range))) {
                window->range_count = 1;
                return false;
            }
            window->ranges[window->range_count++] = range;
            window->bytes += (range.end - range.first) * value;
        }
        if (left > most) {
            window->first = range.end;
            break;
        }
        window->next++;
        window->first = 0;
    }
    return window->range_count > 0;
}

void window_fini(struct window *window)
{
    free(window->ranges);
    window->ranges = NULL;
}
