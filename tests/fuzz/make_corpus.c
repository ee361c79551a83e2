/* make_corpus FOLDER: writes the seeds of every fuzz target to FOLDER/TARGET/. The same bytes on every machine. */
#include <string.h>

#include "internal/bytes.h"
#include "kernels/codebook_file.h"
#include "kernels/container.h"
#include "tests/fuzz/seed.h"
#include "tests/support.h"

static const char *folder;

static void write_seed(const char *target, const char *name, const void *bytes, size_t size)
{
    seed_write(folder, target, name, bytes, size);
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
    return 0;
}
