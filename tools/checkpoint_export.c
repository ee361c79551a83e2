/* strait checkpoint to-safetensors */
#include <cjson/cJSON.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal/bytes.h"
#include "tools/checkpoint_open.h"
#include "tools/checkpoint_parts.h"
#include "tools/files.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait checkpoint to-safetensors [OPTION]... PATH OUT\n"
    "\n"
    "Writes the tensors of a checkpoint into the folder OUT, which is made if it is not there, as model.safetensors,\n"
    "or as several files with an index, model.safetensors.index.json, as Hugging Face has them. Strings of bytes and\n"
    "attachments, which are no tensors, are left out. Files appear when they are complete.\n"
    "\n"
    "      --shard-size SIZE  a file has at most SIZE bytes of tensors, or one tensor: 5G, for example (one file)\n"
    "  -f, --force          replace files that are there\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "  -q, --quiet          no progress and no report\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data or failed input or output, 2 bad usage.\n";

struct export_options {
    unsigned threads;
    bool force, quiet;
    uint64_t shard_size; /* 0: one file */
};

#define METADATA        "__metadata__"
#define FILE_NAME_BYTES 64

/* A file to write: tensors[first] to tensors[first + count - 1]. */
struct export_file {
    char name[FILE_NAME_BYTES];
    uint32_t first, count;
};

struct export
{
    struct strait_checkpoint_reader *reader;
    const char *path;   /* of the checkpoint */
    const char *folder; /* OUT */
    const struct export_options *options;
    uint32_t *tensors;
    struct export_file *files;
    uint32_t tensor_count, file_count;
    uint32_t left_out; /* strings of bytes */
    uint64_t bytes;    /* of all tensors */
    struct progress progress;
};

static struct strait_checkpoint_tensor_info info_of(const struct export *export, uint32_t tensor)
{
    struct strait_checkpoint_tensor_info info;
    (void)strait_checkpoint_tensor_at(export->reader, tensor, &info);
    return info;
}

static char *path_in(const char *folder, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) >= 0)
        return path;
    print_error(folder, "out of memory");
    return NULL;
}

/* ---- Which tensors are in which file ----------------------------------------------------------------------------- */

/* Larger values first, so that each tensor is aligned to its own; then by name, which is the order of numbers. */
static int compare_tensors(const void *a, const void *b, void *of)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const uint32_t x_value = strait_checkpoint_dtype_bytes(info_of(of, x).dtype);
    const uint32_t y_value = strait_checkpoint_dtype_bytes(info_of(of, y).dtype);
    if (x_value != y_value)
        return x_value > y_value ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void name_files(struct export *export)
{
    for (uint32_t f = 0; f < export->file_count; f++) {
        struct export_file *file = &export->files[f];
        if (export->file_count == 1)
            snprintf(file->name, sizeof(file->name), "model.safetensors");
        else
            snprintf(file->name, sizeof(file->name), "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", f + 1,
                     export->file_count);
        qsort_r(export->tensors + file->first, file->count, sizeof(*export->tensors), compare_tensors, export);
    }
}

/* Divides the tensors, in the order of their names, among files. */
static bool plan_files(struct export *export)
{
    struct strait_checkpoint_info info;
    uint64_t bytes = 0; /* of the current file */
    strait_checkpoint_describe(export->reader, &info);
    export->tensors = malloc((info.tensor_count + (size_t)1) * sizeof(*export->tensors));
    export->files = calloc(info.tensor_count + (size_t)1, sizeof(*export->files));
    if (export->tensors == NULL || export->files == NULL) {
        print_error(export->path, "out of memory");
        return false;
    }
    export->file_count = 1;
    for (uint32_t t = 0; t < info.tensor_count; t++) {
        const struct strait_checkpoint_tensor_info tensor = info_of(export, t);
        struct export_file *file = &export->files[export->file_count - 1];
        if (strcmp(tensor.name, METADATA) == 0) {
            print_error(export->path, "a tensor is named " METADATA ", which safetensors files cannot have");
            return false;
        }
        if (strcmp(tensor.dtype, "BYTES") == 0) {
            export->left_out++;
            continue;
        }
        if (export->options->shard_size > 0 && file->count > 0 && tensor.bytes > export->options->shard_size - bytes) {
            export->file_count++;
            *++file = (struct export_file){.first = export->tensor_count};
            bytes = 0;
        }
        bytes = tensor.bytes > UINT64_MAX - bytes ? UINT64_MAX : bytes + tensor.bytes;
        bytes = export->options->shard_size > 0 && bytes > export->options->shard_size ? export->options->shard_size
                                                                                       : bytes;
        export->bytes += tensor.bytes;
        export->tensors[export->tensor_count++] = t;
        file->count++;
    }
    name_files(export);
    return true;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* The header of a file: u64 length and JSON, padded with spaces to a multiple of 8. NULL: out of memory. */
static uint8_t *make_header(const struct export *export, const struct export_file *file, size_t *size)
{
    cJSON *object = cJSON_CreateObject();
    uint64_t at = 0;
    cJSON_AddStringToObject(cJSON_AddObjectToObject(object, METADATA), "format", "pt");
    for (uint32_t i = file->first; i < file->first + file->count; i++) {
        const struct strait_checkpoint_tensor_info info = info_of(export, export->tensors[i]);
        cJSON *item = cJSON_AddObjectToObject(object, info.name), *list;
        cJSON_AddStringToObject(item, "dtype", info.dtype);
        list = cJSON_AddArrayToObject(item, "shape");
        for (uint32_t d = 0; d < info.dims; d++)
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)info.shape[d]));
        list = cJSON_AddArrayToObject(item, "data_offsets");
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)at));
        at += info.bytes;
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)at));
    }
    char *text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    const size_t length = text != NULL ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    uint8_t *header = text != NULL ? malloc(8 + padded) : NULL;
    if (header != NULL) {
        store_le64(header, padded);
        memcpy(header + 8, text, length);
        memset(header + 8 + length, ' ', padded - length);
        *size = 8 + padded;
    } else {
        print_error(file->name, "out of memory");
    }
    cJSON_free(text);
    return header;
}

static bool write_values(struct export *export, const struct export_file *file, struct output *output, uint8_t *memory)
{
    struct window window = {.tensors = export->tensors + file->first, .count = file->count};
    bool written = true;
    while (written && window_next(&window, export->reader, memory, WINDOW_BYTES)) {
        written =
            ranges_load(export->reader, export->path, window.ranges, window.range_count, export->options->threads) &&
            output_write(output, memory, window.bytes);
        progress_add(&export->progress, window.bytes);
    }
    if (written && window.range_count > 0) {
        print_error(export->path, "out of memory");
        written = false;
    }
    window_fini(&window);
    return written;
}

/* Opens an output in the folder, which may replace a file only if forced. */
static bool open_in(const struct export *export, const char *name, struct output *output)
{
    char *path = path_in(export->folder, name);
    const bool opened = path != NULL && output_allowed(path, export->options->force) &&
                        output_open(output, path, OUTPUT_MODE, export->options->force);
    free(path);
    return opened;
}

/* Gives an output its name when all was written. */
static bool close_output(struct output *output, bool written)
{
    if (written)
        return output_commit(output);
    output_abandon(output);
    return false;
}

static bool write_file(struct export *export, const struct export_file *file, uint8_t *memory)
{
    struct output output;
    size_t size;
    if (!open_in(export, file->name, &output))
        return false;
    uint8_t *header = make_header(export, file, &size);
    const bool written =
        header != NULL && output_write(&output, header, size) && write_values(export, file, &output, memory);
    free(header);
    return close_output(&output, written);
}

/* Of several files, which has which tensor. */
static bool write_index(const struct export *export)
{
    struct output output;
    cJSON *object = cJSON_CreateObject(), *map;
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(object, "metadata"), "total_size", (double)export->bytes);
    map = cJSON_AddObjectToObject(object, "weight_map");
    for (uint32_t f = 0; f < export->file_count; f++)
        for (uint32_t i = 0; i < export->files[f].count; i++)
            cJSON_AddStringToObject(map, info_of(export, export->tensors[export->files[f].first + i]).name,
                                    export->files[f].name);
    char *text = cJSON_Print(object);
    cJSON_Delete(object);
    if (text == NULL)
        print_error(export->folder, "out of memory");
    const bool opened = text != NULL && open_in(export, "model.safetensors.index.json", &output);
    const bool written =
        opened && close_output(&output, output_write(&output, text, strlen(text)) && output_write(&output, "\n", 1));
    cJSON_free(text);
    return written;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* Makes the folder OUT, which must not be the checkpoint itself. */
static bool make_folder(const struct export *export)
{
    struct stat from, to;
    if (mkdir(export->folder, 0777) != 0 && errno != EEXIST) {
        print_error(export->folder, "%s", strerror(errno));
        return false;
    }
    if (stat(export->path, &from) != 0 || stat(export->folder, &to) != 0 || !S_ISDIR(to.st_mode)) {
        print_error(export->folder, "not a folder");
        return false;
    }
    if (from.st_dev != to.st_dev || from.st_ino != to.st_ino)
        return true;
    print_error(export->folder, "is the checkpoint, which is left as it is: name another folder");
    return false;
}

static bool write_files(struct export *export)
{
    uint8_t *memory = malloc(WINDOW_BYTES);
    bool written = memory != NULL;
    if (memory == NULL)
        print_error(export->path, "out of memory");
    progress_begin(&export->progress, "writing", export->bytes, export->options->quiet);
    for (uint32_t f = 0; f < export->file_count && written; f++)
        written = write_file(export, &export->files[f], memory);
    progress_end(&export->progress);
    free(memory);
    return written && (export->file_count == 1 || write_index(export));
}

static bool export_path(char *const *paths, const struct export_options *options)
{
    struct export export = {.path = paths[0], .folder = paths[1], .options = options};
    if (!checkpoint_open(export.path, &export.reader))
        return false;
    const bool done = make_folder(&export) && plan_files(&export) && write_files(&export);
    if (done && !options->quiet) {
        fprintf(stderr, "%" PRIu32 " tensors, %" PRIu64 " bytes, in %" PRIu32 " files", export.tensor_count,
                export.bytes, export.file_count);
        if (export.left_out > 0)
            fprintf(stderr, "; %" PRIu32 " strings of bytes are no tensors and were left out", export.left_out);
        fputc('\n', stderr);
    }
    free(export.tensors);
    free(export.files);
    strait_checkpoint_close(export.reader);
    return done;
}

static bool set_shard_size(void *options, const char *text)
{
    return option_size("--shard-size", text, 1, UINT64_MAX / 2, &((struct export_options *)options)->shard_size);
}

int checkpoint_export(int argc, char **argv)
{
    static char name[] = "strait checkpoint to-safetensors";
    struct export_options options = {.threads = cpu_count()};
    const struct cli_option list[] = {{"shard-size", .set = set_shard_size},
                                      {"force", 'f', .flag = &options.force},
                                      {"threads", 'T', .threads = &options.threads},
                                      {"quiet", 'q', .flag = &options.quiet}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 2, "a PATH and a folder OUT"))
        return EXIT_CODE_USAGE;
    return export_path(argv + optind, &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
