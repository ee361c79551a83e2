#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/storage.h"

/* Puts "PATH/NAME: " before a text. */
static enum strait_status named(enum strait_status status, const char *path, const char *name, const char *why,
                                struct storage_text told)
{
    return checkpoint_fail(told.text, told.size, status, "%s/%s: %s", path, name, why);
}

/* Opens a file of a checkpoint for reading: only a regular file is one. */
static int open_file(int folder, const char *path, const char *name, uint64_t *bytes, enum strait_status *status,
                     struct storage_text told)
{
    struct stat info;
    const int fd = storage_open(folder, name, O_RDONLY | O_NONBLOCK);

    if (fd < 0) {
        *status = errno == ENOENT ? named(STRAIT_ERR_TRUNCATED, path, name, "is missing", told)
                                  : storage_failed(told, path, name, "open", errno);
        return -1;
    }
    if (fstat(fd, &info) != 0)
        *status = storage_failed(told, path, name, "stat", errno);
    else if (!S_ISREG(info.st_mode))
        *status = named(STRAIT_ERR_CORRUPT, path, name, "is no file", told);
    else {
        *bytes = (uint64_t)info.st_size;
        return fd;
    }
    storage_close(fd);
    return -1;
}

static enum strait_status read_part(int fd, const char *path, const char *name, void *data, size_t bytes,
                                    uint64_t offset, struct storage_text told)
{
    const int error = storage_read(fd, data, bytes, offset);

    if (error == ENODATA)
        return named(STRAIT_ERR_TRUNCATED, path, name, "became shorter", told);
    return error == 0 ? STRAIT_OK : storage_failed(told, path, name, "read", error);
}

/* ---- Index ------------------------------------------------------------------------------------------------------- */

static enum strait_status read_index(int fd, uint64_t bytes, const char *path, struct checkpoint_index *index,
                                     struct storage_text told)
{
    uint8_t head[CHECKPOINT_INDEX_HEAD_BYTES];
    const size_t head_bytes = bytes < sizeof(head) ? (size_t)bytes : sizeof(head);
    char why[400];
    uint64_t expected;
    enum strait_status status = read_part(fd, path, CHECKPOINT_INDEX_NAME, head, head_bytes, 0, told);

    if (status != STRAIT_OK)
        return status;
    status = checkpoint_index_size(&expected, head, head_bytes, why, sizeof(why)); /* no memory for what is no index */
    if (status != STRAIT_OK)
        return named(status, path, CHECKPOINT_INDEX_NAME, why, told);
    uint8_t *file = bytes < SIZE_MAX ? malloc((size_t)bytes) : NULL;
    if (file == NULL)
        return named(STRAIT_ERR_NO_MEMORY, path, CHECKPOINT_INDEX_NAME, "out of memory", told);
    status = read_part(fd, path, CHECKPOINT_INDEX_NAME, file, (size_t)bytes, 0, told);
    if (status == STRAIT_OK) {
        status = checkpoint_index_parse(index, file, bytes, why, sizeof(why));
        if (status != STRAIT_OK)
            named(status, path, CHECKPOINT_INDEX_NAME, why, told);
    }
    free(file);
    return status;
}

enum strait_status folder_read_index(int folder, const char *path, struct checkpoint_index *index,
                                     struct storage_text told)
{
    enum strait_status status = STRAIT_OK;
    uint64_t bytes = 0;
    const int fd = open_file(folder, path, CHECKPOINT_INDEX_NAME, &bytes, &status, told);

    if (fd < 0)
        return status;
    status = read_index(fd, bytes, path, index, told);
    storage_close(fd);
    return status;
}

enum strait_status folder_check(int folder, const char *path, struct checkpoint_index *index, struct storage_text told)
{
    char name[CHECKPOINT_FILE_NAME_BYTES], why[100];
    struct stat info;
    enum strait_status status = folder_read_index(folder, path, index, told);

    for (uint32_t i = 0; status == STRAIT_OK && i < index->file_count; i++) {
        checkpoint_file_name(name, i);
        if (fstatat(folder, name, &info, 0) != 0)
            status = errno == ENOENT ? named(STRAIT_ERR_TRUNCATED, path, name, "is missing", told)
                                     : storage_failed(told, path, name, "stat", errno);
        else if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != index->files[i].bytes) {
            snprintf(why, sizeof(why), "has %llu bytes, not %llu", (unsigned long long)info.st_size,
                     (unsigned long long)index->files[i].bytes);
            status = named((uint64_t)info.st_size < index->files[i].bytes ? STRAIT_ERR_TRUNCATED : STRAIT_ERR_CORRUPT,
                           path, name, why, told);
        }
        if (status != STRAIT_OK)
            checkpoint_index_free(index);
    }
    return status;
}

/* ---- Footers ----------------------------------------------------------------------------------------------------- */

struct reading {
    int fd;
    uint64_t bytes;
    const char *path, *name;
    struct storage_text told;
};

static enum strait_status read_tail(const struct reading *file, struct checkpoint_tail *tail,
                                    const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES])
{
    uint8_t header[CHECKPOINT_HEADER_BYTES], end[CHECKPOINT_TAIL_BYTES], id[STRAIT_CHECKPOINT_ID_BYTES];
    char why[200];
    enum strait_status status = STRAIT_OK;

    if (file->bytes >= CHECKPOINT_FILE_BYTES_MIN) {
        status = read_part(file->fd, file->path, file->name, header, sizeof(header), 0, file->told);
        if (status == STRAIT_OK)
            status =
                read_part(file->fd, file->path, file->name, end, sizeof(end), file->bytes - sizeof(end), file->told);
        if (status != STRAIT_OK)
            return status;
    }
    status = checkpoint_tail_parse(tail, end, file->bytes, why, sizeof(why));
    if (status == STRAIT_OK)
        status = checkpoint_header_parse(id, header, sizeof(header), why, sizeof(why));
    if (status == STRAIT_OK && memcmp(id, save_id, sizeof(id)) != 0)
        status = checkpoint_fail(why, sizeof(why), STRAIT_ERR_CORRUPT, "is of another save");
    return status == STRAIT_OK ? STRAIT_OK : named(status, file->path, file->name, why, file->told);
}

static enum strait_status read_footer(const struct reading *file, const struct checkpoint_tail *tail,
                                      struct checkpoint_footer *footer)
{
    char why[400];
    uint8_t *message = malloc((size_t)tail->footer_bytes + 1);

    if (message == NULL)
        return named(STRAIT_ERR_NO_MEMORY, file->path, file->name, "out of memory", file->told);
    enum strait_status status = read_part(file->fd, file->path, file->name, message, (size_t)tail->footer_bytes,
                                          tail->footer_offset, file->told);
    if (status == STRAIT_OK) {
        status = checkpoint_footer_parse(footer, message, tail, why, sizeof(why));
        if (status != STRAIT_OK)
            named(status, file->path, file->name, why, file->told);
    }
    free(message);
    return status;
}

enum strait_status folder_read_footer(int folder, const char *path, uint32_t rank,
                                      const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES],
                                      struct checkpoint_footer *footer, struct checkpoint_entry *entry,
                                      struct storage_text told)
{
    char name[CHECKPOINT_FILE_NAME_BYTES];
    struct checkpoint_tail tail = {0};
    enum strait_status status = STRAIT_OK;

    checkpoint_file_name(name, rank);
    struct reading file = {.path = path, .name = name, .told = told};
    file.fd = open_file(folder, path, name, &file.bytes, &status, told);
    if (file.fd < 0)
        return status;
    status = read_tail(&file, &tail, save_id);
    if (status == STRAIT_OK)
        status = read_footer(&file, &tail, footer);
    if (status == STRAIT_OK && (footer->rank != rank || memcmp(footer->save_id, save_id, sizeof(footer->save_id)))) {
        status = named(STRAIT_ERR_CORRUPT, path, name, "its footer is of another rank or save", told);
        checkpoint_footer_free(footer);
    }
    storage_close(file.fd);
    entry->bytes = file.bytes;
    memcpy(entry->footer_sum, tail.footer_sum, sizeof(entry->footer_sum));
    return status;
}

/* ---- Candidates -------------------------------------------------------------------------------------------------- */

/* Whether a folder's name is one to look at. .NAME.SAVE-ID.old is, while there is no NAME. */
static bool is_candidate(int parent, const char *name)
{
    static const char ending[] = ".old";
    const size_t length = strlen(name), tail = 1 + 2 * STRAIT_CHECKPOINT_ID_BYTES + sizeof(ending) - 1;
    char visible[STORAGE_NAME_BYTES];
    struct stat info;

    if (length >= STORAGE_NAME_BYTES)
        return false;
    if (name[0] != '.')
        return true;
    if (length <= tail + 1 || strcmp(name + length - (sizeof(ending) - 1), ending) != 0)
        return false;
    snprintf(visible, sizeof(visible), "%.*s", (int)(length - tail - 1), name + 1);
    return fstatat(parent, visible, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
}

/* Looks at one name. False: it is no folder, or one that has nothing of a checkpoint. */
static bool look(int parent, const char *name, struct folder_candidate *found)
{
    char stranger[STORAGE_NAME_BYTES];
    struct checkpoint_index index;
    const int folder = storage_open(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

    if (folder < 0)
        return false;
    *found = (struct folder_candidate){0};
    snprintf(found->name, sizeof(found->name), "%s", name);
    if (folder_check(folder, name, &index, (struct storage_text){found->why, sizeof(found->why)}) == STRAIT_OK) {
        found->why[0] = 0;
        found->committed_ns = index.committed_ns;
        memcpy(found->save_id, index.save_id, sizeof(found->save_id));
        checkpoint_index_free(&index);
    } else if (storage_only_ours(parent, name, stranger) != 0) {
        storage_close(folder);
        return false; /* somebody else's */
    }
    storage_close(folder);
    return true;
}

static int newest_first(const void *left, const void *right)
{
    const struct folder_candidate *a = left, *b = right;

    if (a->committed_ns != b->committed_ns)
        return a->committed_ns > b->committed_ns ? -1 : 1;
    return strcmp(a->name, b->name);
}

static bool append(struct folder_candidate **list, uint32_t *count, uint32_t *room, const struct folder_candidate *one)
{
    if (*count == *room) {
        struct folder_candidate *grown = realloc(*list, (*room * 2 + 16) * sizeof(*grown));
        if (grown == NULL)
            return false;
        *list = grown;
        *room = *room * 2 + 16;
    }
    (*list)[(*count)++] = *one;
    return true;
}

enum strait_status folder_list(int parent, const char *path, struct folder_candidate **list, uint32_t *count,
                               struct storage_text told)
{
    const int fd = storage_open(parent, ".", O_RDONLY | O_DIRECTORY);
    DIR *names = fd >= 0 ? fdopendir(fd) : NULL;
    struct folder_candidate found;
    const struct dirent *entry;
    uint32_t room = 0;
    enum strait_status status = STRAIT_OK;

    *list = NULL;
    *count = 0;
    if (names == NULL) {
        status = storage_failed(told, path, NULL, "open", errno);
        if (fd >= 0)
            storage_close(fd);
        return status;
    }
    while (status == STRAIT_OK && (errno = 0, entry = readdir(names)) != NULL)
        if (is_candidate(parent, entry->d_name) && look(parent, entry->d_name, &found) &&
            !append(list, count, &room, &found))
            status = checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    if (status == STRAIT_OK && errno != 0)
        status = storage_failed(told, path, NULL, "readdir", errno);
    closedir(names);
    if (status != STRAIT_OK) {
        free(*list);
        *list = NULL;
    } else if (*count > 0) {
        qsort(*list, *count, sizeof(**list), newest_first);
    }
    return status;
}
