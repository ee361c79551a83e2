/* What ranks of one host share, by processes: the memory, the levels in it, and values that go through its rings. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/ccomm.h"
#include "tests/fakes/exchange_thread.h"
#include "tests/run_suite.h"
#include "tests/support.h"
#include "transport/rank_address.h"

EXCHANGE_FN void exchange_put(uint8_t *slot, const uint8_t *values, uint64_t bytes)
{
    memcpy(slot, values, bytes);
}

EXCHANGE_FN void exchange_take(uint8_t *values, const uint8_t *slot, uint64_t bytes)
{
    memcpy(values, slot, bytes);
}

#include "collective/engine/exchange.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { SIZE = 1 << 20 };

static int end_of(pid_t pid)
{
    int status;
    require(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

TEST(other_processes_open_the_segment)
{
    struct segment made, found;
    struct segment_info card;
    ck_assert(segment_make(&made, SIZE, (struct segment_hole){0}, &card));
    pid_t pid = fork();
    if (pid == 0) {
        segment_close(&made);
        if (!segment_open(&found, SIZE, &card))
            _exit(1);
        found.memory[SIZE - 1] = 7;
        _exit(0);
    }
    ck_assert_int_eq(end_of(pid), 0);
    ck_assert_int_eq(made.memory[SIZE - 1], 7);
    segment_close(&made);
}

TEST(another_segment_is_not_opened)
{
    struct segment made, other, found;
    struct segment_info card, another;
    ck_assert(segment_make(&made, SIZE, (struct segment_hole){0}, &card) &&
              segment_make(&other, SIZE, (struct segment_hole){0}, &another));
    ck_assert(segment_open(&found, SIZE, &card)); /* several ranks of one process */
    segment_close(&found);
    struct segment_info wrong[] = {card, card, card, card};
    wrong[0].token++;
    wrong[1].file = another.file;
    wrong[2].file = 0; /* whatever that is */
    wrong[3].process = 0;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert(!segment_open(&found, SIZE, &wrong[i]));
    ck_assert(!segment_open(&found, 2 * SIZE, &card));
    segment_settle(&made);
    ck_assert(!segment_open(&found, SIZE, &card));
    segment_close(&made);
    segment_close(&other);
}

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

enum { RANKS = 3, ISSUED = 20000, CLASS = 0 };

static const struct op_cost cost = {1, 1, 1};

struct common {
    _Atomic int ready;
    _Atomic uint64_t issued[RANKS];
    unsigned char levels[RANKS][ISSUED]; /* and whether it is cut */
    struct op_classes classes;           /* the last */
};

static struct common *common_make(void)
{
    const size_t size = sizeof(struct common) + op_classes_size(RANKS);
    struct common *common = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(common != MAP_FAILED && op_classes_init(&common->classes));
    return common;
}

static struct coll_ccomm *ccomm_make(struct common *common, int rank)
{
    struct coll_ccomm *ccomm = calloc(1, sizeof(*ccomm));
    require(ccomm != NULL);
    ccomm->rank = rank;
    ccomm->ranks = RANKS;
    ccomm->shared.classes = &common->classes;
    ccomm->issued = calloc(ccomm_local_classes(ccomm), sizeof(*ccomm->issued));
    ccomm->host_status = calloc(1, sizeof(*ccomm->host_status));
    require(ccomm->issued != NULL && ccomm->host_status != NULL && tally_make(ccomm));
    return ccomm;
}

static void ccomm_free(struct coll_ccomm *ccomm)
{
    tally_end(ccomm);
    free(ccomm->issued);
    free(ccomm->host_status);
    free(ccomm);
}

static void report(struct host_status *host_status, uint64_t index, uint32_t share)
{
    const struct report made = {
        .count = host_status->reported + 1, .index = index, .local_class = CLASS, .share = share};
    host_status->reports[host_status->reported % REPORTS_MAX] = made;
    host_status->reported++;
}

static uint64_t issued_by_all(struct common *common)
{
    uint64_t least = UINT64_MAX;
    for (int rank = 0; rank < RANKS; rank++)
        least = common->issued[rank] < least ? common->issued[rank] : least;
    return least;
}

/* What did not fit is the same for all, each of which hears of it at a time of its own: not before all of them have
 * issued it, as nothing is over before; or, of what one rank sends, as soon as it has issued it itself, and may be far
 * ahead of others. */
enum { AHEAD = 5000 };

static uint64_t over_for(struct common *common, uint64_t own, bool one_way)
{
    while (one_way && own > issued_by_all(common) + AHEAD)
        usleep(100);
    return one_way ? own : issued_by_all(common);
}

static void issue_all(struct common *common, int rank, bool one_way)
{
    struct coll_ccomm *ccomm = ccomm_make(common, rank);
    unsigned speed = (unsigned)rank + 1;
    uint64_t told = 0;
    common->ready++;
    while (common->ready < RANKS)
        usleep(100);
    for (uint64_t i = 0; i < ISSUED; i++) {
        const struct issued issued = op_class_issue(ccomm, CLASS, &cost, false, true);
        require(issued.index == i);
        common->levels[rank][i] = (unsigned char)(2 * issued.level + issued.cut);
        common->issued[rank] = i + 1;
        for (const uint64_t all = over_for(common, i + 1, one_way); told < all && rand_r(&speed) % 100 > 0; told++)
            if (told % 700 < 3)
                report(ccomm->host_status, told, 750 + (uint32_t)(told % 100));
        if (rand_r(&speed) % 64 == 0 && (rank > 0 || !one_way))
            usleep((useconds_t)rand_r(&speed) % 200);
    }
    ccomm_free(ccomm);
}

TEST_LOOP(ranks_of_all_processes_get_the_same_levels, 2)
{
    struct common *common = common_make();
    pid_t pids[RANKS];
    unsigned raised = 0;
    for (int rank = 0; rank < RANKS; rank++)
        if ((pids[rank] = fork()) == 0) {
            issue_all(common, rank, _i == 1);
            _exit(0);
        }
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(end_of(pids[rank]), 0);
    for (int rank = 1; rank < RANKS; rank++)
        ck_assert_mem_eq(common->levels[rank], common->levels[0], ISSUED);
    for (unsigned i = 0; i < ISSUED; i++)
        raised += common->levels[0][i] > 1;
    ck_assert_uint_gt(raised, 0);
    ck_assert_uint_eq(common->levels[0][OP_CLASS_ALONE - 1] % 2, 0);
    ck_assert_uint_eq(common->levels[0][ISSUED - 1] % 2, 1);
}

/* Two hosts with a rank each. Rank 0's copy decides. */
struct host {
    struct common *common;
    struct coll_ccomm *ccomm;
    struct level_consensus agree;
    struct frame sent[4]; /* and not arrived yet */
    unsigned sent_count;
};

static bool post(void *arg, int peer, const struct frame *frame)
{
    struct host *host = arg;
    ck_assert(peer == 1 - host->ccomm->rank && host->sent_count < COUNT(host->sent));
    host->sent[host->sent_count++] = *frame;
    return true;
}

static void deliver(struct host hosts[2])
{
    while (hosts[0].sent_count + hosts[1].sent_count > 0) {
        const int from = hosts[0].sent_count > 0 ? 0 : 1;
        const struct frame frame = hosts[from].sent[--hosts[from].sent_count];
        ck_assert(consensus_receive(&hosts[1 - from].agree, from, &frame));
    }
}

static void side_make(struct host *host, int rank)
{
    host->sent_count = 0;
    host->common = common_make();
    host->ccomm = ccomm_make(host->common, rank);
    host->ccomm->ranks = 2;
    host->ccomm->shared.multi_host = true;
    host->ccomm->forced = true; /* it compresses whatever that costs: by levels, without a budget */
    host->ccomm->shared.groups.leader[1] = 1;
    ck_assert(consensus_init(&host->agree, host->ccomm));
    host->agree.send = post;
    host->agree.send_arg = host;
}

static void side_end(struct host *host)
{
    consensus_fini(&host->agree);
    ccomm_free(host->ccomm);
}

enum { MOST = 128 };

static void issue_until(struct host *host, uint64_t until, unsigned levels[MOST])
{
    for (uint64_t i = host->ccomm->issued[CLASS]; i < until; i++)
        levels[i] = op_class_issue(host->ccomm, CLASS, &cost, false, true).level;
}

/* The last two that rank 0 has issued are over for it, and have not fitted; the next one reads of it. */
static void overflow(struct host hosts[2], uint32_t share, unsigned levels[MOST])
{
    const uint64_t issued = hosts[0].ccomm->issued[CLASS];
    report(hosts[0].ccomm->host_status, issued - 2, share);
    report(hosts[0].ccomm->host_status, issued - 1, share);
    issue_until(&hosts[0], issued + 1, levels);
    ck_assert(consensus_ask(&hosts[0].agree));
    deliver(hosts);
}

static void check_step(const struct host hosts[2], uint64_t from, unsigned level)
{
    for (int host = 0; host < 2; host++) {
        const struct op_class *op_class = &hosts[host].common->classes.classes[CLASS];
        ck_assert_uint_eq(op_class->limit, 0);
        ck_assert_uint_eq(op_class->level.now.from, from);
        ck_assert_uint_eq(op_class->level.now.level, level);
    }
}

/* What rank 0 sends is over for it before rank 1 comes to it. A step comes only when rank 1 is past the one before. */
TEST(hosts_take_no_step_before_all_are_past_the_last)
{
    enum { SHARE = 900, LEVEL = 25, HIGHER = 940, HIGHER_LEVEL = 30 };
    unsigned levels[2][MOST] = {{0}};
    struct host hosts[2];
    side_make(&hosts[0], 0);
    side_make(&hosts[1], 1);
    issue_until(&hosts[0], 20, levels[0]);
    overflow(hosts, SHARE, levels[0]);
    check_step(hosts, 0, 0); /* rank 1 has not begun */
    issue_until(&hosts[1], 1, levels[1]);
    overflow(hosts, SHARE, levels[0]);
    const uint64_t first = hosts[0].ccomm->issued[CLASS] - 1 + OP_CLASS_AHEAD;
    check_step(hosts, first, LEVEL);
    issue_until(&hosts[0], first + 4, levels[0]);
    overflow(hosts, HIGHER, levels[0]);
    check_step(hosts, first, LEVEL);
    issue_until(&hosts[1], first + 1, levels[1]);
    overflow(hosts, HIGHER, levels[0]);
    const uint64_t second = hosts[0].ccomm->issued[CLASS] - 1 + OP_CLASS_AHEAD;
    check_step(hosts, second, HIGHER_LEVEL);
    for (int host = 0; host < 2; host++)
        issue_until(&hosts[host], second + 2, levels[host]);
    ck_assert_mem_eq(levels[0], levels[1], sizeof(levels[0]));
    ck_assert_uint_eq(levels[0][first - 1], 0);
    ck_assert_uint_eq(levels[0][second - 1], LEVEL);
    ck_assert_uint_eq(levels[0][second], HIGHER_LEVEL);
    side_end(&hosts[0]);
    side_end(&hosts[1]);
}

/* From then on the clock runs HURRY times as fast, for the engine and here; 0: it runs as ever. */
static int64_t hurried_ns;

static int64_t real_ns(void)
{
    struct timespec now;
    require(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
    enum { HURRY = 50 };
    if (clock != CLOCK_MONOTONIC || hurried_ns == 0)
        return (int)syscall(SYS_clock_gettime, clock, now);
    const int64_t ns = hurried_ns + (real_ns() - hurried_ns) * HURRY;
    *now = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

static void say(const char *format, ...)
{
    (void)format;
}

/* Ten seconds by the clock, however long the system takes for each look. */
TEST(a_step_that_no_host_answers_is_an_error_after_ten_seconds)
{
    struct host host;
    side_make(&host, 0);
    host.ccomm->host.log = say;
    host.common->classes.classes[CLASS].limit = 1;
    hurried_ns = real_ns();
    const int64_t began = now_ms();
    unsigned levels[MOST];
    issue_until(&host, 2, levels);
    const int64_t took = now_ms() - began;
    ck_assert(took >= 10000 && took < 20000);
    ck_assert(ccomm_has_failed(host.ccomm));
    hurried_ns = 0;
    side_end(&host);
}

/* The last rank has one of its first operations in a group, or is late with them. */
TEST_LOOP(a_class_whose_first_operations_a_rank_groups_is_not_cut, 2)
{
    struct common *common = common_make();
    struct coll_ccomm *first = ccomm_make(common, 0), *second = ccomm_make(common, 1), *last = ccomm_make(common, 2);
    for (int i = 0; i < 2 * OP_CLASS_ALONE; i++) {
        ck_assert(!op_class_issue(first, CLASS, &cost, false, true).cut);
        ck_assert(!op_class_issue(second, CLASS, &cost, false, true).cut);
    }
    for (int i = 0; i < 2 * OP_CLASS_ALONE; i++)
        ck_assert(!op_class_issue(last, CLASS, &cost, _i == 1 && i == OP_CLASS_ALONE - 1, true).cut);
    ck_assert(op_class_issue(first, CLASS, &cost, false, true).cut == (_i == 0));
    ck_assert(op_class_issue(last, CLASS, &cost, false, true).cut == (_i == 0));
    ccomm_free(first);
    ccomm_free(second);
    ccomm_free(last);
}

/* Later, one of them is in a group: of the rank that comes to it first, of one that comes behind others, or too short
 * to be cut. */
TEST_LOOP(a_class_is_not_cut_from_its_first_grouped_operation_on, 3)
{
    struct common *common = common_make();
    struct coll_ccomm *ranks[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        ranks[rank] = ccomm_make(common, rank);
    for (int i = 0; i < OP_CLASS_ALONE; i++)
        for (int rank = 0; rank < RANKS; rank++)
            (void)op_class_issue(ranks[rank], CLASS, &cost, false, true);
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert(op_class_issue(ranks[rank], CLASS, &cost, false, true).cut);
    for (int rank = 0; rank < RANKS; rank++) {
        const bool grouped = rank == (_i == 1 ? RANKS - 1 : 0), long_enough = _i < 2;
        const struct issued issued = op_class_issue(ranks[rank], CLASS, &cost, grouped, long_enough);
        ck_assert(issued.cut == (_i == 1 && !grouped));
        ck_assert(issued.differs == (_i == 1 && grouped));
    }
    for (int rank = 0; rank < RANKS && _i != 1; rank++) {
        const struct issued issued = op_class_issue(ranks[rank], CLASS, &cost, _i == 0 && rank == 1, true);
        ck_assert(issued.cut == (_i == 2) && !issued.differs);
    }
    for (int rank = 0; rank < RANKS; rank++)
        ccomm_free(ranks[rank]);
}

TEST(a_process_may_end_while_it_holds_the_lock)
{
    struct common *common = common_make();
    pid_t pid = fork();
    if (pid == 0) {
        pthread_mutex_lock(&common->classes.lock);
        raise(SIGKILL);
    }
    ck_assert_int_eq(end_of(pid), 256 + SIGKILL);
    struct coll_ccomm *ccomm = ccomm_make(common, 0);
    for (uint64_t i = 0; i < 3; i++)
        ck_assert_uint_eq(op_class_issue(ccomm, CLASS, &cost, false, true).index, i);
    ccomm_free(ccomm);
}

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

enum { TURNS = 40, STEPS = 3, BYTES_MAX = 9 << 20, BLOCKS_MAX = 128 };

struct side {
    struct ring_set rings;
    struct ring_ends *ends;
    unsigned rank;
};

static uint8_t value_of(unsigned turn, unsigned step, unsigned from, unsigned to, uint64_t at)
{
    return (uint8_t)(turn * 7 + step * 31 + from * 57 + to * 91 + at * 13 + (at >> 12));
}

/* Everybody draws the same: how long messages are, and which of them do not fit. */
struct drawn {
    uint64_t bytes;
    bool overflows[RANKS][RANKS];
};

static struct drawn draw(struct rng *rng)
{
    struct drawn drawn = {.bytes = 1 + rng_next(rng) % (rng_next(rng) % 4 == 0 ? BYTES_MAX : 300000)};
    for (unsigned from = 0; from < RANKS; from++)
        for (unsigned to = 0; to < RANKS; to++)
            drawn.overflows[from][to] = from != to && rng_next(rng) % 2 == 0;
    return drawn;
}

struct step {
    struct drawn drawn;
    struct message_head sent[RANKS], received[RANKS];
    uint32_t found[RANKS];
    uint8_t *out, *in;
};

static void fill(struct step *step, unsigned turn, unsigned number, unsigned me)
{
    step->out = malloc(step->drawn.bytes * RANKS);
    step->in = calloc(RANKS, step->drawn.bytes);
    require(step->out != NULL && step->in != NULL);
    for (unsigned to = 0; to < RANKS; to++)
        for (uint64_t at = 0; at < step->drawn.bytes; at++)
            step->out[to * step->drawn.bytes + at] = value_of(turn, number, me, to, at);
}

/* Heads come by NCCL; here by what everybody knows. `next`: of every rank. */
static void write_heads(struct step *step, const struct side *side, uint64_t next[RANKS])
{
    const uint64_t slots = ring_slots(&side->rings, step->drawn.bytes);
    for (unsigned from = 0; from < RANKS; from++) {
        bool any = false;
        for (unsigned to = 0; to < RANKS; to++) {
            const bool overflows = step->drawn.overflows[from][to];
            any |= overflows;
            if (from == side->rank) {
                step->sent[to].first = next[from];
                for (unsigned i = 0; i < RANKS; i++)
                    step->sent[i].row.words[0] |= (uint64_t)overflows << to;
            } else if (to == side->rank) {
                step->received[from].first = next[from];
                step->found[from] = overflows ? MESSAGE_OVERFLOWS : MESSAGE_FITS;
            }
        }
        next[from] += any ? slots : 0;
    }
}

static struct exchange_job job_of(struct step *step)
{
    return (struct exchange_job){.send = step->out,
                                 .sent = (void *)step->sent,
                                 .receive = step->in,
                                 .received = (void *)step->received,
                                 .found = step->found,
                                 .send_stride = step->drawn.bytes,
                                 .sent_stride = sizeof(struct message_head),
                                 .receive_stride = step->drawn.bytes,
                                 .received_stride = sizeof(struct message_head),
                                 .bytes = step->drawn.bytes,
                                 .peer = -1,
                                 .step = 1};
}

static void run(const struct gpu_exchange *call)
{
    struct exchange_block blocks[BLOCKS_MAX];
    const uint32_t count = ring_ends_all(&call->rings);
    bool over[BLOCKS_MAX] = {false};
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = exchange_begin(call, i);
    for (uint32_t left = count; left > 0;) {
        bool moved = false;
        for (uint32_t i = 0; i < count; i++) {
            if (over[i])
                continue;
            const enum exchange_state state = exchange_step(call, &blocks[i]);
            over[i] = state == EXCHANGE_DONE;
            left -= over[i];
            moved |= state == EXCHANGE_MOVED;
        }
        if (!moved)
            usleep(50);
    }
}

static void check(const struct step *step, unsigned turn, unsigned number, unsigned me)
{
    for (unsigned from = 0; from < RANKS; from++)
        for (uint64_t at = 0; at < step->drawn.bytes; at++) {
            const uint8_t expected =
                step->drawn.overflows[from][me] ? value_of(turn, number, from, me, at) : (uint8_t)0;
            require(step->in[from * step->drawn.bytes + at] == expected);
        }
}

static void exchange_all(struct side *side)
{
    struct rng rng = rng_init(5);
    uint64_t next[RANKS] = {0};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        struct step steps[STEPS] = {0};
        struct exchange_job jobs[STEPS];
        const unsigned count = 1 + turn % STEPS;
        for (unsigned i = 0; i < count; i++) {
            steps[i].drawn = draw(&rng);
            fill(&steps[i], turn, i, side->rank);
            write_heads(&steps[i], side, next);
        }
        for (unsigned i = 0; i < count; i++) /* in any order of jobs */
            jobs[i] = job_of(&steps[(i + side->rank) % count]);
        const struct gpu_exchange call = {
            .rings = side->rings, .ends = side->ends, .jobs = jobs, .count = count, .kind = EXCHANGE_BEHIND};
        run(&call);
        for (unsigned i = 0; i < count; i++) {
            check(&steps[i], turn, i, side->rank);
            free(steps[i].out);
            free(steps[i].in);
        }
    }
}

static void be_side(const struct segment_info *card, size_t size, unsigned rank)
{
    struct segment segment;
    require(segment_open(&segment, size, card));
    struct side side = {.rank = rank, .ends = calloc(1, ring_ends_size(RANKS))};
    const struct rank_set here = {{(1u << RANKS) - 1}};
    require(side.ends != NULL);
    ring_numbers(ring_ends_numbers(side.ends, RANKS), &here, rank, RANKS);
    side.rings = (struct ring_set){.flags = segment.memory + 4096,
                                   .slots = segment.memory + 4096 + ring_flags_size(RANKS, ring_count(&here, RANKS)),
                                   .numbers = ring_ends_numbers(side.ends, RANKS),
                                   .rank = rank,
                                   .ranks = RANKS,
                                   .teams = ring_teams(RANKS),
                                   .slot_bytes = ring_slot_bytes(RANKS),
                                   .depth = ring_depth(RANKS),
                                   .records = ring_records(RANKS)};
    exchange_all(&side);
    free(side.ends);
    segment_close(&segment);
}

TEST(overflow_goes_from_process_to_process)
{
    const size_t count = (size_t)RANKS * (RANKS - 1);
    const size_t size = 4096 + ring_flags_size(RANKS, count) + ring_slots_size(RANKS, count);
    struct segment made;
    struct segment_info card;
    pid_t pids[RANKS];
    ck_assert(segment_make(&made, size, (struct segment_hole){0}, &card));
    for (unsigned rank = 0; rank < RANKS; rank++)
        if ((pids[rank] = fork()) == 0) {
            be_side(&card, size, rank);
            _exit(0);
        }
    for (int rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(end_of(pids[rank]), 0);
    segment_close(&made);
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

TEST(rings_are_cut_alike_for_any_number_of_ranks)
{
    for (uint32_t ranks = 2; ranks <= COLL_RANKS_MAX; ranks++) {
        const uint32_t slot = ring_slot_bytes(ranks), teams = ring_teams(ranks), depth = ring_depth(ranks);
        const struct ring_set rings = {.ranks = ranks, .teams = teams};
        ck_assert(slot >= RING_SLOT_UNIT && slot % RING_SLOT_UNIT == 0);
        ck_assert(slot <= RING_BYTES / ranks || ranks > RING_FEW_RANKS);
        ck_assert(depth <= RING_SLOTS && depth % teams == 0 && teams >= 1 && depth >= 2 && RING_SLOTS % depth == 0);
        ck_assert(ranks > RING_FEW_RANKS || (teams * (ranks - 1) <= 63 && depth == RING_SLOTS));
        ck_assert(ring_blocks(&rings) <= RING_BLOCKS_MAX && RING_RECORDS % ring_records(ranks) == 0);
    }
}

/* Each host has `neighbours` ranks. Every two ranks have one ring each way, in the memory of each of their hosts, and
 * no two rings are one. */
static const struct {
    uint32_t ranks, neighbours;
} divided[] = {{2, 1}, {2, 2}, {3, 2}, {8, 3}, {65, 65}, {130, 8}, {256, 8}, {256, 256}, {1000, 7}, {1024, 8}};

static struct rank_set host_of(uint32_t rank, uint32_t ranks, uint32_t neighbours)
{
    struct rank_set here = {0};
    for (uint32_t i = rank / neighbours * neighbours; i < ranks && i / neighbours == rank / neighbours; i++)
        rank_set_add(&here, i);
    return here;
}

TEST_LOOP(a_host_has_the_rings_of_its_ranks, COUNT(divided))
{
    const uint32_t ranks = divided[_i].ranks, neighbours = divided[_i].neighbours;
    for (uint32_t first = 0; first < ranks; first += neighbours * (1 + ranks / 200)) {
        const struct rank_set here = host_of(first, ranks, neighbours);
        const size_t count = ring_count(&here, ranks);
        uint32_t *numbers = calloc(2 * ranks, sizeof(*numbers)), seen = 0;
        uint64_t *ends = calloc(count, sizeof(*ends)); /* of each ring: from and to, from 1 on */
        require(numbers != NULL && ends != NULL);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            if (!rank_set_has(&here, rank))
                continue;
            ring_numbers(numbers, &here, rank, ranks);
            for (uint32_t peer = 0; peer < ranks; peer++)
                for (uint32_t out = 0; out < 2 && peer != rank; out++) {
                    const uint32_t number = numbers[out != 0 ? peer : ranks + peer];
                    const uint64_t own =
                        out != 0 ? (uint64_t)(rank + 1) << 32 | (peer + 1) : (uint64_t)(peer + 1) << 32 | (rank + 1);
                    ck_assert(number < count);
                    ck_assert(ends[number] == 0 || ends[number] == own);
                    seen += ends[number] == 0;
                    ends[number] = own;
                }
        }
        ck_assert_uint_eq(seen, count);
        free(numbers);
        free(ends);
    }
}

/* Bytes of host memory for rings, of each rank: on one host as on many, with few ranks as with many. */
TEST_LOOP(rings_take_so_much_of_each_rank_and_no_more, COUNT(divided))
{
    const uint32_t ranks = divided[_i].ranks, neighbours = divided[_i].neighbours;
    const struct rank_set here = host_of(0, ranks, neighbours);
    const size_t count = ring_count(&here, ranks);
    const size_t each = (ring_flags_size(ranks, count) + ring_slots_size(ranks, count)) / neighbours;
    ck_assert_uint_le(each, ranks > 256 ? 21 << 20 : ranks > RING_FEW_RANKS ? 10 << 20 : 26 << 20);
}

int main(void)
{
    return run_tests("coll_share", NULL, NULL);
}
