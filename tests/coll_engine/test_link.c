/* Ranks on different hosts, as processes of this one: what is progressed between their rings, and how the end of one is
 * seen. */
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

enum { RANKS = 3, SLOTS_ALL = 200 };

struct common {
    pthread_barrier_t barrier;
    bool annoyed; /* by strangers */
    struct proxy_info infos[RANKS];
};

static void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}

static struct common *common_make(void)
{
    struct common *common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    require(common != MAP_FAILED && pthread_barrierattr_init(&attributes) == 0);
    require(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    require(pthread_barrier_init(&common->barrier, &attributes, RANKS) == 0);
    return common;
}

static struct coll_ccomm *member_make(int rank)
{
    struct coll_ccomm *ccomm = calloc(1, sizeof(*ccomm));
    require(ccomm != NULL);
    ccomm->rank = rank;
    ccomm->ranks = RANKS;
    ccomm->host.log = say;
    pthread_mutex_init(&ccomm->lock, NULL);
    ccomm->host_status = calloc(1, sizeof(*ccomm->host_status));
    for (int i = 0; i < RANKS; i++)
        ccomm->shared.groups.leader[i] = (uint16_t)i;
    rank_set_add(&ccomm->shared.here, (uint32_t)rank);
    const size_t count = ring_count(&ccomm->shared.here, RANKS), flags = ring_flags_size(RANKS, count);
    ccomm->shared.multi_host = true;
    ccomm->shared.classes = calloc(1, op_classes_size(RANKS));
    ccomm->shared.pinned = calloc(1, flags + ring_slots_size(RANKS, count));
    ccomm->shared.ring_numbers = calloc(2 * RANKS, sizeof(*ccomm->shared.ring_numbers));
    require(ccomm->shared.ring_numbers != NULL);
    ring_numbers(ccomm->shared.ring_numbers, &ccomm->shared.here, (uint32_t)rank, RANKS);
    require(ccomm->host_status != NULL && ccomm->shared.classes != NULL && ccomm->shared.pinned != NULL);
    require(op_classes_init(ccomm->shared.classes));
    ccomm->shared.rings = (struct ring_set){.flags = ccomm->shared.pinned,
                                            .slots = (uint8_t *)ccomm->shared.pinned + flags,
                                            .rank = (uint32_t)rank,
                                            .ranks = RANKS,
                                            .numbers = ccomm->shared.ring_numbers,
                                            .slot_bytes = ring_slot_bytes(RANKS),
                                            .depth = ring_depth(RANKS),
                                            .records = ring_records(RANKS)};
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
    static const uint64_t claims[] = {0, 1, 2, RANKS, UINT64_C(1) << 32, UINT64_MAX};
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
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    require(proxy_prepare(ccomm, &common->infos[ccomm->rank]));
    pthread_barrier_wait(&common->barrier);
    int files[STRANGERS];
    if (common->annoyed && ccomm->rank == RANKS - 1)
        annoy(common, files);
    pthread_barrier_wait(&common->barrier);
    for (int rank = 0; rank < RANKS; rank++)
        require(proxy_connect(ccomm, rank, &common->infos[rank]));
    require(proxy_start(ccomm) && proxy_await(ccomm));
    pthread_barrier_wait(&common->barrier);
    require(proxy_settle(ccomm));
    for (unsigned i = 0; i < STRANGERS && common->annoyed && ccomm->rank == RANKS - 1; i++)
        close(files[i]);
}

static void part(struct coll_ccomm *ccomm)
{
    proxy_leave(ccomm);
    proxy_end(ccomm);
    free(ccomm->shared.pinned);
    free(ccomm->shared.ring_numbers);
    free(ccomm->shared.classes);
    free(ccomm->host_status);
    pthread_mutex_destroy(&ccomm->lock);
    free(ccomm);
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
    const uint64_t number = number_at(end->next), slot = number % RING_SLOTS;
    if (end->next == SLOTS_ALL || __atomic_load_n(&end->ring.taken[slot].number, __ATOMIC_ACQUIRE) != end->moved[slot])
        return false;
    memset(end->ring.slots + slot * most, value_at(end->next, ccomm->rank, to), bytes_at(end->next, most));
    end->ring.full[slot].bytes = bytes_at(end->next, most);
    __atomic_store_n(&end->ring.full[slot].number, number + 1, __ATOMIC_RELEASE);
    end->moved[slot] = number + 1;
    end->next++;
    return true;
}

static bool take(struct end *end, const struct coll_ccomm *ccomm, int from)
{
    const uint32_t most = ccomm->shared.rings.slot_bytes;
    const uint64_t number = number_at(end->next), slot = number % RING_SLOTS;
    if (end->next == SLOTS_ALL || __atomic_load_n(&end->ring.full[slot].number, __ATOMIC_ACQUIRE) != number + 1)
        return false;
    require(end->ring.full[slot].bytes == bytes_at(end->next, most));
    for (uint32_t i = 0; i < bytes_at(end->next, most); i++)
        require(end->ring.slots[slot * most + i] == value_at(end->next, from, ccomm->rank));
    __atomic_store_n(&end->ring.taken[slot].number, number + 1, __ATOMIC_RELEASE);
    end->next++;
    return true;
}

/* All ranks with all others, until all has come. */
static void move_slots(struct coll_ccomm *ccomm)
{
    struct end out[RANKS], in[RANKS];
    for (int peer = 0; peer < RANKS; peer++)
        if (peer != ccomm->rank) {
            out[peer] = end_of(ccomm, peer, true);
            in[peer] = end_of(ccomm, peer, false);
        }
    for (unsigned left = 2 * (RANKS - 1) * SLOTS_ALL, moved = 1; left > 0; left -= moved) {
        if (moved == 0)
            usleep(50);
        moved = 0;
        for (int peer = 0; peer < RANKS; peer++)
            if (peer != ccomm->rank)
                moved += (unsigned)offer(&out[peer], ccomm, peer) + (unsigned)take(&in[peer], ccomm, peer);
    }
}

static int exit_of(pid_t pid)
{
    int status;
    require(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static void be_host(struct common *common, int rank)
{
    struct coll_ccomm *ccomm = member_make(rank);
    join(ccomm, common);
    move_slots(ccomm);
    require(ccomm->failed == COLL_SUCCESS);
    part(ccomm);
    _exit(0);
}

/* Also where strangers connect before the ranks do. */
TEST_LOOP(slots_go_from_host_to_host, 2)
{
    struct common *common = common_make();
    pid_t pids[RANKS];
    common->annoyed = _i == 1;
    for (int rank = 0; rank < RANKS; rank++)
        if ((pids[rank] = fork()) == 0)
            be_host(common, rank);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(exit_of(pids[rank]), 0);
}

/* Rank 1 ends in one way or another; a child that it has forked goes on. */
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

static void see_end(struct common *common, int rank, int way)
{
    struct coll_ccomm *ccomm = member_make(rank);
    join(ccomm, common);
    pthread_barrier_wait(&common->barrier);
    if (rank == 1)
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

TEST_LOOP(the_end_of_a_process_is_seen, ENDS)
{
    struct common *common = common_make();
    pid_t pids[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        if ((pids[rank] = fork()) == 0)
            see_end(common, rank, _i);
    ck_assert_int_eq(exit_of(pids[1]), 256 + SIGKILL);
    ck_assert_int_eq(exit_of(pids[0]), 0);
    ck_assert_int_eq(exit_of(pids[2]), 0);
}

int main(void)
{
    return run_tests("coll_link", NULL, NULL);
}
