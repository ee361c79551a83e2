#include "checkpoint/storage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/format.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1u
#endif
#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2u
#endif

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* Copies the last part of a path; the bytes before it remain. False: there is none, or it is no name for a checkpoint.
 */
static bool split(char *path, char name[STORAGE_NAME_BYTES], struct storage_text told)
{
    size_t end = strlen(path);

    while (end > 0 && path[end - 1] == '/')
        path[--end] = 0;
    const char *slash = strrchr(path, '/');
    const char *last = slash != NULL ? slash + 1 : path;
    if (*last == 0 || *last == '.' || strcmp(last, "latest") == 0) {
        checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID, "%s: a checkpoint cannot have this name", path);
        return false;
    }
    if (strlen(last) + 2 * STRAIT_CHECKPOINT_ID_BYTES + sizeof("...partial") > STORAGE_NAME_BYTES) {
        checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID, "%s: the name is too long", path);
        return false;
    }
    strcpy(name, last);
    if (slash == NULL)
        strcpy(path, ".");
    else if (slash == path)
        path[1] = 0;
    else
        path[slash - path] = 0;
    return true;
}

enum strait_status storage_place_init(struct storage_place *place, const char *path,
                                      const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES], struct storage_text told)
{
    char id[2 * STRAIT_CHECKPOINT_ID_BYTES + 1];

    *place = (struct storage_place){.parent = -1};
    place->path = malloc(strlen(path) + 2);
    if (place->path == NULL)
        return checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    strcpy(place->path, path);
    if (!split(place->path, place->name, told)) {
        storage_place_fini(place);
        return STRAIT_ERR_INVALID;
    }
    for (unsigned i = 0; i < STRAIT_CHECKPOINT_ID_BYTES; i++)
        snprintf(id + 2 * i, 3, "%02x", save_id[i]);
    snprintf(place->partial, sizeof(place->partial), ".%.*s.%s.partial", (int)STORAGE_NAME_BYTES - 43, place->name, id);
    snprintf(place->old, sizeof(place->old), ".%.*s.%s.old", (int)STORAGE_NAME_BYTES - 43, place->name, id);
    place->parent = storage_open(AT_FDCWD, place->path, O_RDONLY | O_DIRECTORY);
    if (place->parent >= 0)
        return STRAIT_OK;
    storage_failed(told, place->path, NULL, "open", errno);
    storage_place_fini(place);
    return STRAIT_ERR_IO;
}

void storage_place_fini(struct storage_place *place)
{
    if (place->parent >= 0)
        storage_close(place->parent);
    free(place->path);
    *place = (struct storage_place){.parent = -1};
}

enum strait_status storage_failed(struct storage_text told, const char *path, const char *name, const char *call,
                                  int error)
{
    return checkpoint_fail(told.text, told.size, STRAIT_ERR_IO, "%s%s%s: %s: %s", path, name != NULL ? "/" : "",
                           name != NULL ? name : "", call, error == ENODATA ? "the file ends before" : strerror(error));
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

int storage_open(int folder, const char *name, int flags)
{
    int fd;

    do
        fd = openat(folder, name, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int storage_sync(int fd)
{
    int result;

    do
        result = fsync(fd);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

void storage_close(int fd)
{
    const int kept = errno;

    close(fd);
    errno = kept;
}

int storage_use_cache(int fd)
{
    const int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || ((flags & O_DIRECT) != 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0))
        return errno;
    return 0;
}

/* Whether a call that failed with `error` is to be made again. */
static bool again(int error)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    if (error == EAGAIN)
        nanosleep(&moment, NULL);
    return error == EAGAIN || error == EINTR;
}

int storage_write(int fd, const void *data, size_t bytes, uint64_t offset)
{
    const uint8_t *at = data;
    bool direct = true; /* perhaps */

    while (bytes > 0) {
        const ssize_t written = pwrite(fd, at, bytes, (off_t)offset);
        if (written > 0) {
            at += written;
            bytes -= (size_t)written;
            offset += (uint64_t)written;
        } else if (written == 0) {
            return EIO;
        } else if (errno == EINVAL && direct) {
            direct = false;
            if (storage_use_cache(fd) != 0)
                return EINVAL;
        } else if (!again(errno)) {
            return errno;
        }
    }
    return 0;
}

int storage_read(int fd, void *data, size_t bytes, uint64_t offset)
{
    uint8_t *at = data;

    while (bytes > 0) {
        const ssize_t got = pread(fd, at, bytes, (off_t)offset);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
            offset += (uint64_t)got;
        } else if (got == 0) {
            return ENODATA;
        } else if (!again(errno)) {
            return errno;
        }
    }
    return 0;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static int rename_flags(int folder, const char *from, const char *to, unsigned flags)
{
    return syscall(SYS_renameat2, folder, from, folder, to, flags) == 0 ? 0 : errno;
}

int storage_exchange(int folder, const char *from, const char *to)
{
    return rename_flags(folder, from, to, RENAME_EXCHANGE);
}

int storage_rename_new(int folder, const char *from, const char *to)
{
    const int error = rename_flags(folder, from, to, RENAME_NOREPLACE);

    if (error != EINVAL && error != ENOSYS)
        return error;
    return renameat(folder, from, folder, to) == 0 ? 0 : errno; /* a folder never replaces one with files in it */
}

int storage_link(int folder, const char *name, const char *target, const char *temporary)
{
    int error = 0;

    if (unlinkat(folder, temporary, 0) != 0 && errno != ENOENT)
        return errno;
    if (symlinkat(target, folder, temporary) != 0)
        return errno;
    if (renameat(folder, temporary, folder, name) != 0) {
        error = errno;
        unlinkat(folder, temporary, 0);
    }
    return error;
}

bool storage_is_ours(const char *name)
{
    size_t digits = strspn(name, "0123456789");

    return strcmp(name, CHECKPOINT_INDEX_NAME) == 0 || (digits >= 5 && strcmp(name + digits, ".strait") == 0);
}

/* Calls `each` for the names in a folder until it returns an errno. */
static int each_name(int parent, const char *folder, int (*each)(int folder, const char *name, void *context),
                     void *context)
{
    const int fd = storage_open(parent, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    DIR *names = fd >= 0 ? fdopendir(fd) : NULL;
    int error = 0;

    if (names == NULL) {
        error = errno;
        if (fd >= 0)
            storage_close(fd);
        return error;
    }
    while (error == 0) {
        errno = 0;
        const struct dirent *entry = readdir(names);
        if (entry == NULL) {
            error = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = each(fd, entry->d_name, context);
    }
    closedir(names);
    return error;
}

static int refuse_stranger(int folder, const char *name, void *context)
{
    (void)folder;
    if (storage_is_ours(name))
        return 0;
    snprintf(context, STORAGE_NAME_BYTES, "%.*s", (int)STORAGE_NAME_BYTES - 1, name);
    return ENOTEMPTY;
}

int storage_only_ours(int parent, const char *name, char stranger[STORAGE_NAME_BYTES])
{
    return each_name(parent, name, refuse_stranger, stranger);
}

static int remove_file(int folder, const char *name, void *context)
{
    (void)context;
    return !storage_is_ours(name) || unlinkat(folder, name, 0) == 0 || errno == ENOENT ? 0 : errno;
}

/* The index goes first: what is left is then no checkpoint, whatever happens. */
static int remove_index(int parent, const char *name)
{
    const int fd = storage_open(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    int error = 0;

    if (fd < 0)
        return errno;
    if (unlinkat(fd, CHECKPOINT_INDEX_NAME, 0) != 0 && errno != ENOENT)
        error = errno;
    storage_close(fd);
    return error;
}

int storage_remove(int parent, const char *name)
{
    int error = remove_index(parent, name);

    if (error == ENOENT)
        return 0;
    if (error == 0)
        error = each_name(parent, name, remove_file, NULL);
    if (error == 0 && unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        error = errno;
    return error;
}
