#include "daemon/base/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The secret -------------------------------------------------------------------------------------------------- */

static enum strait_status refuse(const char *path, const char *what, enum strait_status status, char *why,
                                 size_t why_size)
{
    snprintf(why, why_size, "%.300s: %s", path, what);
    return status;
}

/* Why the file is unfit to hold a secret or a private key; NULL: it is fit. */
static const char *fault_of(const struct stat *info)
{
    if (!S_ISREG(info->st_mode))
        return "not a regular file";
    if (info->st_uid != geteuid())
        return "belongs to another user";
    if ((info->st_mode & 077) != 0)
        return "others than its owner have permissions: chmod 600";
    return NULL;
}

/* Reads at most `capacity` bytes; false: errno says why. */
static bool read_up_to(int fd, uint8_t *dst, size_t capacity, size_t *size)
{
    for (*size = 0; *size < capacity;) {
        ssize_t got = read(fd, dst + *size, capacity - *size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return false;
        if (got == 0)
            break;
        *size += (size_t)got;
    }
    return true;
}

static enum strait_status read_secret(int fd, const char *path, struct secret *secret, char *why, size_t why_size)
{
    struct stat info;
    uint8_t more;
    size_t more_size = 0;
    if (fstat(fd, &info) != 0)
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    const char *fault = fault_of(&info);
    if (fault != NULL)
        return refuse(path, fault, STRAIT_ERR_INVALID, why, why_size);
    if (!read_up_to(fd, secret->bytes, sizeof(secret->bytes), &secret->size) || !read_up_to(fd, &more, 1, &more_size))
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    if (secret->size < SECRET_BYTES_MIN || more_size > 0)
        return refuse(path, "a secret has 16 to 4096 bytes", STRAIT_ERR_INVALID, why, why_size);
    return STRAIT_OK;
}

enum strait_status auth_secret_read(const char *path, struct secret *secret, char *why, size_t why_size)
{
    auth_secret_wipe(secret);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (fd < 0)
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    enum strait_status status = read_secret(fd, path, secret, why, why_size);
    close(fd);
    if (status != STRAIT_OK)
        auth_secret_wipe(secret);
    return status;
}

enum strait_status auth_private_check(const char *path, char *why, size_t why_size)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    const char *fault = fault_of(&info);
    return fault == NULL ? STRAIT_OK : refuse(path, fault, STRAIT_ERR_INVALID, why, why_size);
}

void auth_secret_wipe(struct secret *secret)
{
    OPENSSL_cleanse(secret, sizeof(*secret));
}

void auth_random(void *dst, size_t size)
{
    for (uint8_t *at = dst; size > 0;) {
        ssize_t got = getrandom(at, size, 0);
        if (got < 0 && errno != EINTR)
            abort();
        at += got > 0 ? got : 0;
        size -= got > 0 ? (size_t)got : 0;
    }
}
