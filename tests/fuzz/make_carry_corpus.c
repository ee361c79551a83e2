/* make_carry_corpus FOLDER: writes the seeds of the target carry to FOLDER/carry/. The same bytes on every machine. */
#include <string.h>

#include "collective/engine/overflow_tcp.h"
#include "tests/fuzz/seed.h"
#include "tests/support.h"

static const char *folder;

/* Frames, each with the values of its slot behind it, of which the last `missing` bytes are cut off. */
static void write_seed(const char *name, const struct frame *frames, unsigned count, size_t missing)
{
    static uint8_t bytes[4096];
    size_t size = 0;
    for (unsigned i = 0; i < count; i++) {
        frame_put(bytes + size, &frames[i]);
        size += FRAME_BYTES;
        if (frames[i].type == FRAME_SLOT && frames[i].small <= 64) {
            memset(bytes + size, 'v', frames[i].small);
            size += frames[i].small;
        }
    }
    seed_write(folder, "carry", name, bytes, size - missing);
}

int main(int argc, char **argv)
{
    const struct frame slots[] = {{FRAME_SLOT, 64, 0, 0, 0}, {FRAME_SLOT, 16, 1, 0, 0}, {FRAME_SLOT, 64, 64, 0, 0}};
    const struct frame again[] = {{FRAME_SLOT, 64, 1, 0, 0}, {FRAME_SLOT, 64, 65, 0, 0}}; /* 1 has not been taken */
    const struct frame records[] = {{FRAME_RECORD, 0, 0, 7, 0}, {FRAME_RECORD, 1, 3, UINT64_MAX, 0}};
    const struct frame steps[] = {{FRAME_ASK, 0, 0, 0, 0}, {FRAME_PROMISE, 1, 16, 0, 0}, {FRAME_STEP, 2, 16, 90, 3}};
    const struct frame leaves[] = {{FRAME_LEAVE, 0, 0, 0, 0}, {FRAME_TAKEN, 0, 1, 0, 0}};
    const struct frame large[] = {{FRAME_SLOT, 65, 0, 0, 0}}, unknown[] = {{FRAME_TYPES, 0, 0, 0, 0}};
    require(argc == 2);
    folder = argv[1];
    write_seed("slots", slots, 3, 0);
    write_seed("slot-cut", slots, 3, 40);
    write_seed("head-cut", slots, 1, 64 + 8);
    write_seed("slot-twice", again, 2, 0);
    write_seed("slot-too-large", large, 1, 0);
    write_seed("records", records, 2, 0);
    write_seed("steps", steps, 3, 0);
    write_seed("leaves-then-nonsense", leaves, 2, 0);
    write_seed("type-unknown", unknown, 1, 0);
    return 0;
}
