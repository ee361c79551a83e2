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

/* ---- The sets that are kept -------------------------------------------------------------------------------------- */

struct shared_set {
    struct strait_codebook *set;
    uint32_t uses;   /* number of codebooks that have it */
    uint32_t claims; /* of peers */
    uint64_t used;   /* when it was last claimed or left: a count */
};

struct kept_set {
    struct shared_set *shared;
    bool own; /* of this daemon: in force, or one of the two before */
};

struct codebooks {
    uint32_t uses;
    const struct strait_codebook *in_force; /* one of `kept`, or NULL */
    uint64_t clock;                         /* counts claims, for `used` */
    uint32_t count;                         /* of `kept` */
    struct kept_set kept[];                 /* this daemon's first, the latest of them before the others */
};

static void keep(struct codebooks *codebooks, struct shared_set *shared, bool own)
{
    codebooks->kept[codebooks->count++] = (struct kept_set){.shared = shared, .own = own};
    shared->uses++;
}

static bool is_named(const struct strait_codebook *set, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    return memcmp(strait_codebook_id(set), id, STRAIT_CODEBOOK_ID_BYTES) == 0;
}

static struct shared_set *find(const struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    for (uint32_t i = 0; codebooks != NULL && i < codebooks->count; i++)
        if (is_named(codebooks->kept[i].shared->set, id))
            return codebooks->kept[i].shared;
    return NULL;
}

/* How many of the others are kept because peers have claimed them, or (`all`) kept at all. */
static uint32_t count_others(const struct codebooks *codebooks, bool all)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < codebooks->count; i++)
        count += !codebooks->kept[i].own && (all || codebooks->kept[i].shared->claims != 0);
    return count;
}

/* Drops what was used longest ago of the others that nobody has claimed, until no more than `most` are left. */
static void drop_others(struct codebooks *codebooks, uint32_t most)
{
    while (count_others(codebooks, true) > most) {
        uint32_t oldest = codebooks->count;
        for (uint32_t i = 0; i < codebooks->count; i++) {
            const struct kept_set *kept = &codebooks->kept[i];
            if (!kept->own && kept->shared->claims == 0 &&
                (oldest == codebooks->count || kept->shared->used < codebooks->kept[oldest].shared->used))
                oldest = i;
        }
        if (oldest == codebooks->count)
            return;                             /* peers may send by them */
        codebooks->kept[oldest].shared->uses--; /* `before` has it, too */
        codebooks->count--;
        memmove(&codebooks->kept[oldest], &codebooks->kept[oldest + 1],
                (codebooks->count - oldest) * sizeof(codebooks->kept[0]));
    }
}

static struct codebooks *make(uint32_t room)
{
    struct codebooks *made = calloc(1, sizeof(*made) + room * sizeof(made->kept[0]));
    if (made != NULL)
        made->uses = 1;
    return made;
}

static struct shared_set *share(struct strait_codebook *set)
{
    struct shared_set *shared = calloc(1, sizeof(*shared));
    if (shared != NULL)
        shared->set = set;
    return shared;
}

enum strait_status codebooks_create(struct strait_codebook *set, const struct codebooks *before,
                                    struct codebooks **codebooks)
{
    struct codebooks *made = make((before != NULL ? before->count : 0) + 1);
    struct shared_set *shared = set != NULL ? share(set) : NULL;
    const struct shared_set *same = set != NULL ? find(before, strait_codebook_id(set)) : NULL;
    if (made == NULL || (set != NULL && shared == NULL)) {
        free(made);
        free(shared);
        return STRAIT_ERR_NO_MEMORY;
    }
    made->in_force = set;
    made->clock = before != NULL ? before->clock : 0;
    if (same != NULL) { /* its id does not cover the classes of its tables: the operator's set counts */
        shared->claims = same->claims;
        shared->used = same->used;
    }
    if (set != NULL)
        keep(made, shared, true);
    for (uint32_t i = 0; before != NULL && i < before->count; i++) {
        const struct kept_set *kept = &before->kept[i];
        const bool own = kept->own && made->count < CODEBOOKS_KEPT;
        if (kept->shared != same && (own || !kept->own || kept->shared->claims != 0))
            keep(made, kept->shared, own);
    }
    drop_others(made, CODEBOOKS_OTHERS);
    *codebooks = made;
    return STRAIT_OK;
}

bool codebooks_have_room(const struct codebooks *codebooks)
{
    return count_others(codebooks, false) < CODEBOOKS_OTHERS;
}

enum strait_status codebooks_add(struct strait_codebook *set, const struct codebooks *before,
                                 struct codebooks **codebooks)
{
    if (find(before, strait_codebook_id(set)) != NULL)
        return STRAIT_ERR_INVALID;
    if (!codebooks_have_room(before))
        return STRAIT_ERR_NO_SPACE;
    struct codebooks *made = make(before->count + 1);
    struct shared_set *shared = share(set);
    if (made == NULL || shared == NULL) {
        free(made);
        free(shared);
        return STRAIT_ERR_NO_MEMORY;
    }
    made->in_force = before->in_force;
    made->clock = before->clock;
    for (uint32_t i = 0; i < before->count; i++)
        keep(made, before->kept[i].shared, before->kept[i].own);
    drop_others(made, CODEBOOKS_OTHERS - 1);
    keep(made, shared, false);
    shared->used = ++made->clock;
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
        struct shared_set *shared = codebooks->kept[i].shared;
        if (--shared->uses > 0)
            continue;
        strait_codebook_destroy(shared->set);
        free(shared);
    }
    free(codebooks);
}

bool codebooks_have(const struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    return find(codebooks, id) != NULL;
}

bool codebooks_claim(struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    struct shared_set *shared = find(codebooks, id);
    if (shared == NULL)
        return false;
    shared->claims++;
    shared->used = ++codebooks->clock;
    return true;
}

void codebooks_leave(struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    struct shared_set *shared = find(codebooks, id);
    shared->claims--;
    shared->used = ++codebooks->clock;
}

const struct strait_codebook *codebooks_current(const struct codebooks *codebooks)
{
    return codebooks->in_force;
}

const struct strait_codebook *codebooks_find(const struct codebooks *codebooks,
                                             const uint8_t id[STRAIT_CODEBOOK_ID_BYTES])
{
    const struct shared_set *shared = find(codebooks, id);
    return shared != NULL ? shared->set : codebooks->in_force;
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
