#include "collective/engine/levels.h"

#include <errno.h>
#include <time.h>

#include "collective/engine/ccomm.h"
#include "transport/rank_address.h"

/* A single overflow may be chance; two, the second soon after the first, are the nature of the data. So is one overflow
 * of a try: the data is what it was before. */
enum { NEAR = 64, REST_SHORTEST = 1024, REST_LONGEST = 16384 };

/* A prime, so that tries reach all layers that a program cycles through. */
enum { TRY_EVERY = 61, TRIES_UNTIL = 16 * TRY_EVERY };

/* Above 952 of 1024, coding saves less than 7 % and costs more than that gains. */
enum { STEP = 8, SHARE_MAX = 952 };

unsigned levels_share(coll_type type, unsigned level)
{
    const unsigned first = type == COLL_BF16 || type == COLL_UINT8 ? 700 : type == COLL_FP16 ? 896 : 360;
    return level <= (SHARE_MAX - first) / STEP ? first + STEP * level : 0;
}

unsigned levels_fitting(coll_type type, unsigned share)
{
    unsigned level = 0;
    while (levels_share(type, level) != 0 && levels_share(type, level) < share)
        level++;
    return level;
}

static bool is_try(const struct level_span *span, uint64_t index)
{
    return span->until > span->from && index >= span->until && index - span->until < TRIES_UNTIL &&
           (index - span->until) % TRY_EVERY == 0;
}

unsigned levels_at(const struct level *level, uint64_t index)
{
    const struct level_span *span = index >= level->now.from ? &level->now : &level->old;
    if (index < span->from || index >= span->until + TRIES_UNTIL || is_try(span, index))
        return 0;
    return span->level;
}

bool levels_overflowed(struct level *level, uint64_t index, unsigned fitting)
{
    if (index < level->now.from) /* it was under way when the step was agreed on */
        return false;
    const bool same = level->seen && index == level->last; /* a repeated graph */
    const bool again = is_try(&level->now, index) || (level->seen && !same && index - level->last <= NEAR);
    level->seen = true;
    level->last = index;
    if ((!again && !same) || fitting > level->wanted)
        level->wanted = fitting;
    return again;
}

void levels_needed(struct level *level, uint64_t index, unsigned fitting)
{
    if (index >= level->now.from && level->seen && fitting > level->wanted)
        level->wanted = fitting;
}

/* Each failed try doubles the rest before the next one. */
static uint64_t rest_after(const struct level *level, uint64_t overflowed)
{
    if (level->rest == 0 || overflowed >= level->now.until + TRIES_UNTIL)
        return REST_SHORTEST;
    return is_try(&level->now, overflowed) && level->rest < REST_LONGEST ? 2 * level->rest : level->rest;
}

void levels_step(struct level *level, uint64_t overflowed, uint64_t from)
{
    const unsigned above = levels_at(level, overflowed) + 1;
    const unsigned next = level->wanted > above ? level->wanted : above;
    level->rest = rest_after(level, overflowed);
    level->old = level->now;
    level->now = (struct level_span){.from = from, .until = from + level->rest, .level = next};
    level->wanted = 0;
    level->seen = false;
}

void levels_rest(struct level *level, uint64_t rest, uint64_t from)
{
    level->old = level->now;
    level->now = (struct level_span){.from = from, .until = from + rest, .level = LEVEL_SLOW};
    level->rest = rest;
    level->wanted = 0;
    level->seen = false;
}

/* ---- Op classes -------------------------------------------------------------------------------------------------- */

enum { COLLECTIVES = CCOMM_OPERATIONS * CCOMM_TYPES, BYTES = CCOMM_TYPES - 1 };

/* Limit for awaiting a step. Normally it takes no longer than a question and its answer, as no GPU is involved. */
enum { LOOK_NS = 20000, STEP_MS = 10000 };

size_t op_classes_pairs_at(void)
{
    return sizeof(struct op_classes) + COLLECTIVES * sizeof(struct op_class);
}

size_t op_classes_size(int ranks)
{
    const size_t pairs = (size_t)ranks * (size_t)ranks * CCOMM_TYPES;
    return op_classes_pairs_at() + pairs * sizeof(struct op_class);
}

bool op_classes_init(struct op_classes *classes)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0)
        return false;
    const bool good = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                      pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                      pthread_mutex_init(&classes->lock, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    return good;
}

/* Keys of pairs are local to each side, numbers are not. */
static uint32_t class_index(const struct coll_ccomm *ccomm, unsigned local_class)
{
    if (local_class < COLLECTIVES)
        return local_class;
    const unsigned ranks = (unsigned)ccomm->ranks, me = (unsigned)ccomm->rank;
    const unsigned row = (local_class - COLLECTIVES) / CCOMM_TYPES, type = (local_class - COLLECTIVES) % CCOMM_TYPES;
    const unsigned from = row < ranks ? me : row - ranks, to = row < ranks ? row : me;
    return op_class_of_pair(ccomm, (int)from, (int)to) + type;
}

/* ---- On several hosts -------------------------------------------------------------------------------------------- */

uint32_t op_class_count(const struct coll_ccomm *ccomm)
{
    return COLLECTIVES + (uint32_t)ccomm->ranks * (uint32_t)ccomm->ranks * CCOMM_TYPES;
}

uint32_t op_class_own_count(const struct coll_ccomm *ccomm)
{
    return COLLECTIVES + (uint32_t)ccomm->ranks * CCOMM_TYPES;
}

uint32_t op_class_own(const struct coll_ccomm *ccomm, uint32_t index)
{
    return index < COLLECTIVES ? index : op_class_of_pair(ccomm, ccomm->rank, 0) + index - COLLECTIVES;
}

uint32_t op_class_own_index(const struct coll_ccomm *ccomm, uint32_t number)
{
    return number < COLLECTIVES ? number : COLLECTIVES + number - op_class_of_pair(ccomm, ccomm->rank, 0);
}

uint32_t op_class_of_pair(const struct coll_ccomm *ccomm, int from, int to)
{
    return COLLECTIVES + ((uint32_t)from * (uint32_t)ccomm->ranks + (uint32_t)to) * CCOMM_TYPES;
}

int op_class_decider(const struct coll_ccomm *ccomm, uint32_t number)
{
    const struct host_groups *hosts = &ccomm->shared.groups;
    if (number < COLLECTIVES)
        return ccomm->shared.multi_host ? 0 : -1;
    const int pair = (int)((number - COLLECTIVES) / CCOMM_TYPES);
    const int from = pair / ccomm->ranks, to = pair % ccomm->ranks;
    return !ccomm->shared.multi_host || host_groups_same(hosts, from, to) ? -1 : from;
}

bool op_class_is_asked(const struct coll_ccomm *ccomm, uint32_t number, int rank)
{
    if (number < COLLECTIVES)
        return rank != 0 && ccomm->shared.groups.leader[rank] == rank;
    return rank == (int)((number - COLLECTIVES) / CCOMM_TYPES) % ccomm->ranks;
}

/* Does the rank issue operations of the op class, and use the same copy as this one? */
static bool is_here(const struct coll_ccomm *ccomm, uint32_t number, int rank)
{
    const int pair = (int)((number - COLLECTIVES) / CCOMM_TYPES);
    const bool takes_part = number < COLLECTIVES || rank == pair / ccomm->ranks || rank == pair % ccomm->ranks;
    return takes_part && (!ccomm->shared.multi_host || host_groups_same(&ccomm->shared.groups, rank, ccomm->rank));
}

bool op_class_is_past(const struct coll_ccomm *ccomm, uint32_t number)
{
    bool all = true;
    for (int rank = 0; rank < ccomm->ranks; rank++)
        all &=
            !is_here(ccomm, number, rank) || rank_set_has(&ccomm->shared.classes->classes[number].past, (uint32_t)rank);
    return all;
}

/* Whether it is compressed whatever it costs. */
static bool is_told(const struct coll_ccomm *ccomm, uint32_t number)
{
    /* The row of the table of sizes, by operation; an all_reduce has two, its phases. */
    enum { PAIRS = 4 };
    static const uint8_t rows[CCOMM_OPERATIONS] = {0, 1, 2, 3, 3, 5};
    const struct coll_sizes *table = &ccomm->host.settings.table;
    const uint32_t row = number >= COLLECTIVES ? PAIRS : rows[number / CCOMM_TYPES];
    const uint32_t column = number % CCOMM_TYPES;
    return ccomm->forced || (column < COLL_SIZES_TYPES && table->from[row][column] != 0);
}

/* By the links as they were measured: NCCL moves an operation of the class faster than overflows are moved. */
static bool overflows_are_slow(const struct coll_ccomm *ccomm, uint32_t number)
{
    const double *per = ccomm->cost.per;
    const double by_class[CCOMM_OPERATIONS] = {
        per[LINK_GATHER],  per[LINK_EXCHANGE],
        per[LINK_SCATTER], ccomm->ranks > 2 ? per[LINK_SCATTER] : (per[LINK_SCATTER] + per[LINK_GATHER]) / 2,
        per[LINK_GATHER],  per[LINK_GATHER] / (ccomm->ranks - 1)};
    const double plain =
        number < COLLECTIVES ? by_class[number / CCOMM_TYPES] : per[LINK_EXCHANGE] / (ccomm->ranks - 1);
    return ccomm->cost.overflow > plain;
}

bool op_class_is_budgeted(const struct coll_ccomm *ccomm, uint32_t number)
{
    const bool unknown = number % CCOMM_TYPES == BYTES && ccomm->host.settings.bytes == COLL_BYTES_AUTO;
    return !is_told(ccomm, number) &&
           (unknown || op_class_decider(ccomm, number) >= 0 || overflows_are_slow(ccomm, number));
}

bool op_class_has_budget(const struct coll_ccomm *ccomm, unsigned local_class)
{
    return op_class_is_budgeted(ccomm, class_index(ccomm, local_class));
}

void op_class_step(const struct coll_ccomm *ccomm, uint32_t number, uint64_t from)
{
    struct op_class *op_class = &ccomm->shared.classes->classes[number];
    if (op_class_is_budgeted(ccomm, number))
        budget_step(&op_class->budget, &op_class->level, from);
    else
        levels_step(&op_class->level, op_class->overflow, from);
    op_class->past = (struct rank_set){0};
}

/* ---- Overflows --------------------------------------------------------------------------------------------------- */

/* A step that other copies take over begins when all of them have promised. */
static void want(struct op_classes *classes, struct op_class *op_class, uint64_t overflow)
{
    op_class->overflow = overflow;
    op_class->limit = op_class->level.issued + OP_CLASS_AHEAD;
    __atomic_fetch_add(&classes->wanted, 1, __ATOMIC_RELEASE);
}

/* Whether it is time for a step of the op class. */
static bool is_time(const struct coll_ccomm *ccomm, uint32_t number, const struct report *report, bool known)
{
    struct op_class *op_class = &ccomm->shared.classes->classes[number];
    const coll_type type = ccomm_local_class_type(report->local_class);
    const unsigned share = report->share & ~REPORT_PROBE;
    const bool is_budgeted = op_class_is_budgeted(ccomm, number);
    if (!is_budgeted && known)
        levels_needed(&op_class->level, report->index, levels_fitting(type, share));
    if (!is_budgeted)
        return !known && levels_overflowed(&op_class->level, report->index, levels_fitting(type, share));
    const struct need need = {report->index, levels_fitting(type, share), levels_fitting(type, 1024), known};
    return (report->share & REPORT_PROBE) != 0 ? budget_probed(&op_class->budget, &op_class->level, &need)
                                               : budget_overflowed(&op_class->budget, &op_class->level, &need);
}

/* At once, where one copy is all there is. */
static void step(const struct coll_ccomm *ccomm, uint32_t number, uint64_t overflow)
{
    struct op_classes *classes = ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[number];
    if (op_class_decider(ccomm, number) >= 0) {
        want(classes, op_class, overflow);
        return;
    }
    op_class->overflow = overflow;
    op_class_step(ccomm, number, op_class->level.issued);
}

/* Does each rank see the overflows of its own rail alone? Those of the deciding host together see all of them. */
static bool is_by_rail(const struct coll_ccomm *ccomm, uint32_t number)
{
    static const bool sums[CCOMM_OPERATIONS] = {false, false, true, true, false, false};
    return ccomm->shared.rails.each > 0 && number < COLLECTIVES && sums[number / CCOMM_TYPES];
}

/* Of an operation that overflows on several rails the first report counts. A rank whose report counts last goes on to
 * be the one, also for what it reports of a graph again and again, until another rank reports a later operation. */
static bool is_known(const struct coll_ccomm *ccomm, uint32_t number, const struct report *report)
{
    struct op_class *op_class = &ccomm->shared.classes->classes[number];
    const uint64_t rank = 1 + (uint64_t)ccomm->rank;
    if (!is_by_rail(ccomm, number)) {
        const bool known = report->count <= op_class->overflows;
        op_class->overflows = known ? op_class->overflows : report->count;
        return known;
    }
    const bool later = report->index >= op_class->told, known = !later && rank != op_class->teller;
    op_class->told = later ? report->index + 1 : op_class->told;
    op_class->teller = known ? op_class->teller : rank;
    return known;
}

/* The first rank that reads of an overflow considers it, for all. */
static void consider(struct coll_ccomm *ccomm, const struct report *report)
{
    if (report->local_class >= ccomm_local_classes(ccomm))
        return;
    struct op_classes *classes = ccomm->shared.classes;
    const uint32_t number = class_index(ccomm, report->local_class);
    struct op_class *op_class = &classes->classes[number];
    const int decider = op_class_decider(ccomm, number);
    if (decider >= 0 && !host_groups_same(&ccomm->shared.groups, decider, ccomm->rank))
        return;
    const bool known = is_known(ccomm, number, report);
    if (known && !is_by_rail(ccomm, number))
        return;
    /* A budget that has decided before all ranks were past its last step is waiting for it. */
    const bool due = is_time(ccomm, number, report, known) || op_class->budget.decided;
    if (due && op_class->limit == 0 && op_class_is_past(ccomm, number))
        step(ccomm, number, report->index);
}

/* Times are those of operations whose sizes vary, and of the programs' own: what is raw in any case need not be. */
static bool compares(const struct coll_ccomm *ccomm, uint32_t number)
{
    return number < COLLECTIVES && !is_told(ccomm, number);
}

void op_class_timed(struct coll_ccomm *ccomm, unsigned local_class, bool raw, double relative)
{
    struct op_classes *classes = ccomm->shared.classes;
    const uint32_t number = class_index(ccomm, local_class);
    struct op_class *op_class = &classes->classes[number];
    op_classes_lock(classes);
    const uint64_t rest = compare_add(&op_class->comparison, raw, relative);
    if (rest > 0 && op_class->limit == 0 && op_class_is_past(ccomm, number)) {
        if (!op_class_is_budgeted(ccomm, number)) {
            levels_rest(&op_class->level, rest, op_class->level.issued);
            op_class->past = (struct rank_set){0};
        } else if (budget_rest(&op_class->budget, rest) || op_class->budget.decided) {
            step(ccomm, number, op_class->level.issued);
        }
    }
    op_classes_unlock(classes);
}

double op_class_compared(const struct coll_ccomm *ccomm, unsigned local_class, uint64_t *compared)
{
    const struct comparison *of = &ccomm->shared.classes->classes[class_index(ccomm, local_class)].comparison;
    double latest;
    *compared = __atomic_load_n(&of->compared, __ATOMIC_ACQUIRE);
    __atomic_load(&of->latest, &latest, __ATOMIC_RELAXED);
    return *compared > 0 ? latest : 0;
}

/* Reports that were overwritten before they were read are lost: there will be more. */
static void read_reports(struct coll_ccomm *ccomm)
{
    const struct host_status *host_status = ccomm->host_status;
    const uint64_t reported = __atomic_load_n(&host_status->reported, __ATOMIC_ACQUIRE);
    tally_read(ccomm);
    if (reported - ccomm->reports_read > REPORTS_MAX / 2)
        ccomm->reports_read = reported - REPORTS_MAX / 2;
    for (; ccomm->reports_read < reported; ccomm->reports_read++)
        consider(ccomm, &host_status->reports[ccomm->reports_read % REPORTS_MAX]);
}

/* Spins first: the lock is held for less time than sleeping and waking takes, and ranks come at the same time. */
static int lock_soon(struct op_classes *classes)
{
    enum { TURNS = 1000 };
    for (int i = 0; i < TURNS; i++) {
        const int error = pthread_mutex_trylock(&classes->lock);
        if (error != EBUSY)
            return error;
    }
    return pthread_mutex_lock(&classes->lock);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* A process that ended with the lock held leaves consistent data: numbers, any of which are valid. */
void op_classes_lock(struct op_classes *classes)
{
    if (lock_soon(classes) == EOWNERDEAD)
        (void)pthread_mutex_consistent(&classes->lock);
}

void op_classes_unlock(struct op_classes *classes)
{
    pthread_mutex_unlock(&classes->lock);
}

/* The step depends only on threads that answer each other, not on what callers do meanwhile. */
static void await_step(struct coll_ccomm *ccomm, const struct op_class *op_class, uint64_t index)
{
    struct op_classes *classes = ccomm->shared.classes;
    int64_t since_ms = 0;
    while (op_class->limit != 0 && index >= op_class->limit &&
           __atomic_load_n(&ccomm->host_status->abort, __ATOMIC_ACQUIRE) == 0) {
        op_classes_unlock(classes);
        since_ms = since_ms == 0 ? now_ms() : since_ms;
        if (now_ms() - since_ms >= STEP_MS) {
            ccomm_fail(ccomm, COLL_REMOTE_ERROR, "another host has not answered");
            ccomm_abort_kernels(ccomm);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        }
        op_classes_lock(classes);
    }
}

static void count_alone(const struct coll_ccomm *ccomm, struct op_class *op_class, uint64_t index)
{
    if (index >= OP_CLASS_ALONE)
        return;
    op_class->alone++;
    if (op_class->alone == (uint64_t)OP_CLASS_ALONE * (uint64_t)ccomm->ranks)
        op_class->cut_from = op_class->level.issued;
}

static bool is_cut(const struct op_class *op_class, uint64_t index)
{
    return op_class->cut_from > 0 && index >= op_class->cut_from &&
           (op_class->cut_until == 0 || index < op_class->cut_until);
}

/* The operation's level, as the first rank of this copy that issues it counts it. */
static unsigned level_of(struct coll_ccomm *ccomm, uint32_t number, uint64_t index, const struct op_cost *cost)
{
    struct op_class *op_class = &ccomm->shared.classes->classes[number];
    if (!op_class_is_budgeted(ccomm, number))
        return levels_at(&op_class->level, index);
    const unsigned level = budget_level_at(&op_class->level, index);
    if (index >= op_class->level.issued)
        budget_issue(&op_class->budget, level, cost);
    return level;
}

/* Whether the operation is left raw, to be timed: of those that compress, and while a class that was too slow tries
 * again, of those between. */
static bool is_left_raw(const struct coll_ccomm *ccomm, uint32_t number, uint64_t index, unsigned level)
{
    const struct level *of = &ccomm->shared.classes->classes[number].level;
    const struct level_span *span = index >= of->now.from ? &of->now : &of->old;
    if (level == LEVEL_SLOW)
        return !op_class_is_budgeted(ccomm, number) && index > span->until && is_try(span, index - 1);
    return level < LEVEL_RAW && compare_leaves_raw(index - span->from);
}

/* Of those that compress, enough that as many are timed as are left raw: the others need no events. */
static bool is_timed(const struct coll_ccomm *ccomm, uint32_t number, uint64_t index, unsigned level)
{
    enum { EVERY = 8 };
    const struct level *of = &ccomm->shared.classes->classes[number].level;
    const struct level_span *span = index >= of->now.from ? &of->now : &of->old;
    return level < LEVEL_RAW && (index % EVERY == 0 || is_try(span, index));
}

struct issued op_class_issue(struct coll_ccomm *ccomm, unsigned local_class, const struct op_cost *cost, bool grouped,
                             bool long_enough)
{
    struct op_classes *classes = ccomm->shared.classes;
    const uint32_t number = class_index(ccomm, local_class);
    struct op_class *op_class = &classes->classes[number];
    op_classes_lock(classes);
    read_reports(ccomm);
    const uint64_t index = ccomm->issued[local_class]++;
    await_step(ccomm, op_class, index);
    if (grouped && long_enough)
        /* A rank has the operation in a group. If it is the first to come to it, others will not cut it. */
        if (is_cut(op_class, index) && op_class->level.issued <= index)
            op_class->cut_until = index;
    const unsigned level = level_of(ccomm, number, index, cost);
    if (op_class->level.issued < index + 1)
        op_class->level.issued = index + 1;
    if (index >= op_class->level.now.from)
        rank_set_add(&op_class->past, (uint32_t)ccomm->rank);
    const bool stopped = classes->stopped != 0 && index >= op_class->stop;
    const bool cut = long_enough && is_cut(op_class, index);
    const bool left_raw = compares(ccomm, number) && is_left_raw(ccomm, number, index, level);
    const bool timed = compares(ccomm, number) && (left_raw || is_timed(ccomm, number, index, level));
    const struct issued issued = {index, level, cut && !grouped, cut && grouped, stopped, left_raw, timed};
    if (!grouped)
        count_alone(ccomm, op_class, index);
    op_classes_unlock(classes);
    return issued;
}

/* level.issued stays: it then says too much, and the next step comes later than it could. */
void op_class_forget(struct coll_ccomm *ccomm, unsigned local_class, uint64_t index)
{
    struct op_classes *classes = ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[class_index(ccomm, local_class)];
    op_classes_lock(classes);
    if (index < ccomm->issued[local_class])
        ccomm->issued[local_class] = index;
    if (index <= op_class->level.now.from) /* it will ask again */
        rank_set_drop(&op_class->past, (uint32_t)ccomm->rank);
    op_classes_unlock(classes);
}

void op_classes_stop(struct coll_ccomm *ccomm)
{
    struct op_classes *classes = ccomm->shared.classes;
    if (ccomm->shared.multi_host)
        return;
    op_classes_lock(classes);
    for (uint32_t i = 0; i < op_class_count(ccomm) && classes->stopped == 0; i++)
        classes->classes[i].stop = classes->classes[i].level.issued;
    classes->stopped = 1;
    op_classes_unlock(classes);
}
