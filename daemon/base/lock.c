#include "daemon/base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SUFFIX_LOCK ".lock"
#define LOCK_TRIES  16 /* the file may be removed between our open and our lock */
#define PATH_ROOM   (LISTEN_PATH_MAX + 8u)

static enum strait_status fail(enum strait_status status, const char *path, const char *what, char *why,
                               size_t why_size)
{
    snprintf(why, why_size, "%s: %s", path, what);
    return status;
}

static enum strait_status check_path(const char *path, char *why, size_t why_size)
{
    size_t size = strlen(path);
    if (size > 0 && size <= LISTEN_PATH_MAX)
        return STRAIT_OK;
    return fail(STRAIT_ERR_INVALID, path, "a socket's path has 1 to 103 bytes", why, why_size);
}

/* ---- The lock ---------------------------------------------------------------------------------------------------- */

/* Errors are noticed when the lock file is opened. */
static void make_folder(const char *path)
{
    char folder[PATH_ROOM];
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return;
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
    mkdir(folder, 0755);
}

/* For people only: what counts is the lock. */
static void write_pid(int fd)
{
    char text[24];
    int size = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)size, 0) != size)
        return;
}

/* Is the file still at its path? If not, we hold the lock of a file that nobody else will find. */
static bool is_still_there(int fd, const char *path)
{
    struct stat ours, named;
    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_dev == named.st_dev &&
           ours.st_ino == named.st_ino;
}

/* OK with *fd; ERR_AGAIN with *holder; ERR_IO with errno. */
static enum strait_status try_lock(const char *path, int *fd, pid_t *holder)
{
    enum strait_status status = STRAIT_OK;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file < 0)
        return STRAIT_ERR_IO;
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        status = error == EWOULDBLOCK ? STRAIT_ERR_AGAIN : STRAIT_ERR_IO;
        char text[24] = {0};
        ssize_t size = pread(file, text, sizeof(text) - 1, 0);
        long pid = size > 0 ? strtol(text, NULL, 10) : 0;
        *holder = pid > 0 && pid <= INT32_MAX ? (pid_t)pid : 0;
        close(file);
        errno = error;
        return status;
    }
    *fd = file;
    return STRAIT_OK;
}

static enum strait_status lock_file(const char *path, int *lock_fd, pid_t *holder)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        int fd = -1;
        enum strait_status status = try_lock(path, &fd, holder);
        if (status != STRAIT_OK)
            return status;
        if (is_still_there(fd, path)) {
            write_pid(fd);
            *lock_fd = fd;
            return STRAIT_OK;
        }
        close(fd);
    }
    errno = ESTALE;
    return STRAIT_ERR_IO;
}

bool lock_adopt(const char *socket_path, int fd)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof(path), "%.*s" SUFFIX_LOCK, (int)LISTEN_PATH_MAX, socket_path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || !is_still_there(fd, path))
        return false;
    write_pid(fd);
    return true;
}

enum strait_status lock_acquire(const char *socket_path, int *lock_fd, pid_t *holder, char *why, size_t why_size)
{
    char path[PATH_ROOM], what[64];
    pid_t pid = 0;
    enum strait_status status = check_path(socket_path, why, why_size);
    if (status != STRAIT_OK)
        return status;
    snprintf(path, sizeof(path), "%s" SUFFIX_LOCK, socket_path);
    make_folder(path);
    status = lock_file(path, lock_fd, &pid);
    if (status == STRAIT_OK)
        return STRAIT_OK;
    if (status != STRAIT_ERR_AGAIN)
        return fail(status, path, strerror(errno), why, why_size);
    *holder = pid;
    snprintf(what, sizeof(what), "another daemon has it, pid %ld", (long)pid);
    return fail(status, path, what, why, why_size);
}

/* ---- The socket -------------------------------------------------------------------------------------------------- */

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1); /* checked: it fits */
    return address;
}

/* True also when the socket's queue is full. */
static bool somebody_listens(const char *path)
{
    struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool live = fd >= 0 && (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 || errno == EAGAIN);
    if (fd >= 0)
        close(fd);
    return live;
}

/* May what is at the path be replaced? */
static enum strait_status check_replaceable(const char *path, char *why, size_t why_size)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? STRAIT_OK : fail(STRAIT_ERR_IO, path, strerror(errno), why, why_size);
    if (!S_ISSOCK(info.st_mode))
        return fail(STRAIT_ERR_INVALID, path, "exists and is no socket", why, why_size);
    if (somebody_listens(path))
        return fail(STRAIT_ERR_AGAIN, path, "somebody listens there already", why, why_size);
    return STRAIT_OK;
}

/* Binds under another name first, so that nobody sees the socket with other permissions or before it listens. */
static bool bind_and_rename(int fd, const char *path, mode_t mode)
{
    char fresh[PATH_ROOM];
    snprintf(fresh, sizeof(fresh), "%s" LISTEN_SUFFIX_NEW, path);
    struct sockaddr_un address = address_of(fresh);
    if (unlink(fresh) != 0 && errno != ENOENT)
        return false;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
        return false;
    if (chmod(fresh, mode) == 0 && listen(fd, SOMAXCONN) == 0 && rename(fresh, path) == 0)
        return true;
    int error = errno;
    unlink(fresh);
    errno = error;
    return false;
}

enum strait_status listen_unix(const char *path, mode_t mode, int *fd, char *why, size_t why_size)
{
    enum strait_status status = check_path(path, why, why_size);
    if (status == STRAIT_OK)
        status = check_replaceable(path, why, why_size);
    if (status != STRAIT_OK)
        return status;
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return fail(STRAIT_ERR_IO, path, strerror(errno), why, why_size);
    if (!bind_and_rename(listener, path, mode)) {
        status = fail(STRAIT_ERR_IO, path, strerror(errno), why, why_size);
        close(listener);
        return status;
    }
    *fd = listener;
    return STRAIT_OK;
}

/* ---- Trying ------------------------------------------------------------------------------------------------------ */

/* May files be made where `path` is, in its folder or, if that is missing, in a new one? */
static bool may_create(const char *path)
{
    char folder[PATH_ROOM];
    const char *slash = strrchr(path, '/');
    for (int level = 0; level < 2; level++) {
        snprintf(folder, sizeof(folder), "%.*s",
                 slash == NULL   ? 1
                 : slash == path ? 1
                                 : (int)(slash - path),
                 slash == NULL ? "." : path);
        if (access(folder, W_OK | X_OK) == 0)
            return true;
        if (errno != ENOENT || slash == NULL || slash == path)
            return false;
        while (slash > path && *--slash != '/')
            continue;
        slash = *slash == '/' ? slash : NULL;
    }
    return false;
}

enum strait_status lock_try(const char *socket_path, bool *held, char *why, size_t why_size)
{
    char path[PATH_ROOM];
    *held = false;
    enum strait_status status = check_path(socket_path, why, why_size);
    if (status != STRAIT_OK)
        return status;
    snprintf(path, sizeof(path), "%s" SUFFIX_LOCK, socket_path);
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno != ENOENT)
        return fail(STRAIT_ERR_IO, path, strerror(errno), why, why_size);
    *held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0)
        close(fd);
    if (!may_create(socket_path))
        return fail(STRAIT_ERR_IO, socket_path, strerror(errno), why, why_size);
    return *held ? STRAIT_OK : check_replaceable(socket_path, why, why_size);
}
