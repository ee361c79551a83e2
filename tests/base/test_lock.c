#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/lock.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char folder[] = "/tmp/strait-test-lock-XXXXXX";
static char path[sizeof(folder) + 16];
static char why[512];
static pid_t holder;

static void setup(void)
{
    memcpy(folder + sizeof(folder) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
}

/* Fails when anything but the socket and its lock is left. */
static void teardown(void)
{
    char lock[sizeof(path) + 8];
    snprintf(lock, sizeof(lock), "%s.lock", path);
    unlink(lock);
    unlink(path);
    ck_assert_int_eq(0, rmdir(folder));
}

static enum strait_status acquire(int *fd)
{
    return lock_acquire(path, fd, &holder, why, sizeof(why));
}

static enum strait_status listen_here(mode_t mode, int *fd)
{
    return listen_unix(path, mode, fd, why, sizeof(why));
}

static bool can_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool good = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return good;
}

/* ---- The lock ---------------------------------------------------------------------------------------------------- */

TEST(one_holds_the_lock_and_the_other_learns_who)
{
    int fd = -1, second = -7;
    ck_assert_int_eq(STRAIT_OK, acquire(&fd));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, acquire(&second)); /* another open file: as from another process */
    ck_assert_int_eq(getpid(), holder);
    ck_assert_int_eq(-7, second);
    ck_assert_ptr_nonnull(strstr(why, "pid"));
    ck_assert_int_ne(0, fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    ck_assert_int_eq(STRAIT_OK, acquire(&fd));
    close(fd);
}

/* Holds the lock and a listening socket, says so and waits to be killed. */
static pid_t start_holder(void)
{
    int ready[2], fd;
    char byte;
    ck_assert_int_eq(0, pipe(ready));
    pid_t child = fork();
    if (child == 0) {
        if (acquire(&fd) == STRAIT_OK && listen_here(0660, &fd) == STRAIT_OK && write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    ck_assert_int_eq(1, read(ready[0], &byte, 1));
    close(ready[0]);
    return child;
}

TEST(a_killed_holder_leaves_nothing_that_hinders)
{
    int lock, fd;
    pid_t child = start_holder();
    ck_assert_int_eq(STRAIT_ERR_AGAIN, acquire(&lock));
    ck_assert_int_eq(child, holder);
    ck_assert(can_connect());
    ck_assert_int_eq(0, kill(child, SIGKILL));
    ck_assert_int_eq(child, waitpid(child, NULL, 0));
    ck_assert_int_eq(0, access(path, F_OK)); /* stale */
    ck_assert(!can_connect());
    ck_assert_int_eq(STRAIT_OK, acquire(&lock));
    ck_assert_int_eq(STRAIT_OK, listen_here(0660, &fd));
    ck_assert(can_connect());
    close(fd);
    close(lock);
}

TEST(of_many_that_start_at_once_one_wins)
{
    enum { CHILDREN = 16 };
    int go[2], tried[2], won = 0, status, fd;
    ck_assert_int_eq(0, pipe(go));
    ck_assert_int_eq(0, pipe(tried));
    for (int i = 0; i < CHILDREN; i++)
        if (fork() == 0) {
            char byte;
            close(go[1]);
            if (read(go[0], &byte, 1) != 0) /* all at its end */
                _exit(2);
            enum strait_status mine = acquire(&fd);
            close(tried[1]);
            if (read(tried[0], &byte, 1) != 0) /* all have, then: who won kept it for so long */
                _exit(2);
            _exit(mine == STRAIT_OK ? 0 : mine == STRAIT_ERR_AGAIN ? 1 : 2);
        }
    close(go[0]);
    close(go[1]);
    close(tried[1]);
    for (int i = 0; i < CHILDREN; i++) {
        ck_assert_int_gt(wait(&status), 0);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        won += WEXITSTATUS(status) == 0;
    }
    close(tried[0]);
    ck_assert_int_eq(1, won);
}

TEST(a_lock_file_that_was_removed_is_made_again)
{
    char lock[sizeof(path) + 8];
    int first, second;
    snprintf(lock, sizeof(lock), "%s.lock", path);
    ck_assert_int_eq(STRAIT_OK, acquire(&first));
    ck_assert_int_eq(0, unlink(lock));
    ck_assert_int_eq(STRAIT_OK, acquire(&second));
    ck_assert_int_eq(0, access(lock, F_OK));
    close(first);
    close(second);
}

TEST(a_missing_folder_is_made_and_two_are_not)
{
    char deep[sizeof(path) + 16];
    int fd;
    snprintf(deep, sizeof(deep), "%s/a/b/s", folder);
    ck_assert_int_eq(STRAIT_ERR_IO, lock_acquire(deep, &fd, &holder, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, strerror(ENOENT)));
    snprintf(deep, sizeof(deep), "%s/a/s", folder);
    ck_assert_int_eq(STRAIT_OK, lock_acquire(deep, &fd, &holder, why, sizeof(why)));
    close(fd);
    snprintf(deep, sizeof(deep), "%s/a/s.lock", folder);
    ck_assert_int_eq(0, unlink(deep));
    snprintf(deep, sizeof(deep), "%s/a", folder);
    ck_assert_int_eq(0, rmdir(deep));
}

TEST(paths_have_limits)
{
    char longest[LISTEN_PATH_MAX + 2];
    int fd;
    memset(longest, 'a', sizeof(longest));
    longest[LISTEN_PATH_MAX + 1] = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, lock_acquire(longest, &fd, &holder, why, sizeof(why)));
    ck_assert_int_eq(STRAIT_ERR_INVALID, lock_acquire("", &fd, &holder, why, sizeof(why)));
    ck_assert_int_eq(STRAIT_ERR_INVALID, listen_unix(longest, 0660, &fd, why, sizeof(why)));
    ck_assert_int_eq(STRAIT_ERR_INVALID, listen_unix("", 0660, &fd, why, sizeof(why)));
    ck_assert_int_eq(0, chdir(folder));
    longest[LISTEN_PATH_MAX] = 0;
    ck_assert_int_eq(STRAIT_OK, listen_unix(longest, 0660, &fd, why, sizeof(why)));
    ck_assert_int_eq(0, unlink(longest));
    close(fd);
}

/* ---- The socket -------------------------------------------------------------------------------------------------- */

TEST_LOOP(a_socket_has_exactly_the_permissions_asked_for, 4)
{
    static const mode_t masks[] = {0, 022, 077, 0777};
    struct stat info;
    int fd;
    umask(masks[_i]);
    ck_assert_int_eq(STRAIT_OK, listen_here(0660, &fd));
    ck_assert_int_eq(0, stat(path, &info));
    ck_assert(S_ISSOCK(info.st_mode));
    ck_assert_uint_eq(0660, info.st_mode & 07777);
    ck_assert_int_ne(0, fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_ne(0, fcntl(fd, F_GETFL) & O_NONBLOCK);
    ck_assert(can_connect());
    close(fd);
}

TEST(a_live_socket_is_not_replaced)
{
    int first, second;
    ck_assert_int_eq(STRAIT_OK, listen_here(0660, &first));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, listen_here(0660, &second));
    ck_assert(can_connect());
    close(first);
    ck_assert_int_eq(STRAIT_OK, listen_here(0660, &second));
    close(second);
}

TEST(what_is_no_socket_is_not_replaced)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    struct stat info;
    ck_assert_int_eq(4, write(fd, "text", 4));
    close(fd);
    ck_assert_int_eq(STRAIT_ERR_INVALID, listen_here(0660, &fd));
    ck_assert_int_eq(0, stat(path, &info));
    ck_assert_int_eq(4, info.st_size);
    ck_assert_int_eq(0, unlink(path));
    ck_assert_int_eq(0, symlink("/nowhere", path));
    ck_assert_int_eq(STRAIT_ERR_INVALID, listen_here(0660, &fd));
}

TEST(a_folder_that_is_not_there_is_an_error)
{
    int fd = -7;
    ck_assert_int_eq(STRAIT_ERR_IO, listen_unix("/nowhere/at/all", 0660, &fd, why, sizeof(why)));
    ck_assert_int_eq(-7, fd);
    ck_assert_ptr_nonnull(strstr(why, strerror(ENOENT)));
}

int main(void)
{
    return run_tests("lock", setup, teardown);
}
