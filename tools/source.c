#include "tools/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/util.h"

#define SPOOL_STEP (1u << 20)

static bool fail(const struct source *source)
{
    print_error(source->name, "%s", strerror(errno));
    return false;
}

/* Finds out what the descriptor is. A failed seek is not an error: a pipe has no position. A file of size 0 may still
 * have bytes, as those of /proc do, so it is read forward like a pipe. */
static void classify(struct source *source)
{
    struct stat st;
    off_t base = lseek(source->fd, 0, SEEK_CUR);

    source->size = SOURCE_SIZE_UNKNOWN;
    source->mode = OUTPUT_MODE;
    if (base < 0 || fstat(source->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    source->mode = st.st_mode & 0777;
    if (st.st_size == 0)
        return;
    source->seekable = true;
    source->base = (uint64_t)base;
    source->size = st.st_size > base ? (uint64_t)(st.st_size - base) : 0;
}

bool source_open(struct source *source, const char *path)
{
    bool is_stdin = strcmp(path, "-") == 0;

    *source = (struct source){.name = is_stdin ? "stdin" : path, .fd = STDIN_FILENO};
    if (!is_stdin)
        source->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (source->fd < 0)
        return fail(source);
    classify(source);
    if (source->seekable)
        (void)posix_fadvise(source->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return true;
}

void source_close(struct source *source)
{
    if (source->fd > STDIN_FILENO)
        close(source->fd);
    source->fd = -1;
    buffer_fini(&source->head);
}

bool source_survives(const struct source *source, const char *output)
{
    struct stat in, out;
    bool is_stdout = strcmp(output, "-") == 0;
    int found = is_stdout ? fstat(STDOUT_FILENO, &out) : stat(output, &out);

    if (found != 0 || fstat(source->fd, &in) != 0 || !S_ISREG(in.st_mode) || in.st_dev != out.st_dev ||
        in.st_ino != out.st_ino)
        return true;
    print_error(is_stdout ? "stdout" : output, "is the input itself: name another file");
    return false;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

/* read(2) until the buffer is full or the input ends. */
static bool read_all(const struct source *source, uint8_t *dst, size_t size, size_t *got)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = read(source->fd, dst + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(source);
        if (n == 0)
            break;
        done += (size_t)n;
    }
    *got = done;
    return true;
}

bool source_read_at(const struct source *source, uint64_t offset, void *dst, size_t size)
{
    uint8_t *to = dst;

    while (size > 0) {
        ssize_t n = pread(source->fd, to, size, (off_t)(source->base + offset));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(source);
        if (n == 0) {
            print_error(source->name, "became shorter while it was read: no byte %" PRIu64, offset);
            return false;
        }
        to += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return true;
}

bool source_check_end(const struct source *source)
{
    uint8_t byte;
    ssize_t n;

    if (!source->seekable)
        return true;
    do
        n = pread(source->fd, &byte, 1, (off_t)(source->base + source->size));
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return fail(source);
    if (n > 0)
        print_error(source->name, "grew while it was read: more follows byte %" PRIu64, source->size);
    return n == 0;
}

/* Peeked bytes have already left a pipe. A seekable source's descriptor is still at the beginning: see peek. */
static size_t take_head(struct source *source, uint8_t *dst, size_t size)
{
    size_t left = source->position < source->head_size ? source->head_size - (size_t)source->position : 0;
    size_t n = size < left ? size : left;

    if (n > 0)
        memcpy(dst, source->head.data + source->position, n);
    return n;
}

bool source_read(struct source *source, void *dst, size_t size, size_t *got)
{
    size_t head = take_head(source, dst, size);

    if (!read_all(source, (uint8_t *)dst + head, size - head, got))
        return false;
    *got += head;
    source->position += *got;
    return true;
}

/* Allocates memory as bytes arrive, not `size` at once: the size may come from a hostile header. */
bool source_peek(struct source *source, uint64_t size)
{
    while (source->head_size < size) {
        uint64_t step = source->head_size + SPOOL_STEP < size ? SPOOL_STEP : size - source->head_size;
        uint64_t room = source->head_size + step;
        size_t got;

        if (room > source->head.capacity && !buffer_reserve(&source->head, source->head_size, room * 3 / 2)) {
            print_error(source->name, "out of memory");
            return false;
        }
        if (!read_all(source, source->head.data + source->head_size, step, &got))
            return false;
        source->head_size += got;
        if (got < step)
            break;
    }
    return true;
}

/* ---- Spooling -------------------------------------------------------------------------------------------------- */

/* An unnamed file, which disappears with its descriptor, however the process ends. */
static int temp_file(void)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    int fd;

    if (folder == NULL || folder[0] == '\0')
        folder = "/tmp";
    fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    /* Not every file system has O_TMPFILE. */
    if ((size_t)snprintf(path, sizeof(path), "%s/strait-XXXXXX", folder) >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static bool write_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        size -= (size_t)n;
    }
    return true;
}

/* Copies the peeked bytes and then the rest, in steps through the buffer `step`. */
static bool copy_to(struct source *source, int fd, uint8_t *step)
{
    size_t got = SPOOL_STEP;
    uint64_t size = source->head_size;
    bool written = write_all(fd, source->head.data, source->head_size);

    while (written && got == SPOOL_STEP) {
        if (!read_all(source, step, SPOOL_STEP, &got))
            return false;
        written = write_all(fd, step, got);
        size += got;
    }
    if (!written) {
        print_error(source->name, "cannot write to a temporary file: %s", strerror(errno));
        return false;
    }
    source->size = size;
    return true;
}

/* From now on the temporary file is the input, as if it had just been peeked at. */
static void switch_to(struct source *source, int fd)
{
    if (source->fd > STDIN_FILENO)
        close(source->fd);
    source->fd = fd;
    source->base = 0;
    source->seekable = true;
    (void)lseek(fd, (off_t)source->head_size, SEEK_SET);
}

bool source_spool(struct source *source)
{
    uint8_t *step = malloc(SPOOL_STEP);
    int fd = temp_file();
    bool ok = false;

    if (step == NULL || fd < 0)
        print_error(source->name, "cannot create a temporary file: %s", strerror(errno));
    else
        ok = copy_to(source, fd, step);
    if (ok)
        switch_to(source, fd);
    else if (fd >= 0)
        close(fd);
    free(step);
    return ok;
}
