/* Damage of every part of a checkpoint's files: what it is called, and what is loaded all the same. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/reader.h"
#include "internal/bytes.h"
#include "tests/checkpoint/builder.h"
#include "tests/run_suite.h"

enum { FILES = 2 };

static char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 16];
static struct built built;

/* Two tensors: "a" in the first file, "b" in the second, both in several chunks. */
static void setup(void)
{
    static const uint64_t shape[2] = {64, 96};
    struct rng rng = rng_init(31);
    scratch_make(folder);
    snprintf(path, sizeof(path), "%s/step", folder);
    built = (struct built){.file_count = FILES, .page_bytes = 1024, .chunk_pages = 4, .committed_ns = 9};
    for (uint32_t t = 0; t < FILES; t++) {
        built_tensor_add(&built, &rng, t == 0 ? "a" : "b", "F32", shape, 2, UINT32_MAX);
        built_split(&built, &rng, t, 1, 0);
        built.shards[t].file = t;
    }
    built_write(&built, &rng, path);
}

static void teardown(void)
{
    built_fini(&built);
    scratch_remove(folder);
}

/* Where the parts of the first file are. */
struct parts {
    uint8_t *bytes;
    size_t size;
    struct checkpoint_tail tail;
    struct checkpoint_footer footer;
};

static void parts_read(struct parts *parts)
{
    parts->bytes = file_read(path, "00000.strait", &parts->size);
    ck_assert_int_eq(STRAIT_OK, checkpoint_tail_parse(&parts->tail, parts->bytes + parts->size - CHECKPOINT_TAIL_BYTES,
                                                      parts->size, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, checkpoint_footer_parse(&parts->footer, parts->bytes + parts->tail.footer_offset,
                                                        &parts->tail, NULL, 0));
    ck_assert_uint_gt(parts->footer.chunk_count, 3);
}

static void parts_fini(struct parts *parts)
{
    checkpoint_footer_free(&parts->footer);
    free(parts->bytes);
}

struct seen {
    unsigned count, of_files;
    uint64_t values;
    int32_t status;
    char file[32];
};

static void see(void *context, const struct strait_checkpoint_damage *damage)
{
    struct seen *seen = context;
    seen->count++;
    seen->of_files += damage->tensor == NULL;
    seen->values += damage->value_count;
    seen->status = damage->status;
    snprintf(seen->file, sizeof(seen->file), "%s", damage->file);
}

/* Loads both tensors; *wrong: values of the first that are not as they were. The second has to be right. */
static enum strait_status load(struct seen *seen, uint64_t *wrong, enum strait_status *verified)
{
    struct strait_checkpoint_reader *reader;
    struct seen of_verify = {0};
    char text[512] = "";
    static uint8_t memory[FILES][64 * 96 * 4];
    struct strait_checkpoint_box boxes[FILES] = {{.data = memory[0]}, {.tensor = 1, .data = memory[1]}};
    struct strait_checkpoint_load_options options = {.size = sizeof(options), .threads = 2, .damage = see};
    *seen = (struct seen){0};
    memset(memory, CANARY, sizeof(memory));
    const enum strait_status opened = strait_checkpoint_open(path, &reader, text, sizeof(text));
    ck_assert((opened == STRAIT_OK) == (text[0] == '\0'));
    if (opened != STRAIT_OK)
        return opened;
    options.context = &of_verify;
    *verified = strait_checkpoint_verify(reader, &options, text, sizeof(text));
    options.context = seen;
    const enum strait_status status = strait_checkpoint_load(reader, boxes, FILES, &options, text, sizeof(text));
    ck_assert_int_eq(boxes[1].status, STRAIT_OK);
    ck_assert_mem_eq(memory[1], built.tensors[1].bytes, sizeof(memory[1]));
    ck_assert_int_eq(boxes[0].status, status);
    ck_assert_uint_eq(seen->count, of_verify.count);
    ck_assert_uint_eq(seen->values, of_verify.values);
    const char *named = strstr(text, "00000.strait");
    ck_assert(status == STRAIT_OK || (named != NULL && strstr(named + 1, "00000.strait") == NULL));
    *wrong = 0;
    for (uint32_t i = 0; i < 64 * 96; i++)
        *wrong += memcmp(memory[0] + 4 * i, built.tensors[0].bytes + 4 * i, 4) != 0;
    strait_checkpoint_close(reader);
    return status;
}

/* Changes a byte of the first file, loads, and puts it back. */
static enum strait_status load_changed(const struct parts *parts, uint64_t at, struct seen *seen, uint64_t *wrong)
{
    enum strait_status verified;
    parts->bytes[at] ^= 0x10;
    file_write(path, "00000.strait", parts->bytes, parts->size);
    const enum strait_status status = load(seen, wrong, &verified);
    ck_assert_int_eq(status, verified);
    parts->bytes[at] ^= 0x10;
    return status;
}

/* Damage of the whole file: none of the first tensor's values are loaded. */
static void expect_file(const struct parts *parts, uint64_t at, enum strait_status expected)
{
    struct seen seen;
    uint64_t wrong;
    ck_assert_int_eq(expected, load_changed(parts, at, &seen, &wrong));
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.of_files, 1);
    ck_assert_int_eq(seen.status, expected);
    ck_assert_str_eq(seen.file, "00000.strait");
}

TEST(no_changed_byte_of_a_header_is_overlooked)
{
    struct parts parts;
    parts_read(&parts);
    for (uint64_t at = 0; at < 40; at += 1 + at % STRIDE)
        expect_file(&parts, at,
                    at < 4 || (at >= 5 && at >= 32) ? STRAIT_ERR_CORRUPT
                    : at == 4                       ? STRAIT_ERR_UNSUPPORTED
                                                    : STRAIT_ERR_INTEGRITY);
    expect_file(&parts, CHECKPOINT_HEADER_BYTES - 1, STRAIT_ERR_CORRUPT);
    parts_fini(&parts);
}

TEST(no_changed_byte_of_a_footer_or_tail_is_overlooked)
{
    struct parts parts;
    parts_read(&parts);
    const uint64_t tail = parts.size - CHECKPOINT_TAIL_BYTES;
    for (uint64_t at = parts.tail.footer_offset; at < parts.size; at += STRIDE)
        expect_file(&parts, at, at >= parts.size - 8 ? STRAIT_ERR_TRUNCATED : STRAIT_ERR_INTEGRITY);
    expect_file(&parts, tail, STRAIT_ERR_INTEGRITY);
    parts_fini(&parts);
}

TEST(damaged_metadata_cost_a_chunk)
{
    struct parts parts;
    struct seen seen;
    uint64_t wrong;
    parts_read(&parts);
    const struct checkpoint_chunk *chunk = &parts.footer.chunks[1];
    for (uint64_t at = 0; at < 48 + 16 * chunk->pages; at += 1 + 2 * STRIDE) {
        ck_assert_int_ne(STRAIT_OK, load_changed(&parts, chunk->offset + at, &seen, &wrong));
        ck_assert_uint_eq(seen.count, 1);
        ck_assert_uint_eq(seen.of_files, 0);
        ck_assert_uint_eq(seen.values, (uint64_t)chunk->pages * 256);
        ck_assert_uint_le(wrong, seen.values);
    }
    parts_fini(&parts);
}

TEST(damaged_blocks_cost_their_page)
{
    struct parts parts;
    struct seen seen;
    uint64_t wrong;
    parts_read(&parts);
    const struct checkpoint_chunk *chunk = &parts.footer.chunks[2];
    const uint64_t metadata = (48 + 16 * (uint64_t)chunk->pages + 15) / 16 * 16;
    for (uint64_t at = metadata; at < chunk->bytes; at += 29 * STRIDE) {
        ck_assert_int_ne(STRAIT_OK, load_changed(&parts, chunk->offset + at, &seen, &wrong));
        ck_assert_uint_eq(seen.count, 1);
        ck_assert_uint_eq(seen.values, 256);
        ck_assert_uint_le(wrong, 256);
    }
    parts_fini(&parts);
}

TEST(padding_is_in_no_sum)
{
    struct parts parts;
    struct seen seen;
    uint64_t wrong;
    parts_read(&parts);
    uint64_t at = 0, next = 0;
    for (uint32_t i = 1; i < parts.footer.chunk_count && at == next; i++) { /* one may end where padding would */
        at = parts.footer.chunks[i - 1].offset + parts.footer.chunks[i - 1].bytes;
        next = parts.footer.chunks[i].offset;
    }
    ck_assert_uint_lt(at, next);
    ck_assert_int_eq(STRAIT_OK, load_changed(&parts, at, &seen, &wrong));
    ck_assert_uint_eq(seen.count + wrong, 0);
    parts_fini(&parts);
}

TEST(a_file_that_was_cut_is_told_and_no_other)
{
    struct parts parts;
    struct seen seen;
    uint64_t wrong;
    enum strait_status verified;
    parts_read(&parts);
    for (size_t size = 0; size < parts.size; size += 1 + parts.size / (40 / STRIDE)) {
        file_write(path, "00000.strait", parts.bytes, size);
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, load(&seen, &wrong, &verified));
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, verified);
        ck_assert_uint_eq(seen.of_files, 1);
    }
    parts_fini(&parts);
}

TEST(no_changed_or_cut_index_is_opened)
{
    struct strait_checkpoint_reader *reader;
    size_t size;
    char text[512], newest[SCRATCH_BYTES + 16];
    uint8_t *bytes = file_read(path, CHECKPOINT_INDEX_NAME, &size);
    for (size_t at = 0; at < size; at += STRIDE) {
        bytes[at] ^= 0x10;
        file_write(path, CHECKPOINT_INDEX_NAME, bytes, size);
        ck_assert_int_ne(STRAIT_OK, strait_checkpoint_open(path, &reader, text, sizeof(text)));
        ck_assert_ptr_null(reader);
        ck_assert_ptr_nonnull(strstr(text, CHECKPOINT_INDEX_NAME));
        bytes[at] ^= 0x10;
        file_write(path, CHECKPOINT_INDEX_NAME, bytes, at);
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_checkpoint_open(path, &reader, text, sizeof(text)));
    }
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_checkpoint_newest(folder, NULL, NULL, newest, sizeof(newest)));
    file_write(path, CHECKPOINT_INDEX_NAME, bytes, size);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_newest(folder, NULL, NULL, newest, sizeof(newest)));
    ck_assert_str_eq(newest, path);
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_checkpoint_newest(folder, NULL, NULL, newest, strlen(path)));
    free(bytes);
}

/* ---- What sums do not find --------------------------------------------------------------------------------------- */

/* What a writer that is wrong, or means ill, says of the first file's shard, in footer and index, with right sums. */
static void lie_of_pages(struct checkpoint_shard *shard)
{
    shard->page_bytes *= 2;
}

static void lie_of_type(struct checkpoint_shard *shard)
{
    shard->dtype = checkpoint_dtype_find("I32");
}

static void lie_of_place(struct checkpoint_shard *shard)
{
    shard->first_page = 1;
}

static void lie_of_shape(struct checkpoint_shard *shard)
{
    static const uint64_t larger[2] = {64, 97};
    shard->shape = shard->sizes = larger;
}

static void lie(void (*tell)(struct checkpoint_shard *shard))
{
    struct parts parts;
    struct checkpoint_index index;
    uint8_t *message, *file, tail[CHECKPOINT_TAIL_BYTES];
    size_t message_bytes, size;
    parts_read(&parts);
    uint8_t *old = file_read(path, CHECKPOINT_INDEX_NAME, &size);
    ck_assert_int_eq(STRAIT_OK, checkpoint_index_parse(&index, old, size, NULL, 0));
    tell(&parts.footer.shards[0]);
    tell(&index.shards[0]);
    ck_assert_int_eq(STRAIT_OK, checkpoint_footer_build(&parts.footer, &message, &message_bytes));
    checkpoint_tail_build(tail, parts.tail.footer_offset, message, (uint32_t)message_bytes);
    parts.bytes = realloc(parts.bytes, parts.size + message_bytes + sizeof(tail));
    require(parts.bytes != NULL);
    memcpy(parts.bytes + parts.tail.footer_offset, message, message_bytes);
    memcpy(parts.bytes + parts.tail.footer_offset + message_bytes, tail, sizeof(tail));
    index.files[0].bytes = parts.tail.footer_offset + message_bytes + sizeof(tail);
    checkpoint_sum(index.files[0].footer_sum, message, message_bytes);
    file_write(path, "00000.strait", parts.bytes, index.files[0].bytes);
    ck_assert_int_eq(STRAIT_OK, checkpoint_index_build(&index, &file, &size));
    file_write(path, CHECKPOINT_INDEX_NAME, file, size);
    checkpoint_index_free(&index);
    parts_fini(&parts);
    free(message);
    free(file);
    free(old);
}

static void (*const lies[])(struct checkpoint_shard *shard) = {lie_of_pages, lie_of_type, lie_of_place, lie_of_shape};

TEST_LOOP(pages_that_are_not_as_the_footer_says_are_refused, COUNT(lies))
{
    struct seen seen;
    uint64_t wrong;
    enum strait_status verified, status;
    lie(lies[_i]);
    status = load(&seen, &wrong, &verified);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, status);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, verified);
}

TEST(files_of_two_saves_are_not_mixed)
{
    struct rng rng = rng_init(32);
    struct seen seen;
    uint64_t wrong;
    enum strait_status verified;
    char other[SCRATCH_BYTES + 16];
    size_t size;
    snprintf(other, sizeof(other), "%s/other", folder);
    built.save_id[3] ^= 1; /* else equal */
    built_write(&built, &rng, other);
    uint8_t *bytes = file_read(other, "00000.strait", &size);
    file_write(path, "00000.strait", bytes, size);
    ck_assert_int_ne(STRAIT_OK, load(&seen, &wrong, &verified));
    ck_assert_uint_eq(seen.of_files, 1);
    free(bytes);
}

/* A footer of a file that is itself whole, but not the one that the index has. */
TEST(files_of_one_save_under_other_names_are_refused)
{
    struct strait_checkpoint_reader *reader;
    char first[SCRATCH_BYTES + 32], second[SCRATCH_BYTES + 32], between[SCRATCH_BYTES + 32], text[512];
    snprintf(first, sizeof(first), "%s/00000.strait", path);
    snprintf(second, sizeof(second), "%s/00001.strait", path);
    snprintf(between, sizeof(between), "%s/between", path);
    ck_assert(rename(first, between) == 0 && rename(second, first) == 0 && rename(between, second) == 0);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, text, sizeof(text)));
    ck_assert_int_ne(STRAIT_OK, strait_checkpoint_verify(reader, NULL, text, sizeof(text)));
    strait_checkpoint_close(reader);
}

TEST(folders_and_pipes_in_the_place_of_files_are_told)
{
    struct seen seen;
    uint64_t wrong;
    enum strait_status verified;
    char name[SCRATCH_BYTES + 32];
    snprintf(name, sizeof(name), "%s/00000.strait", path);
    ck_assert(remove(name) == 0);
    ck_assert_int_eq(STRAIT_ERR_TRUNCATED, load(&seen, &wrong, &verified));
    ck_assert(mkfifo(name, 0600) == 0);
    ck_assert_int_ne(STRAIT_OK, load(&seen, &wrong, &verified));
    ck_assert(remove(name) == 0 && mkdir(name, 0700) == 0);
    ck_assert_int_ne(STRAIT_OK, load(&seen, &wrong, &verified));
    ck_assert_uint_eq(seen.of_files, 1);
}

TEST(without_descriptors_a_load_fails_and_the_next_one_does_not)
{
    struct strait_checkpoint_reader *reader;
    struct seen seen = {0};
    static uint8_t memory[64 * 96 * 4];
    char text[512] = "", newest[SCRATCH_BYTES + 16];
    struct strait_checkpoint_box box = {.data = memory};
    const struct strait_checkpoint_load_options options = {
        .size = sizeof(options), .threads = 2, .damage = see, .context = &seen};
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    for (unsigned known = 0; known < 2; known++) { /* its footer is read by the first load that succeeds */
        descriptors_forbid();
        ck_assert_int_eq(STRAIT_ERR_IO, strait_checkpoint_load(reader, &box, 1, &options, text, sizeof(text)));
        ck_assert_int_eq(STRAIT_ERR_IO, strait_checkpoint_verify(reader, &options, text, sizeof(text)));
        ck_assert_int_eq(STRAIT_ERR_IO, strait_checkpoint_newest(folder, NULL, NULL, newest, sizeof(newest)));
        descriptors_allow();
        ck_assert_int_eq(STRAIT_OK, strait_checkpoint_load(reader, &box, 1, NULL, NULL, 0));
        ck_assert_mem_eq(memory, built.tensors[0].bytes, sizeof(memory));
    }
    ck_assert_uint_gt(seen.count, 2);
    strait_checkpoint_close(reader);
}

/* A file that loses its end after its footer was read. */
TEST(a_file_that_shrinks_while_it_is_open_is_told)
{
    struct strait_checkpoint_reader *reader;
    struct seen seen = {0};
    static uint8_t memory[64 * 96 * 4];
    char name[SCRATCH_BYTES + 32], text[512] = "";
    struct strait_checkpoint_shard_info shard;
    struct strait_checkpoint_box box = {.data = memory};
    const struct strait_checkpoint_load_options options = {
        .size = sizeof(options), .threads = 2, .damage = see, .context = &seen};
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    ck_assert(strait_checkpoint_shard_at(reader, 0, 0, &shard));
    snprintf(name, sizeof(name), "%s/00000.strait", path);
    ck_assert(truncate(name, 3 * CHECKPOINT_ALIGNMENT) == 0);
    ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_checkpoint_load(reader, &box, 1, &options, text, sizeof(text)));
    ck_assert_uint_gt(seen.count, 1);
    ck_assert_uint_lt(seen.values, 64 * 96);
    ck_assert_mem_eq(memory, built.tensors[0].bytes, 1024);
    strait_checkpoint_close(reader);
}

int main(void)
{
    return run_tests("checkpoint_damage", setup, teardown);
}
