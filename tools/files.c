/* Whole files: mapped inputs, and outputs that appear when they are complete. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/codebook_file.h"
#include "tools/files.h"
#include "tools/util.h"

/* ---- Signals --------------------------------------------------------------------------------------------------- */

static const char *volatile unfinished; /* the temporary file to remove when a signal ends the process */

/* Only async-signal-safe calls from here. */
static void on_end(int number)
{
    const char *path = unfinished;
    if (path != NULL)
        unlink(path);
    signal(number, SIG_DFL);
    raise(number);
}

static void on_lost_page(int number)
{
    static const char text[] = "strait: an input file shrank, or its disk failed, while it was read\n";
    const char *path = unfinished;
    (void)number;
    if (path != NULL)
        unlink(path);
    ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)written;
    _exit(EXIT_CODE_DATA);
}

/* A signal that the parent process had ignored (nohup) stays ignored. */
static void handle_signal(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, before;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        sigaction(number, &action, NULL);
}

static void guard_unfinished(const char *path)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU, SIGXFSZ};
    unfinished = path;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        handle_signal(ends[i], on_end);
}

/* ---- Input ----------------------------------------------------------------------------------------------------- */

static const uint8_t no_bytes[1];

/* mmap refuses a length of 0. */
static bool map_whole(struct input *input, int fd)
{
    input->data = no_bytes;
    if (input->size == 0)
        return true;
    void *data = mmap(NULL, input->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return false;
    madvise(data, input->size, MADV_SEQUENTIAL); /* advice: it may fail */
    handle_signal(SIGBUS, on_lost_page);
    input->data = data;
    return true;
}

bool input_open(struct input *input, const char *path)
{
    struct stat info;
    bool mapped = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for the writer of a pipe */
    if (fd < 0 || fstat(fd, &info) != 0) {
        print_error(path, "%s", strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        print_error(path, "not a regular file");
        goto out;
    }
    *input = (struct input){.path = path, .size = (uint64_t)info.st_size};
    mapped = map_whole(input, fd);
    if (!mapped)
        print_error(path, "cannot be mapped: %s", strerror(errno));
out:
    if (fd >= 0)
        close(fd);
    return mapped;
}

void input_close(struct input *input)
{
    if (input->size > 0)
        munmap((void *)(uintptr_t)input->data, input->size);
    *input = (struct input){.data = no_bytes};
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

static const char *output_name(const struct output *output)
{
    return strcmp(output->path, "-") == 0 ? "standard output" : output->path;
}

/* Devices and pipes cannot be replaced by renaming: that would turn /dev/null into a file. */
static bool is_in_place(const char *path)
{
    struct stat info;
    return strcmp(path, "-") == 0 || (stat(path, &info) == 0 && !S_ISREG(info.st_mode));
}

/* The file behind the name: renaming onto a symbolic link would replace the link. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL);
    return real != NULL ? real : strdup(path);
}

/* Permissions of the file that will be replaced, or of a new one. */
static mode_t choose_mode(const struct output *output, mode_t mode)
{
    struct stat info;
    mode_t mask;

    if (output->replace && stat(output->path, &info) == 0)
        return info.st_mode & 0777;
    mask = umask(0); /* the only way to read it */
    umask(mask);
    return mode & ~mask;
}

/* Creates a file beside the final one, so that rename works, and sets output->temp to its name, also when that fails.
 */
static int open_temp(struct output *output, mode_t mode)
{
    if (asprintf(&output->temp, "%s.XXXXXX", output->path) < 0) {
        output->temp = NULL;
        return -1;
    }
    int fd = mkostemp(output->temp, O_CLOEXEC);
    if (fd >= 0)
        fchmod(fd, choose_mode(output, mode)); /* mkostemp makes private files; if this fails, it stays private */
    return fd;
}

static int open_in_place(const char *path)
{
    return strcmp(path, "-") == 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                                  : open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
}

static void output_free(struct output *output)
{
    free(output->temp);
    free(output->path);
    *output = (struct output){.fd = -1};
}

bool output_open(struct output *output, const char *path, unsigned mode, bool replace)
{
    bool in_place = is_in_place(path);
    char *name = in_place ? strdup(path) : resolve(path);
    *output = (struct output){.path = name, .fd = -1, .replace = replace};
    if (name != NULL && in_place)
        output->fd = open_in_place(name);
    if (name != NULL && !in_place)
        output->fd = open_temp(output, mode);
    if (output->fd < 0) {
        print_error(path, "cannot be written: %s", strerror(errno));
        output_free(output);
        return false;
    }
    if (output->temp != NULL)
        guard_unfinished(output->temp);
    return true;
}

bool output_write(struct output *output, const void *data, size_t size)
{
    const uint8_t *src = data;
    while (size > 0) {
        ssize_t written = write(output->fd, src, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            print_error(output_name(output), "%s", strerror(errno));
            return false;
        }
        src += written;
        size -= (size_t)written;
    }
    return true;
}

/* The rename is durable once the folder is synced; if that is impossible, the data is still durable. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    int fd = folder == NULL ? -1 : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* For file systems without RENAME_NOREPLACE; without links too, a last check has to suffice. */
static int link_or_rename(const char *temp, const char *path)
{
    struct stat info;

    if (link(temp, path) == 0) {
        unlink(temp);
        return 0;
    }
    if (errno == EEXIST)
        return -1;
    if (lstat(path, &info) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(temp, path);
}

static int give_name(const struct output *output)
{
    if (output->replace)
        return rename(output->temp, output->path);
    if (renameat2(AT_FDCWD, output->temp, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS || errno == ENOTSUP ? link_or_rename(output->temp, output->path) : -1;
}

static bool output_publish(struct output *output)
{
    if (fsync(output->fd) != 0)
        return false;
    int closed = close(output->fd);
    output->fd = -1;
    if (closed != 0 || give_name(output) != 0)
        return false;
    unfinished = NULL;
    sync_folder(output->path);
    return true;
}

bool output_commit(struct output *output)
{
    bool done;
    if (output->temp != NULL) {
        done = output_publish(output);
    } else {
        done = close(output->fd) == 0;
        output->fd = -1;
    }
    if (!done) {
        print_error(output_name(output), "%s",
                    errno == EEXIST ? "exists since a moment ago; -f replaces it" : strerror(errno));
        output_abandon(output);
        return false;
    }
    output_free(output);
    return true;
}

void output_abandon(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
    if (output->temp != NULL) {
        unlink(output->temp);
        unfinished = NULL;
    }
    output_free(output);
}

/* ---- Files of commands ------------------------------------------------------------------------------------------- */

bool codebook_load(const char *path, struct strait_codebook **codebook)
{
    struct input input;
    enum strait_status status;

    if (!input_open(&input, path))
        return false;
    status = strait_codebook_parse(input.data, input.size, codebook);
    if (status == STRAIT_ERR_NO_MEMORY)
        print_error(path, "%s", strait_status_string(status));
    else if (status != STRAIT_OK) {
        size_t offset;
        const char *fault = codebook_file_why(input.data, input.size, &offset);
        print_error(path, "not a codebook set: offset %zu: %s", offset, fault);
    }
    input_close(&input);
    return status == STRAIT_OK;
}

/* Whether the name is taken by a file or a dangling symbolic link. Devices and pipes may be written to. */
static bool is_taken(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? S_ISREG(info.st_mode) : lstat(path, &info) == 0;
}

bool output_allowed(const char *path, bool force)
{
    bool is_stdout = strcmp(path, "-") == 0;

    if (force)
        return true;
    if (is_stdout && isatty(STDOUT_FILENO)) {
        print_error("stdout", "is a terminal; -f writes to it anyway");
        return false;
    }
    if (!is_stdout && is_taken(path)) {
        print_error(path, "exists; -f replaces it");
        return false;
    }
    return true;
}

bool operand_is_output(const char *path, bool (*is_input)(const void *head, uint64_t head_size, uint64_t size),
                       const char *kind)
{
    uint8_t head[64];
    struct stat info;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return true; /* nothing that could be lost, or what opening it for writing will say */
    ssize_t got = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? pread(fd, head, sizeof(head), 0) : 0;
    close(fd);
    if (got <= 0 || !is_input(head, (uint64_t)got, (uint64_t)info.st_size))
        return true;
    print_error(path, "is a %s: one IN at a time; to replace this file, name it with -o", kind);
    return false;
}
