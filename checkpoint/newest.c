/* Folders of checkpoints: which of them are whole, and which is the newest. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/arena.h"
#include "checkpoint/reader.h"

struct candidate {
    char *path;
    char *why; /* "" for a whole one; NULL: no memory */
    uint64_t committed_ns;
    uint64_t sort_ns; /* of the commit, or of the last change of the folder */
};

struct candidates {
    struct candidate *list;
    size_t count, room;
};

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

/* Whether a folder has files as ranks write them, or an index. */
static bool has_files(const char *path)
{
    DIR *folder = opendir(path);
    bool found = false;
    if (folder == NULL)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;)
        found = ends_with(entry->d_name, ".strait") || strcmp(entry->d_name, CHECKPOINT_INDEX_NAME) == 0;
    closedir(folder);
    return found;
}

/* Looks at the sizes of all files. */
static enum strait_status check_sizes(const struct strait_checkpoint_reader *reader, char *text, size_t text_size)
{
    for (uint32_t f = 0; f < reader->index.file_count; f++) {
        const uint64_t bytes = reader->index.files[f].bytes;
        struct stat info;
        if (fstatat(reader->folder, reader->names[f], &info, 0) != 0)
            return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED, "%s: %s", reader->names[f],
                                   errno == ENOENT ? "missing" : strerror(errno));
        if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != bytes)
            return checkpoint_fail(text, text_size, STRAIT_ERR_TRUNCATED,
                                   "%s: %" PRIu64 " bytes where the index has %" PRIu64, reader->names[f],
                                   (uint64_t)info.st_size, bytes);
    }
    return STRAIT_OK;
}

static void examine(struct candidate *candidate, const char *name)
{
    struct strait_checkpoint_reader *reader;
    char text[READER_TEXT_BYTES] = "";
    if (name[0] == '.') {
        candidate->why = strdup("not committed");
        return;
    }
    if (strait_checkpoint_open(candidate->path, &reader, text, sizeof(text)) == STRAIT_OK) {
        (void)check_sizes(reader, text, sizeof(text));
        candidate->committed_ns = candidate->sort_ns = reader->index.committed_ns;
        strait_checkpoint_close(reader);
    } else {
        const size_t prefix = strlen(candidate->path) + 1; /* the path is told beside it */
        if (strncmp(text, candidate->path, prefix - 1) == 0 && text[prefix - 1] == '/')
            memmove(text, text + prefix, strlen(text + prefix) + 1);
    }
    candidate->why = strdup(text);
}

/* Looks at one name of the folder. False: no memory. */
static bool consider(struct candidates *candidates, const char *folder, const char *name)
{
    struct candidate candidate = {NULL, NULL, 0, 0};
    struct stat info;
    if (name[0] == '.' && !ends_with(name, ".partial"))
        return true;
    if (asprintf(&candidate.path, "%s/%s", folder, name) < 0)
        return false;
    if (lstat(candidate.path, &info) != 0 || !S_ISDIR(info.st_mode) || !has_files(candidate.path)) {
        free(candidate.path);
        return true;
    }
    candidate.sort_ns = (uint64_t)info.st_mtim.tv_sec * 1000000000 + (uint64_t)info.st_mtim.tv_nsec;
    examine(&candidate, name);
    if (candidate.why != NULL &&
        list_grow((void **)&candidates->list, candidates->count, &candidates->room, sizeof(candidate))) {
        candidates->list[candidates->count++] = candidate;
        return true;
    }
    free(candidate.path);
    free(candidate.why);
    return false;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->sort_ns != y->sort_ns)
        return x->sort_ns > y->sort_ns ? -1 : 1;
    return strcmp(x->path, y->path);
}

static enum strait_status find_candidates(struct candidates *candidates, const char *path)
{
    DIR *folder = opendir(path);
    bool known = true;
    if (folder == NULL)
        return STRAIT_ERR_IO;
    for (struct dirent *entry; known && (entry = readdir(folder)) != NULL;)
        known = consider(candidates, path, entry->d_name);
    closedir(folder);
    if (candidates->count > 0)
        qsort(candidates->list, candidates->count, sizeof(*candidates->list), compare_candidates);
    return known ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

enum strait_status strait_checkpoint_newest(const char *folder,
                                            void (*report)(void *context,
                                                           const struct strait_checkpoint_candidate *one),
                                            void *context, char *path, size_t path_size)
{
    struct candidates candidates = {NULL, 0, 0};
    const char *found = NULL;
    if (folder == NULL || (path == NULL && path_size > 0))
        return STRAIT_ERR_INVALID;
    enum strait_status status = find_candidates(&candidates, folder);
    for (size_t i = 0; status == STRAIT_OK && i < candidates.count; i++) {
        const struct candidate *one = &candidates.list[i];
        const struct strait_checkpoint_candidate told = {one->path, one->why, one->committed_ns};
        if (report != NULL)
            report(context, &told);
        if (found == NULL && one->why[0] == '\0')
            found = one->path;
    }
    if (status == STRAIT_OK && found == NULL)
        status = STRAIT_ERR_INVALID;
    if (status == STRAIT_OK && snprintf(path, path_size, "%s", found) >= (int)path_size)
        status = STRAIT_ERR_NO_SPACE;
    for (size_t i = 0; i < candidates.count; i++) {
        free(candidates.list[i].path);
        free(candidates.list[i].why);
    }
    free(candidates.list);
    return status;
}
