/* strait bench checkpoint: saves of a training state by several ranks, raw and coded in turn. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <strait/checkpoint.h>

#include "bench/bench.h"
#include "bench/table.h"
#include "internal/clock.h"
#include "tools/input.h"

#define CHECKPOINT "bench"
#define RANKS_MAX  64u
#define TEXT_BYTES 1024u

/* ---- Options ----------------------------------------------------------------------------------------------------- */

struct checkpoint_options {
    struct bench_options common;
    const char *folder;
    uint64_t ranks, size, threads, repeats;
    struct number_list modes, ios;
};

static const char *const checkpoint_modes[] = {"raw", "coded", NULL};
static const char *const checkpoint_ios[] = {"direct", "cached", NULL};

#define OPTIONS struct checkpoint_options
static const struct bench_option known_options[] = {
    {OPTION(TEXT, folder, "folder", ".", "DIR", "save into a new folder in this one, which is removed afterwards")},
    {OPTION(NUMBER, ranks, "ranks", "1", "N", "ranks that save at once"), .min = 1, .max = RANKS_MAX},
    {OPTION(SIZE, size, "size", "512M", "SIZE", "repeat the tensors until each rank has so many bytes"), .min = 1},
    {OPTION(NUMBER, threads, "threads", "0", "N", "that encode, for each rank; 0: one per processor, at most 16"),
     .max = OPTION_THREADS_MAX, .letter = 'T'},
    {OPTION(NUMBER, repeats, "repeats", "3", "N", "run everything N times in turn"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NAMES, modes, "mode", "raw,coded", "LIST", "of raw, coded"), .names = checkpoint_modes},
    {OPTION(NAMES, ios, "io", "direct,cached", "LIST", "past the page cache, through it"), .names = checkpoint_ios},
};
static char command_name[] = "strait bench checkpoint";
static const struct bench_command command = {
    .name = command_name,
    .summary = "Measures saves of a safetensors file's tensors as a checkpoint, and loads all again. Times are those "
               "until everything is on the disk.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
};

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

struct shard {
    char *name;
    const char *dtype;
    uint64_t values;
    uint8_t *data;
};

/* One rank's tensors: copies of the input's, back to back. */
struct rank {
    struct shard *shards;
    uint32_t count;
    uint8_t *memory;
    uint64_t bytes;
    uint32_t number;
};

struct row {
    uint32_t mode, io; /* places in their lists of names */
    double seconds[REPEATS_MAX], rates[REPEATS_MAX], load_rates[REPEATS_MAX];
    double encode_seconds, write_seconds, rank_seconds; /* medians are not worth it: sums over repeats */
    uint64_t stored_bytes;
    bool right;
};

struct bench {
    const struct checkpoint_options *asked;
    struct source source;
    struct safetensors list;
    struct rank ranks[RANKS_MAX];
    struct row rows[4];
    unsigned row_count;
    char folder[512], path[600];
    uint64_t raw_bytes;
    uint64_t threads; /* of each rank, as the library takes 0 */
};

static bool no_memory(void)
{
    print_error(NULL, "out of memory");
    return false;
}

static bool open_input(struct bench *bench)
{
    const char *why = NULL, *path = bench->asked->common.inputs.list[0];
    struct source *source = &bench->source;
    uint64_t header = 0;

    if (!source_open(source, path) || !source_peek(source, 16))
        return false;
    if (!source->seekable || !safetensors_probe(source->head.data, source->head_size, source->size)) {
        print_error(path, "is no safetensors file");
        return false;
    }
    memcpy(&header, source->head.data, 8);
    if (!source_peek(source, 8 + header))
        return false;
    if (safetensors_init(&bench->list, source->head.data, source->head_size, source->size, &why) != STRAIT_OK) {
        print_error(path, "%s", why);
        return false;
    }
    if (bench->list.count == 0)
        print_error(path, "has no tensors");
    return bench->list.count > 0;
}

static uint64_t tensor_bytes(const struct safetensor *tensor)
{
    return tensor->end - tensor->begin;
}

/* Copies tensors in turn until there are enough bytes. */
static bool fill_rank(struct bench *bench, struct rank *rank)
{
    const struct safetensors *list = &bench->list;
    uint64_t bytes = 0, at = 0, period = 0;

    for (uint32_t i = 0; i < list->count; i++)
        period += tensor_bytes(&list->tensors[i]);
    if (period == 0)
        return no_memory();
    const uint64_t copies = (bench->asked->size + period - 1) / period;
    rank->memory = aligned_alloc(4096, (copies * period + 64 * copies * list->count + 4095) / 4096 * 4096);
    rank->shards = calloc(copies * list->count, sizeof(*rank->shards));
    if (rank->memory == NULL || rank->shards == NULL)
        return no_memory();
    for (uint64_t copy = 0; copy < copies; copy++)
        for (uint32_t i = 0; i < list->count && bytes < bench->asked->size; i++) {
            const struct safetensor *tensor = &list->tensors[i];
            const uint32_t value = strait_checkpoint_dtype_bytes(tensor->dtype);
            struct shard *shard = &rank->shards[rank->count++];
            *shard = (struct shard){.dtype = value != 0 ? tensor->dtype : "U8", .data = rank->memory + at};
            shard->values = tensor_bytes(tensor) / (value != 0 ? value : 1);
            if (asprintf(&shard->name, "rank%u.copy%u.%s", rank->number, (unsigned)copy, tensor->name) < 0) {
                shard->name = NULL;
                return no_memory();
            }
            if (copy == 0 && !source_read_at(&bench->source, tensor->begin, shard->data, tensor_bytes(tensor)))
                return false;
            if (copy > 0)
                memcpy(shard->data, rank->shards[i].data, tensor_bytes(tensor));
            bytes += tensor_bytes(tensor);
            at = (at + tensor_bytes(tensor) + 63) / 64 * 64;
        }
    rank->bytes = bytes;
    return true;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

struct part {
    const struct bench *bench;
    const struct rank *rank;
    struct strait_checkpoint_save_options options;
    struct strait_checkpoint_summary summary;
    enum strait_status status;
    char text[TEXT_BYTES];
};

static void *save_part(void *arg)
{
    struct part *part = arg;
    struct strait_checkpoint_save *save = NULL;

    part->status =
        strait_checkpoint_save_begin(part->bench->path, &part->options, &save, part->text, sizeof(part->text));
    for (uint32_t i = 0; part->status == STRAIT_OK && i < part->rank->count; i++) {
        const struct shard *shard = &part->rank->shards[i];
        const struct strait_checkpoint_tensor tensor = {.size = sizeof(tensor),
                                                        .name = shard->name,
                                                        .dtype = shard->dtype,
                                                        .shape = &shard->values,
                                                        .data = shard->data,
                                                        .dims = 1};
        part->status = strait_checkpoint_save_add(save, &tensor);
    }
    if (part->status == STRAIT_OK)
        part->status = strait_checkpoint_save_end(save, &part->summary);
    if (part->status != STRAIT_OK && save != NULL)
        snprintf(part->text, sizeof(part->text), "%s", strait_checkpoint_save_text(save));
    strait_checkpoint_save_free(save);
    return NULL;
}

/* Starts all ranks and waits for them. */
static bool save_parts(struct bench *bench, const struct row *row, const uint8_t id[STRAIT_CHECKPOINT_ID_BYTES],
                       struct part *parts)
{
    const struct checkpoint_options *asked = bench->asked;
    pthread_t threads[RANKS_MAX];
    bool good = true;

    for (uint32_t i = 0; i < asked->ranks; i++) {
        parts[i] = (struct part){.bench = bench, .rank = &bench->ranks[i]};
        parts[i].options = (struct strait_checkpoint_save_options){
            .size = sizeof(parts[i].options),
            .rank = i,
            .rank_count = (uint32_t)asked->ranks,
            .threads = (uint32_t)asked->threads,
            .flags = (row->mode == 0 ? STRAIT_CHECKPOINT_RAW : 0u) | (row->io == 1 ? STRAIT_CHECKPOINT_CACHED : 0u)};
        memcpy(parts[i].options.save_id, id, STRAIT_CHECKPOINT_ID_BYTES);
        if (pthread_create(&threads[i], NULL, save_part, &parts[i]) != 0)
            save_part(&parts[i]);
        else
            continue;
        threads[i] = pthread_self();
    }
    for (uint32_t i = 0; i < asked->ranks; i++) {
        if (!pthread_equal(threads[i], pthread_self()))
            pthread_join(threads[i], NULL);
        if (parts[i].status != STRAIT_OK && good) {
            print_error(NULL, "%s", parts[i].text);
            good = false;
        }
    }
    return good;
}

/* Removes the checkpoint. */
static void remove_saved(const struct bench *bench)
{
    char name[700];

    for (uint32_t i = 0; i < bench->asked->ranks; i++) {
        snprintf(name, sizeof(name), "%s/%05u.strait", bench->path, i);
        unlink(name);
    }
    snprintf(name, sizeof(name), "%s/strait.index", bench->path);
    unlink(name);
    rmdir(bench->path);
}

/* One save by all ranks, timed until it is committed. */
static bool save_once(struct bench *bench, struct row *row, uint64_t repeat)
{
    const struct checkpoint_options *asked = bench->asked;
    struct strait_checkpoint_commit_options commit = {.size = sizeof(commit), .rank_count = (uint32_t)asked->ranks};
    static struct part parts[RANKS_MAX];
    char text[TEXT_BYTES] = "";
    uint64_t seed = (uint64_t)getpid() << 32 | repeat;

    for (unsigned i = 0; i < STRAIT_CHECKPOINT_ID_BYTES; i += 8) {
        const uint64_t part = random_next(&seed);
        memcpy(commit.save_id + i, &part, 8);
    }
    remove_saved(bench); /* the one before: that takes its time */
    const uint64_t began = clock_ns();
    if (!save_parts(bench, row, commit.save_id, parts))
        return false;
    if (strait_checkpoint_commit(bench->path, &commit, text, sizeof(text)) != STRAIT_OK) {
        print_error(NULL, "%s", text);
        return false;
    }
    row->seconds[repeat] = 1e-9 * (double)(clock_ns() - began);
    row->rates[repeat] = (double)bench->raw_bytes / row->seconds[repeat] / 1e9;
    double longest_write = 0, longest = 0;
    row->stored_bytes = 0;
    for (uint32_t i = 0; i < asked->ranks; i++) {
        const struct strait_checkpoint_summary *summary = &parts[i].summary;
        row->encode_seconds += summary->encode_seconds;
        row->stored_bytes += summary->stored_bytes;
        longest_write = summary->write_seconds > longest_write ? summary->write_seconds : longest_write;
        longest = summary->seconds > longest ? summary->seconds : longest;
    }
    row->write_seconds += longest_write;
    row->rank_seconds += longest;
    return true;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* Turns over a bit of the first chunk. */
static bool flip(const struct bench *bench)
{
    char path[700];
    uint8_t byte;

    snprintf(path, sizeof(path), "%s/00000.strait", bench->path);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    const bool done = fd >= 0 && pread(fd, &byte, 1, 8192) == 1 && (byte ^= 1, pwrite(fd, &byte, 1, 8192) == 1);
    if (fd >= 0)
        close(fd);
    if (!done)
        print_error(path, "cannot be changed");
    return done;
}

/* Adds the time of the load to *seconds. */
static bool load_rank(struct strait_checkpoint_reader *reader, const struct rank *rank,
                      const struct strait_checkpoint_load_options *options, double *seconds, bool *right)
{
    struct strait_checkpoint_box *boxes = calloc(rank->count, sizeof(*boxes));
    uint8_t *back = malloc(rank->bytes + 64 * (uint64_t)rank->count);

    if (boxes == NULL || back == NULL) {
        free(boxes);
        free(back);
        return no_memory();
    }
    for (uint32_t i = 0; i < rank->count; i++)
        boxes[i] = (struct strait_checkpoint_box){.tensor = strait_checkpoint_find(reader, rank->shards[i].name),
                                                  .data = back + (rank->shards[i].data - rank->memory)};
    memset(back, 0xA5, rank->bytes + 64 * (uint64_t)rank->count); /* memory is there before the time begins */
    const uint64_t began = clock_ns();
    *right &= strait_checkpoint_load(reader, boxes, rank->count, options, NULL, 0) == STRAIT_OK;
    *seconds += 1e-9 * (double)(clock_ns() - began);
    for (uint32_t i = 0; *right && i < rank->count; i++) {
        const struct shard *shard = &rank->shards[i];
        *right = memcmp(boxes[i].data, shard->data, shard->values * strait_checkpoint_dtype_bytes(shard->dtype)) == 0;
    }
    free(boxes);
    free(back);
    return true;
}

/* Loads all, rank after rank, the way it was saved, and compares it. */
static bool check(struct bench *bench, struct row *row, uint64_t repeat, bool fault)
{
    const struct strait_checkpoint_load_options options = {
        .size = sizeof(options),
        .threads = (uint32_t)bench->asked->threads,
        .flags = strcmp(checkpoint_ios[row->io], "cached") == 0 ? STRAIT_CHECKPOINT_CACHED : 0};
    struct strait_checkpoint_reader *reader = NULL;
    char text[TEXT_BYTES];
    double seconds = 0;
    bool good = true;

    if (fault && !flip(bench))
        return false;
    if (strait_checkpoint_open(bench->path, &reader, text, sizeof(text)) != STRAIT_OK) {
        print_error(NULL, "%s", text);
        return false;
    }
    for (uint32_t i = 0; good && i < bench->asked->ranks; i++)
        good = load_rank(reader, &bench->ranks[i], &options, &seconds, &row->right);
    row->load_rates[repeat] = (double)bench->raw_bytes / seconds / 1e9;
    strait_checkpoint_close(reader);
    return good;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

static const struct column columns[] = {
    {"mode", NULL, "mode", COLUMN_TEXT},
    {"io", NULL, "io", COLUMN_TEXT},
    {"ranks", NULL, "ranks", COLUMN_COUNT},
    {"threads", NULL, "T", COLUMN_COUNT},
    {"raw_bytes", NULL, "raw bytes", COLUMN_COUNT},
    {"stored_bytes", NULL, "stored bytes", COLUMN_COUNT},
    {"ratio", NULL, "ratio", COLUMN_RATIO},
    {"GBps.p50", "GB/s", "p50", COLUMN_NUMBER},
    {"GBps.min", "GB/s", "min", COLUMN_NUMBER},
    {"GBps.max", "GB/s", "max", COLUMN_NUMBER},
    {"seconds", NULL, "s", COLUMN_NUMBER},
    {"encode_seconds", NULL, "encode s", COLUMN_NUMBER},
    {"write_seconds", NULL, "write s", COLUMN_NUMBER},
    {"encode_thread_GBps", NULL, "encode GB/s/T", COLUMN_NUMBER},
    {"by_longest", NULL, "by max", COLUMN_NUMBER},
    {"load_GBps", NULL, "load GB/s", COLUMN_NUMBER},
    {"check", NULL, "check", COLUMN_CHECK},
};
static const struct table tables[] = {TABLE("rows", NULL, NULL, columns)};

static void add_row(struct report *report, const struct bench *bench, struct row *row)
{
    const struct checkpoint_options *asked = bench->asked;
    const double repeats = (double)asked->repeats, threads = (double)(bench->threads * asked->ranks);
    const double encode = row->encode_seconds / repeats, write = row->write_seconds / repeats;
    const double cores = threads < cpu_count() ? threads : cpu_count();
    const double longest = encode / cores > write ? encode / cores : write;
    cJSON *json = report_add_row(report, "rows");

    cJSON_AddStringToObject(json, "mode", checkpoint_modes[row->mode]);
    cJSON_AddStringToObject(json, "io", checkpoint_ios[row->io]);
    cJSON_AddNumberToObject(json, "ranks", (double)asked->ranks);
    cJSON_AddNumberToObject(json, "threads", (double)bench->threads);
    cJSON_AddNumberToObject(json, "raw_bytes", (double)bench->raw_bytes);
    cJSON_AddNumberToObject(json, "stored_bytes", (double)row->stored_bytes);
    cJSON_AddNumberToObject(json, "ratio", (double)bench->raw_bytes / (double)row->stored_bytes);
    row_add_figures(json, "GBps", row->rates, asked->repeats, p50_min_max);
    cJSON_AddNumberToObject(json, "seconds", median_of(row->seconds, asked->repeats));
    cJSON_AddNumberToObject(json, "encode_seconds", encode);
    cJSON_AddNumberToObject(json, "write_seconds", write);
    cJSON_AddNumberToObject(json, "encode_thread_GBps", (double)bench->raw_bytes / encode / 1e9);
    cJSON_AddNumberToObject(json, "by_longest", row->rank_seconds / repeats / longest);
    cJSON_AddNumberToObject(json, "load_GBps", median_of(row->load_rates, asked->repeats));
    cJSON_AddBoolToObject(json, "check", row->right);
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool prepare(struct bench *bench)
{
    const struct checkpoint_options *asked = bench->asked;

    if (!open_input(bench))
        return false;
    for (uint32_t i = 0; i < asked->ranks; i++) {
        bench->ranks[i].number = i;
        if (!fill_rank(bench, &bench->ranks[i]))
            return false;
        bench->raw_bytes += bench->ranks[i].bytes;
    }
    bench->threads = asked->threads != 0 ? asked->threads : cpu_count() < 16 ? cpu_count() : 16;
    for (unsigned m = 0; m < asked->modes.count; m++)
        for (unsigned i = 0; i < asked->ios.count; i++)
            bench->rows[bench->row_count++] =
                (struct row){.mode = (uint32_t)asked->modes.list[m], .io = (uint32_t)asked->ios.list[i], .right = true};
    snprintf(bench->folder, sizeof(bench->folder), "%s/strait-bench-%d", asked->folder, (int)getpid());
    if (mkdir(bench->folder, 0777) != 0) {
        print_error(bench->folder, "%s", strerror(errno));
        bench->folder[0] = '\0';
        return false;
    }
    snprintf(bench->path, sizeof(bench->path), "%s/" CHECKPOINT, bench->folder);
    return true;
}

/* Rows take turns, so that disturbances of the machine affect all alike. */
static bool run(struct bench *bench)
{
    const bool fault = bench->asked->common.fault.count > 0;

    for (uint64_t repeat = 0; repeat < bench->asked->repeats; repeat++)
        for (unsigned i = 0; i < bench->row_count; i++)
            if (!save_once(bench, &bench->rows[i], repeat) ||
                !check(bench, &bench->rows[i], repeat, fault && repeat == 0 && i == 0))
                return false;
    return true;
}

/* Removes the folder that the checkpoints were saved in. */
static void clean_up(const struct bench *bench)
{
    char name[700];

    if (bench->folder[0] == '\0')
        return;
    remove_saved(bench);
    snprintf(name, sizeof(name), "%s/latest", bench->folder);
    unlink(name);
    rmdir(bench->folder);
}

static void release(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->asked->ranks; i++) {
        for (uint32_t k = 0; k < bench->ranks[i].count; k++)
            free(bench->ranks[i].shards[k].name);
        free(bench->ranks[i].shards);
        free(bench->ranks[i].memory);
    }
    safetensors_fini(&bench->list);
    source_close(&bench->source);
}

int bench_checkpoint(int argc, char **argv)
{
    static struct checkpoint_options asked;
    static struct bench bench = {.source.fd = -1};
    struct report report;
    enum exit_code code;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    if (!inputs_exist(&asked.common))
        return EXIT_CODE_USAGE;
    if (asked.common.inputs.count > 1) {
        print_error(NULL, "takes one --input");
        return EXIT_CODE_USAGE;
    }
    bench.asked = &asked;
    bool good = report_init(&report, &asked.common) && prepare(&bench) && run(&bench);
    clean_up(&bench);
    for (unsigned i = 0; good && i < bench.row_count; i++)
        add_row(&report, &bench, &bench.rows[i]);
    good = good && report_finish(&report, tables, sizeof(tables) / sizeof(tables[0]));
    release(&bench);
    report_fini(&report);
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
