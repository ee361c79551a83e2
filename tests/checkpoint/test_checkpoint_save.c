/* Saving: what comes in lies in the files. */
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/folder.h"
#include "tests/checkpoint/saved.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char folder[256], path[300];

static void setup(void)
{
    scratch_make(folder, "save");
    snprintf(path, sizeof(path), "%s/step-1", folder);
}

static void teardown(void)
{
    scratch_remove(folder);
}

static void *values(uint32_t seed, const char *dtype, uint64_t bytes)
{
    void *data = malloc(bytes + 1);

    ck_assert_ptr_nonnull(data);
    fill_values(seed, dtype, data, bytes);
    return data;
}

static struct strait_checkpoint_save *begin(uint32_t flags)
{
    struct strait_checkpoint_save_options options = save_options(0, 1, 1);
    struct strait_checkpoint_save *save = NULL;
    char text[512] = "";

    options.flags = flags;
    ck_assert_msg(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)) == STRAIT_OK, "%s", text);
    return save;
}

/* ---- Shapes and sizes -------------------------------------------------------------------------------------------- */

static const char *const dtypes[] = {"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "I8",  "I16",  "I32",
                                     "I64",  "U8",  "U16", "U32", "U64",     "BOOL",    "C64", "BYTES"};

TEST_LOOP(what_is_saved_is_there, 3)
{
    /* Sizes around those of pages and chunks, in values. */
    static const uint64_t sizes[] = {0, 1, 3, 100, 8191, 8192, 8193, 16384, 40000, 1048576, 1048577, 2500000};
    static const uint32_t flags[] = {0, STRAIT_CHECKPOINT_CACHED, STRAIT_CHECKPOINT_RAW};
    static struct piece_of pieces[COUNT(dtypes) * COUNT(sizes)];
    static char names[COUNT(dtypes) * COUNT(sizes)][40];
    uint32_t count = 0;

    for (int d = 0; d < COUNT(dtypes); d++)
        for (int s = 0; s < COUNT(sizes); s++) {
            if (sizes[s] > 100000 && d != 0 && d != 2 && d != 5 && d != 10)
                continue;
            const uint64_t bytes = sizes[s] * strait_checkpoint_dtype_bytes(dtypes[d]);
            snprintf(names[count], sizeof(names[0]), "layer.%d.%s", s, dtypes[d]);
            pieces[count] = (struct piece_of){.name = names[count],
                                              .dtype = dtypes[d],
                                              .dims = 1,
                                              .shape = {sizes[s]},
                                              .data = values(count, dtypes[d], bytes)};
            count++;
        }
    save_all(path, pieces, count, 1, flags[_i]);
    require_holds(path, pieces, count);
    for (uint32_t i = 0; i < count; i++)
        free((void *)pieces[i].data);
}
END_TEST

TEST(scalars_and_sixteen_dimensions)
{
    static const float scalar = 3.5f;
    float *cube = values(1, "F32", 65536 * 4);
    struct piece_of pieces[] = {
        {.name = "step", .dtype = "F32", .data = &scalar},
        {.name = "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80/ \"\\\n", .dtype = "F32", .dims = 16, .data = cube},
        {.name = "none", .dtype = "I64", .dims = 2, .shape = {3, 0}},
    };
    for (int d = 0; d < 16; d++)
        pieces[1].shape[d] = 2;
    save_all(path, pieces, COUNT(pieces), 1, 0);
    require_holds(path, pieces, COUNT(pieces));
    free(cube);
}
END_TEST

/* A pointer that is aligned to nothing. */
TEST(odd_addresses)
{
    uint8_t *bytes = values(1, "U8", 9000001);
    const struct piece_of pieces[] = {
        {.name = "a", .dtype = "F32", .dims = 1, .shape = {2000000}, .data = bytes + 1},
        {.name = "b", .dtype = "BF16", .dims = 1, .shape = {30000}, .data = bytes + 3},
        {.name = "c", .dtype = "C64", .dims = 1, .shape = {5}, .data = bytes + 5},
        {.name = "d", .dtype = "BF16", .dims = 1, .shape = {30001}, .data = bytes + 60003},
    };
    save_all(path, pieces, COUNT(pieces), 1, 0);
    require_holds(path, pieces, COUNT(pieces));
    free(bytes);
}
END_TEST

TEST(nothing_at_all)
{
    save_all(path, NULL, 0, 1, 0);
    require_holds(path, NULL, 0);
}
END_TEST

/* ---- Many small ones --------------------------------------------------------------------------------------------- */

TEST(a_mass_of_tiny_tensors)
{
    enum { TENSORS = 70000, VALUES = 16 };
    float *data = values(1, "F32", (uint64_t)TENSORS * VALUES * 4);
    struct strait_checkpoint_save *save = begin(0);
    struct strait_checkpoint_summary summary;
    struct saved_file file;
    char name[64];
    const double began = clock_s();

    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.bias", i / 256, i % 256);
        const struct piece_of piece = {
            .name = name, .dtype = "F32", .dims = 1, .shape = {VALUES}, .data = data + (size_t)i * VALUES};
        ck_assert_int_eq(add_piece(save, &piece), STRAIT_OK);
    }
    ck_assert_int_eq(strait_checkpoint_save_end(save, &summary), STRAIT_OK);
    strait_checkpoint_save_free(save);
    ck_assert(SANITIZED || clock_s() - began - machine_late_s() < 2);
    struct strait_checkpoint_commit_options options = commit_options(1, 1);
    char text[512] = "";
    ck_assert_msg(strait_checkpoint_commit(path, &options, text, sizeof(text)) == STRAIT_OK, "%s", text);
    saved_open(&file, path, 0);
    /* What is not the list of names and boxes is smaller than the values. */
    const struct checkpoint_chunk *last = &file.footer.chunks[file.footer.chunk_count - 1];
    ck_assert_uint_eq(summary.raw_bytes, (uint64_t)TENSORS * VALUES * 4);
    ck_assert_uint_lt(last->offset + last->bytes, summary.raw_bytes + summary.raw_bytes / 100);
    ck_assert_uint_eq(file.footer.shard_count, TENSORS);
    for (uint32_t i = 0; i < TENSORS; i += 997) {
        uint8_t *found = saved_shard(&file, i);
        ck_assert_mem_eq(found, data + (size_t)i * VALUES, VALUES * 4);
        free(found);
    }
    saved_close(&file);
    free(data);
}
END_TEST

/* ---- Roundings --------------------------------------------------------------------------------------------------- */

/* Rounds by the processor's own arithmetic: a sum of a float and half a last place would not do for all values. */
static uint16_t nearest(float value)
{
    uint32_t bits, low;
    float below, above;

    memcpy(&bits, &value, 4);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    low = bits & 0xFFFF0000;
    memcpy(&below, &low, 4);
    if (below == value)
        return (uint16_t)(bits >> 16);
    low += 0x10000;
    memcpy(&above, &low, 4);
    const double to_below = fabs((double)value - below),
                 to_above = fabs((isinf(above) ? 0x1p128 * (above > 0 ? 1 : -1) : (double)above) - value);
    if (to_below == to_above)
        return (uint16_t)((bits >> 16) + (bits >> 16 & 1));
    return (uint16_t)((bits >> 16) + (to_above < to_below));
}

TEST_LOOP(roundings, 3)
{
    const uint64_t count = _i == 0 ? 1000 : 3000000; /* compared at once, and by threads */
    float *wide = values(7, "U8", count * 4);        /* any bits: NaN, infinities, subnormal numbers, ties */
    uint16_t *narrow = malloc(count * 2);
    struct strait_checkpoint_save *save;
    struct strait_checkpoint_summary summary;

    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], 4);
        if (i % 7 == 0)
            bits = (bits & 0xFFFF0000) | 0x8000;
        if (i % 11 == 0)
            bits &= 0x807FFFFF;
        memcpy(&wide[i], &bits, 4);
        narrow[i] = nearest(wide[i]);
    }
    if (_i == 2)
        narrow[count - 1] ^= 1;
    const struct piece_of pieces[] = {
        {.name = "master", .dtype = "F32", .dims = 2, .shape = {10, count / 10}, .data = wide},
        {.name = "model",
         .dtype = "BF16",
         .dims = 2,
         .shape = {10, count / 10},
         .data = narrow,
         .rounded_from = "master"},
        {.name = "after", .dtype = "BF16", .dims = 1, .shape = {20}, .data = narrow},
    };
    save = begin(0);
    for (int i = 0; i < COUNT(pieces); i++)
        ck_assert_int_eq(add_piece(save, &pieces[i]), STRAIT_OK);
    ck_assert_int_eq(strait_checkpoint_save_end(save, &summary), STRAIT_OK);
    strait_checkpoint_save_free(save);
    ck_assert_uint_eq(summary.rounded_shards, _i == 2 ? 0 : 1);
    struct strait_checkpoint_commit_options options = commit_options(1, 1);
    ck_assert_int_eq(strait_checkpoint_commit(path, &options, NULL, 0), STRAIT_OK);
    require_holds(path, pieces, COUNT(pieces));
    free(wide);
    free(narrow);
}
END_TEST

/* ---- The same file, whatever the threads ------------------------------------------------------------------------- */

TEST(the_file_depends_on_the_tensors_alone)
{
    struct saved_file files[3];
    static char names[60][20];
    struct piece_of pieces[60];

    for (uint32_t i = 0; i < 60; i++) {
        const uint64_t count = i % 10 == 0 ? 1500000 : i * i * 30;
        snprintf(names[i], sizeof(names[i]), "t%u", i);
        pieces[i] = (struct piece_of){.name = names[i],
                                      .dtype = i % 3 == 0   ? "F32"
                                               : i % 3 == 1 ? "BF16"
                                                            : "U8",
                                      .dims = 1,
                                      .shape = {count},
                                      .data = values(i, i % 3 == 0 ? "F32" : "BF16", count * 4)};
    }
    for (uint32_t k = 0; k < 3; k++) {
        static const uint32_t threads[] = {1, 2, 9};
        struct strait_checkpoint_save_options options = save_options(0, 1, 5);
        struct strait_checkpoint_save *save = NULL;
        char partial[600];
        options.threads = threads[k];
        options.buffer_bytes = k == 2 ? 1 : 0;
        ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &save, NULL, 0), STRAIT_OK);
        for (int i = 0; i < 60; i++)
            ck_assert_int_eq(add_piece(save, &pieces[i]), STRAIT_OK);
        ck_assert_int_eq(strait_checkpoint_save_end(save, NULL), STRAIT_OK);
        strait_checkpoint_save_free(save);
        snprintf(partial, sizeof(partial), "%s/.step-1.050000005a5a5a5a5a5a5a5a5a5a5a5a.partial", folder);
        saved_open(&files[k], partial, 0);
        ck_assert_int_eq(strait_checkpoint_abandon(path, options.save_id, NULL, 0), STRAIT_OK);
        ck_assert_int_ne(access(partial, F_OK), 0);
        ck_assert_uint_eq(files[k].size, files[0].size);
        ck_assert_mem_eq(files[k].bytes, files[0].bytes, files[0].size);
    }
    for (int k = 0; k < 3; k++)
        saved_close(&files[k]);
    for (int i = 0; i < 60; i++)
        free((void *)pieces[i].data);
}
END_TEST

/* ---- Any states -------------------------------------------------------------------------------------------------- */

enum { STATE_TENSORS = 40, STATE_RANKS = 4 };

/* A tensor of rows, cut among ranks anywhere, some rows saved by two of them. */
struct state_tensor {
    char name[24];
    const char *dtype;
    uint64_t shape[2], from[STATE_RANKS], to[STATE_RANKS];
    uint8_t *data;
    uint64_t row_bytes;
};

static void make_tensor(struct rng *rng, struct state_tensor *tensor, uint32_t number, uint32_t ranks)
{
    const uint32_t size = rng_below(rng, 4);
    uint64_t at = 0;

    *tensor = (struct state_tensor){.dtype = dtypes[rng_below(rng, COUNT(dtypes))]};
    snprintf(tensor->name, sizeof(tensor->name), "layer.%u", number);
    tensor->shape[0] = rng_below(rng, 20);
    tensor->shape[1] = size == 0 ? 1 : rng_below(rng, size == 1 ? 50 : size == 2 ? 5000 : 90000);
    tensor->row_bytes = tensor->shape[1] * strait_checkpoint_dtype_bytes(tensor->dtype);
    tensor->data = values(number, tensor->dtype, tensor->shape[0] * tensor->row_bytes);
    for (uint32_t r = 0; r < ranks; r++) {
        const uint64_t left = tensor->shape[0] - at;
        tensor->from[r] = at - (at > 0 && rng_below(rng, 2));
        at += r == ranks - 1 ? left : rng_below(rng, (uint32_t)left + 1);
        tensor->to[r] = at;
    }
}

static void save_rank(const struct state_tensor *tensors, uint32_t rank, uint32_t ranks, uint32_t seed)
{
    struct strait_checkpoint_save_options options = save_options(rank, ranks, seed);
    struct strait_checkpoint_save *save = NULL;

    options.threads = 1 + seed % 5;
    options.flags = seed % 3 == 0 ? STRAIT_CHECKPOINT_CACHED : 0;
    ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &save, NULL, 0), STRAIT_OK);
    for (uint32_t i = 0; i < STATE_TENSORS; i++) {
        const struct state_tensor *tensor = &tensors[i];
        const uint64_t offsets[2] = {tensor->from[rank], 0},
                       sizes[2] = {tensor->to[rank] - offsets[0], tensor->shape[1]};
        const struct strait_checkpoint_tensor shard = {.size = sizeof(shard),
                                                       .name = tensor->name,
                                                       .dtype = tensor->dtype,
                                                       .shape = tensor->shape,
                                                       .offsets = offsets,
                                                       .sizes = sizes,
                                                       .data = tensor->data + offsets[0] * tensor->row_bytes,
                                                       .dims = 2};
        ck_assert_msg(strait_checkpoint_save_add(save, &shard) == STRAIT_OK, "%s", strait_checkpoint_save_text(save));
    }
    ck_assert_int_eq(strait_checkpoint_save_end(save, NULL), STRAIT_OK);
    strait_checkpoint_save_free(save);
}

TEST(any_state_by_any_ranks)
{
    struct rng rng = rng_init(11);

    for (uint32_t round = 1; round <= 12; round += STRIDE) {
        struct state_tensor tensors[STATE_TENSORS];
        struct strait_checkpoint_box boxes[STATE_TENSORS] = {0};
        struct strait_checkpoint_reader *reader = NULL;
        const uint32_t ranks = 1 + rng_below(&rng, STATE_RANKS);
        struct strait_checkpoint_commit_options commit = commit_options(ranks, round);
        char text[512] = "";
        for (uint32_t i = 0; i < STATE_TENSORS; i++)
            make_tensor(&rng, &tensors[i], i, ranks);
        for (uint32_t r = 0; r < ranks; r++)
            save_rank(tensors, r, ranks, round);
        commit.flags = STRAIT_CHECKPOINT_REPLACE;
        ck_assert_msg(strait_checkpoint_commit(path, &commit, text, sizeof(text)) == STRAIT_OK, "%s", text);
        ck_assert_msg(strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK, "%s", text);
        for (uint32_t i = 0; i < STATE_TENSORS; i++) {
            boxes[i].tensor = strait_checkpoint_find(reader, tensors[i].name);
            boxes[i].data = malloc(tensors[i].shape[0] * tensors[i].row_bytes + 1);
        }
        ck_assert_msg(strait_checkpoint_load(reader, boxes, STATE_TENSORS, NULL, text, sizeof(text)) == STRAIT_OK, "%s",
                      text);
        ck_assert_msg(strait_checkpoint_verify(reader, NULL, text, sizeof(text)) == STRAIT_OK, "%s", text);
        strait_checkpoint_close(reader);
        for (uint32_t i = 0; i < STATE_TENSORS; i++) {
            const uint64_t bytes = tensors[i].shape[0] * tensors[i].row_bytes;
            ck_assert_msg(bytes == 0 || memcmp(boxes[i].data, tensors[i].data, bytes) == 0, "round %u, %s", round,
                          tensors[i].name);
            free(boxes[i].data);
            free(tensors[i].data);
        }
    }
}
END_TEST

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

TEST(begin_refuses)
{
    static const char *const names[] = {"", "/", "latest", "x/latest/", ".hidden", "..", "x/.."};
    struct strait_checkpoint_save_options options = save_options(0, 1, 1);
    struct strait_checkpoint_save *save = NULL;
    char text[600] = "", missing[400], long_name[600];

    for (int i = 0; i < COUNT(names); i++) {
        text[0] = 0;
        ck_assert_int_eq(strait_checkpoint_save_begin(names[i], &options, &save, text, sizeof(text)),
                         STRAIT_ERR_INVALID);
        ck_assert_ptr_null(save);
        ck_assert_str_ne(text, "");
    }
    memset(long_name, 'n', sizeof(long_name));
    long_name[214] = 0;
    ck_assert_int_eq(strait_checkpoint_save_begin(long_name, &options, &save, text, sizeof(text)), STRAIT_ERR_INVALID);
    snprintf(missing, sizeof(missing), "%s/nowhere/step-1", folder);
    ck_assert_int_eq(strait_checkpoint_save_begin(missing, &options, &save, text, sizeof(text)), STRAIT_ERR_IO);
    ck_assert_ptr_nonnull(strstr(text, "nowhere: open: No such file"));
    options.rank = 1;
    ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)), STRAIT_ERR_INVALID);
    options.rank_count = STRAIT_CHECKPOINT_RANKS_MAX + 1;
    ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)), STRAIT_ERR_INVALID);
    options = save_options(0, 1, 1);
    options.flags = 4;
    ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)), STRAIT_ERR_INVALID);
    /* The same rank twice in one save. */
    options.flags = 0;
    ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)), STRAIT_OK);
    struct strait_checkpoint_save *second = NULL;
    ck_assert_int_eq(strait_checkpoint_save_begin(path, &options, &second, text, sizeof(text)), STRAIT_ERR_IO);
    ck_assert_ptr_nonnull(strstr(text, "00000.strait: open: File exists"));
    strait_checkpoint_save_free(save);
    ck_assert_int_eq(rmdir(folder), 0); /* a save that was freed leaves nothing */
}
END_TEST

TEST(add_refuses)
{
    static const uint16_t bits[8];
    static const float wide[8];
    const struct piece_of good = {.name = "a", .dtype = "BF16", .dims = 1, .shape = {8}, .data = bits};
    struct piece_of bad[16];
    char too_long[STRAIT_CHECKPOINT_NAME_MAX + 2];
    struct strait_checkpoint_save *save = begin(0);
    int count = 0;

    memset(too_long, 'n', sizeof(too_long) - 1);
    too_long[sizeof(too_long) - 1] = 0;
    for (int i = 0; i < COUNT(bad); i++)
        bad[i] = good;
    bad[count++].name = NULL;
    bad[count++].name = "";
    bad[count++].name = too_long;
    bad[count++].name = "\xC0\x80";         /* zero in two bytes */
    bad[count++].name = "\xED\xA0\x80";     /* a surrogate */
    bad[count++].name = "\xF4\x90\x80\x80"; /* past the last character */
    bad[count++].name = "\xE2\x82";         /* ends early */
    bad[count++].dtype = "F17";
    bad[count++].dims = 17;
    bad[count++].data = NULL;
    bad[count].offsets[0] = 1;
    bad[count++].sizes[0] = 8;
    bad[count++].shape[0] = UINT64_C(1) << 62;
    bad[count++].rounded_from = "nothing";
    bad[count++].rounded_from = "a"; /* BF16 itself */
    bad[count].dtype = "F16";
    bad[count++].rounded_from = "wide";
    ck_assert_int_eq(add_piece(save, &good), STRAIT_OK);
    ck_assert_int_eq(
        add_piece(save, &(struct piece_of){.name = "wide", .dtype = "F32", .dims = 1, .shape = {8}, .data = wide}),
        STRAIT_OK);
    for (int i = 0; i < count; i++) {
        if (bad[i].name == good.name)
            bad[i].name = "b";
        ck_assert_msg(add_piece(save, &bad[i]) == STRAIT_ERR_INVALID, "%d", i);
        ck_assert_str_ne(strait_checkpoint_save_text(save), "");
    }
    ck_assert_int_eq(add_piece(save, &good), STRAIT_ERR_INVALID); /* twice */
    struct strait_checkpoint_tensor on_gpu = {
        .size = sizeof(on_gpu), .name = "g", .dtype = "U8", .data = bits, .memory = STRAIT_CHECKPOINT_CUDA};
    ck_assert_int_eq(strait_checkpoint_save_add(save, &on_gpu), STRAIT_ERR_UNSUPPORTED);
    /* None of these has harmed the save. */
    ck_assert_int_eq(strait_checkpoint_save_end(save, NULL), STRAIT_OK);
    ck_assert_int_eq(strait_checkpoint_save_end(save, NULL), STRAIT_ERR_INVALID);
    ck_assert_int_eq(add_piece(save, &good), STRAIT_ERR_INVALID);
    strait_checkpoint_save_free(save);
}
END_TEST

int main(void)
{
    print_conditions();
    machine_watch();
    return run_tests("checkpoint_save", setup, teardown);
}
