/* Hosts that do not reach each other: a rank's connections to other hosts are refused, dropped or impossible. All ranks
 * find that out while they join, stay raw, say why, and what they move is right. */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { PATIENCE_MS = 20000, DROPPED_MS = 4000 };

/* ---- A network with a fault -------------------------------------------------------------------------------------- */

enum fault { REFUSED, DROPPED, NO_WAY };

static enum fault fault;
static int faulty = -2; /* the rank whose connections fail; ALL: of every rank, NONE: of none */
enum { ALL = -1, NONE = -2 };
static struct sockaddr_in nowhere; /* where its connections go instead */

/* In place of the system's. Ranks meet in shared memory, so that those of the proxy are the only ones. */
__attribute__((visibility("default"))) int connect(int socket, const struct sockaddr *at, socklen_t size)
{
    int (*real)(int socket, const struct sockaddr *at, socklen_t size) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    require(real != NULL);
    if (faulty == NONE || at->sa_family != AF_INET || (faulty != ALL && faulty != fake_device()))
        return real(socket, at, size);
    if (fault == NO_WAY) {
        errno = ENETUNREACH;
        return -1;
    }
    return real(socket, (const struct sockaddr *)&nowhere, sizeof(nowhere));
}

/* A socket that does not listen, so that it refuses, or one that has no room for those who connect, so that the system
 * drops what they send. */
static void nowhere_make(void)
{
    enum { FILLING = 4 };
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t size = sizeof(nowhere);
    nowhere = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    require(made >= 0 && bind(made, (struct sockaddr *)&nowhere, size) == 0);
    require(getsockname(made, (struct sockaddr *)&nowhere, &size) == 0);
    if (fault != DROPPED)
        return;
    require(listen(made, 0) == 0);
    for (int i = 0; i < FILLING; i++) {
        const int filling = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        require(filling >= 0);
        (void)connect(filling, (struct sockaddr *)&nowhere, sizeof(nowhere));
    }
}

/* ---- What ranks say ---------------------------------------------------------------------------------------------- */

static FILE *said;

/* From now on what goes to stderr is kept. */
static void listen_to_ranks(void)
{
    said = tmpfile();
    require(said != NULL && dup2(fileno(said), STDERR_FILENO) == STDERR_FILENO);
}

/* How often the text was said. */
static int times_said(const char *text)
{
    static char line[4096];
    int times = 0;
    rewind(said);
    while (fgets(line, sizeof(line), said) != NULL)
        times += strstr(line, text) != NULL;
    return times;
}

static const struct {
    const char *why;
    long least_ms;
} faults[] = {
    [REFUSED] = {"the connection was refused", 0},
    [DROPPED] = {"nothing has answered", DROPPED_MS},
    [NO_WAY] = {"no connection can be begun from here", 0},
};

/* All ranks give the same reason, which names both. */
static void require_reason(int ranks, int from, int to, int others)
{
    char text[500], host[64], more[40] = "";
    require(gethostname(host, sizeof(host)) == 0);
    snprintf(text, sizeof(text),
             "stays raw: rank %d on host %.47s could not connect to rank %d on host %.47s, 127.0.0.1 port ", from, host,
             to, host);
    require(times_said(text) == ranks);
    if (others > 0)
        snprintf(more, sizeof(more), " (%d more could not, either)", others);
    snprintf(text, sizeof(text), "%s: %s. Let TCP pass", more, faults[fault].why);
    require(times_said(text) == ranks);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

/* By ranks, neighbours on a host, the rank whose connections fail, and who says so of whom; with more than 64 ranks the
 * first rank of each host connects to that of the next. */
static const struct {
    int ranks;
    const char *neighbours;
    enum fault fault;
    int faulty, from, to, others;
} scenes[] = {
    {2, "1", REFUSED, 0, 0, 1, 0},     {3, "1", REFUSED, 1, 1, 2, 0},      {3, "1", NO_WAY, 0, 0, 1, 0},
    {16, "4", REFUSED, ALL, 0, 4, 11}, {66, "13", REFUSED, 0, 0, 13, 0},   {66, "13", REFUSED, 65, 65, 0, 0},
    {66, "13", NO_WAY, 26, 26, 39, 0}, {66, "13", REFUSED, ALL, 0, 13, 5}, {66, "13", DROPPED, 13, 13, 26, 0},
};

static void set_up(void)
{
    struct rlimit files;
    require(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    require(setrlimit(RLIMIT_NOFILE, &files) == 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("STRAIT_COLL_MEET", "host", 1);
}

static void stay_raw(struct rank *rank)
{
    const long began = now_ms();
    rank_begin(rank);
    require(now_ms() - began >= faults[fault].least_ms);
    rank_gather(rank, rank->comm, false);
    require(error_of(rank->comm) == COLL_SUCCESS);
    rank_end(rank);
}

START_TEST(all_ranks_stay_raw_and_say_why)
{
    fault = scenes[_i].fault;
    nowhere_make();
    faulty = scenes[_i].faulty;
    setenv("STRAIT_TEST_HOSTS", scenes[_i].neighbours, 1);
    listen_to_ranks();
    ranks_start(scenes[_i].ranks, stay_raw, NULL);
    require_reason(scenes[_i].ranks, scenes[_i].from, scenes[_i].to, scenes[_i].others);
    require(fake_gpu.offered == 0);
}
END_TEST

/* Connections that others make are of no concern. */
static void compress(struct rank *rank)
{
    rank_gather(rank, rank->comm, true);
}

START_TEST(a_rank_that_connects_to_nobody_while_it_joins_is_of_no_concern)
{
    nowhere_make();
    faulty = _i == 0 ? 2 : 1;
    setenv("STRAIT_TEST_HOSTS", _i == 0 ? "1" : "13", 1);
    ranks_run(_i == 0 ? 3 : 66, compress, NULL);
}
END_TEST

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/strait-coll-reach-XXXXXX";

/* Whether a report of the folder has the text. */
static bool is_reported(const char *text)
{
    static char content[1 << 16], path[512];
    bool found = false;
    DIR *there = opendir(folder);
    require(there != NULL);
    for (const struct dirent *entry; (entry = readdir(there)) != NULL;) {
        require(snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) < (int)sizeof(path));
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        content[fread(content, 1, sizeof(content) - 1, file)] = '\0';
        fclose(file);
        found |= strstr(content, text) != NULL;
    }
    closedir(there);
    return found;
}

START_TEST(the_report_has_the_reason)
{
    setenv("STRAIT_COLL_REPORT", folder, 1);
    setenv("STRAIT_TEST_HOSTS", "1", 1);
    fault = REFUSED;
    nowhere_make();
    faulty = 0;
    ranks_start(2, stay_raw, NULL);
    for (const long began = now_ms(); !is_reported("could not connect to rank 1 on host "); usleep(20000))
        require(now_ms() - began < PATIENCE_MS);
}
END_TEST

/* ---- Several ranks of one thread --------------------------------------------------------------------------------- */

/* Each rank of the first host waits for each of the second, all for the same time. */
START_TEST(ranks_of_one_thread_wait_once)
{
    enum { RANKS = 6, HOSTS = 2 };
    coll_comm comms[RANKS];
    fault = DROPPED;
    nowhere_make();
    faulty = ALL;
    for (int i = 0; i < RANKS; i++)
        fake_gpu.hosts[i] = 1 + (uint32_t)(i / (RANKS / HOSTS));
    listen_to_ranks();
    const long began = now_ms();
    require_ok(ncclCommInitAll(comms, RANKS, NULL));
    const long took = now_ms() - began;
    printf("joined after %ld ms\n", took);
    require(took >= DROPPED_MS && took < 2 * DROPPED_MS);
    require_reason(RANKS, 0, RANKS / HOSTS, RANKS / HOSTS - 1);
    for (int i = 0; i < RANKS; i++)
        require_ok(ncclCommDestroy(comms[i]));
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("reach");
    char command[64];
    require(mkdtemp(folder) != NULL);
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_loop_test(tests, all_ranks_stay_raw_and_say_why, 0, COUNT(scenes));
    tcase_add_loop_test(tests, a_rank_that_connects_to_nobody_while_it_joins_is_of_no_concern, 0, 2);
    tcase_add_test(tests, the_report_has_the_reason);
    tcase_add_test(tests, ranks_of_one_thread_wait_once);
    const int result = suite_run("reach", tests);
    snprintf(command, sizeof(command), "rm -r %s", folder); /* to which processes write until they end */
    require(system(command) == 0);
    return result;
}
