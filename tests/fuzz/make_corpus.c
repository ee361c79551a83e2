/* make_corpus FOLDER: writes the seeds of every fuzz target to FOLDER/TARGET/. The same bytes on every machine. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "collective/rendezvous.h"
#include "internal/bytes.h"
#include "kernels/codebook_file.h"
#include "kernels/container.h"
#include "proto/blob.h"
#include "proto/channel.h"
#include "tests/fuzz/seed.h"
#include "tests/proto/frames.h"
#include "tests/support.h"
#include "transport/nccl_wire.h"

static const char *folder;

static void write_seed(const char *target, const char *name, const void *bytes, size_t size)
{
    seed_write(folder, target, name, bytes, size);
}

enum { HANG_UP = 4, SECRET = 8, HALF = 16, RECORDS_MAX = 32 }; /* as in fuzz_rendezvous.c */

static uint8_t script[RECORDS_MAX * (1 + RDV_FRAME_BYTES)];
static size_t script_size;

static uint8_t *add(unsigned how)
{
    script[script_size] = (uint8_t)how;
    uint8_t *frame = script + script_size + 1;
    script_size += 1 + RDV_FRAME_BYTES;
    require(script_size <= sizeof(script));
    return frame;
}

static void come(unsigned how, uint32_t rank, uint32_t ranks)
{
    const struct rdv_hello hello = {.words = {1, 2}, .rank = rank, .ranks = ranks};
    rdv_hello_write(add(how | SECRET), &hello);
}

static void ask(unsigned how, enum rdv_action action, enum coll_vote_phase round, uint32_t able)
{
    const struct rdv_request request = {action, round, {.able = able, .blocks = 1, .index = action == RDV_NOTE_RAW}};
    rdv_request_write(add(how), &request);
}

static void rendezvous_write_seed(const char *name)
{
    char path[4096];
    require(snprintf(path, sizeof(path), "%s/rendezvous", folder) < (int)sizeof(path));
    require(mkdir(path, 0777) == 0 || errno == EEXIST);
    require(snprintf(path, sizeof(path), "%s/rendezvous/%s", folder, name) < (int)sizeof(path));
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(script, 1, script_size, file) == script_size && fclose(file) == 0);
    script_size = 0;
}

static void both_come(void)
{
    come(0, 0, 2);
    come(1, 1, 2);
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(1, RDV_VOTE, COLL_PHASE_PRESENT, 1);
}

static void make_rendezvous(void)
{
    both_come();
    for (unsigned round = COLL_PHASE_REACHED; round < COLL_VOTE_PHASES; round++)
        for (unsigned who = 0; who < 2; who++)
            ask(who, RDV_VOTE, (enum coll_vote_phase)round, 1);
    ask(0, RDV_POLL, COLL_PHASE_ABLE, 0);
    ask(0, RDV_LEAVE, COLL_PHASE_PRESENT, 0);
    rendezvous_write_seed("two-go");
    both_come();
    ask(1, RDV_VOTE, COLL_PHASE_ABLE, 0);
    ask(0, RDV_VOTE, COLL_PHASE_ABLE, 1);
    rendezvous_write_seed("one-is-not-able");
    come(0, 0, 3);
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(0 | HANG_UP, RDV_ABORT, COLL_PHASE_PRESENT, 0);
    come(1, 1, 3);
    ask(1, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    rendezvous_write_seed("one-comes-late");
    both_come();
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    rendezvous_write_seed("a-second-word");
    come(0, 0, 2);
    come(1, 0, 2);
    come(2, 1, 3);
    come(3, 64, 64);
    rendezvous_write_seed("seats-that-are-taken");
    come(0 | HALF, 0, 2);
    come(1, 1, 2);
    ask(1 | HALF, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(1 | HANG_UP, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    rendezvous_write_seed("halves");
    both_come();
    ask(0, (enum rdv_action)7, COLL_PHASE_PRESENT, 1);
    ask(1, RDV_POLL, (enum coll_vote_phase)3, 1);
    rendezvous_write_seed("requests-unknown");
    both_come();
    ask(1, RDV_NOTE_RAW, COLL_PHASE_REACHED, 1);
    ask(0, RDV_VOTE, COLL_PHASE_REACHED, 1);
    rendezvous_write_seed("one-passes");
}

static void write_address(const char *name, size_t carrier_size)
{
    uint8_t carrier[64] = "where the carrier listens", bytes[LINK_ADDRESS_MAX];
    struct nccl_address address = {.library = 22809,
                                   .process = {1, 2, 3},
                                   .identity = {4, 5, 6},
                                   .carrier = carrier,
                                   .carrier_size = carrier_size};
    nccl_address_write(bytes, &address);
    write_seed("nccl", name, bytes, NCCL_ADDRESS_FIXED + carrier_size);
}

static void write_message(const char *name, uint32_t type, uint64_t id, uint64_t value, uint8_t payload)
{
    uint8_t bytes[1 + NCCL_MESSAGE_BYTES] = {payload};
    struct nccl_message message = {.type = type, .id = id, .value = value};
    nccl_message_write(bytes + 1, &message);
    write_seed("nccl", name, bytes, sizeof(bytes));
}

static void make_transport(void)
{
    write_address("address", 48);
    write_address("address-empty", 0);
    write_message("hello", NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES);
    write_message("ready", NCCL_READY, 0, 0, 0);
    write_message("chunk", NCCL_CHUNK, 7, 4 << 20, 48);
    write_message("chunk-header-too-long", NCCL_CHUNK, 7, 4 << 20, TRANSPORT_HEADER_MAX + 1);
    write_message("go", NCCL_GO, 7, 3, 0);
    write_message("refused", NCCL_REFUSED, 7, 0, 0);
    write_message("type-unknown", NCCL_REFUSED + 1, 7, 0, 0);
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

static void make_proto(void)
{
    write_messages();
    write_channels();
    write_pool("one-region", 1);
    write_pool("layers", 8);
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

static const struct chunk_seed {
    const char *name;
    enum strait_element element;
    enum strait_mode mode;
    enum pattern pattern;
    bool no_codebook;
    uint32_t regions, ids;
    struct shape shapes[3];
} chunk_seeds[] = {
    {"raw", STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW, PATTERN_NOISE, false, 1, 2, {{2, 1, 90, 0, 0, 0, 0}}},
    {"no-codebook", STRAIT_ELEMENT_BYTES, STRAIT_MODE_RAW, PATTERN_NOISE, true, 1, 1, {{1, 1, 33, 0, 0, 0, 0}}},
    {"const",
     STRAIT_ELEMENT_BF16,
     STRAIT_MODE_TIERED,
     PATTERN_CONST,
     false,
     2,
     1,
     {{1, 1, 40001, 0, 1, 0, 1}, {1, 1, 18, 0, 0, 0, 0}}},
    {"fp32", STRAIT_ELEMENT_FP32, STRAIT_MODE_TIERED, PATTERN_CONST, false, 1, 2, {{2, 1, 64, 0, 0, 0, 0}}},
    {"top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_TOP16, false, 1, 2, {{2, 1, 258, 0, 0, 0, 1}}},
    {"top16-escapes", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_RARE, false, 1, 2, {{2, 1, 601, 0, 1, 0, 2}}},
    {"top16-blocks", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_RARE, false, 1, 1, {{1, 1, 17001, 0, 0, 0, 4}}},
    {"tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_FALLING, false, 1, 2, {{2, 1, 258, 0, 0, 0, 1}}},
    {"tiered-edges", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_MIDDLE, false, 1, 3, {{3, 1, 131, 0, 1, 0, 3}}},
    {"tiered-rare", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_RUNS, false, 1, 1, {{1, 1, 3001, 0, 0, 0, 4}}},
    {"tiered-blocks",
     STRAIT_ELEMENT_BF16,
     STRAIT_MODE_TIERED,
     PATTERN_FALLING,
     false,
     1,
     1,
     {{1, 1, 17002, 0, 0, 0, 0}}},
    {"lengths",
     STRAIT_ELEMENT_BF16,
     STRAIT_MODE_TIERED,
     PATTERN_LOW,
     false,
     3,
     2,
     {{2, 1, 301, 0, 1, 0, 0}, {2, 1, 2, 0, 0, 0, 1}, {2, 1, 16400, 0, 0, 0, 2}}},
    {"base", STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, PATTERN_FALLING, true, 1, 2, {{2, 1, 259, 0, 1, 0, 0}}},
    {"base-codes", STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, PATTERN_SPREAD, true, 1, 2, {{2, 1, 602, 0, 0, 0, 0}}},
    {"base-fp16", STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE, PATTERN_FP16, true, 1, 2, {{2, 1, 303, 0, 1, 0, 0}}},
    {"base-fp32", STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_FALLING, true, 1, 2, {{2, 1, 407, 0, 1, 0, 0}}},
    {"fp32z", STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_WIDENED, true, 1, 2, {{2, 1, 405, 0, 3, 0, 0}}},
    {"fp32z-split", STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, PATTERN_WIDENED, false, 1, 1, {{1, 1, 404, 0, 0, 0, 0}}},
    {"split-fp16", STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, PATTERN_FP16, false, 1, 2, {{2, 1, 301, 0, 1, 0, 0}}},
    {"split-fp32", STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, PATTERN_LOW, false, 1, 2, {{2, 1, 402, 0, 2, 0, 1}}},
};

static void write_chunk(const struct strait_codebook *codebook, const struct chunk_seed *seed)
{
    const struct asked asked = {seed->no_codebook ? NULL : codebook, seed->element, seed->mode};
    struct rng rng = {.state = 1 + (uint64_t)(seed - chunk_seeds)};
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 4, seed->shapes, seed->regions, NULL, seed->ids);
    layout_fill(&src, &rng, seed->pattern, codebook);
    uint8_t *chunk = encode_layout(variant(0), &asked, &src, &verdict);
    require(chunk != NULL);
    write_seed("chunk", seed->name, chunk, verdict.result.bytes);
    write_seed("chunk_repaired", seed->name, chunk, verdict.result.bytes);
    free(chunk);
    layout_fini(&src);
}

static void write_chunks(void)
{
    struct strait_codebook *codebook = test_codebook();
    for (int i = 0; i < COUNT(chunk_seeds); i++)
        write_chunk(codebook, &chunk_seeds[i]);
    strait_codebook_destroy(codebook);
}

/* ---- Round trips ----------------------------------------------------------------------------------------------- */

/* Element, mode (128: ranks), regions - 1, ids - 1; per region rows - 1, row bytes - 1, gaps, skew, table. */
static const uint8_t trips[][22] = {
    {1, 3, 0, 0, 0, 1, 0, 0, 0, 0},
    {1, 128 + 3, 0, 1, 0, 255, 1, 0, 0, 1},
    {1, 128 + 2, 0, 1, 3, 99, 0, 0x21, 1, 2},
    {1, 128 + 2, 1, 0, 0, 0, 64, 0, 0, 4, 2, 255, 31, 0x11, 3, 0},
    {1, 128 + 3, 2, 3, 0, 16, 0, 0, 0, 0, 1, 99, 1, 2, 2, 3, 0, 254, 66, 0, 1, 4},
    {1, 1, 0, 0, 11, 17, 0, 0xff, 15, 3},
    {3, 2, 0, 0, 1, 63, 0, 0x11, 1, 0},
    {0, 0, 1, 1, 2, 16, 0, 0x33, 3, 0, 0, 6, 0, 0, 0, 0},
    {1, 64 + 32, 0, 1, 0, 255, 1, 0, 0, 0},
    {2, 64, 1, 0, 0, 0, 64, 0, 0, 4, 2, 255, 31, 0x11, 3, 0},
    {2, 64 + 1, 0, 1, 0, 99, 1, 0x21, 1, 2},
    {3, 128 + 64 + 32, 0, 1, 0, 102, 1, 0, 0, 0},
    {3, 64 + 1, 1, 1, 3, 99, 0, 0x10, 1, 2, 0, 255, 64, 0, 0, 1},
};

static void write_trips(void)
{
    for (int i = 0; i < COUNT(trips); i++) {
        uint8_t bytes[22 + 200];
        struct rng rng = {.state = 100 + (uint64_t)i};
        size_t head = 4 + 6 * (1 + (size_t)trips[i][2]);
        char name[32];
        memcpy(bytes, trips[i], head);
        for (size_t k = 0; k < 200; k++)
            bytes[head + k] =
                (uint8_t)(k % 2 == 0 ? rng_next(&rng) : (uint64_t)__builtin_ctzll(rng_next(&rng) | 1 << 30));
        snprintf(name, sizeof(name), "shape-%d", i);
        write_seed("roundtrip", name, bytes, head + (i % 3 == 0 ? 200 : 40));
    }
}

/* ---- Codebooks ------------------------------------------------------------------------------------------------- */

static void write_set(const char *name, uint32_t count, const struct strait_class *classes)
{
    uint8_t rankings[TEST_TABLES][256], bytes[4096];
    struct strait_codebook *set;
    for (uint32_t t = 0; t < count; t++)
        test_ranking(rankings[t], t);
    require(strait_codebook_create((const uint8_t(*)[256])rankings, classes, count, &set) == STRAIT_OK);
    require(strait_codebook_serialize(set, bytes, sizeof(bytes)) == STRAIT_OK);
    write_seed("codebook", name, bytes, strait_codebook_serialized_size(set));
    strait_codebook_destroy(set);
}

static void write_codebooks(void)
{
    static const struct strait_class classes[] = {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, 7}, {STRAIT_ROLE_K, -1}};
    static struct codebook_histogram list[2] = {{.class = {STRAIT_ROLE_K, 0}}, {.class = {STRAIT_ROLE_V, 1000}}};
    uint8_t bytes[4096];
    write_set("one-table", 1, NULL);
    write_set("tables", 2, NULL);
    write_set("classes", 3, classes);
    for (unsigned e = 0; e < 256; e++) {
        list[0].counts[e] = e;
        list[1].counts[e] = (uint64_t)e << (e % 50);
    }
    require(codebook_partial_serialize(list, 2, bytes, sizeof(bytes)) == STRAIT_OK);
    write_seed("codebook", "partial", bytes, codebook_partial_serialized_size(list, 2));
}

/* ---- Containers ------------------------------------------------------------------------------------------------ */

static void write_container(const char *name, uint64_t preamble, uint32_t tables, uint32_t count)
{
    struct container_header header = {.preamble_bytes = preamble, .table_count = tables};
    struct container_chunk chunks[4];
    struct container_tail tail = {.original_bytes = preamble + 1000 * count, .hash = {1, 2, 3}};
    uint8_t bytes[1 + CONTAINER_HEADER_BYTES + 16 + 4 * CONTAINER_ENTRY_BYTES + CONTAINER_TAIL_BYTES];
    memset(header.codebook_id, tables > 0 ? 7 : 0, sizeof(header.codebook_id));
    tail.footer_offset = container_chunks_offset(&header);
    for (uint32_t i = 0; i < count; i++) {
        chunks[i] = (struct container_chunk){.file_offset = tail.footer_offset,
                                             .raw_offset = 1000 * i,
                                             .chunk_bytes = 640 + 16 * i,
                                             .page_count = 1 + i};
        tail.footer_offset += chunks[i].chunk_bytes;
    }
    bytes[0] = count % 2;
    container_write_header(bytes + 1, &header);
    container_write_footer(bytes + 1 + CONTAINER_HEADER_BYTES, chunks, count, &tail);
    write_seed("container", name, bytes, 1 + CONTAINER_HEADER_BYTES + (size_t)container_footer_bytes(count));
}

/* ---- Safetensors ----------------------------------------------------------------------------------------------- */

static const char *const headers[] = {
    "{}",
    "{\"__metadata__\":{\"format\":\"pt\"}}    ",
    "{\"layers.0.k\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}",
    "{\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_"
    "offsets\":[0,8]}}",
    "{\"\\u00e9\":{\"dtype\":\"F4\",\"shape\":[0,7],\"data_offsets\":[5,5]},\"x\":{\"dtype\":\"BOOL\",\"shape\":[5],"
    "\"data_offsets\":[0,5]}}",
    "{\"t\":{\"dtype\":\"F8_E4M3\",\"shape\":[4096,2],\"data_offsets\":[1e2,8292]}}",
};

static void write_headers(void)
{
    for (int i = 0; i < COUNT(headers); i++) {
        uint8_t bytes[256];
        size_t size = strlen(headers[i]);
        char name[32];
        snprintf(name, sizeof(name), "json-%d", i);
        write_seed("safetensors", name, headers[i], size);
        store_le64(bytes, size);
        memcpy(bytes + 8, headers[i], size);
        memset(bytes + 8 + size, 0, 32);
        snprintf(name, sizeof(name), "file-%d", i);
        write_seed("safetensors", name, bytes, 8 + size + 32);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    folder = argv[1];
    write_chunks();
    write_trips();
    write_codebooks();
    write_container("empty", 0, 0, 0);
    write_container("one-chunk", 100, 0, 1);
    write_container("tables-and-chunks", 1 << 20, 3, 4);
    write_headers();
    make_proto();
    make_transport();
    make_rendezvous();
    return 0;
}
