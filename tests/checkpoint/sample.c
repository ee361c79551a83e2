/* sample PATH RANKS CHANGE: saves a small training state as so many ranks: master weights, their roundings and moments,
 * a scalar, a string of bytes. CHANGE other than 0 changes one value of layers.0.exp_avg, leaves layers.1.step out, and
 * adds a tensor. For tests of the command. */
#include <inttypes.h>
#include <string.h>

#include <strait/checkpoint.h>

#include "internal/bytes.h"
#include "tests/support.h"

enum { ROWS = 96, COLUMNS = 80, LAYERS = 3 };

struct state {
    uint32_t master[LAYERS][ROWS * COLUMNS], moments[2][LAYERS][ROWS * COLUMNS], embedding[ROWS * COLUMNS];
    uint16_t weight[LAYERS][ROWS * COLUMNS];
    uint64_t steps[LAYERS];
};

static struct state state;

static uint16_t round_to_even(uint32_t value) /* no NaN occurs */
{
    return (uint16_t)((value + 0x7fff + (value >> 16 & 1)) >> 16);
}

static void fill(void)
{
    struct rng rng = rng_init(7);
    for (unsigned l = 0; l < LAYERS; l++) {
        state.steps[l] = 100 + l;
        for (unsigned i = 0; i < ROWS * COLUMNS; i++) {
            state.master[l][i] = (115 + rng_below(&rng, 8)) << 23 | (rng_next(&rng) & 0x807fffff);
            state.weight[l][i] = round_to_even(state.master[l][i]);
            for (unsigned m = 0; m < 2; m++)
                state.moments[m][l][i] =
                    (100 + rng_below(&rng, 8)) << 23 | (rng_next(&rng) & (m == 0 ? 0x807f0000 : 0x7f0000));
        }
    }
    for (unsigned i = 0; i < ROWS * COLUMNS; i++)
        state.embedding[i] = (120 + rng_below(&rng, 4)) << 23 | (rng_next(&rng) & 0x807fffff);
}

/* Adds the rank's rows of a tensor. */
static void add_rows(struct strait_checkpoint_save *save, const char *name, unsigned layer, const char *dtype,
                     const void *data, const uint64_t rows[2], const char *from)
{
    static const uint64_t shape[2] = {ROWS, COLUMNS};
    const uint64_t at[2] = {rows[0], 0}, size[2] = {rows[1] - rows[0], COLUMNS};
    char named[64], source[64];
    snprintf(named, sizeof(named), "layers.%u.%s", layer, name);
    snprintf(source, sizeof(source), "layers.%u.%s", layer, from != NULL ? from : "");
    const struct strait_checkpoint_tensor tensor = {.size = sizeof(tensor),
                                                    .name = named,
                                                    .dtype = dtype,
                                                    .shape = shape,
                                                    .offsets = at,
                                                    .sizes = size,
                                                    .data = (const uint8_t *)data +
                                                            rows[0] * COLUMNS * strait_checkpoint_dtype_bytes(dtype),
                                                    .dims = 2,
                                                    .rounded_from = from != NULL ? source : NULL};
    require(strait_checkpoint_save_add(save, &tensor) == STRAIT_OK);
}

static void add_whole(struct strait_checkpoint_save *save, const char *name, const char *dtype, const void *data,
                      const uint64_t *shape, uint32_t dims)
{
    const struct strait_checkpoint_tensor tensor = {
        .size = sizeof(tensor), .name = name, .dtype = dtype, .shape = shape, .data = data, .dims = dims};
    require(strait_checkpoint_save_add(save, &tensor) == STRAIT_OK);
}

static void save_rank(const char *path, struct strait_checkpoint_save_options options, bool changed)
{
    static const uint64_t flat[1] = {ROWS * COLUMNS}, text_bytes[1] = {11};
    struct strait_checkpoint_save *save;
    char text[512] = "", name[64];
    const uint64_t rows[2] = {ROWS * options.rank / options.rank_count, ROWS * (options.rank + 1) / options.rank_count};
    if (strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)) != STRAIT_OK) {
        fprintf(stderr, "%s\n", text);
        exit(EXIT_FAILURE);
    }
    for (unsigned l = 0; l < LAYERS; l++) {
        add_rows(save, "master", l, "F32", state.master[l], rows, NULL);
        add_rows(save, "weight", l, "BF16", state.weight[l], rows, "master");
        add_rows(save, "exp_avg", l, "F32", state.moments[0][l], rows, NULL);
        add_rows(save, "exp_avg_sq", l, "F32", state.moments[1][l], rows, NULL);
    }
    for (unsigned l = 0; options.rank == 0 && l < LAYERS - (unsigned)changed; l++) {
        snprintf(name, sizeof(name), "layers.%u.step", l == 1 && changed ? 2 : l);
        add_whole(save, name, "I64", &state.steps[l], NULL, 0);
    }
    if (options.rank == 0)
        add_whole(save, "arguments", "BYTES", "hello world", text_bytes, 1);
    add_whole(save, "embedding", "F32", state.embedding, flat, 1); /* replicas */
    if (changed && options.rank == 0)
        add_whole(save, "layers.3.weight \033[31m\n", "BF16", state.weight[0], flat, 1);
    require(strait_checkpoint_save_end(save, NULL) == STRAIT_OK);
    strait_checkpoint_save_free(save);
}

int main(int argc, char **argv)
{
    require(argc == 4);
    const uint32_t ranks = (uint32_t)atoi(argv[2]), change = (uint32_t)atoi(argv[3]);
    struct strait_checkpoint_save_options options = {.size = sizeof(options), .rank_count = ranks};
    struct strait_checkpoint_commit_options commit = {.size = sizeof(commit), .rank_count = ranks};
    char text[512] = "";
    const struct strait_checkpoint_attachment attachment = {"planner", "{}", 2};
    fill();
    state.moments[0][0][123] ^= change != 0;
    memset(options.save_id, (int)(ranks + 16 * change), sizeof(options.save_id));
    memcpy(commit.save_id, options.save_id, sizeof(commit.save_id));
    commit.attachments = &attachment;
    commit.attachment_count = 1;
    for (options.rank = 0; options.rank < ranks; options.rank++)
        save_rank(argv[1], options, change != 0);
    if (strait_checkpoint_commit(argv[1], &commit, text, sizeof(text)) == STRAIT_OK)
        return EXIT_SUCCESS;
    fprintf(stderr, "%s\n", text);
    return EXIT_FAILURE;
}
