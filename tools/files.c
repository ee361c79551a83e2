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

/* Standard input in memory, from where it is positioned on. -1: failed, see errno. */
static int copy_stdin(void)
{
    uint8_t step[65536];
    ssize_t got = 1;
    int fd = memfd_create("stdin", MFD_CLOEXEC);
    while (fd >= 0 && got != 0) {
        got = read(STDIN_FILENO, step, sizeof(step));
        if ((got < 0 && errno != EINTR) || (got > 0 && write(fd, step, (size_t)got) != got)) {
            close(fd);
            fd = -1;
        }
    }
    return fd;
}

bool input_open(struct input *input, const char *path)
{
    struct stat info;
    bool mapped = false;
    const bool is_stdin = strcmp(path, "-") == 0;
    int fd =
        is_stdin ? copy_stdin() : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for a pipe's writer */
    if (is_stdin)
        path = "stdin";
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

/* The folder of a path, with the slash; "" for the current one. NULL: out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? strdup("") : strndup(path, (size_t)(slash - path) + 1);
}

/* Where the system shows an open file under a name, by which it can be linked. */
#define FD_PATH_BYTES 40
static void fd_path(char path[FD_PATH_BYTES], int fd)
{
    snprintf(path, FD_PATH_BYTES, "/proc/self/fd/%d", fd);
}

/* A file without a name; -1: the file system or the kernel has none, or /proc is not there to name it. */
static int open_unnamed(const char *folder)
{
    char path[FD_PATH_BYTES];
    struct stat info;
    int fd = open(folder[0] == '\0' ? "." : folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    fd_path(path, fd);
    if (stat(path, &info) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Owner and permissions, as far as this user may give them. */
static void keep_attributes(const struct output *output, int fd, mode_t mode)
{
    struct stat info;
    int kept = output->replace && stat(output->path, &info) == 0 ? fchown(fd, info.st_uid, info.st_gid) : 0;
    (void)kept;
    fchmod(fd, choose_mode(output, mode));
}

/* Creates a file in the folder of the final one, so that link and rename work; sets output->temp if it has a name. Both
 * kinds of files are private at first, and stay so if fchmod fails. */
static int open_temp(struct output *output, mode_t mode)
{
    char *folder = folder_of(output->path);
    int fd = folder == NULL ? -1 : open_unnamed(folder);
    if (fd < 0 && folder != NULL && asprintf(&output->temp, "%s.strait-XXXXXX", folder) < 0)
        output->temp = NULL;
    if (fd < 0 && output->temp != NULL) {
        fd = mkostemp(output->temp, O_CLOEXEC);
        if (fd < 0) {
            free(output->temp);
            output->temp = NULL;
        }
    }
    if (fd >= 0)
        keep_attributes(output, fd, mode);
    free(folder);
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
    *output = (struct output){.path = name, .in_place = in_place, .fd = -1, .replace = replace};
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
    char *folder = folder_of(path);
    int fd = folder == NULL ? -1 : open(folder[0] == '\0' ? "." : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

static int link_unnamed(const struct output *output, const char *path)
{
    char open_file[FD_PATH_BYTES];
    fd_path(open_file, output->fd);
    return linkat(AT_FDCWD, open_file, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* Names a file that is to replace another: it is complete, and has this name for as long as renaming takes. */
static int name_unnamed(struct output *output)
{
    char *folder = folder_of(output->path);
    int linked = -1;
    errno = EEXIST;
    for (unsigned try = 0; folder != NULL && linked != 0 && errno == EEXIST && try < 1000; try++) {
        free(output->temp);
        if (asprintf(&output->temp, "%s.strait-%ld-%u", folder, (long)getpid(), try) < 0)
            output->temp = NULL;
        linked = output->temp == NULL ? -1 : link_unnamed(output, output->temp);
    }
    if (linked != 0) {
        free(output->temp);
        output->temp = NULL;
    } else {
        guard_unfinished(output->temp);
    }
    free(folder);
    return linked;
}

static int give_name(struct output *output)
{
    if (output->temp == NULL && !output->replace)
        return link_unnamed(output, output->path);
    if (output->temp == NULL && name_unnamed(output) != 0)
        return -1;
    if (output->replace)
        return rename(output->temp, output->path);
    if (renameat2(AT_FDCWD, output->temp, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS || errno == ENOTSUP ? link_or_rename(output->temp, output->path) : -1;
}

static bool output_publish(struct output *output)
{
    if (fsync(output->fd) != 0 || give_name(output) != 0)
        return false;
    unfinished = NULL;
    free(output->temp); /* it is gone */
    output->temp = NULL;
    int closed = close(output->fd);
    output->fd = -1;
    if (closed != 0) /* after fsync there is nothing that it could lose */
        return false;
    sync_folder(output->path);
    return true;
}

bool output_commit(struct output *output)
{
    bool done;
    if (!output->in_place) {
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

bool file_head(const char *path, uint8_t head[FILE_HEAD_BYTES], uint64_t *got, uint64_t *size)
{
    struct stat info;
    *got = 0;
    *size = 0;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    *size = (uint64_t)info.st_size;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t read = pread(fd, head, FILE_HEAD_BYTES, 0);
    close(fd);
    *got = read < 0 ? 0 : (uint64_t)read;
    return read >= 0;
}

bool operand_is_output(const char *path, operand_kept *is_kept, const char *why)
{
    uint8_t head[FILE_HEAD_BYTES];
    uint64_t got, size;
    if (strcmp(path, "-") == 0)
        return true;
    file_head(path, head, &got, &size);
    if (size == 0 ||
        !is_kept(head, got, size)) /* nothing that could be lost, or what opening it for writing will say */
        return true;
    print_error(path, "%s: one IN at a time; to replace this file, name it with -o", why);
    return false;
}
