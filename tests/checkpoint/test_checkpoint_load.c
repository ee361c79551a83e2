/* Loading of boxes from checkpoints of every cut, compared value by value with a copy by loops. */
#include <string.h>

#include "checkpoint/load_plan.h"
#include "tests/checkpoint/builder.h"
#include "tests/run_suite.h"

static char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 16];
static struct built built;
static struct strait_checkpoint_reader *reader;

static void setup(void)
{
    scratch_make(folder);
    snprintf(path, sizeof(path), "%s/step", folder);
}

static void teardown(void)
{
    strait_checkpoint_close(reader);
    reader = NULL;
    built_fini(&built);
    scratch_remove(folder);
}

static void make(struct rng *rng, uint32_t files, uint32_t replicas)
{
    char text[512] = "";
    built_random(&built, rng, files, replicas);
    built_write(&built, rng, path);
    ck_assert_msg(strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK, "%s", text);
}

/* ---- Boxes ------------------------------------------------------------------------------------------------------- */

/* A box to load and its memory, in the middle of more: bytes between its values must stay as they are. */
struct wanted {
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX], strides[STRAIT_CHECKPOINT_DIMS_MAX];
    uint32_t tensor; /* of built */
    uint64_t values;
    uint8_t *memory, *data;
    size_t bytes;
};

static void ask(struct rng *rng, struct wanted *wanted, struct strait_checkpoint_box *box)
{
    *wanted = (struct wanted){.tensor = rng_below(rng, built.tensor_count), .values = 1};
    const struct built_tensor *tensor = &built.tensors[wanted->tensor];
    const bool whole = rng_below(rng, 3) == 0, strided = rng_below(rng, 2) == 0;
    const size_t skew = rng_below(rng, 3) == 0 ? rng_below(rng, 8) : 0;
    uint64_t stride = (uint64_t)tensor->dtype->bytes * (strided && rng_below(rng, 3) == 0 ? 2 : 1);
    for (uint32_t d = tensor->dims; d-- > 0;) {
        const uint32_t most = (uint32_t)tensor->shape[d];
        wanted->at[d] = whole || most == 0 ? 0 : rng_below(rng, most);
        wanted->size[d] = whole ? most : most == 0 ? 0 : rng_below(rng, (uint32_t)(most - wanted->at[d] + 1));
        wanted->values *= wanted->size[d];
        wanted->strides[d] = stride;
        stride = stride * wanted->size[d] + (strided ? rng_below(rng, 40) : 0);
    }
    wanted->bytes = stride + 64 + skew;
    wanted->memory = malloc(wanted->bytes);
    require(wanted->memory != NULL);
    memset(wanted->memory, CANARY, wanted->bytes);
    wanted->data = wanted->memory + 32 + skew;
    const bool plain = whole && rng_below(rng, 2) == 0;
    *box = (struct strait_checkpoint_box){.tensor = strait_checkpoint_find(reader, tensor->name),
                                          .offsets = plain ? NULL : wanted->at,
                                          .sizes = plain ? NULL : wanted->size,
                                          .data = wanted->data,
                                          .strides = strided ? wanted->strides : NULL,
                                          .status = STATUS_UNSET};
    ck_assert_uint_ne(box->tensor, UINT32_MAX);
}

/* Writes what the memory of a box has to be, by loops. */
static void expect(const struct wanted *wanted, uint8_t *memory)
{
    const struct built_tensor *tensor = &built.tensors[wanted->tensor];
    const uint32_t value = tensor->dtype->bytes;
    uint64_t index[STRAIT_CHECKPOINT_DIMS_MAX] = {0};
    memset(memory, CANARY, wanted->bytes);
    for (uint64_t i = 0; i < wanted->values; i++) {
        uint64_t at = 0, to = 0;
        for (uint32_t d = 0; d < tensor->dims; d++) {
            at = at * tensor->shape[d] + wanted->at[d] + index[d];
            to += index[d] * wanted->strides[d];
        }
        memcpy(memory + (wanted->data - wanted->memory) + to, tensor->bytes + at * value, value);
        for (uint32_t d = tensor->dims; d-- > 0 && ++index[d] == wanted->size[d];)
            index[d] = 0;
    }
}

static bool is_right(const struct wanted *wanted)
{
    uint8_t *memory = malloc(wanted->bytes);
    require(memory != NULL);
    expect(wanted, memory);
    const bool right = memcmp(memory, wanted->memory, wanted->bytes) == 0;
    free(memory);
    return right;
}

enum { BOXES = 40 };

static void load_boxes(struct rng *rng, uint32_t threads)
{
    struct wanted wanted[BOXES];
    struct strait_checkpoint_box boxes[BOXES];
    char text[512] = "";
    const struct strait_checkpoint_load_options options = {
        .size = sizeof(options), .threads = threads, .flags = rng_below(rng, 2) * STRAIT_CHECKPOINT_CACHED};
    for (unsigned b = 0; b < BOXES; b++)
        ask(rng, &wanted[b], &boxes[b]);
    ck_assert_msg(strait_checkpoint_load(reader, boxes, BOXES, &options, text, sizeof(text)) == STRAIT_OK, "%s", text);
    for (unsigned b = 0; b < BOXES; b++) {
        ck_assert_int_eq(boxes[b].status, STRAIT_OK);
        ck_assert_msg(is_right(&wanted[b]), "box %u of tensor %s", b, built.tensors[wanted[b].tensor].name);
        free(wanted[b].memory);
    }
}

TEST_LOOP(any_boxes_come_out_of_any_shards, 24 / STRIDE + 1)
{
    struct rng rng = rng_init((uint64_t)_i);
    make(&rng, 1 + rng_below(&rng, 8), rng_below(&rng, 3));
    for (unsigned round = 0; round < 3; round++)
        load_boxes(&rng, 1 + rng_below(&rng, 4));
}

/* Metadata of more bytes than are read at first. */
TEST(a_few_values_of_a_chunk_of_many_pages_are_loaded)
{
    static const uint64_t shape[1] = {3 * 4096 * 32};
    struct rng rng = rng_init(6);
    built = (struct built){.file_count = 1, .page_bytes = 64, .chunk_pages = 4096};
    built_split(&built, &rng, built_tensor_add(&built, &rng, "a", "BF16", shape, 1, UINT32_MAX), 1, 0);
    built_write(&built, &rng, path);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    for (unsigned i = 0; i < 20; i++) {
        uint16_t values[40];
        const uint64_t at[1] = {rng_below(&rng, (uint32_t)shape[0] - 40)}, size[1] = {40};
        struct strait_checkpoint_box box = {.offsets = at, .sizes = size, .data = values};
        ck_assert_int_eq(STRAIT_OK, strait_checkpoint_load(reader, &box, 1, NULL, NULL, 0));
        ck_assert_mem_eq(values, built.tensors[0].bytes + 2 * at[0], sizeof(values));
    }
}

TEST(what_is_described_is_what_was_written)
{
    struct rng rng = rng_init(1);
    struct strait_checkpoint_info info;
    struct strait_checkpoint_tensor_info tensor, before = {.name = ""};
    struct strait_checkpoint_attachment attachment;
    make(&rng, 5, 2);
    strait_checkpoint_describe(reader, &info);
    ck_assert_uint_eq(info.tensor_count, built.tensor_count);
    ck_assert_uint_eq(info.file_count, 5);
    ck_assert_uint_eq(info.committed_ns, built.committed_ns);
    ck_assert_mem_eq(info.save_id, built.save_id, sizeof(built.save_id));
    uint64_t bytes = 0, stored = 0, shards = 0;
    for (uint32_t t = 0; t < info.tensor_count; t++, before = tensor) {
        struct strait_checkpoint_shard_info shard;
        ck_assert(strait_checkpoint_tensor_at(reader, t, &tensor));
        ck_assert_int_lt(strcmp(before.name, tensor.name), 0);
        ck_assert_uint_eq(strait_checkpoint_find(reader, tensor.name), t);
        bytes += tensor.bytes;
        shards += tensor.shard_count;
        for (uint32_t s = 0; s < tensor.shard_count; s++) {
            ck_assert(strait_checkpoint_shard_at(reader, t, s, &shard));
            ck_assert_uint_ne(shard.stored_bytes, UINT64_MAX);
            ck_assert(shard.rounded_from == NULL || shard.stored_bytes == 0);
            stored += shard.stored_bytes;
        }
        ck_assert(!strait_checkpoint_shard_at(reader, t, tensor.shard_count, &shard));
    }
    ck_assert_uint_eq(bytes, info.raw_bytes);
    ck_assert_uint_eq(shards, built.shard_count);
    ck_assert_uint_lt(stored, info.stored_bytes);
    ck_assert_uint_gt(stored, info.raw_bytes / 3); /* noise, for a good part */
    ck_assert_uint_eq(strait_checkpoint_find(reader, "no such tensor"), UINT32_MAX);
    ck_assert(!strait_checkpoint_tensor_at(reader, info.tensor_count, &tensor));
    ck_assert(strait_checkpoint_attachment_at(reader, 0, &attachment));
    ck_assert_str_eq(attachment.name, "planner");
    ck_assert_uint_eq(attachment.bytes, 11);
    ck_assert(!strait_checkpoint_attachment_at(reader, 1, &attachment));
}

TEST(boxes_that_are_none_are_refused_and_nothing_is_loaded)
{
    struct rng rng = rng_init(2);
    const uint64_t shape[2] = {10, 6}, far[2] = {5, 3}, much[2] = {6, 1}, odd[2] = {13, 3}, vast[2] = {1ull << 60, 2};
    uint8_t memory[2][200];
    char text[512];
    built = (struct built){.file_count = 1};
    built_split(&built, &rng, built_tensor_add(&built, &rng, "a", "BF16", shape, 2, UINT32_MAX), 2, 0);
    built_write(&built, &rng, path);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    const struct strait_checkpoint_box good = {.data = memory[0]};
    const struct {
        struct strait_checkpoint_box box;
        enum strait_status status;
    } bad[] = {
        {{.tensor = 1, .data = memory[1]}, STRAIT_ERR_INVALID},
        {{.offsets = far, .sizes = much, .data = memory[1]}, STRAIT_ERR_INVALID},
        {{.offsets = vast, .sizes = far, .data = memory[1]}, STRAIT_ERR_INVALID},
        {{.sizes = vast, .data = memory[1]}, STRAIT_ERR_INVALID},
        {{.strides = odd, .data = memory[1]}, STRAIT_ERR_INVALID},
        {{.strides = vast, .data = memory[1]}, STRAIT_ERR_INVALID},
        {{.data = NULL}, STRAIT_ERR_INVALID},
        {{.memory = STRAIT_CHECKPOINT_CUDA, .data = memory[1]}, STRAIT_ERR_UNSUPPORTED},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        struct strait_checkpoint_box boxes[2] = {good, bad[i].box};
        memset(memory, CANARY, sizeof(memory));
        text[0] = '\0';
        ck_assert_int_eq(bad[i].status, strait_checkpoint_load(reader, boxes, 2, NULL, text, sizeof(text)));
        ck_assert_str_ne(text, "");
        ck_assert_int_eq(bad[i].status, boxes[1].status);
        ck_assert(is_filled(memory[0], sizeof(memory), CANARY));
    }
    static const struct strait_checkpoint_load_options unknown[] = {
        {.size = sizeof(unknown[0]) - 1}, {.size = sizeof(unknown[0]), .flags = STRAIT_CHECKPOINT_RAW}};
    for (int i = 0; i < COUNT(unknown); i++) {
        struct strait_checkpoint_box box = good;
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_checkpoint_load(reader, &box, 1, &unknown[i], NULL, 0));
        ck_assert_int_eq(STRAIT_ERR_INVALID, strait_checkpoint_verify(reader, &unknown[i], NULL, 0));
    }
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_load(reader, NULL, 0, NULL, NULL, 0));
}

/* ---- Replicas ---------------------------------------------------------------------------------------------------- */

static uint32_t damages, replaced;

static void count_damage(void *context, const struct strait_checkpoint_damage *damage)
{
    (void)context;
    damages++;
    replaced += damage->replaced;
    ck_assert_ptr_nonnull(damage->file);
    ck_assert_int_ne(damage->status, STRAIT_OK);
}

static void flip(const char *name, uint64_t at)
{
    size_t size;
    uint8_t *bytes = file_read(path, name, &size);
    bytes[at % size] ^= 1u << at % 7;
    file_write(path, name, bytes, size);
    free(bytes);
}

/* Loads all tensors; returns the status. Boxes without an error have to be right. */
static enum strait_status load_all(uint32_t *wrong)
{
    static struct wanted wanted[BUILT_TENSORS_MAX];
    struct strait_checkpoint_box boxes[BUILT_TENSORS_MAX];
    const struct strait_checkpoint_load_options options = {
        .size = sizeof(options), .threads = 2, .damage = count_damage};
    char text[512] = "";
    damages = replaced = *wrong = 0;
    for (uint32_t t = 0; t < built.tensor_count; t++) {
        const struct built_tensor *tensor = &built.tensors[t];
        wanted[t] =
            (struct wanted){.tensor = t, .values = tensor->values, .bytes = tensor->values * tensor->dtype->bytes};
        uint64_t stride = tensor->dtype->bytes;
        for (uint32_t d = tensor->dims; d-- > 0; stride *= tensor->shape[d]) {
            wanted[t].size[d] = tensor->shape[d];
            wanted[t].strides[d] = stride;
        }
        wanted[t].memory = wanted[t].data = malloc(wanted[t].bytes + 1);
        boxes[t] = (struct strait_checkpoint_box){.tensor = strait_checkpoint_find(reader, tensor->name),
                                                  .data = wanted[t].data};
    }
    const enum strait_status status =
        strait_checkpoint_load(reader, boxes, built.tensor_count, &options, text, sizeof(text));
    ck_assert((status == STRAIT_OK) == (text[0] == '\0'));
    for (uint32_t t = 0; t < built.tensor_count; t++) {
        *wrong += boxes[t].status != STRAIT_OK;
        ck_assert_msg(boxes[t].status != STRAIT_OK || is_right(&wanted[t]), "tensor %s", built.tensors[t].name);
        free(wanted[t].memory);
    }
    ck_assert((status == STRAIT_OK) == (*wrong == 0));
    return status;
}

static void reopen(void)
{
    strait_checkpoint_close(reader);
    reader = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
}

TEST_LOOP(a_replica_takes_the_place_of_what_is_damaged, 12 / STRIDE + 1)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    uint32_t wrong, met = 0;
    make(&rng, 2 + rng_below(&rng, 4), 1);
    for (unsigned i = 0; i < 8; i++) {
        size_t size;
        free(file_read(path, "00000.strait", &size));
        flip("00000.strait", CHECKPOINT_HEADER_BYTES + rng_next(&rng) % (size - CHECKPOINT_HEADER_BYTES));
        reopen();
        ck_assert_int_eq(STRAIT_OK, load_all(&wrong));
        ck_assert_uint_eq(replaced, damages);
        met += damages;
    }
    ck_assert_uint_gt(met, 0);
    char name[SCRATCH_BYTES + 32];
    snprintf(name, sizeof(name), "%s/00000.strait", path);
    ck_assert_int_eq(0, remove(name));
    reopen();
    ck_assert_int_eq(STRAIT_OK, load_all(&wrong));
    ck_assert_uint_ge(damages, 1);
    ck_assert_uint_eq(replaced, damages);
}

/* Each tensor whole in the first file, and cut in others: what is damaged there is put together of pieces. */
TEST_LOOP(pieces_of_other_shards_take_the_place_of_what_is_damaged, 10 / STRIDE + 1)
{
    struct rng rng = rng_init(300 + (uint64_t)_i);
    uint32_t wrong, met = 0;
    built_random(&built, &rng, 4, 0);
    for (uint32_t s = 0; s < built.shard_count; s++)
        built.shards[s].file = 1 + built.shards[s].file % 3;
    for (uint32_t t = 0; t < built.tensor_count; t++) {
        struct built_shard *shard = &built.shards[built.shard_count++];
        *shard = (struct built_shard){.tensor = t};
        memcpy(shard->size, built.tensors[t].shape, sizeof(shard->size));
    }
    built_write(&built, &rng, path);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    load_boxes(&rng, 2);
    for (unsigned i = 0; i < 8; i++) {
        size_t size;
        uint8_t *bytes = file_read(path, "00000.strait", &size);
        for (unsigned k = 0; k < 6; k++)
            bytes[CHECKPOINT_HEADER_BYTES + rng_next(&rng) % (size - 2 * CHECKPOINT_HEADER_BYTES)] ^= 4;
        file_write(path, "00000.strait", bytes, size);
        free(bytes);
        reopen();
        ck_assert_int_eq(STRAIT_OK, load_all(&wrong));
        ck_assert_uint_eq(replaced, damages);
        met += damages;
    }
    ck_assert_uint_gt(met, 0);
}

/* Bytes that a process with this seed would read of each file to load all tensors. */
static void plan_all(uint64_t seed, uint64_t file_bytes[BUILT_FILES_MAX])
{
    struct load_plan plan;
    ck_assert_int_eq(STRAIT_OK, load_plan_init(&plan, reader, seed));
    for (uint32_t t = 0; t < built.tensor_count; t++) {
        static const uint64_t zeroes[STRAIT_CHECKPOINT_DIMS_MAX];
        struct strait_checkpoint_tensor_info info;
        ck_assert(strait_checkpoint_tensor_at(reader, t, &info));
        const struct request request = {.at = zeroes, .size = info.shape};
        ck_assert_int_eq(STRAIT_OK, load_plan_request(&plan, t, &request, 0));
    }
    memcpy(file_bytes, plan.file_bytes, built.file_count * sizeof(*file_bytes));
    load_plan_fini(&plan);
}

TEST(reads_are_spread_over_replicas)
{
    static const uint64_t shape[2] = {64, 32};
    struct rng rng = rng_init(5);
    uint64_t bytes[BUILT_FILES_MAX], first[4] = {0};
    built = (struct built){.file_count = 4};
    for (uint32_t t = 0; t < 14; t++) {
        char name[16];
        snprintf(name, sizeof(name), "t%u", t);
        const uint32_t tensor = built_tensor_add(&built, &rng, name, "BF16", shape, 2, UINT32_MAX);
        for (uint32_t f = 0; f < 4; f++) { /* all ranks have all of it */
            built_split(&built, &rng, tensor, 1, 0);
            built.shards[built.shard_count - 1].file = f;
        }
    }
    built_write(&built, &rng, path);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    for (uint64_t seed = 0; seed < 64; seed++) {
        plan_all(seed, bytes);
        for (uint32_t f = 0; f < 4; f++) { /* 14 tensors: 3 or 4 of each */
            ck_assert_uint_ge(bytes[f], 3 * 64 * 32 * 2);
            ck_assert_uint_le(bytes[f], 4 * 64 * 32 * 2);
            first[f] += bytes[f] > 3 * 64 * 32 * 2;
        }
    }
    for (uint32_t f = 0; f < 4; f++) /* other processes begin with other files */
        ck_assert_uint_gt(first[f], 0);
}

static uint8_t *kept;
static size_t kept_size;

TEST_LOOP(damage_is_told_and_the_rest_is_loaded, 6)
{
    struct rng rng = rng_init(200 + (uint64_t)_i);
    static const uint32_t pages[] = {64, 4096, 65536};
    char name[CHECKPOINT_FILE_NAME_BYTES], text[512];
    uint32_t wrong, met = 0;
    built_random(&built, &rng, 3, 0);
    built.page_bytes = pages[_i % 3];
    built_write(&built, &rng, path);
    for (unsigned i = 0; i < 40 / STRIDE; i++) {
        checkpoint_file_name(name, rng_below(&rng, 3));
        kept = file_read(path, name, &kept_size);
        uint64_t at = rng_next(&rng) % kept_size;
        while (kept[at] == 0) /* most zeroes are between chunks, where no sum is of them */
            at = (at + 1) % kept_size;
        flip(name, at);
        ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
        const struct strait_checkpoint_load_options options = {
            .size = sizeof(options), .threads = 2, .damage = count_damage};
        damages = 0;
        const enum strait_status verified = strait_checkpoint_verify(reader, &options, text, sizeof(text));
        ck_assert((verified == STRAIT_OK) == (damages == 0));
        const enum strait_status loaded = load_all(&wrong);
        /* Padding between chunks is in no sum. */
        ck_assert((verified == STRAIT_OK) == (loaded == STRAIT_OK));
        ck_assert_uint_eq(replaced, 0);
        met += loaded != STRAIT_OK;
        file_write(path, name, kept, kept_size);
        free(kept);
        strait_checkpoint_close(reader);
        reader = NULL;
    }
    ck_assert_uint_gt(met, 0);
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_open(path, &reader, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, load_all(&wrong));
    ck_assert_int_eq(STRAIT_OK, strait_checkpoint_verify(reader, NULL, NULL, 0));
}

int main(void)
{
    print_conditions();
    return run_tests("checkpoint_load", setup, teardown);
}
