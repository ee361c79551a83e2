/* One rank's part of a save. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/boxes.h"
#include "checkpoint/catalog.h"
#include "checkpoint/crew.h"
#include "checkpoint/encoder.h"
#include "checkpoint/packer.h"
#include "checkpoint/pipeline.h"
#include "checkpoint/plugin.h"
#include "checkpoint/rounding.h"
#include "checkpoint/storage.h"
#include "internal/clock.h"

#define BUFFER_BYTES     (256u << 20)
#define COMPARED_AT_ONCE 65536u     /* values, without a thread */
#define COMPARED_BY_ONE  (1u << 20) /* values for one thread */
#define FLAGS            (STRAIT_CHECKPOINT_CACHED | STRAIT_CHECKPOINT_RAW)
#define MEMORIES         2u /* of enum strait_checkpoint_memory */
#define FOLDER_TRIES     8u /* others may remove an empty folder between its making and its opening */

/* A BF16 shard that may be another's rounding, while that is being found out. */
struct rounding {
    struct rounding *next;
    uint32_t shard, from;
    bool equal;
};

struct values {
    const uint8_t *data;
    enum strait_checkpoint_memory memory;
};

struct strait_checkpoint_save {
    struct strait_checkpoint_save_options options;
    struct storage_place place;
    int folder, fd;
    char name[CHECKPOINT_FILE_NAME_BYTES];
    char *path; /* of the folder, for texts */
    char *file_path;
    bool made; /* the file is there, and ours */
    pid_t process;
    enum { SAVE_ADDING, SAVE_BROKEN, SAVE_ENDED } state;
    struct catalog catalog;
    struct values *values; /* each shard's */
    uint32_t values_room;
    struct rounding *roundings, **roundings_end;
    struct pipeline *pipeline;
    struct packer packers[MEMORIES];
    uint32_t chunk_count;
    uint64_t raw_bytes;
    uint64_t began; /* clock_ns */
    char text[1024];
};

static struct storage_text told_to(struct strait_checkpoint_save *save)
{
    return (struct storage_text){save->text, sizeof(save->text)};
}

/* ---- Begin ------------------------------------------------------------------------------------------------------- */

static bool options_valid(const struct strait_checkpoint_save_options *options)
{
    return options != NULL && options->size >= sizeof(*options) && options->rank_count > 0 &&
           options->rank_count <= STRAIT_CHECKPOINT_RANKS_MAX && options->rank < options->rank_count &&
           (options->flags & ~(uint32_t)FLAGS) == 0 && options->threads <= 1024 && options->reserved == 0;
}

/* Makes the folder of the save's ranks, if this is the first, and opens it. */
static enum strait_status open_folder(struct strait_checkpoint_save *save)
{
    const struct storage_place *place = &save->place;

    for (unsigned tries = 0; tries < FOLDER_TRIES && save->folder < 0; tries++) {
        if (mkdirat(place->parent, place->partial, 0777) != 0 && errno != EEXIST)
            return storage_failed(told_to(save), place->path, place->partial, "mkdir", errno);
        save->folder = storage_open(place->parent, place->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        if (save->folder < 0 && errno != ENOENT)
            break;
        if (save->folder < 0)
            continue;
        save->fd = storage_open(save->folder, save->name, O_WRONLY | O_CREAT | O_EXCL);
        if (save->fd >= 0) {
            save->made = true;
            return STRAIT_OK;
        }
        if (errno != ENOENT)
            return storage_failed(told_to(save), save->path, save->name, "open", errno);
        storage_close(save->folder);
        save->folder = -1;
    }
    return storage_failed(told_to(save), place->path, place->partial, "open", errno);
}

/* Opens the rank's file, past the page cache where that can be, and writes its header. */
static enum strait_status begin_file(struct strait_checkpoint_save *save)
{
    const enum strait_status status = open_folder(save);

    if (status != STRAIT_OK)
        return status;
    if ((save->options.flags & STRAIT_CHECKPOINT_CACHED) == 0) {
        const int flags = fcntl(save->fd, F_GETFL);
        if (flags >= 0)
            fcntl(save->fd, F_SETFL, flags | O_DIRECT); /* or else through the cache */
    }
    uint8_t *header = aligned_alloc(CHECKPOINT_ALIGNMENT, CHECKPOINT_HEADER_BYTES);
    if (header == NULL)
        return checkpoint_fail(save->text, sizeof(save->text), STRAIT_ERR_NO_MEMORY, "out of memory");
    checkpoint_header_build(header, save->options.save_id);
    const int error = storage_write(save->fd, header, CHECKPOINT_HEADER_BYTES, 0);
    free(header);
    return error == 0 ? STRAIT_OK : storage_failed(told_to(save), save->path, save->name, "write", error);
}

static enum strait_status begin(struct strait_checkpoint_save *save, const char *path)
{
    const struct strait_checkpoint_save_options *options = &save->options;
    enum strait_status status = storage_place_init(&save->place, path, options->save_id, told_to(save));

    if (status != STRAIT_OK)
        return status;
    checkpoint_file_name(save->name, options->rank);
    if (asprintf(&save->path, "%s/%s", save->place.path, save->place.partial) < 0)
        save->path = NULL;
    if (save->path == NULL || asprintf(&save->file_path, "%s/%s", save->path, save->name) < 0) {
        save->file_path = NULL;
        return checkpoint_fail(save->text, sizeof(save->text), STRAIT_ERR_NO_MEMORY, "out of memory");
    }
    status = begin_file(save);
    if (status != STRAIT_OK)
        return status;
    const struct pipeline_options work = {
        .fd = save->fd,
        .path = save->file_path,
        .threads = crew_threads(options->threads),
        .buffer_bytes = options->buffer_bytes > 0 ? options->buffer_bytes : BUFFER_BYTES,
        .encoder = {.mode = options->flags & STRAIT_CHECKPOINT_RAW ? STRAIT_MODE_RAW : STRAIT_MODE_PARTS,
                    .sm_budget = options->sm_budget}};
    status = pipeline_start(&save->pipeline, &work, save->text, sizeof(save->text));
    for (uint32_t i = 0; i < MEMORIES; i++)
        save->packers[i] = (struct packer){.pipeline = save->pipeline,
                                           .encoder = i == STRAIT_CHECKPOINT_HOST ? &encoder_host : NULL,
                                           .shards = &save->catalog.shards,
                                           .chunk_count = &save->chunk_count};
    return status;
}

enum strait_status strait_checkpoint_save_begin(const char *path, const struct strait_checkpoint_save_options *options,
                                                struct strait_checkpoint_save **save, char *text, size_t text_size)
{
    if (save == NULL)
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "save is NULL");
    *save = NULL;
    if (path == NULL || !options_valid(options))
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "%s",
                               path == NULL ? "path is NULL" : "options: rank, ranks, threads or flags out of range");
    struct strait_checkpoint_save *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "out of memory");
    made->began = clock_ns();
    made->options = *options;
    made->process = getpid();
    made->place.parent = made->folder = made->fd = -1;
    made->roundings_end = &made->roundings;
    catalog_init(&made->catalog);
    const enum strait_status status = begin(made, path);
    if (status == STRAIT_OK) {
        *save = made;
        return STRAIT_OK;
    }
    checkpoint_fail(text, text_size, status, "%s", made->text);
    strait_checkpoint_save_free(made);
    return status;
}

/* ---- Add --------------------------------------------------------------------------------------------------------- */

#define REFUSE(save, ...) checkpoint_fail((save)->text, sizeof((save)->text), STRAIT_ERR_INVALID, __VA_ARGS__)

static const uint64_t zeroes[STRAIT_CHECKPOINT_DIMS_MAX];

/* Checks what the caller says of a shard, and makes one of it. */
static enum strait_status describe(struct strait_checkpoint_save *save, const struct strait_checkpoint_tensor *tensor,
                                   struct checkpoint_shard *shard)
{
    if (tensor == NULL || tensor->size < sizeof(*tensor) || tensor->name == NULL || tensor->dtype == NULL)
        return REFUSE(save, "a tensor without size, name or type");
    if (!checkpoint_name_valid(tensor->name))
        return REFUSE(save, "a name that is empty, no UTF-8 or longer than %u bytes", STRAIT_CHECKPOINT_NAME_MAX);
    *shard = (struct checkpoint_shard){
        .name = tensor->name, .dtype = checkpoint_dtype_find(tensor->dtype), .dims = tensor->dims};
    if (shard->dtype == NULL)
        return REFUSE(save, "%s: there is no type %s", tensor->name, tensor->dtype);
    if (tensor->dims > STRAIT_CHECKPOINT_DIMS_MAX || (tensor->dims > 0 && tensor->shape == NULL))
        return REFUSE(save, "%s: %u dimensions, or no shape", tensor->name, tensor->dims);
    shard->shape = tensor->dims > 0 ? tensor->shape : zeroes;
    shard->offsets = tensor->dims > 0 && tensor->offsets != NULL ? tensor->offsets : zeroes;
    shard->sizes = tensor->dims > 0 && tensor->sizes != NULL ? tensor->sizes : shard->shape;
    if (checkpoint_box_bytes(shard->shape, shard->dims, shard->dtype->bytes) == UINT64_MAX)
        return REFUSE(save, "%s: a shape of 2^63 bytes or more", tensor->name);
    if (!checkpoint_box_inside(shard->shape, shard->offsets, shard->sizes, shard->dims))
        return REFUSE(save, "%s: a box outside the shape", tensor->name);
    shard->bytes = checkpoint_box_bytes(shard->sizes, shard->dims, shard->dtype->bytes);
    if (tensor->data == NULL && shard->bytes > 0)
        return REFUSE(save, "%s: no data", tensor->name);
    if (catalog_find(&save->catalog, tensor->name, shard) != UINT32_MAX)
        return REFUSE(save, "%s: this box has been added before", tensor->name);
    return STRAIT_OK;
}

/* The shard that this one is said to be the rounding of; UINT32_MAX: of none. */
static enum strait_status find_source(struct strait_checkpoint_save *save, const char *from,
                                      const struct checkpoint_shard *shard, uint32_t *place)
{
    *place = UINT32_MAX;
    if (from == NULL)
        return STRAIT_OK;
    if (shard->dtype->element != STRAIT_ELEMENT_BF16)
        return REFUSE(save, "%s: only BF16 can be rounded from another tensor", shard->name);
    *place = catalog_find(&save->catalog, from, shard);
    const struct checkpoint_shard *source = *place != UINT32_MAX ? &save->catalog.shards[*place] : NULL;
    if (source == NULL || source->dtype->element != STRAIT_ELEMENT_FP32 ||
        (shard->dims > 0 && memcmp(source->shape, shard->shape, shard->dims * sizeof(*shard->shape)) != 0))
        return REFUSE(save, "%s: rounded from %s, which has not been added as F32 with the same box", shard->name,
                      from);
    return STRAIT_OK;
}

/* The encoders of the plugin are had when the first tensor is in memory of a GPU. */
static enum strait_status find_encoder(struct strait_checkpoint_save *save,
                                       const struct strait_checkpoint_tensor *tensor)
{
    const char *why;
    if (tensor->memory != STRAIT_CHECKPOINT_HOST && tensor->memory != STRAIT_CHECKPOINT_CUDA)
        return REFUSE(save, "%s: unknown kind of memory", tensor->name);
    if (save->packers[tensor->memory].encoder != NULL)
        return STRAIT_OK;
    const struct checkpoint_plugin *plugin = checkpoint_plugin_find(&why);
    if (plugin == NULL)
        return checkpoint_fail(save->text, sizeof(save->text), STRAIT_ERR_UNSUPPORTED, "%s: %s", tensor->name, why);
    save->packers[tensor->memory].encoder = plugin->encoder;
    return STRAIT_OK;
}

static bool keep(struct strait_checkpoint_save *save, const struct checkpoint_shard *shard, struct values values)
{
    if (save->catalog.count == save->values_room) {
        const uint32_t room = save->values_room * 2 + 256;
        struct values *grown = realloc(save->values, room * sizeof(*grown));
        if (grown == NULL)
            return false;
        save->values = grown;
        save->values_room = room;
    }
    save->values[save->catalog.count] = values;
    return catalog_add(&save->catalog, shard);
}

/* Finds out whether the shard that was added last is the rounding of shard `from`: at once, or by threads. */
static enum strait_status begin_rounding(struct strait_checkpoint_save *save, uint32_t from)
{
    struct rounding *rounding = malloc(sizeof(*rounding));
    const uint32_t shard = save->catalog.count - 1;
    const uint8_t *fp32 = save->values[from].data, *bf16 = save->values[shard].data;
    const enum strait_checkpoint_memory memory = save->values[shard].memory;
    uint64_t left = save->catalog.shards[shard].bytes / 2;
    enum strait_status status = STRAIT_OK;

    if (rounding == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *rounding = (struct rounding){.shard = shard, .from = from, .equal = save->values[from].memory == memory};
    *save->roundings_end = rounding;
    save->roundings_end = &rounding->next;
    if (!rounding->equal) /* nothing reaches both memories: it is stored */
        return STRAIT_OK;
    if (memory == STRAIT_CHECKPOINT_HOST && left <= COMPARED_AT_ONCE) {
        rounding->equal = rounding_equal(fp32, bf16, left);
        return STRAIT_OK;
    }
    while (left > 0 && status == STRAIT_OK) {
        const uint64_t count = left < COMPARED_BY_ONE ? left : COMPARED_BY_ONE;
        const struct comparison comparison = {save->packers[memory].encoder, fp32, bf16, count, &rounding->equal};
        status = pipeline_compare(save->pipeline, &comparison);
        fp32 += count * 4;
        bf16 += count * 2;
        left -= count;
    }
    return status;
}

/* Ends the save for an error that the pipeline, or memory, met. */
static enum strait_status broken(struct strait_checkpoint_save *save, enum strait_status status)
{
    const char *text = pipeline_text(save->pipeline);

    save->state = SAVE_BROKEN;
    return checkpoint_fail(save->text, sizeof(save->text), status, "%s", *text != 0 ? text : "out of memory");
}

enum strait_status strait_checkpoint_save_add(struct strait_checkpoint_save *save,
                                              const struct strait_checkpoint_tensor *tensor)
{
    struct checkpoint_shard shard;
    uint32_t from = UINT32_MAX;

    if (save == NULL)
        return STRAIT_ERR_INVALID;
    if (save->state != SAVE_ADDING)
        return REFUSE(save, "the save has %s", save->state == SAVE_ENDED ? "ended" : "failed before");
    enum strait_status status = describe(save, tensor, &shard);
    if (status == STRAIT_OK)
        status = find_source(save, tensor->rounded_from, &shard, &from);
    if (status != STRAIT_OK)
        return status;
    status = find_encoder(save, tensor);
    if (status != STRAIT_OK)
        return status;
    if (!keep(save, &shard, (struct values){tensor->data, tensor->memory}))
        return broken(save, STRAIT_ERR_NO_MEMORY);
    save->raw_bytes += shard.bytes;
    if (shard.bytes == 0)
        return STRAIT_OK;
    status = from != UINT32_MAX ? begin_rounding(save, from)
                                : packer_add(&save->packers[tensor->memory], save->catalog.count - 1, tensor->data);
    return status == STRAIT_OK ? STRAIT_OK : broken(save, status);
}

/* ---- End --------------------------------------------------------------------------------------------------------- */

/* Adds the shards that are not the roundings that they were said to be. */
static enum strait_status add_unrounded(struct strait_checkpoint_save *save, uint64_t *rounded)
{
    for (const struct rounding *one = save->roundings; one != NULL; one = one->next) {
        const struct values *values = &save->values[one->shard];
        if (one->equal) {
            save->catalog.shards[one->shard].rounded_from = 1 + one->from;
            ++*rounded;
            continue;
        }
        const enum strait_status status = packer_add(&save->packers[values->memory], one->shard, values->data);
        if (status != STRAIT_OK)
            return status;
    }
    return STRAIT_OK;
}

static enum strait_status write_footer(struct strait_checkpoint_save *save, const struct checkpoint_footer *footer,
                                       uint64_t end, uint64_t *file_bytes)
{
    uint8_t *message = NULL;
    uint8_t tail[CHECKPOINT_TAIL_BYTES];
    size_t bytes = 0;
    const char *call = "write";
    enum strait_status status = checkpoint_footer_build(footer, &message, &bytes);

    if (status != STRAIT_OK)
        return checkpoint_fail(save->text, sizeof(save->text), status, "%s: its footer: %s", save->file_path,
                               status == STRAIT_ERR_NO_MEMORY ? "out of memory" : "has 4 GiB or more");
    checkpoint_tail_build(tail, end, message, (uint32_t)bytes);
    int error = storage_use_cache(save->fd); /* its length is no multiple of anything */
    if (error == 0)
        error = storage_write(save->fd, message, bytes, end);
    if (error == 0)
        error = storage_write(save->fd, tail, sizeof(tail), end + bytes);
    if (error == 0) {
        call = "fsync";
        error = storage_sync(save->fd);
        if (error == 0)
            error = storage_sync(save->folder);
    }
    free(message);
    *file_bytes = end + bytes + sizeof(tail);
    return error == 0 ? STRAIT_OK : storage_failed(told_to(save), save->path, save->name, call, error);
}

static enum strait_status finish(struct strait_checkpoint_save *save, struct strait_checkpoint_summary *summary)
{
    struct checkpoint_footer footer = {.rank = save->options.rank, .rank_count = save->options.rank_count};
    struct pipeline_figures figures = {0};
    uint64_t end = 0;
    enum strait_status status = pipeline_settle(save->pipeline);

    if (status == STRAIT_OK)
        status = add_unrounded(save, &summary->rounded_shards);
    for (uint32_t i = 0; status == STRAIT_OK && i < MEMORIES; i++)
        status = packer_flush(&save->packers[i]);
    if (status == STRAIT_OK)
        status = pipeline_finish(save->pipeline, &footer.chunks, &footer.chunk_count, &end, &figures);
    if (status != STRAIT_OK)
        return broken(save, status);
    memcpy(footer.save_id, save->options.save_id, sizeof(footer.save_id));
    footer.shards = save->catalog.shards;
    footer.shard_count = save->catalog.count;
    for (uint32_t i = 0; i < footer.shard_count; i++)
        if (!checkpoint_shard_stored(&footer.shards[i]))
            footer.shards[i].page_bytes = 0;
    const uint64_t began = clock_ns();
    status = write_footer(save, &footer, end, &summary->stored_bytes);
    free(footer.chunks);
    summary->encode_seconds = figures.encode_seconds;
    summary->write_seconds = figures.write_seconds + 1e-9 * (double)(clock_ns() - began);
    return status;
}

enum strait_status strait_checkpoint_save_end(struct strait_checkpoint_save *save,
                                              struct strait_checkpoint_summary *summary)
{
    struct strait_checkpoint_summary found = {0};

    if (save == NULL)
        return STRAIT_ERR_INVALID;
    if (save->state != SAVE_ADDING)
        return REFUSE(save, "the save has %s", save->state == SAVE_ENDED ? "ended" : "failed before");
    const enum strait_status status = finish(save, &found);
    save->state = status == STRAIT_OK ? SAVE_ENDED : SAVE_BROKEN;
    if (status != STRAIT_OK)
        return status;
    found.raw_bytes = save->raw_bytes;
    found.shards = save->catalog.count;
    found.seconds = 1e-9 * (double)(clock_ns() - save->began);
    if (summary != NULL)
        *summary = found;
    return STRAIT_OK;
}

const char *strait_checkpoint_save_text(const struct strait_checkpoint_save *save)
{
    return save != NULL ? save->text : "";
}

void strait_checkpoint_save_free(struct strait_checkpoint_save *save)
{
    if (save == NULL || save->process != getpid()) /* a forked process has neither its threads nor its file */
        return;
    pipeline_free(save->pipeline);
    for (uint32_t i = 0; i < MEMORIES; i++)
        packer_fini(&save->packers[i]);
    if (save->fd >= 0)
        storage_close(save->fd);
    if (save->made && save->state != SAVE_ENDED)
        unlinkat(save->folder, save->name, 0);
    if (save->folder >= 0)
        storage_close(save->folder);
    if (save->place.parent >= 0 && save->state != SAVE_ENDED)
        unlinkat(save->place.parent, save->place.partial, AT_REMOVEDIR); /* when it was the last file in it */
    storage_place_fini(&save->place);
    while (save->roundings != NULL) {
        struct rounding *next = save->roundings->next;
        free(save->roundings);
        save->roundings = next;
    }
    catalog_fini(&save->catalog);
    free(save->values);
    free(save->path);
    free(save->file_path);
    free(save);
}
