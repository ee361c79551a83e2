#include "daemon/memory/codebooks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Sets in force and before ------------------------------------------------------------------------------------ */

struct shared_set {
    struct strait_codebook *set;
    uint32_t uses; /* number of codebooks that have it */
};

struct codebooks {
    uint32_t uses;
    uint32_t count;                          /* of `kept` */
    const struct strait_codebook *in_force;  /* one of `kept`, or NULL */
    struct shared_set *kept[CODEBOOKS_KEPT]; /* latest first */
};

static void keep(struct codebooks *codebooks, struct shared_set *set)
{
    if (codebooks->count == CODEBOOKS_KEPT)
        return;
    codebooks->kept[codebooks->count++] = set;
    set->uses++;
}

static bool is_equal(const struct strait_codebook *a, const struct strait_codebook *b)
{
    return memcmp(strait_codebook_id(a), strait_codebook_id(b), STRAIT_CODEBOOK_ID_BYTES) == 0;
}

enum strait_status codebooks_create(struct strait_codebook *set, const struct codebooks *before,
                                    struct codebooks **codebooks)
{
    struct codebooks *made = calloc(1, sizeof(*made));
    struct shared_set *shared = set != NULL ? calloc(1, sizeof(*shared)) : NULL;
    if (made == NULL || (set != NULL && shared == NULL)) {
        free(made);
        free(shared);
        return STRAIT_ERR_NO_MEMORY;
    }
    made->uses = 1;
    made->in_force = set;
    if (set != NULL) {
        shared->set = set;
        keep(made, shared);
    }
    for (uint32_t i = 0; before != NULL && i < before->count; i++)
        if (set == NULL || !is_equal(before->kept[i]->set, set))
            keep(made, before->kept[i]);
    *codebooks = made;
    return STRAIT_OK;
}

struct codebooks *codebooks_hold(struct codebooks *codebooks)
{
    codebooks->uses++;
    return codebooks;
}

void codebooks_release(struct codebooks *codebooks)
{
    if (codebooks == NULL || --codebooks->uses > 0)
        return;
    for (uint32_t i = 0; i < codebooks->count; i++) {
        struct shared_set *shared = codebooks->kept[i];
        if (--shared->uses > 0)
            continue;
        strait_codebook_destroy(shared->set);
        free(shared);
    }
    free(codebooks);
}

const struct strait_codebook *codebooks_current(const struct codebooks *codebooks)
{
    return codebooks->in_force;
}

const struct strait_codebook *codebooks_find(const struct codebooks *codebooks,
                                             const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    for (uint32_t i = 0; i < codebooks->count; i++)
        if (memcmp(strait_codebook_id(codebooks->kept[i]->set), id, STRAIT_CODEBOOK_ID_BYTES) == 0)
            return codebooks->kept[i]->set;
    return codebooks->in_force;
}

/* ---- The file of a set ------------------------------------------------------------------------------------------- */

#include "kernels/codebook_file.h"

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
    else if (status == STRAIT_ERR_NO_MEMORY)
        snprintf(why, why_size, "%s: %s", path, strait_status_string(status));
    else if (status != STRAIT_OK) {
        size_t offset;
        const char *fault = codebook_file_why(bytes, got, &offset);
        snprintf(why, why_size, "%s is no codebook set: offset %zu: %s", path, offset, fault);
    }
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
        snprintf(why, why_size, "%s is no codebook set: it is %s", path,
                 S_ISREG(info.st_mode) ? "too long" : "not a regular file");
    close(fd);
    return status;
}
