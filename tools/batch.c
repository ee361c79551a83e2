#include "tools/batch.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/util.h"

struct batch_file {
    char *input;
    char *output;
};

struct batch {
    struct batch_file *list;
    size_t count, capacity;
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
static bool add(struct batch *batch, const char *input, const char *folder, const char *name, enum batch_kind kind)
{
    const int length = (int)(kind == BATCH_REMOVES ? strlen(name) - strlen(BATCH_SUFFIX) : strlen(name));
    struct batch_file file = {0};

    if (batch->count == batch->capacity) {
        const size_t capacity = 2 * batch->capacity + 64;
        struct batch_file *grown = realloc(batch->list, capacity * sizeof(*grown));
        if (grown == NULL)
            return fail(input, ENOMEM);
        batch->list = grown;
        batch->capacity = capacity;
    }
    file.input = strdup(input);
    if (asprintf(&file.output, "%s/%.*s%s", folder, length, name, kind == BATCH_ADDS ? BATCH_SUFFIX : "") < 0)
        file.output = NULL;
    batch->list[batch->count++] = file;
    if (file.input == NULL || file.output == NULL)
        return fail(input, ENOMEM);
    return make_folders(file.output);
}

static bool add_file(struct batch *batch, const char *path, const char *folder, enum batch_kind kind)
{
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;

    if (kind == BATCH_ADDS || has_suffix(name))
        return add(batch, path, folder, name, kind);
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

static bool add_entry(struct batch *batch, FTS *tree, FTSENT *entry, size_t root, const char *folder,
                      enum batch_kind kind)
{
    const char *name = entry->fts_path + root;

    switch (entry->fts_info) {
    case FTS_D:
        if (is_same(entry, folder))
            fts_set(tree, entry, FTS_SKIP);
        return true;
    case FTS_F:
        name += strspn(name, "/");
        return (kind == BATCH_REMOVES && !has_suffix(name)) || add(batch, entry->fts_path, folder, name, kind);
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

static bool add_folder(struct batch *batch, char *path, const char *folder, enum batch_kind kind)
{
    char *const paths[] = {path, NULL};
    FTS *tree = fts_open(paths, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    FTSENT *entry;
    bool added = true;

    if (tree == NULL)
        return fail(path, errno);
    errno = 0;
    while (added && (entry = fts_read(tree)) != NULL)
        added = add_entry(batch, tree, entry, strlen(path), folder, kind);
    added = added && (errno == 0 || fail(path, errno));
    fts_close(tree);
    return added;
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

static bool batch_list(struct batch *batch, char *const *operands, int count, const char *folder, enum batch_kind kind)
{
    struct stat info;

    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return fail(folder, errno);
    for (int i = 0; i < count; i++) {
        if (stat(operands[i], &info) != 0)
            return fail(operands[i], errno);
        if (!(S_ISDIR(info.st_mode) ? add_folder(batch, operands[i], folder, kind)
                                    : add_file(batch, operands[i], folder, kind)))
            return false;
    }
    if (batch->count == 0)
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

enum exit_code batch_run(char *const *operands, int count, const char *folder, enum batch_kind kind, batch_work *work,
                         void *arg)
{
    struct batch batch = {0};
    enum exit_code code = batch_list(&batch, operands, count, folder, kind) ? EXIT_CODE_OK : EXIT_CODE_DATA;
    const size_t files = code == EXIT_CODE_OK ? batch.count : 0;

    for (size_t i = 0; i < files; i++) {
        const enum exit_code ended = work(arg, batch.list[i].input, batch.list[i].output);
        code = code == EXIT_CODE_OK ? ended : code;
    }
    batch_fini(&batch);
    return code;
}
