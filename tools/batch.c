#include "tools/batch.h"

#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/files.h"
#include "tools/input.h"
#include "tools/util.h"

struct batch_file {
    char *input;
    char *output;
    bool copied;
};

struct batch {
    const struct batch_task *task;
    struct batch_file *list;
    size_t count, capacity;
    bool failed; /* something cannot be worked on; what can is */
};

static bool fail(const char *path, int error)
{
    print_error(path, "%s", strerror(error));
    return false;
}

static bool has_suffix(const char *name)
{
    const size_t length = strlen(name), suffix = strlen(BATCH_SUFFIX);
    return length > suffix && strcmp(name + length - suffix, BATCH_SUFFIX) == 0;
}

/* Makes the folders that lead to a path, which is changed meanwhile. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const bool made = mkdir(path, 0777) == 0 || errno == EEXIST || errno == EISDIR;
        const int error = errno;
        if (!made)
            fail(path, error);
        *slash = '/';
        if (!made)
            return false;
    }
    return true;
}

/* name: of the file inside the output folder, but for the suffix. */
static bool add(struct batch *batch, const char *input, const char *name, bool copied)
{
    const bool adds = !copied && batch->task->kind == BATCH_ADDS,
               removes = !copied && batch->task->kind == BATCH_REMOVES;
    const int length = (int)(removes ? strlen(name) - strlen(BATCH_SUFFIX) : strlen(name));
    struct batch_file file = {.copied = copied};

    if (batch->count == batch->capacity) {
        const size_t capacity = 2 * batch->capacity + 64;
        struct batch_file *grown = realloc(batch->list, capacity * sizeof(*grown));
        if (grown == NULL)
            return fail(input, ENOMEM);
        batch->list = grown;
        batch->capacity = capacity;
    }
    file.input = strdup(input);
    if (asprintf(&file.output, "%s/%.*s%s", batch->task->folder, length, name, adds ? BATCH_SUFFIX : "") < 0)
        file.output = NULL;
    batch->list[batch->count++] = file;
    if (file.input != NULL && file.output != NULL ? make_folders(file.output) : fail(input, ENOMEM))
        return true;
    batch->count--;
    free(file.input);
    free(file.output);
    return false;
}

static bool add_file(struct batch *batch, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;

    if (batch->task->kind == BATCH_ADDS || has_suffix(name))
        return add(batch, path, name, false);
    print_error(path, "its name does not end in " BATCH_SUFFIX);
    return false;
}

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static bool is_same(const FTSENT *entry, const char *folder)
{
    struct stat info;
    return stat(folder, &info) == 0 && entry->fts_statp->st_dev == info.st_dev &&
           entry->fts_statp->st_ino == info.st_ino;
}

/* Whether a file of a folder is copied as it is. One with the suffix is not, as its copy would be decoded. */
static bool is_copied(const struct batch *batch, const char *path)
{
    if (has_suffix(path))
        return false;
    return batch->task->kind == BATCH_REMOVES || (batch->task->has_values != NULL && !batch->task->has_values(path));
}

static bool add_entry(struct batch *batch, FTS *tree, FTSENT *entry, size_t root)
{
    const char *name = entry->fts_path + root;

    switch (entry->fts_info) {
    case FTS_D:
        if (!is_same(entry, batch->task->folder))
            return true;
        fts_set(tree, entry, FTS_SKIP);
        if (entry->fts_level == FTS_ROOTLEVEL)
            print_error(entry->fts_path, "is the output folder itself");
        return entry->fts_level != FTS_ROOTLEVEL;
    case FTS_F:
        return add(batch, entry->fts_path, name + strspn(name, "/"), is_copied(batch, entry->fts_path));
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return fail(entry->fts_path, entry->fts_errno);
    case FTS_DC:
        print_error(entry->fts_path, "is a folder inside itself");
        return false;
    case FTS_SLNONE:
        return fail(entry->fts_path, ENOENT);
    default:
        return true;
    }
}

static bool add_folder(struct batch *batch, char *path)
{
    char *const paths[] = {path, NULL};
    FTS *tree = fts_open(paths, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    FTSENT *entry;
    bool added = true;

    if (tree == NULL)
        return fail(path, errno);
    errno = 0;
    while ((entry = fts_read(tree)) != NULL)
        added &= add_entry(batch, tree, entry, strlen(path));
    added &= errno == 0 || fail(path, errno);
    fts_close(tree);
    return added;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

#define COPY_BYTES (1u << 20)

static bool copy_all(struct source *source, struct output *output, uint8_t *buffer)
{
    size_t got = COPY_BYTES;

    while (got == COPY_BYTES)
        if (!source_read(source, buffer, COPY_BYTES, &got) || !output_write(output, buffer, got))
            return false;
    return source_check_end(source);
}

static enum exit_code copy(const struct batch_task *task, const struct batch_file *file)
{
    struct source source;
    struct output output;
    uint8_t *buffer = NULL;
    bool copied = false;

    if (!output_allowed(file->output, task->force) || !source_open(&source, file->input))
        return EXIT_CODE_DATA;
    if (source_survives(&source, file->output) && output_open(&output, file->output, source.mode, task->force)) {
        buffer = malloc(COPY_BYTES);
        if (buffer == NULL)
            fail(file->input, ENOMEM);
        copied = buffer != NULL && copy_all(&source, &output, buffer);
        if (!copied)
            output_abandon(&output);
        copied = copied && output_commit(&output);
    }
    if (copied && !task->quiet) {
        text_put(file->input, stderr);
        fprintf(stderr, ": %" PRIu64 " bytes, copied\n", source.position);
    }
    free(buffer);
    source_close(&source);
    return copied ? EXIT_CODE_OK : EXIT_CODE_DATA;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

static int by_output(const void *a, const void *b)
{
    return strcmp((*(const struct batch_file *const *)a)->output, (*(const struct batch_file *const *)b)->output);
}

static bool outputs_differ(const struct batch *batch)
{
    const struct batch_file **sorted = malloc((batch->count + 1) * sizeof(*sorted));
    bool differ = sorted != NULL || fail("the list of files", ENOMEM);

    for (size_t i = 0; sorted != NULL && i < batch->count; i++)
        sorted[i] = &batch->list[i];
    if (sorted != NULL)
        qsort(sorted, batch->count, sizeof(*sorted), by_output);
    for (size_t i = 1; differ && i < batch->count; i++)
        if (strcmp(sorted[i - 1]->output, sorted[i]->output) == 0) {
            print_error(sorted[i]->output, "would hold both %s and %s", sorted[i - 1]->input, sorted[i]->input);
            differ = false;
        }
    free(sorted);
    return differ;
}

/* False: nothing is to be worked on. */
static bool batch_list(struct batch *batch, char *const *operands, int count)
{
    struct stat info;

    if (mkdir(batch->task->folder, 0777) != 0 && errno != EEXIST)
        return fail(batch->task->folder, errno);
    for (int i = 0; i < count; i++) {
        const bool added = stat(operands[i], &info) != 0 ? fail(operands[i], errno)
                           : S_ISDIR(info.st_mode)       ? add_folder(batch, operands[i])
                                                         : add_file(batch, operands[i]);
        batch->failed |= !added;
    }
    if (batch->count == 0 && !batch->failed)
        print_error(operands[0], "holds no file for this command");
    return batch->count > 0 && outputs_differ(batch);
}

static void batch_fini(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        free(batch->list[i].input);
        free(batch->list[i].output);
    }
    free(batch->list);
    *batch = (struct batch){0};
}

enum exit_code batch_run(char *const *operands, int count, const struct batch_task *task)
{
    struct batch batch = {.task = task};
    const size_t files = batch_list(&batch, operands, count) ? batch.count : 0;
    enum exit_code code = files > 0 && !batch.failed ? EXIT_CODE_OK : EXIT_CODE_DATA;

    for (size_t i = 0; i < files; i++) {
        const struct batch_file *file = &batch.list[i];
        const enum exit_code ended = file->copied ? copy(task, file) : task->work(task->arg, file->input, file->output);
        code = code == EXIT_CODE_OK ? ended : code;
    }
    batch_fini(&batch);
    return code;
}
