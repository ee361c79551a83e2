#include "daemon/memory/codebook_option.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((off_t)64 << 20) /* 65535 tables take less than a third of it */

/* Fills dst; *got is less than size where the file ends early. */
static bool read_all(int fd, uint8_t *dst, size_t size, size_t *got)
{
    for (*got = 0; *got < size;) {
        ssize_t n = read(fd, dst + *got, size - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0;
        *got += (size_t)n;
    }
    return true;
}

static enum strait_status parse_file(int fd, const char *path, size_t size, struct strait_codebook **codebook,
                                     char *why, size_t why_size)
{
    size_t got;
    uint8_t *bytes = malloc(size + 1);
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (bytes != NULL)
        status = read_all(fd, bytes, size, &got) ? strait_codebook_parse(bytes, got, codebook) : STRAIT_ERR_IO;
    if (status == STRAIT_ERR_IO)
        snprintf(why, why_size, "%s: %s", path, strerror(errno));
    else if (status != STRAIT_OK)
        snprintf(why, why_size, "%s is no codebook set: %s", path, strait_status_string(status));
    free(bytes);
    return status;
}

enum strait_status codebook_load(const char *path, struct strait_codebook **codebook, char *why, size_t why_size)
{
    struct stat info;
    if (path[0] == '\0') {
        *codebook = NULL;
        return STRAIT_OK;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: does not wait for the other end of a pipe */
    if (fd < 0 || fstat(fd, &info) != 0) {
        snprintf(why, why_size, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return STRAIT_ERR_IO;
    }
    enum strait_status status = STRAIT_ERR_INVALID;
    if (S_ISREG(info.st_mode) && info.st_size <= FILE_BYTES_MAX)
        status = parse_file(fd, path, (size_t)info.st_size, codebook, why, why_size);
    else
        snprintf(why, why_size, "%s is no codebook set", path);
    close(fd);
    return status;
}
