#include "tests/coll_engine/maker.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

static void make(int to)
{
    coll_id ids[2];
    require_ok(ncclGetUniqueId(&ids[0]));
    require_ok(ncclGetUniqueId(&ids[1]));
    require(write(to, ids, sizeof(ids)) == sizeof(ids));
    for (;;)
        pause();
}

struct maker maker_begin(void)
{
    struct maker made;
    int ends[2];
    require(pipe(ends) == 0);
    made.process = fork();
    require(made.process >= 0);
    if (made.process == 0)
        make(ends[1]);
    require(read(ends[0], made.ids, sizeof(made.ids)) == sizeof(made.ids));
    close(ends[0]);
    close(ends[1]);
    return made;
}

void maker_end(const struct maker *maker)
{
    require(kill(maker->process, SIGKILL) == 0 && waitpid(maker->process, NULL, 0) == maker->process);
}

void maker_stop(const struct maker *maker)
{
    int status;
    require(kill(maker->process, SIGSTOP) == 0);
    require(waitpid(maker->process, &status, WUNTRACED) == maker->process && WIFSTOPPED(status));
}

void maker_go_on(const struct maker *maker)
{
    require(kill(maker->process, SIGCONT) == 0);
}

static int count_connected(void)
{
    int count = 0;
    for (int file = 0; file < 1024; file++) {
        struct sockaddr_storage at;
        socklen_t size = sizeof(at);
        count += getpeername(file, (struct sockaddr *)&at, &size) == 0 && at.ss_family == AF_INET;
    }
    return count;
}

void await_connected(int count)
{
    while (count_connected() < count)
        usleep(1000);
}
