/* checkpoint PATH: saves a matrix that two ranks hold half of each, then loads its middle rows as one process would
 * that holds these. The ranks are here one after another; in a training they are processes, which agree on the save id
 * and commit when all have ended. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <strait/checkpoint.h>

enum { RANKS = 2, ROWS = 1024, COLUMNS = 512 };

static char text[512];

static void check(enum strait_status status, const char *what)
{
    if (status == STRAIT_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, strait_status_string(status), text);
    exit(EXIT_FAILURE);
}

/* One rank's part: its rows of the matrix. */
static void save_rank(const char *path, uint32_t rank, const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES],
                      const float *rows)
{
    const uint64_t shape[] = {ROWS, COLUMNS}, sizes[] = {ROWS / RANKS, COLUMNS}, offsets[] = {rank * sizes[0], 0};
    struct strait_checkpoint_save_options options = {.size = sizeof(options), .rank = rank, .rank_count = RANKS};
    const struct strait_checkpoint_tensor tensor = {.size = sizeof(tensor),
                                                    .name = "layers.0.weight",
                                                    .dtype = "F32",
                                                    .shape = shape,
                                                    .offsets = offsets,
                                                    .sizes = sizes,
                                                    .data = rows,
                                                    .dims = 2};
    struct strait_checkpoint_summary summary;
    struct strait_checkpoint_save *save;
    memcpy(options.save_id, save_id, sizeof(options.save_id));
    check(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)), "begin");
    check(strait_checkpoint_save_add(save, &tensor), strait_checkpoint_save_text(save));
    check(strait_checkpoint_save_end(save, &summary), strait_checkpoint_save_text(save));
    printf("rank %u: %llu -> %llu bytes\n", rank, (unsigned long long)summary.raw_bytes,
           (unsigned long long)summary.stored_bytes);
    strait_checkpoint_save_free(save);
}

static void save_all(const char *path, const float *matrix)
{
    struct strait_checkpoint_commit_options commit = {
        .size = sizeof(commit), .rank_count = RANKS, .flags = STRAIT_CHECKPOINT_REPLACE};
    if (getrandom(commit.save_id, sizeof(commit.save_id), 0) != sizeof(commit.save_id))
        abort();
    for (uint32_t rank = 0; rank < RANKS; rank++)
        save_rank(path, rank, commit.save_id, matrix + rank * (ROWS / RANKS) * COLUMNS);
    check(strait_checkpoint_commit(path, &commit, text, sizeof(text)), "commit");
}

/* Loads rows that lie in both ranks' files. */
static void load_rows(const char *path, uint64_t first, uint64_t count, float *rows)
{
    const uint64_t offsets[] = {first, 0}, sizes[] = {count, COLUMNS};
    struct strait_checkpoint_reader *reader;
    check(strait_checkpoint_open(path, &reader, text, sizeof(text)), "open");
    struct strait_checkpoint_box box = {
        .tensor = strait_checkpoint_find(reader, "layers.0.weight"), .offsets = offsets, .sizes = sizes, .data = rows};
    check(strait_checkpoint_load(reader, &box, 1, NULL, text, sizeof(text)), "load");
    strait_checkpoint_close(reader);
}

int main(int argc, char **argv)
{
    static float matrix[ROWS * COLUMNS], rows[ROWS / 2 * COLUMNS];
    if (argc != 2) {
        fprintf(stderr, "usage: checkpoint PATH\n");
        return 2;
    }
    for (unsigned i = 0; i < ROWS * COLUMNS; i++)
        matrix[i] = (float)(i * 2654435761u % 65521) / 65521 - 0.5f;
    save_all(argv[1], matrix);
    load_rows(argv[1], ROWS / 4, ROWS / 2, rows);
    if (memcmp(rows, matrix + ROWS / 4 * COLUMNS, sizeof(rows)) != 0) {
        fprintf(stderr, "other values\n");
        return EXIT_FAILURE;
    }
    printf("%u rows loaded, each value equal\n", ROWS / 2);
    return EXIT_SUCCESS;
}
