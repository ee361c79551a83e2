#include "collective/engine/hosts.h"

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* The content of the file. */
struct sign {
    uint64_t nonce, left;
};

static uint64_t draw(void)
{
    uint64_t drawn;
    return getrandom(&drawn, sizeof(drawn), 0) == sizeof(drawn) ? drawn : 0;
}

/* ---- The own process --------------------------------------------------------------------------------------------- */

/* A forked child is another process. */
static uint64_t self(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t drawn;
    static pid_t process;
    pthread_mutex_lock(&lock);
    if (process != getpid()) {
        drawn = draw();
        process = getpid();
    }
    const uint64_t now = drawn;
    pthread_mutex_unlock(&lock);
    return now;
}

bool liveness_begin(struct liveness *life, struct liveness_info *info)
{
    const struct sign sign = {draw(), 0};
    struct stat status;
    *info = (struct liveness_info){.self = self()};
    *life = (struct liveness){memfd_create("strait-coll-rank", MFD_CLOEXEC), getpid()};
    if (life->file < 0)
        return false;
    /* The lock belongs to the process, not to the open file description: children do not inherit it. */
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (sign.nonce != 0 && info->self != 0 && fcntl(life->file, F_SETLK, &whole) == 0 &&
        fstat(life->file, &status) == 0 && pwrite(life->file, &sign, sizeof(sign), 0) == sizeof(sign)) {
        *info = (struct liveness_info){info->self, sign.nonce, status.st_ino, life->process, life->file, 0};
        return true;
    }
    close(life->file);
    life->file = -1;
    return false;
}

void liveness_leave(struct liveness *life)
{
    const uint64_t left = 1;
    if (life->file >= 0 && life->process == getpid())
        (void)!pwrite(life->file, &left, sizeof(left), offsetof(struct sign, left));
}

void liveness_end(struct liveness *life)
{
    if (life->file >= 0)
        close(life->file);
    life->file = -1;
}

/* ---- Other processes --------------------------------------------------------------------------------------------- */

bool liveness_is_own(const struct liveness_info *info)
{
    return info->self != 0 && info->self == self();
}

/* Memory files have a device of their own, whose inode numbers are not reused, so a file with this one can be opened
 * without side effects. */
static bool is_it(const char *path, const struct liveness *own, const struct liveness_info *info)
{
    struct stat mine, its;
    return own->file >= 0 && fstat(own->file, &mine) == 0 && stat(path, &its) == 0 && its.st_dev == mine.st_dev &&
           its.st_ino == info->inode && its.st_ino != mine.st_ino;
}

int liveness_find(const struct liveness *own, const struct liveness_info *info)
{
    char path[64];
    struct sign sign;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", info->process, info->file);
    if (info->nonce == 0 || liveness_is_own(info) || !is_it(path, own, info))
        return -1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (pread(file, &sign, sizeof(sign), 0) == sizeof(sign) && sign.nonce == info->nonce)
        return file;
    close(file);
    return -1;
}

enum liveness_state liveness_poll(int found)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct sign sign = {0};
    if (fcntl(found, F_GETLK, &whole) != 0 || whole.l_type != F_UNLCK)
        return LIVENESS_ALIVE;
    return pread(found, &sign, sizeof(sign), 0) == sizeof(sign) && sign.left != 0 ? LIVENESS_LEFT : LIVENESS_ENDED;
}
