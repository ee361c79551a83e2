/* make_proto_corpus FOLDER: writes the seeds of the targets of proto/ to FOLDER/TARGET/. The same bytes on every
 * machine. */
#include <string.h>

#include "proto/blob.h"
#include "proto/channel.h"
#include "tests/proto/frames.h"
#include "tests/fuzz/seed.h"
#include "tests/support.h"

static const char *folder;

static void write_seed(const char *target, const char *name, const void *bytes, size_t size)
{
    seed_write(folder, target, name, bytes, size);
}

static size_t frame_of(const struct message *message, uint8_t *bytes, size_t capacity)
{
    uint8_t *frame;
    size_t size;
    require(message_pack(message, &frame, &size) == STRAIT_OK && size <= capacity);
    memcpy(bytes, frame, size);
    free(frame);
    return size;
}

static void write_messages(void)
{
    int count;
    const struct golden *frames = golden_frames(&count);
    for (int i = 0; i < count; i++)
        write_seed("message", frames[i].name, frames[i].frame + 4, frames[i].size - 4);
    write_seed("message", "later-type", "\x9a\x06\x00", 3);
    write_seed("message", "later-field", "\x5a\x00\x9a\x06\x00", 5);
    write_seed("message", "two-bodies", "\x5a\x00\x42\x02\x08\x07", 6);
}

/* Bytes in writes of `piece`, the first of them with descriptors. */
static void write_stream(const char *name, const uint8_t *stream, size_t size, uint8_t piece, uint8_t fds)
{
    uint8_t bytes[16384];
    size_t at = 0, end = 0;
    for (; at < size; at += piece) {
        size_t part = size - at < piece ? size - at : piece;
        bytes[end++] = (uint8_t)(part | (at == 0 ? fds << 6 : 0));
        memcpy(bytes + end, stream + at, part);
        end += part;
    }
    write_seed("channel", name, bytes, end);
}

static void write_channels(void)
{
    uint8_t stream[8192];
    size_t size = frame_of(golden_message("pool-register"), stream, sizeof(stream));
    write_stream("pool", stream, size, 62, 2);
    write_stream("pool-without", stream, size, 50, 0);
    write_stream("pool-flood", stream, size, 20, 3);
    size = 0;
    int count;
    const struct golden *frames = golden_frames(&count);
    for (int i = 0; i < count; i++)
        if (channel_fds_of(&frames[i].message) == 0)
            size += frame_of(&frames[i].message, stream + size, sizeof(stream) - size);
    write_stream("all-small-cuts", stream, size, 7, 0);
    write_stream("all-large-cuts", stream, size, 62, 0);
    write_seed("channel", "too-long", "\x04\x01\x10\x00\x00", 5);
    write_seed("channel", "nothing", "\x04\x00\x00\x00\x00", 5);
    write_seed("channel", "half", "\x05\x03\x00\x00\x00\x5a", 6);
}

static void write_pool(const char *name, uint32_t count)
{
    struct blob_region regions[8];
    struct pool_blob blob = {.pool = {"0123456789abcde"},
                             .address = "host:1",
                             .version = 1,
                             .version_min = 1,
                             .region_count = count,
                             .regions = regions};
    uint8_t bytes[1024];
    size_t size;
    for (uint32_t i = 0; i < count; i++)
        regions[i] = (struct blob_region){.layer = (int32_t)(i / 2),
                                          .role = 1 + i % 2,
                                          .element = 1,
                                          .rows = 16,
                                          .row_bytes = 256,
                                          .heads = 8,
                                          .page_count = 1000};
    memset(blob.codebook_id, count > 1 ? 7 : 0, sizeof(blob.codebook_id));
    require(blob_pack(&blob, bytes, sizeof(bytes), &size) == STRAIT_OK);
    write_seed("blob", name, bytes, size);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_proto_corpus FOLDER\n");
        return 2;
    }
    folder = argv[1];
    write_messages();
    write_channels();
    write_pool("one-region", 1);
    write_pool("layers", 8);
    return 0;
}
