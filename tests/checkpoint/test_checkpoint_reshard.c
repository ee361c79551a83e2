/* Training states that are saved by so many ranks and loaded by another number of them, by saves and loads of the
 * library, with all ranks at once. STRAIT_TEST_VALUES: values of the largest tensor (65536). */
#include <pthread.h>
#include <string.h>

#include "internal/bytes.h"
#include "tests/checkpoint/builder.h"
#include "tests/run_suite.h"

enum { TENSORS = 10, RANKS_MAX = 8 };

/* A tensor, of which rank r of n has a part along `dim`; `of`: the one that it is the rounding of, or UINT32_MAX. */
struct state_tensor {
    char name[32];
    const char *dtype;
    uint64_t shape[5], values;
    uint32_t dims, dim, of, value_bytes;
    bool replicated; /* all ranks save all of it */
    uint8_t *bytes;
};

static struct state_tensor state[TENSORS];
static char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 16];

static uint64_t values_max(void)
{
    const char *text = getenv("STRAIT_TEST_VALUES");
    return text != NULL ? strtoull(text, NULL, 10) : 65536;
}

static void make_tensor(struct rng *rng, uint32_t number)
{
    static const char *const dtypes[] = {"F32", "BF16", "F16", "F8_E4M3", "I64"};
    struct state_tensor *tensor = &state[number];
    uint8_t ranking[256];
    *tensor = (struct state_tensor){.dtype = dtypes[number % COUNT(dtypes)], .of = UINT32_MAX, .values = 1};
    tensor->dims = number == 9 ? 0 : 1 + rng_below(rng, 5);
    tensor->dim = tensor->dims > 0 ? rng_below(rng, tensor->dims) : 0;
    tensor->replicated = tensor->dims == 0 || rng_below(rng, 4) == 0;
    if (number % 5 == 1) { /* of the F32 tensor before */
        *tensor = state[number - 1];
        tensor->dtype = "BF16";
        tensor->of = number - 1;
    } else {
        uint64_t room = values_max();
        for (uint32_t d = 0; d < tensor->dims; d++) {
            const uint64_t most = d + 1 == tensor->dims ? room : room < 24 ? room : 24;
            tensor->shape[d] = 1 + rng_below(rng, (uint32_t)(most > 1 ? most : 1));
            room /= tensor->shape[d];
        }
        for (uint32_t d = 0; d < tensor->dims; d++)
            tensor->values *= tensor->shape[d];
    }
    snprintf(tensor->name, sizeof(tensor->name), "tensor.%u", number);
    tensor->value_bytes = strait_checkpoint_dtype_bytes(tensor->dtype);
    tensor->bytes = malloc(tensor->values * tensor->value_bytes);
    require(tensor->bytes != NULL);
    test_ranking(ranking, 0);
    if (tensor->of == UINT32_MAX)
        fill_pattern(rng, PATTERN_FALLING, ranking, tensor->bytes, tensor->values * tensor->value_bytes);
    for (uint64_t i = 0; tensor->of != UINT32_MAX && i < tensor->values; i++)
        store_le16(tensor->bytes + 2 * i, reference_round(load_le32(state[tensor->of].bytes + 4 * i)));
}

/* The part of rank `rank` of `count`; false when it is empty. */
static bool part_of(const struct state_tensor *tensor, uint32_t rank, uint32_t count, uint64_t at[5], uint64_t size[5])
{
    const uint64_t whole = tensor->dims > 0 ? tensor->shape[tensor->dim] : 1;
    memset(at, 0, 5 * sizeof(*at));
    memcpy(size, tensor->shape, 5 * sizeof(*size));
    if (tensor->dims == 0)
        return rank == 0;
    at[tensor->dim] = whole * rank / count;
    size[tensor->dim] = whole * (rank + 1) / count - at[tensor->dim];
    return size[tensor->dim] > 0;
}

/* Copies a part out of a tensor. */
static uint8_t *copy_part(const struct state_tensor *tensor, const uint64_t at[5], const uint64_t size[5],
                          uint64_t *bytes)
{
    uint64_t index[5] = {0}, values = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        values *= size[d];
    *bytes = values * tensor->value_bytes;
    uint8_t *copy = malloc(*bytes + 1);
    require(copy != NULL);
    for (uint64_t i = 0; i < values; i++) {
        uint64_t from = 0;
        for (uint32_t d = 0; d < tensor->dims; d++)
            from = from * tensor->shape[d] + at[d] + index[d];
        memcpy(copy + i * tensor->value_bytes, tensor->bytes + from * tensor->value_bytes, tensor->value_bytes);
        for (uint32_t d = tensor->dims; d-- > 0 && ++index[d] == size[d];)
            index[d] = 0;
    }
    return copy;
}

struct rank {
    pthread_t thread;
    uint32_t number, count;
    struct strait_checkpoint_reader *reader;
};

static void *save_rank(void *arg)
{
    const struct rank *rank = arg;
    struct strait_checkpoint_save_options options = {
        .size = sizeof(options), .rank = rank->number, .rank_count = rank->count, .threads = 2, .save_id = {7}};
    struct strait_checkpoint_save *save;
    uint8_t *parts[TENSORS] = {NULL};
    char text[512] = "";
    require(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)) == STRAIT_OK);
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct state_tensor *tensor = &state[t];
        uint64_t at[5], size[5], bytes;
        const bool has =
            part_of(tensor, tensor->replicated ? 0 : rank->number, tensor->replicated ? 1 : rank->count, at, size);
        if (!has)
            continue;
        parts[t] = copy_part(tensor, at, size, &bytes);
        const struct strait_checkpoint_tensor one = {.size = sizeof(one),
                                                     .name = tensor->name,
                                                     .dtype = tensor->dtype,
                                                     .shape = tensor->shape,
                                                     .offsets = at,
                                                     .sizes = size,
                                                     .data = parts[t],
                                                     .dims = tensor->dims,
                                                     .rounded_from =
                                                         tensor->of != UINT32_MAX ? state[tensor->of].name : NULL};
        require(strait_checkpoint_save_add(save, &one) == STRAIT_OK);
    }
    require(strait_checkpoint_save_end(save, NULL) == STRAIT_OK);
    strait_checkpoint_save_free(save);
    for (uint32_t t = 0; t < TENSORS; t++)
        free(parts[t]);
    return NULL;
}

/* Loads a rank's part of each tensor, cut along another dimension than it was saved by where there is one. */
static void *load_rank(void *arg)
{
    const struct rank *rank = arg;
    struct strait_checkpoint_box boxes[TENSORS];
    uint8_t *expected[TENSORS];
    uint64_t at[TENSORS][5], size[TENSORS][5], bytes[TENSORS];
    uint32_t of[TENSORS], count = 0;
    const struct strait_checkpoint_load_options options = {.size = sizeof(options), .threads = 2};
    char text[512] = "";
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct state_tensor tensor = state[t];
        tensor.dim = tensor.dims > 1 ? (tensor.dim + 1) % tensor.dims : 0;
        if (!part_of(&tensor, rank->number, rank->count, at[count], size[count]))
            continue;
        expected[count] = copy_part(&tensor, at[count], size[count], &bytes[count]);
        boxes[count] = (struct strait_checkpoint_box){.tensor = strait_checkpoint_find(rank->reader, tensor.name),
                                                      .offsets = at[count],
                                                      .sizes = size[count],
                                                      .data = malloc(bytes[count] + 1)};
        require(boxes[count].data != NULL);
        of[count++] = t;
    }
    if (strait_checkpoint_load(rank->reader, boxes, count, &options, text, sizeof(text)) != STRAIT_OK) {
        fprintf(stderr, "%s\n", text);
        abort();
    }
    for (uint32_t b = 0; b < count; b++) {
        if (memcmp(expected[b], boxes[b].data, bytes[b]) != 0)
            fprintf(stderr, "rank %u of %u: %s\n", rank->number, rank->count, state[of[b]].name);
        require(memcmp(expected[b], boxes[b].data, bytes[b]) == 0);
        free(expected[b]);
        free(boxes[b].data);
    }
    return NULL;
}

static void run_ranks(uint32_t count, void *(*run)(void *arg), struct strait_checkpoint_reader *reader)
{
    struct rank ranks[RANKS_MAX];
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] = (struct rank){.number = r, .count = count, .reader = reader};
        require(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < count; r++)
        require(pthread_join(ranks[r].thread, NULL) == 0);
}

static void setup(void)
{
    scratch_make(folder);
    snprintf(path, sizeof(path), "%s/step", folder);
}

static void teardown(void)
{
    for (uint32_t t = 0; t < TENSORS; t++)
        free(state[t].bytes);
    scratch_remove(folder);
}

static const uint32_t numbers[][2] = {{8, 3}, {3, 8}, {1, 4}, {4, 1}, {5, 5}, {2, 7}};

TEST_LOOP(states_of_some_ranks_are_loaded_by_others, COUNT(numbers))
{
    struct rng rng = rng_init(400 + (uint64_t)_i);
    struct strait_checkpoint_reader *reader;
    struct strait_checkpoint_info info;
    char text[512] = "";
    const struct strait_checkpoint_commit_options commit = {
        .size = sizeof(commit), .rank_count = numbers[_i][0], .save_id = {7}};
    for (uint32_t t = 0; t < TENSORS; t++)
        make_tensor(&rng, t);
    run_ranks(numbers[_i][0], save_rank, NULL);
    ck_assert_msg(strait_checkpoint_commit(path, &commit, text, sizeof(text)) == STRAIT_OK, "%s", text);
    ck_assert_msg(strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK, "%s", text);
    strait_checkpoint_describe(reader, &info);
    ck_assert_uint_eq(info.tensor_count, TENSORS);
    run_ranks(numbers[_i][1], load_rank, reader);
    ck_assert_msg(strait_checkpoint_verify(reader, NULL, text, sizeof(text)) == STRAIT_OK, "%s", text);
    strait_checkpoint_close(reader);
}

int main(void)
{
    print_conditions();
    return run_tests("checkpoint_reshard", setup, teardown);
}
