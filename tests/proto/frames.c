#include <stdlib.h>
#include <string.h>

#include "tests/proto/frames.h"
#include "tests/support.h"

#define GOLDEN     "tests/data/messages.hex"
#define GOLDEN_MAX 100

static struct golden all[GOLDEN_MAX];
static int found;

static bool read_frame(FILE *file, struct golden *golden)
{
    char hex[8192];
    unsigned byte;
    if (fscanf(file, "%31s %8191s", golden->name, hex) != 2)
        return false;
    golden->size = strlen(hex) / 2;
    golden->frame = malloc(golden->size);
    require(golden->frame != NULL);
    for (size_t i = 0; i < golden->size; i++) {
        require(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        golden->frame[i] = (uint8_t)byte;
    }
    require(message_unpack(golden->frame + FRAME_LENGTH_BYTES, golden->size - FRAME_LENGTH_BYTES, &golden->message) ==
            STRAIT_OK);
    return true;
}

const struct golden *golden_frames(int *count)
{
    if (found == 0) {
        FILE *file = fopen(GOLDEN, "r");
        require(file != NULL);
        while (found < GOLDEN_MAX && read_frame(file, &all[found]))
            found++;
        fclose(file);
        require(found > 0 && found < GOLDEN_MAX);
    }
    *count = found;
    return all;
}

const struct golden *golden_frame(const char *name)
{
    int count;
    const struct golden *frames = golden_frames(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(frames[i].name, name) == 0)
            return &frames[i];
    require(false);
    return NULL;
}

const struct message *golden_message(const char *name)
{
    return &golden_frame(name)->message;
}

void require_same_message(const struct message *a, const struct message *b)
{
    uint8_t *frames[2] = {NULL, NULL};
    size_t sizes[2];
    require(message_pack(a, &frames[0], &sizes[0]) == STRAIT_OK && message_pack(b, &frames[1], &sizes[1]) == STRAIT_OK);
    require(a->type == b->type && sizes[0] == sizes[1] && memcmp(frames[0], frames[1], sizes[0]) == 0);
    free(frames[0]);
    free(frames[1]);
}
