/* Ranks on different hosts, as processes of this one: what is progressed between their rings, how the end of one is
 * seen, and one that does not answer. */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/proxy.h"
#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* A process is the first rank of its host, and the host's others are not there. With MANY of each host links are made
 * when they are needed, but for those of the start. */
enum { HOSTS = 3, MANY = 22, SLOTS_ALL = 200 };

struct common {
    pthread_barrier_t barrier;
    bool annoyed; /* by strangers */
    int each;     /* ranks of a host */
    _Atomic bool over;
    struct proxy_info infos[HOSTS];
};

static void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}

static struct common *common_make(int each)
{
    struct common *common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    require(common != MAP_FAILED && pthread_barrierattr_init(&attributes) == 0);
    require(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    require(pthread_barrier_init(&common->barrier, &attributes, HOSTS) == 0);
    common->each = each;
    return common;
}

static struct coll_ccomm *member_make(int host, int each)
{
    struct coll_ccomm *ccomm = calloc(1, sizeof(*ccomm));
    const uint32_t ranks = HOSTS * (uint32_t)each;
    require(ccomm != NULL);
    ccomm->rank = host * each;
    ccomm->ranks = (int)ranks;
    ccomm->host.log = say;
    pthread_mutex_init(&ccomm->lock, NULL);
    ccomm->host_status = calloc(1, sizeof(*ccomm->host_status));
    for (int i = 0; i < ccomm->ranks; i++) {
        ccomm->shared.groups.leader[i] = (uint16_t)(i / each * each);
        if (i / each == host)
            rank_set_add(&ccomm->shared.here, (uint32_t)i);
    }
    const size_t count = ring_count(&ccomm->shared.here, ranks), flags = ring_flags_size(ranks, count);
    ccomm->shared.multi_host = true;
    ccomm->shared.classes = calloc(1, op_classes_size(ccomm->ranks));
    ccomm->shared.pinned = calloc(1, flags + ring_slots_size(ranks, count));
    ccomm->shared.ring_numbers = calloc((size_t)2 * ranks, sizeof(*ccomm->shared.ring_numbers));
    require(ccomm->shared.ring_numbers != NULL);
    ring_numbers(ccomm->shared.ring_numbers, &ccomm->shared.here, (uint32_t)ccomm->rank, ranks);
    require(ccomm->host_status != NULL && ccomm->shared.classes != NULL && ccomm->shared.pinned != NULL);
    require(op_classes_init(ccomm->shared.classes));
    ccomm->shared.rings = (struct ring_set){.flags = ccomm->shared.pinned,
                                            .slots = (uint8_t *)ccomm->shared.pinned + flags,
                                            .rank = (uint32_t)ccomm->rank,
                                            .ranks = ranks,
                                            .numbers = ccomm->shared.ring_numbers,
                                            .slot_bytes = ring_slot_bytes(ranks),
                                            .depth = ring_depth(ranks),
                                            .records = ring_records(ranks)};
    ccomm->shared.host_rings = ccomm->shared.rings;
    return ccomm;
}

/* Who says `bytes` to a rank, and does not end the connection. */
static int stranger(const struct proxy_info *info, const void *bytes, size_t size)
{
    struct sockaddr_storage at;
    const socklen_t at_size = address_unpack(&at, &info->address);
    const int made = socket(at.ss_family, SOCK_STREAM, 0);
    require(made >= 0 && connect(made, (const struct sockaddr *)&at, at_size) == 0);
    (void)!send(made, bytes, size, MSG_NOSIGNAL);
    return made;
}

enum { PREAMBLE_BYTES = 32, STRANGERS = 120 };

/* Each says something else that does not admit it: to be a rank that there is or is not, with no secret, or half of it,
 * or something of another kind, or nothing. */
static void annoy(const struct common *common, int files[STRANGERS])
{
    const uint64_t each = (uint64_t)common->each;
    const uint64_t claims[] = {0, each, 2 * each, HOSTS * each, UINT64_C(1) << 32, UINT64_MAX};
    struct rng rng = rng_init(9);
    for (unsigned i = 0; i < STRANGERS; i++) {
        uint8_t preamble[PREAMBLE_BYTES] = "STRDATA1";
        store_le64(preamble + 8, claims[i / 4 % COUNT(claims)]);
        for (unsigned at = i % 4 == 0 ? 0 : 16; at < PREAMBLE_BYTES; at++)
            preamble[at] = (uint8_t)rng_next(&rng);
        const size_t size = i % 4 == 3 ? i % PREAMBLE_BYTES : PREAMBLE_BYTES;
        files[i] = stranger(&common->infos[i % 2], preamble, size);
    }
}

static void join(struct coll_ccomm *ccomm, struct common *common)
{
    const bool annoys = common->annoyed && ccomm->rank == (HOSTS - 1) * common->each;
    int files[STRANGERS], rank;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    require(proxy_prepare(ccomm, &common->infos[ccomm->rank / common->each]));
    pthread_barrier_wait(&common->barrier);
    if (annoys)
        annoy(common, files);
    pthread_barrier_wait(&common->barrier);
    for (int host = 0; host < HOSTS; host++)
        proxy_connect(ccomm, host * common->each, &common->infos[host]);
    require(proxy_start(ccomm));
    proxy_expect(ccomm);
    require(proxy_await(ccomm, &rank) == NULL);
    pthread_barrier_wait(&common->barrier);
    require(proxy_settle(ccomm));
    for (unsigned i = 0; i < STRANGERS && annoys; i++)
        close(files[i]);
}

/* Of a communicator that has joined, or stays raw. */
static void end(struct coll_ccomm *ccomm)
{
    proxy_end(ccomm);
    free(ccomm->shared.pinned);
    free(ccomm->shared.ring_numbers);
    free(ccomm->shared.classes);
    free(ccomm->host_status);
    pthread_mutex_destroy(&ccomm->lock);
    free(ccomm);
}

static void part(struct coll_ccomm *ccomm)
{
    proxy_leave(ccomm);
    end(ccomm);
}

/* Numbers that are not all used, and any lengths. */
static uint64_t number_at(unsigned i)
{
    return 3 * (uint64_t)i + i / 7;
}

static uint32_t bytes_at(unsigned i, uint32_t most)
{
    return i % 5 == 0 ? most : 2 + 2 * (i * 7919 % (most / 2));
}

static uint8_t value_at(unsigned i, int from, int to)
{
    return (uint8_t)(i * 31 + (unsigned)from * 7 + (unsigned)to);
}

struct end {
    struct ring_parts ring;
    unsigned next;
    uint64_t moved[RING_SLOTS];
};

static struct end end_of(const struct coll_ccomm *ccomm, int peer, bool sends)
{
    const struct ring_set *rings = &ccomm->shared.rings;
    const uint32_t number = sends ? ring_to(rings, (uint32_t)peer) : ring_from(rings, (uint32_t)peer);
    return (struct end){.ring = ring_parts_of(rings, number)};
}

static bool offer(struct end *end, const struct coll_ccomm *ccomm, int to)
{
    const uint32_t most = ccomm->shared.rings.slot_bytes;
    const uint64_t number = number_at(end->next), slot = number % ccomm->shared.rings.depth;
    if (end->next == SLOTS_ALL || __atomic_load_n(&end->ring.taken[slot].number, __ATOMIC_ACQUIRE) != end->moved[slot])
        return false;
    memset(end->ring.slots + slot * most, value_at(end->next, ccomm->rank, to), bytes_at(end->next, most));
    end->ring.full[slot].bytes = bytes_at(end->next, most);
    __atomic_store_n(&end->ring.full[slot].number, number + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&ccomm->host_status->bell, 1, __ATOMIC_RELEASE);
    end->moved[slot] = number + 1;
    end->next++;
    return true;
}

static bool take(struct end *end, const struct coll_ccomm *ccomm, int from)
{
    const uint32_t most = ccomm->shared.rings.slot_bytes;
    const uint64_t number = number_at(end->next), slot = number % ccomm->shared.rings.depth;
    if (end->next == SLOTS_ALL || __atomic_load_n(&end->ring.full[slot].number, __ATOMIC_ACQUIRE) != number + 1)
        return false;
    require(end->ring.full[slot].bytes == bytes_at(end->next, most));
    for (uint32_t i = 0; i < bytes_at(end->next, most); i++)
        require(end->ring.slots[slot * most + i] == value_at(end->next, from, ccomm->rank));
    __atomic_store_n(&end->ring.taken[slot].number, number + 1, __ATOMIC_RELEASE);
    end->next++;
    return true;
}

/* All hosts with all others, until all has come. */
static void move_slots(struct coll_ccomm *ccomm, int each)
{
    struct end out[HOSTS], in[HOSTS];
    for (int host = 0; host < HOSTS; host++)
        if (host * each != ccomm->rank) {
            out[host] = end_of(ccomm, host * each, true);
            in[host] = end_of(ccomm, host * each, false);
        }
    for (unsigned left = 2 * (HOSTS - 1) * SLOTS_ALL, moved = 1; left > 0; left -= moved) {
        if (moved == 0)
            usleep(50);
        moved = 0;
        for (int host = 0; host < HOSTS; host++)
            if (host * each != ccomm->rank)
                moved +=
                    (unsigned)offer(&out[host], ccomm, host * each) + (unsigned)take(&in[host], ccomm, host * each);
    }
}

static int exit_of(pid_t pid)
{
    int status;
    require(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static void be_host(struct common *common, int host)
{
    struct coll_ccomm *ccomm = member_make(host, common->each);
    join(ccomm, common);
    move_slots(ccomm, common->each);
    require(ccomm->failed == COLL_SUCCESS);
    part(ccomm);
    _exit(0);
}

/* Also where strangers connect before the ranks do. */
TEST_LOOP(slots_go_from_host_to_host, 4)
{
    struct common *common = common_make(_i < 2 ? 1 : MANY);
    pid_t pids[HOSTS];
    common->annoyed = _i % 2 == 1;
    for (int host = 0; host < HOSTS; host++)
        if ((pids[host] = fork()) == 0)
            be_host(common, host);
    for (int host = 0; host < HOSTS; host++)
        ck_assert_int_eq(exit_of(pids[host]), 0);
}

/* Host 1 ends in one way or another; a child that it has forked goes on. */
enum { KILLED, LEFT, ENDS };

static void end_in_a_way(struct coll_ccomm *ccomm, int way)
{
    if (way == KILLED && fork() == 0) {
        sleep(20);
        _exit(0);
    }
    if (way == LEFT)
        part(ccomm);
    raise(SIGKILL);
}

static void see_end(struct common *common, int host, int way)
{
    struct coll_ccomm *ccomm = member_make(host, common->each);
    join(ccomm, common);
    pthread_barrier_wait(&common->barrier);
    if (host == 1)
        end_in_a_way(ccomm, way);
    for (int i = 0; i < 5000 && __atomic_load_n(&ccomm->host_status->abort, __ATOMIC_ACQUIRE) == 0; i++)
        usleep(way == KILLED ? 1000 : 100);
    pthread_mutex_lock(&ccomm->lock);
    const int failed = ccomm->failed;
    pthread_mutex_unlock(&ccomm->lock);
    require(failed == (way == KILLED ? COLL_REMOTE_ERROR : COLL_SUCCESS));
    part(ccomm);
    _exit(0);
}

/* Also where hosts have no other links than those of the start: the hosts before and behind see it. */
TEST_LOOP(the_end_of_a_process_is_seen, 2 * ENDS)
{
    struct common *common = common_make(_i < ENDS ? 1 : MANY);
    pid_t pids[HOSTS];
    for (int host = 0; host < HOSTS; host++)
        if ((pids[host] = fork()) == 0)
            see_end(common, host, _i % ENDS);
    ck_assert_int_eq(exit_of(pids[1]), 256 + SIGKILL);
    ck_assert_int_eq(exit_of(pids[0]), 0);
    ck_assert_int_eq(exit_of(pids[2]), 0);
}

/* ---- A host that is not reached ---------------------------------------------------------------------------------- */

/* Host 1 stops before it has answered anybody: its system takes connections, and the host before it waits for as long
 * as one may be busy, and no longer. */
static void await_stopped(struct common *common, int host)
{
    struct coll_ccomm *ccomm = member_make(host, common->each);
    int rank = -1;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    require(proxy_prepare(ccomm, &common->infos[host]));
    pthread_barrier_wait(&common->barrier);
    if (host == 1)
        raise(SIGSTOP);
    for (int i = 0; i < HOSTS; i++)
        proxy_connect(ccomm, i * common->each, &common->infos[i]);
    require(proxy_start(ccomm));
    proxy_expect(ccomm);
    const char *why = proxy_await(ccomm, &rank);
    if (host == 0) {
        require(rank == common->each && why != NULL && strcmp(why, "it takes connections, and does not answer") == 0);
        common->over = true;
    }
    while (!common->over)
        usleep(1000);
    end(ccomm);
    _exit(host == 0 || why == NULL ? 0 : 1);
}

/* With few ranks and with many, at the same time, as it takes long. */
TEST(a_stopped_process_is_given_up)
{
    enum { WORLDS = 2 };
    pid_t pids[WORLDS][HOSTS];
    int status;
    for (int world = 0; world < WORLDS; world++) {
        struct common *common = common_make(world == 0 ? 1 : MANY);
        for (int host = 0; host < HOSTS; host++)
            if ((pids[world][host] = fork()) == 0)
                await_stopped(common, host);
    }
    for (int world = 0; world < WORLDS; world++) {
        const pid_t stopped = pids[world][1];
        require(waitpid(stopped, &status, WUNTRACED) == stopped && WIFSTOPPED(status));
        ck_assert_int_eq(exit_of(pids[world][0]), 0);
        ck_assert_int_eq(exit_of(pids[world][2]), 0);
        require(kill(stopped, SIGKILL) == 0);
        ck_assert_int_eq(exit_of(stopped), 256 + SIGKILL);
    }
}

int main(void)
{
    return run_tests("coll_link", NULL, NULL);
}
