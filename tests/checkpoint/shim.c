#include "tests/checkpoint/shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef STRAIT_HAVE_URING
#include <liburing.h>
#endif

#define EXPORTED __attribute__((visibility("default")))

struct shim shim;
atomic_int shim_calls;
const char *_Atomic shim_last;
static atomic_bool on;

void shim_start(struct shim how)
{
    shim = how;
    shim_calls = 0;
    shim_last = "";
    on = true;
}

void shim_stop(void)
{
    on = false;
}

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (found == NULL)
        abort();
    return found;
}

/* Whether a call can be interrupted by a signal, here and on every file system. */
static bool waits(const char *name)
{
    return name[0] == 'o' || name[0] == 'p' || name[0] == 'f' || name[0] == 'i'; /* openat, pread, pwrite, fsync */
}

/* Counts a call. True: it fails, with errno. */
static bool fails(const char *name)
{
    if (!on)
        return false;
    const int number = ++shim_calls;
    if (shim.interrupts && waits(name) && number % 3 == 1) {
        errno = EINTR;
        return true;
    }
    if (number < shim.at || (number > shim.at && shim.action != SHIM_STAY) || shim.action == SHIM_COUNT ||
        shim.action == SHIM_SHORT)
        return false;
    if (number == shim.at)
        shim_last = name;
    if (shim.action == SHIM_KILL)
        kill(getpid(), SIGKILL);
    errno = shim.error;
    return true;
}

/* Bytes of a short write. Not of direct ones: halves of these are no multiples of sectors. */
static size_t shortened(size_t bytes)
{
    return on && shim.action == SHIM_SHORT && bytes > 1 ? bytes / 2 : bytes;
}

#define CALL(type, name, parameters, arguments)          \
    EXPORTED type name parameters;                       \
    EXPORTED type name parameters                        \
    {                                                    \
        static type(*_Atomic next) parameters;           \
        if (next == NULL)                                \
            next = (type(*) parameters)real(#name);      \
        return fails(#name) ? (type)-1 : next arguments; \
    }

CALL(int, fsync, (int fd), (fd))
CALL(int, mkdirat, (int folder, const char *name, mode_t mode), (folder, name, mode))
CALL(int, unlinkat, (int folder, const char *name, int flags), (folder, name, flags))
CALL(int, symlinkat, (const char *target, int folder, const char *name), (target, folder, name))
CALL(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new))

EXPORTED int openat(int folder, const char *name, int flags, ...)
{
    static int (*_Atomic next)(int, const char *, int, ...);
    va_list arguments;

    va_start(arguments, flags);
    const mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (next == NULL)
        next = (int (*)(int, const char *, int, ...))real("openat");
    return fails("openat") ? -1 : next(folder, name, flags, mode);
}

EXPORTED ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    static ssize_t (*_Atomic next)(int, const void *, size_t, off_t);

    if (next == NULL)
        next = (ssize_t(*)(int, const void *, size_t, off_t))real("pwrite");
    if (fails("pwrite"))
        return -1;
    if (on && shim.slow)
        usleep(5000);
    if (on && shim.direct_lies && (fcntl(fd, F_GETFL) & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    return next(fd, data, shortened(bytes), offset);
}

EXPORTED ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    static ssize_t (*_Atomic next)(int, void *, size_t, off_t);

    if (next == NULL)
        next = (ssize_t(*)(int, void *, size_t, off_t))real("pread");
    return fails("pread") ? -1 : next(fd, data, shortened(bytes), offset);
}

EXPORTED int fcntl(int fd, int command, ...)
{
    static int (*_Atomic next)(int, int, ...);
    va_list arguments;

    va_start(arguments, command);
    const long argument = va_arg(arguments, long);
    va_end(arguments);
    if (next == NULL)
        next = (int (*)(int, int, ...))real("fcntl");
    if (on && shim.no_direct && command == F_SETFL && (argument & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    return next(fd, command, argument);
}

EXPORTED long syscall(long number, ...)
{
    static long (*_Atomic next)(long, ...);
    long a[6];
    va_list arguments;

    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (next == NULL)
        next = (long (*)(long, ...))real("syscall");
    if (number == SYS_renameat2) {
        if (on && shim.no_exchange && a[4] != 0) {
            errno = EINVAL;
            return -1;
        }
        if (fails("renameat2"))
            return -1;
    }
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#ifdef STRAIT_HAVE_URING
EXPORTED int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    static int (*_Atomic next)(unsigned, struct io_uring *, unsigned);

    if (next == NULL)
        next = (int (*)(unsigned, struct io_uring *, unsigned))real("io_uring_queue_init");
    return on && shim.no_ring ? -EPERM : next(entries, ring, flags);
}

EXPORTED int io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
    static int (*_Atomic next)(struct io_uring *, unsigned);

    if (next == NULL)
        next = (int (*)(struct io_uring *, unsigned))real("io_uring_submit_and_wait");
    for (unsigned i = ring->sq.sqe_head; on && i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[i & ring->sq.ring_mask];
        if ((i == ring->sq.sqe_head || !shim.interrupts) && fails("io_uring_submit")) /* a signal meets all of them */
            return -errno;
        if (shim.direct_lies)
            sqe->len--; /* what cannot be written past the cache */
        sqe->len = (unsigned)shortened(sqe->len);
    }
    return next(ring, count);
}
#endif
