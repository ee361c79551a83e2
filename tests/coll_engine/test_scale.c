/* As many ranks as there may be, in one thread: which of them share memory, what each decides about its operations, and
 * how their hosts agree on levels. What all ranks have to decide alike, they do, whoever comes first, although some of
 * the operations overflow, and each rank hears of that at a time of its own. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/figures.h"
#include "collective/engine/op.h"
#include "collective/engine/proxy.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { RANKS = COLL_RANKS_MAX, EACH = 8, HOSTS = RANKS / EACH };

/* ---- Who shares memory ------------------------------------------------------------------------------------------- */

/* How many neighbours are on one host; the last host may have fewer. */
static const int neighbours[] = {1, 7, 8, 63, 64, 65, 512, RANKS};

TEST_LOOP(ranks_of_a_host_follow_its_first, COUNT(neighbours))
{
    struct rank_set *sees = calloc(RANKS, sizeof(*sees));
    struct host_groups groups;
    require(sees != NULL);
    for (int rank = 0; rank < RANKS; rank++)
        for (int other = rank / neighbours[_i] * neighbours[_i];
             other < RANKS && other / neighbours[_i] == rank / neighbours[_i]; other++)
            rank_set_add(&sees[rank], (uint32_t)other);
    host_groups_of(&groups, sees, RANKS);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(groups.leader[rank], rank / neighbours[_i] * neighbours[_i]);
    free(sees);
}

TEST(sets_have_what_was_added_and_not_dropped)
{
    struct rank_set set = {0};
    for (uint32_t rank = 0; rank < RANKS; rank += 3)
        rank_set_add(&set, rank);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ck_assert(rank_set_has(&set, rank) == (rank % 3 == 0));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ck_assert(!rank_set_is_empty(&set));
        rank_set_drop(&set, RANKS - 1 - rank);
    }
    ck_assert(rank_set_is_empty(&set));
}

/* ---- The world --------------------------------------------------------------------------------------------------- */

/* Operation number n is the same for all ranks: one of these, by turns. Of pairs only two ranks take part. */
static const struct {
    enum coll_operation what;
    int from, to; /* of pairs: on two hosts, and on one */
} cycle[] = {{COLL_ALL_GATHER, 0, 0}, {COLL_ALL_TO_ALL, 0, 0}, {COLL_REDUCE_SCATTER, 0, 0},
             {COLL_ALL_REDUCE, 0, 0}, {COLL_BROADCAST, 0, 0},  {COLL_SEND, EACH - 1, EACH},
             {COLL_SEND, 2, 3}};

enum { TIMES = 300, AHEAD = 4, COUNT_OF = 40000, FRAMES_MAX = 4096 };

/* What was decided about an operation. */
struct decided {
    uint64_t known, compressed, phases; /* of one width, to be compared as bytes */
    uint64_t level[COLL_PHASES_MAX], index[COLL_PHASES_MAX], message[COLL_PHASES_MAX], raw[COLL_PHASES_MAX];
};

struct rank {
    struct coll_ccomm *ccomm;
    struct level_consensus agree;
    unsigned next;                  /* operation */
    unsigned told;                  /* operations that were over for it, and of which it has heard */
    uint32_t reports[COUNT(cycle)]; /* so far, by operation of the cycle */
    unsigned local_class[COUNT(cycle)];
};

static struct rank ranks[RANKS];
static bool has_rails; /* sums go by rail */
static struct decided decided[TIMES];
static struct {
    int from, to;
    struct frame frame;
} frames[FRAMES_MAX];
static unsigned frames_from, frames_until, frames_all;

static bool post(void *arg, int peer, const struct frame *frame)
{
    const struct rank *rank = arg;
    require(frames_until - frames_from < FRAMES_MAX);
    frames[frames_until % FRAMES_MAX].from = rank->ccomm->rank;
    frames[frames_until % FRAMES_MAX].to = peer;
    frames[frames_until % FRAMES_MAX].frame = *frame;
    frames_until++;
    frames_all++;
    return true;
}

static void deliver(unsigned most)
{
    for (; most > 0 && frames_from < frames_until; most--, frames_from++) {
        const unsigned at = frames_from % FRAMES_MAX;
        require(consensus_receive(&ranks[frames[at].to].agree, frames[at].from, &frames[at].frame));
    }
}

static bool decides(int rank)
{
    return rank == 0 || rank == cycle[5].from;
}

static void rank_make(int number, struct op_classes *classes)
{
    struct rank *rank = &ranks[number];
    struct coll_ccomm *ccomm = rank->ccomm = calloc(1, sizeof(*ccomm));
    require(ccomm != NULL);
    *ccomm = (struct coll_ccomm){.rank = number, .ranks = RANKS, .forced = true, .host.settings.pairs = true};
    for (int other = 0; other < RANKS; other++) {
        ccomm->shared.groups.leader[other] = (uint16_t)(other / EACH * EACH);
        if (other / EACH == number / EACH)
            rank_set_add(&ccomm->shared.here, (uint32_t)other);
    }
    ccomm->shared.multi_host = true;
    if (has_rails)
        ccomm->shared.rails = (struct rails){HOSTS, EACH};
    ccomm->shared.classes = classes;
    ccomm->issued = calloc(ccomm_local_classes(ccomm), sizeof(*ccomm->issued));
    ccomm->host_status = calloc(1, sizeof(*ccomm->host_status));
    require(ccomm->issued != NULL && ccomm->host_status != NULL && tally_make(ccomm));
    codec_rate_assume(ccomm);
    if (number % EACH != 0 && !decides(number))
        return;
    require(consensus_init(&rank->agree, ccomm));
    rank->agree.send = post;
    rank->agree.send_arg = rank;
}

/* Only what is used of the classes takes memory. */
static void world_make(void)
{
    for (int host = 0; host < HOSTS; host++) {
        struct op_classes *classes = mmap(NULL, op_classes_size(RANKS), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        require(classes != MAP_FAILED && op_classes_init(classes));
        for (int i = 0; i < EACH; i++)
            rank_make(host * EACH + i, classes);
    }
}

static void world_end(void)
{
    for (int number = 0; number < RANKS; number++) {
        struct rank *rank = &ranks[number];
        consensus_fini(&rank->agree);
        if (number % EACH == EACH - 1)
            (void)munmap(rank->ccomm->shared.classes, op_classes_size(RANKS));
        tally_end(rank->ccomm);
        free(rank->ccomm->issued);
        free(rank->ccomm->host_status);
        free(rank->ccomm);
    }
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* False: the rank takes no part in it. */
static bool call_of(int rank, unsigned number, struct coll_call *call)
{
    static uint8_t somewhere[2];
    const unsigned i = number % COUNT(cycle);
    *call = (struct coll_call){.operation = cycle[i].what,
                               .send = somewhere,
                               .receive = somewhere,
                               .count = COUNT_OF * (cycle[i].what == COLL_ALL_REDUCE ? (size_t)RANKS : 1),
                               .type = COLL_BF16,
                               .reduction = COLL_SUM,
                               .peer = cycle[i].what == COLL_BROADCAST ? (int)(number * 31 % RANKS) : cycle[i].to};
    if (cycle[i].what != COLL_SEND)
        return true;
    if (rank == cycle[i].to) {
        call->operation = COLL_RECV;
        call->peer = cycle[i].from;
    }
    return rank == cycle[i].from || rank == cycle[i].to;
}

static bool overflows(unsigned number)
{
    return number / COUNT(cycle) % 13 < 3;
}

/* A sum by rail overflows on some of them, of which their ranks alone hear. */
static bool overflows_on_rail(unsigned number, unsigned place)
{
    const enum coll_operation what = cycle[number % COUNT(cycle)].what;
    return !has_rails || (what != COLL_REDUCE_SCATTER && what != COLL_ALL_REDUCE) || (number * 5 + place) % 3 == 0;
}

/* What the rank's GPU would report. */
static void hear_of(struct rank *rank, unsigned number)
{
    const unsigned i = number % COUNT(cycle), place = has_rails ? (unsigned)rank->ccomm->rank % EACH : 0;
    struct coll_call call;
    if (!overflows(number) || !overflows_on_rail(number, place) || !decided[number].compressed ||
        !call_of(rank->ccomm->rank, number, &call))
        return;
    struct host_status *status = rank->ccomm->host_status;
    status->reports[status->reported % REPORTS_MAX] = (struct report){.count = ++rank->reports[i],
                                                                      .index = decided[number].index[0],
                                                                      .local_class = rank->local_class[i],
                                                                      .share = 800 + (number + place) % 40};
    status->reported++;
}

static void decide(struct rank *rank, unsigned number)
{
    struct coll_call call;
    struct coll_op op = {0};
    struct decided own = {.known = true};
    const char *reason;
    if (!call_of(rank->ccomm->rank, number, &call))
        return;
    own.compressed = op_decide(rank->ccomm, &call, &op, &reason);
    own.phases = op.phases;
    require(op.phases >= 1 && op.head == 0 && op.tail == 0);
    rank->local_class[number % COUNT(cycle)] = op.of[0].local_class;
    for (unsigned phase = 0; phase < op.phases; phase++) {
        own.level[phase] = op.of[phase].level;
        own.index[phase] = op.of[phase].index;
        own.message[phase] = own.compressed ? op.of[phase].plan.layout.message : 0;
        own.raw[phase] = own.compressed ? op.of[phase].plan.raw : 0;
    }
    if (!decided[number].known)
        decided[number] = own;
    ck_assert_mem_eq(&decided[number], &own, sizeof(own));
}

/* Nothing is over for a rank before all have begun it. */
static void hear(struct rank *rank, unsigned all, struct rng *rng)
{
    while (rank->told < all && rng_next(rng) % 8 != 0)
        hear_of(rank, rank->told++);
}

static unsigned begun_by_all(void)
{
    unsigned least = UINT32_MAX;
    for (int rank = 0; rank < RANKS; rank++)
        least = ranks[rank].next < least ? ranks[rank].next : least;
    return least;
}

TEST_RANGE(all_ranks_decide_alike, 1, 5)
{
    has_rails = _i % 2 == 0;
    struct rng rng = rng_init((uint64_t)_i);
    unsigned raised = 0, all = 0;
    memset(ranks, 0, sizeof(ranks));
    memset(decided, 0, sizeof(decided));
    frames_from = frames_until = frames_all = 0;
    world_make();
    while ((all = begun_by_all()) < TIMES) {
        const unsigned first = (unsigned)(rng_next(&rng) % RANKS);
        for (unsigned i = 0; i < RANKS; i++) {
            struct rank *rank = &ranks[(first + i * 389) % RANKS]; /* all of them, in some order */
            hear(rank, all, &rng);
            for (unsigned count = (unsigned)(rng_next(&rng) % 3); count > 0 && rank->next < TIMES; count--)
                if (rank->next < all + AHEAD)
                    decide(rank, rank->next++);
            if (decides(rank->ccomm->rank))
                require(consensus_ask(&rank->agree));
            deliver(rng_next(&rng) % 4 == 0 ? 200 : 1);
        }
    }
    for (unsigned number = 0; number < TIMES; number++)
        raised += decided[number].known && decided[number].level[0] > 0;
    ck_assert_uint_gt(raised, TIMES / 8);
    /* Each step is asked for, promised and told: by one frame of each to and from each host. */
    ck_assert_uint_gt(frames_all, 3 * (HOSTS - 1));
    ck_assert_uint_lt(frames_all, 3 * (HOSTS - 1) * TIMES / 4);
    world_end();
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

/* Bytes of what ranks of a host share of op classes that take memory. */
static size_t memory_of(struct op_classes *classes)
{
    static unsigned char in_memory[1 << 20];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (op_classes_size(RANKS) + page - 1) / page;
    size_t count = 0;
    require(pages <= sizeof(in_memory) && mincore(classes, op_classes_size(RANKS), in_memory) == 0);
    for (size_t i = 0; i < pages; i++)
        count += in_memory[i] & 1;
    return count * page;
}

TEST(reports_take_no_memory_for_pairs_that_send_nothing)
{
    static struct coll_figures figures;
    memset(ranks, 0, sizeof(ranks));
    world_make();
    for (int number = 0; number < RANKS; number++) {
        ccomm_figures(ranks[number].ccomm, true, &figures);
        ck_assert_uint_eq(figures.hosts, HOSTS);
        ck_assert_uint_eq(figures.of[COLL_ALL_GATHER][COLL_BF16].overflows, 0);
    }
    for (int host = 0; host < HOSTS; host++)
        ck_assert_uint_lt(memory_of(ranks[host * EACH].ccomm->shared.classes), 64 << 10);
    world_end();
}

int main(void)
{
    return run_tests("coll_scale", NULL, NULL);
}
