/* The model test: every order of events in the world of two daemons (model_world.h) up to a depth is explored; every
 * state that is reached is checked, and from each of them a run without further faults has to come to its end. Worlds
 * with planted bugs show that this would find them. */
#include <check.h>
#include <string.h>

#include "tests/protocol/model_world.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { DEPTH_MAX = 40 };

/* ---- Fair runs --------------------------------------------------------------------------------------------------- */

enum { FAIR_STEPS = 400 };

/* Does what is to be done until nothing is left. */
static void run_fair(struct world *world)
{
    struct choices choices;
    for (int step = 0; step < FAIR_STEPS && violation == NULL; step++) {
        list_choices(world, &choices);
        int i = 0;
        while (i < choices.count && choices.list[i].kind >= UNFAIR)
            i++;
        if (i == choices.count)
            return;
        apply(world, choices.list[i]);
        check_jobs(world);
        if (world->crowded)
            return;
    }
    claim(false, "a run without faults comes to rest");
}

static void check_free(const struct world *world, const char *fact)
{
    for (int s = 0; s < setting.slots; s++)
        claim(world->slots[s].epoch == 0, fact);
    claim(world->send_used == 0, fact);
}

static void time_out(struct world *world)
{
    for (uint8_t e = 0; e < EPOCHS; e++) {
        if (leg_live(world, SINK, e))
            abort_leg(world, SINK, e, STRAIT_REASON_TIMEOUT);
        if (leg_live(world, SOURCE, e))
            abort_leg(world, SOURCE, e, STRAIT_REASON_LEASE_EXPIRED);
    }
}

static void check_over(const struct world *world)
{
    for (uint8_t e = 0; e < EPOCHS; e++)
        claim(!leg_live(world, SINK, e) && !leg_live(world, SOURCE, e), "every leg comes to its end");
}

/* Undisturbed transfers end with DONE. On a link without faults nothing else than a verdict is needed to close all legs
 * and free all slots; otherwise the end of the link is. */
static void check_ending(const struct world *from)
{
    struct world world = *from;
    world.faults = setting.faults;
    run_fair(&world);
    if (!world.disturbed && !world.crowded)
        claim(world.done[0] && world.phase[SOURCE][0] == PHASE_OVER && world.tomb[SOURCE][0] == STRAIT_REASON_NONE,
              "a transfer that nothing disturbs is done");
    time_out(&world);
    run_fair(&world);
    if (from->faults == 0 && !world.crowded) {
        check_free(&world, "a link without faults gives back all slots");
        check_over(&world);
    }
    world.broken |= !world.crowded;
    run_fair(&world);
    if (world.crowded)
        return;
    check_free(&world, "all slots become free");
    check_over(&world);
}

/* ---- Exploring --------------------------------------------------------------------------------------------------- */

enum { WORDS = sizeof(struct world) / 8, MAP_WORDS = (WORDS + 63) / 64 };

/* A state without its zeros: a map of the words that are there, then these. */
struct packed {
    uint16_t words;
    uint8_t depth;
    uint8_t path[DEPTH_MAX]; /* places in the lists of choices, from the beginning */
    uint64_t data[MAP_WORDS + WORDS];
};

static void pack(const struct world *world, struct packed *packed)
{
    const uint64_t *words = (const uint64_t *)(const void *)world;
    uint16_t count = MAP_WORDS;
    memset(packed->data, 0, MAP_WORDS * sizeof(packed->data[0]));
    for (int w = 0; w < WORDS; w++)
        if (words[w] != 0) {
            packed->data[w / 64] |= 1ull << w % 64;
            packed->data[count++] = words[w];
        }
    packed->words = count;
}

static void unpack(const struct packed *packed, struct world *world)
{
    uint64_t *words = (uint64_t *)(void *)world;
    const uint64_t *data = packed->data + MAP_WORDS;
    for (int w = 0; w < WORDS; w++)
        words[w] = (packed->data[w / 64] >> w % 64 & 1) != 0 ? *data++ : 0;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const struct packed *packed)
{
    uint64_t hash = 0x243F6A8885A308D3u;
    for (uint16_t i = 0; i < packed->words; i++)
        hash = mix(hash, packed->data[i]);
    hash = mix(hash, packed->words);
    return hash == 0 ? 1 : hash;
}

/* The states met: their hashes, of 64 bits. */
struct visited {
    uint64_t *table;
    uint64_t capacity, count;
};

static bool insert_hash(struct visited *visited, uint64_t hash)
{
    uint64_t at = hash & (visited->capacity - 1);
    while (visited->table[at] != 0 && visited->table[at] != hash)
        at = (at + 1) & (visited->capacity - 1);
    bool is_new = visited->table[at] == 0;
    visited->table[at] = hash;
    visited->count += is_new;
    return is_new;
}

static void grow(struct visited *visited)
{
    struct visited larger = {.capacity = visited->capacity == 0 ? 1u << 16 : visited->capacity * 2};
    larger.table = calloc(larger.capacity, sizeof(*larger.table));
    require(larger.table != NULL);
    for (uint64_t i = 0; i < visited->capacity; i++)
        if (visited->table[i] != 0)
            insert_hash(&larger, visited->table[i]);
    free(visited->table);
    *visited = larger;
}

static bool visit(struct visited *visited, uint64_t hash)
{
    if (visited->count * 2 >= visited->capacity)
        grow(visited);
    return insert_hash(visited, hash);
}

/* The states of one depth, one after another. */
struct level {
    uint8_t *bytes;
    size_t size, capacity;
};

static size_t packed_size(const struct packed *packed)
{
    return offsetof(struct packed, data) + packed->words * sizeof(packed->data[0]);
}

static void level_add(struct level *level, const struct packed *packed)
{
    size_t size = packed_size(packed);
    if (level->capacity - level->size < size) {
        level->capacity = level->capacity * 2 + 65536;
        level->bytes = realloc(level->bytes, level->capacity);
        require(level->bytes != NULL);
    }
    memcpy(level->bytes + level->size, packed, size);
    level->size += size;
}

static void begin(struct world *world)
{
    struct choices choices;
    memset(world, 0, sizeof(*world));
    expect(world);
    for (int i = 0; i < setting.ahead; i++) {
        list_choices(world, &choices);
        apply(world, choices.list[0]);
    }
}

static void print_choice(const struct world *world, struct choice choice)
{
    printf("    %s %d %d", choice_names[choice.kind], choice.a, choice.b);
    if (choice.kind == DELIVER || choice.kind == DROP || choice.kind == DOUBLE || choice.kind == DAMAGE) {
        static const char *const names[] = {"",         "request",  "grant", "revoke", "end to source",
                                            "segments", "released", "end",   "chunk"};
        const struct message *message = &world->net[choice.a];
        printf(": %s of epoch %d, grant %d, %d + %d", names[message->kind], message->epoch, message->id, message->first,
               message->count);
    }
    if (choice.kind == FINISH_JOB || choice.kind == FAIL_JOB) {
        static const char *const names[] = {"", "arrive", "decode", "encode", "send", "held", "wait"};
        const struct job *job = &world->jobs[choice.a][choice.b];
        printf(": %s of epoch %d, grant %d", names[job->kind], job->epoch, job->id);
    }
    printf("\n");
}

static void print_path(const uint8_t *path, int depth)
{
    struct world world;
    struct choices choices;
    begin(&world);
    printf("  after:\n");
    for (int i = 0; i < depth; i++) {
        list_choices(&world, &choices);
        print_choice(&world, choices.list[path[i]]);
        apply(&world, choices.list[path[i]]);
    }
}

struct tally {
    uint64_t states, transitions, crowded;
};

/* One step from a state: false when it led nowhere new. */
static bool take(const struct world *from, struct choice choice, struct visited *visited, struct packed *next,
                 struct tally *tally)
{
    struct world world = *from;
    apply(&world, choice);
    check_jobs(&world);
    tally->transitions++;
    if (violation != NULL)
        return true;
    tally->crowded += world.crowded;
    if (world.crowded)
        return false;
    pack(&world, next);
    if (!visit(visited, hash_of(next)))
        return false;
    check_ending(&world);
    return true;
}

static void expand(const struct packed *packed, struct visited *visited, struct level *next_level, struct tally *tally)
{
    struct world world;
    struct choices choices;
    struct packed next;
    unpack(packed, &world);
    list_choices(&world, &choices);
    for (int i = 0; i < choices.count && violation == NULL; i++) {
        if (!take(&world, choices.list[i], visited, &next, tally))
            continue;
        memcpy(next.path, packed->path, packed->depth);
        next.path[packed->depth] = (uint8_t)i;
        next.depth = (uint8_t)(packed->depth + 1);
        if (violation != NULL && bug == BUG_NONE)
            print_path(next.path, next.depth);
        if (next.depth < setting.depth && violation == NULL)
            level_add(next_level, &next);
    }
}

/* Breadth first, so that what is found is found on a shortest path. */
static struct tally explore(void)
{
    struct tally tally = {0};
    struct visited visited = {0};
    struct level level = {0}, next = {0};
    struct world world;
    struct packed packed = {0};
    violation = NULL;
    begin(&world);
    pack(&world, &packed);
    visit(&visited, hash_of(&packed));
    level_add(&level, &packed);
    for (int depth = 0; depth < setting.depth && violation == NULL; depth++) {
        for (size_t at = 0; at < level.size && violation == NULL; at += packed_size(&packed)) {
            memcpy(&packed, level.bytes + at, offsetof(struct packed, data));
            memcpy(packed.data, level.bytes + at + offsetof(struct packed, data),
                   packed.words * sizeof(packed.data[0]));
            expand(&packed, &visited, &next, &tally);
        }
        struct level done = level;
        level = next;
        next = done;
        next.size = 0;
    }
    tally.states = visited.count;
    free(visited.table);
    free(level.bytes);
    free(next.bytes);
    return tally;
}

/* ---- Facts ------------------------------------------------------------------------------------------------------- */

/* Depth to explore: the setting's own, which takes seconds, and STRAIT_MODEL_DEPTH more (tests/nightly.sh: 4, some
 * minutes). Sanitizers are slow and look for something else. */
static uint8_t deeper(uint8_t depth)
{
    const char *more = getenv("STRAIT_MODEL_DEPTH");
    int wanted = depth + (more == NULL ? 0 : atoi(more));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    wanted -= 1;
#endif
    return (uint8_t)(wanted < 1 ? 1 : wanted > DEPTH_MAX ? DEPTH_MAX : wanted);
}

static const struct setting settings[] = {
    /* units, slots, window, send slots, direct, open, faults, depth, ahead */
    {1, 1, 1, 1, STAGED, false, 1, 10, 0}, {1, 1, 1, 1, DIRECT, false, 1, 10, 0}, {1, 1, 1, 1, STAGED, false, 2, 8, 2},
    {1, 1, 1, 1, DIRECT, false, 2, 8, 2},  {2, 1, 1, 1, STAGED, false, 1, 10, 2}, {2, 1, 1, 1, DIRECT, false, 1, 10, 2},
    {2, 2, 2, 2, STAGED, false, 1, 8, 2},  {2, 2, 2, 2, DIRECT, false, 1, 8, 2},  {1, 1, 1, 1, STAGED, true, 1, 10, 0},
    {1, 1, 1, 1, DIRECT, true, 1, 10, 0},  {1, 1, 1, 1, STAGED, true, 2, 7, 0},   {1, 1, 1, 1, DIRECT, true, 2, 7, 0},
    {2, 2, 2, 2, STAGED, true, 1, 7, 0},   {2, 2, 2, 2, DIRECT, true, 1, 7, 0},   {1, 1, 1, 1, FLAGGED, false, 1, 8, 2},
    {1, 1, 1, 1, FLAGGED, true, 1, 9, 1},  {2, 2, 2, 2, FLAGGED, true, 1, 6, 2},
};

static void print_setting(const struct tally *tally)
{
    static const char *const ways[] = {"staged", "direct", "flagged"};
    printf("%d units, %d slots, window %d, %s, %s%d faults, depth %d + %d: %llu states, %llu steps, %llu beyond the "
           "network\n",
           setting.units, setting.slots, setting.window, ways[setting.direct], setting.open ? "open, " : "",
           setting.faults, setting.ahead, setting.depth, (unsigned long long)tally->states,
           (unsigned long long)tally->transitions, (unsigned long long)tally->crowded);
    fflush(stdout);
}

TEST_LOOP(no_order_of_events_breaks_a_promise, COUNT(settings))
{
    setting = settings[_i];
    setting.depth = deeper(setting.depth);
    bug = BUG_NONE;
    const struct tally tally = explore();
    print_setting(&tally);
    ck_assert_msg(violation == NULL, "not so: %s", violation);
    ck_assert_uint_gt(tally.states, 100);
}

/* How far to look for what each planted bug does, and where. */
static const struct planted {
    enum bug bug;
    const char *name;
    struct setting setting;
} planted[] = {
    {BUG_EPOCH, "epochs are not compared", {1, 1, 1, 1, STAGED, false, 1, 20, 0}},
    {BUG_EARLY_ACK, "acknowledged before decoded", {1, 1, 1, 1, STAGED, false, 0, 20, 0}},
    {BUG_BAD_LANDS, "damage is not seen", {1, 1, 1, 1, STAGED, false, 1, 20, 0}},
    {BUG_REVOKE_FREES, "slots are taken back at once", {1, 1, 1, 1, DIRECT, false, 0, 20, 0}},
    {BUG_QUIET_EARLY, "quiet while the source writes", {1, 1, 1, 1, DIRECT, false, 1, 20, 0}},
    {BUG_TOKEN, "old links are let in", {1, 1, 1, 1, DIRECT, false, 2, 20, 0}},
    {BUG_DRAINED_EARLY, "drained with the verdict", {1, 1, 1, 1, STAGED, false, 0, 20, 0}},
    {BUG_SEEN, "grants are not remembered", {1, 1, 1, 1, DIRECT, false, 1, 20, 0}},
    {BUG_TOMBSTONE, "source legs are not remembered", {1, 1, 1, 1, DIRECT, false, 2, 20, 0}},
    {BUG_MUTE, "unused grants are not given back", {1, 1, 1, 1, STAGED, false, 0, 20, 0}},
    {BUG_NO_DEADLINE, "no deadline", {1, 1, 1, 1, STAGED, false, 1, 20, 0}},
    {BUG_MUTE, "open grants are not given back", {1, 1, 1, 1, STAGED, true, 0, 20, 0}},
    {BUG_EARLY_DECODE, "decoded before its range is known", {2, 1, 1, 1, STAGED, true, 0, 20, 0}},
    {BUG_MUTE, "open grants that are not needed are not given back", {1, 2, 2, 2, STAGED, true, 0, 20, 0}},
    {BUG_UNNAMED, "only the first of two open grants is named", {2, 2, 2, 2, STAGED, true, 0, 20, 0}},
    {BUG_FORGETFUL, "slots are free while a chunk arrives", {1, 1, 1, 1, STAGED, false, 0, 20, 0}},
    {BUG_UNWATCHED, "a decoder that waits is forgotten", {1, 1, 1, 1, FLAGGED, false, 0, 20, 0}},
};

TEST_LOOP(every_planted_bug_is_found, COUNT(planted))
{
    setting = planted[_i].setting;
    bug = planted[_i].bug;
    const struct tally tally = explore();
    printf("%s: %s (%llu states)\n", planted[_i].name, violation == NULL ? "not found" : violation,
           (unsigned long long)tally.states);
    fflush(stdout);
    ck_assert_ptr_nonnull(violation);
}

/* Long paths with many faults, a few of all that there are. */
TEST_LOOP(long_random_paths_break_no_promise, 4)
{
    struct rng rng = rng_init(900 + (uint64_t)_i);
    struct world world, next;
    struct choices choices;
    bug = BUG_NONE;
    violation = NULL;
    for (int walk = 0; walk < 3000 / STRIDE; walk++) {
        setting = settings[rng_below(&rng, COUNT(settings))];
        setting.units = (uint8_t)(1 + rng_below(&rng, 4));
        setting.open = rng_below(&rng, 2) != 0;
        setting.direct = (uint8_t)rng_below(&rng, FLAGGED + 1);
        setting.faults = (uint8_t)rng_below(&rng, 6);
        begin(&world);
        for (int step = 0; step < 120 && violation == NULL; step++) {
            list_choices(&world, &choices);
            if (choices.count == 0)
                break;
            struct choice choice = choices.list[rng_below(&rng, (uint32_t)choices.count)];
            if (choice.kind > UNFAIR && rng_below(&rng, 4) != 0)
                continue; /* else nothing would ever get far */
            next = world;
            apply(&next, choice);
            check_jobs(&next);
            if (next.crowded || next.version > 200)
                continue;
            world = next;
            if (violation == NULL)
                check_ending(&world);
        }
        ck_assert_msg(violation == NULL, "walk %d: not so: %s", walk, violation);
    }
}

int main(void)
{
    return run_tests("model", NULL, NULL);
}
