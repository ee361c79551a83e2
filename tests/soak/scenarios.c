/* Scenarios of the soak test: shared arenas of one slot, a transfer that runs out of time, restarts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/soak/move.h"
#include "tests/support.h"

struct scene {
    struct world world;
    const struct route *ways[2];
};

/* Arenas of one chunk: 64 transfers each way, of which half append every 200 ms. A slow source that kept the only slot
 * while it computes would hold up all others for seconds; the ready ones may take twice as long as by themselves. */

enum { HALF = 32, ROUNDS = 5 };
#define READY_PAGES 16u /* of 256 KiB */
#define SLOW_PARTS  6u
#define PAUSE_MS    200u
#define ROUND_MS    60000u
#define DELAY_MAX   2.0

static const struct form one_slot_form = {
    .name = "16 KiB, 8 layers", .page_bytes = 16384, .layers = 8, .roles = 2, .ids = 1408, .interleaved = true};
static void add_ready(struct group *group, const struct scene *scene)
{
    for (uint32_t i = 0; i < 2 * HALF; i++)
        group_add(group, &(struct move_plan){.route = scene->ways[i % 2],
                                             .pages = READY_PAGES,
                                             .starter = i % STARTERS,
                                             .deadline_ms = ROUND_MS});
}

static void add_slow(struct group *group, const struct scene *scene)
{
    for (uint32_t i = 0; i < 2 * HALF; i++)
        group_add(group, &(struct move_plan){.route = scene->ways[i % 2],
                                             .pages = SLOW_PARTS,
                                             .style = i % 4 < 2 ? STYLE_CHUNKS : STYLE_LAYERS,
                                             .parts = SLOW_PARTS,
                                             .starter = i % STARTERS,
                                             .pause_ms = PAUSE_MS,
                                             .deadline_ms = ROUND_MS});
}

/* ---- A round ----------------------------------------------------------------------------------------------------- */

/* Evenly over the time of one pause, so that at any time some of them append. */
static void begin_slow(struct scene *scene, struct group *slow)
{
    for (uint32_t i = 0; i < slow->count; i++) {
        uint64_t due = now_ms() + PAUSE_MS / slow->count;
        move_begin(&slow->moves[i]);
        do {
            for (uint32_t begun = 0; begun <= i; begun++)
                move_turn(&slow->moves[begun]);
        } while (world_pump(&scene->world, 1) && now_ms() < due);
    }
}

static double last_decided(const struct group *group)
{
    double last = 0;
    for (uint32_t i = 0; i < group->count; i++)
        if (group->moves[i].sink.decided_at > last)
            last = group->moves[i].sink.decided_at;
    return last;
}

/* Seconds from the beginning of the ready ones until the last of them was DONE. */
static double one_slot_round_of(struct scene *scene, bool with_slow)
{
    struct group ready, slow;
    group_init(&ready, 2 * HALF);
    group_init(&slow, 2 * HALF);
    if (with_slow)
        add_slow(&slow, scene);
    add_ready(&ready, scene);
    begin_slow(scene, &slow);
    double begin = now_seconds();
    group_begin(&ready);
    bool over = groups_until(&scene->world, &ready, &slow, move_over, ROUND_MS + 5000, "transfers through one slot");
    double seconds = last_decided(&ready) - begin;
    if (over && with_slow && last_decided(&slow) < last_decided(&ready))
        complain("the slow ones were not slow"); /* then nothing was compared */
    (void)group_finish(&ready);
    (void)group_finish(&slow);
    world_check_rest(&scene->world);
    return seconds;
}

/* Of the round that was disturbed least: a slot that is kept delays all of them. */
static double least(const double values[ROUNDS])
{
    double value = values[0];
    for (int i = 1; i < ROUNDS; i++)
        value = values[i] < value ? values[i] : value;
    return value;
}

/* Rounds of either kind in turn, so that both see the same machine. */
static void one_slot_run(struct scene *scene, const char *transport)
{
    double alone[ROUNDS], beside[ROUNDS];
    (void)one_slot_round_of(scene, false); /* connections and caches */
    for (int i = 0; i < ROUNDS && complaints() == 0; i++) {
        alone[i] = one_slot_round_of(scene, false);
        beside[i] = one_slot_round_of(scene, true);
        printf("  alone %.3f s, beside %.3f s\n", alone[i], beside[i]);
    }
    if (complaints() != 0)
        return;
    double a = least(alone), b = least(beside);
    printf("one slot, %s: %d ready transfers each way took %.3f s alone, %.3f s beside %d slow ones each way: %.2f x\n",
           transport, HALF, a, b, HALF, b / a);
    if (b > DELAY_MAX * a)
        complain("slow sources delay ready ones by %.2f x", b / a);
}

/* 64 transfers in flight, one of which cannot meet its deadline of 50 ms: it alone fails, by TIMEOUT and in time, and
 * what it held of the arenas serves others. */

enum { OTHERS = 63 };
#define LATE_DEADLINE_MS 50u
#define EARLY_MS         2u                   /* timers count whole milliseconds */
#define LATE_MS          (200u * SOAK_SLOWER) /* after its deadline, at most */
#define PATIENCE_MS      60000u
#define OTHER_PAGES      4u   /* of 1 MiB */
#define LATE_PAGES       128u /* more than its share of the arenas, by far */

static const struct form deadline_form = {
    .name = "64 KiB, 8 layers", .page_bytes = 65536, .layers = 8, .roles = 2, .ids = 448};

static bool has_begun_to_move(const struct move *move)
{
    return move->sink.state == STRAIT_TRANSFERRING || move->sink.decided;
}

/* Others that move all the time, or have sent a part and wait for more. */
static void add_others(struct group *group, const struct scene *scene, bool held)
{
    for (uint32_t i = 0; i < OTHERS; i++)
        group_add(group, &(struct move_plan){.route = scene->ways[i % 2],
                                             .pages = OTHER_PAGES,
                                             .style = held ? STYLE_CHUNKS : STYLE_WHOLE,
                                             .parts = 2,
                                             .starter = i % STARTERS,
                                             .held = held,
                                             .deadline_ms = PATIENCE_MS});
}

/* Its second half never comes. */
static void add_late(struct group *group, const struct scene *scene)
{
    group_add(group, &(struct move_plan){.route = scene->ways[0],
                                         .pages = LATE_PAGES,
                                         .style = STYLE_CHUNKS,
                                         .parts = 2,
                                         .starter = START_PULL,
                                         .held = true,
                                         .source_first = true,
                                         .deadline_ms = LATE_DEADLINE_MS});
}

/* `kept`: while it had its time, the machine ran nobody for so many ms. */
static void check_late(const struct move *late, double kept)
{
    double ms = (late->sink.decided_at - late->began) * 1e3;
    printf("  the late one: %s, %s after %.1f ms; its source: %s\n", strait_state_string((int)late->sink.state),
           strait_reason_string((int)late->sink.reason), ms, strait_reason_string((int)late->source.reason));
    if (late->sink.state != STRAIT_FAILED || late->sink.reason != STRAIT_REASON_TIMEOUT)
        complain("the late transfer did not fail by TIMEOUT");
    if (late->source.state != STRAIT_FAILED)
        complain("the late transfer's source did not fail");
    if (ms < LATE_DEADLINE_MS - EARLY_MS || ms > LATE_DEADLINE_MS + LATE_MS + kept)
        complain("the verdict of a deadline of %u ms came after %.1f ms", LATE_DEADLINE_MS, ms);
}

/* The others turn meanwhile. */
static bool is_not_late(const struct move *move)
{
    return move->plan.deadline_ms != LATE_DEADLINE_MS || move_over(move);
}

static void deadline_round_of(struct scene *scene, bool held)
{
    struct group others, late;
    group_init(&others, OTHERS);
    group_init(&late, 1);
    add_others(&others, scene, held);
    add_late(&late, scene);
    group_begin(&others);
    bool good =
        !held || groups_until(&scene->world, &others, NULL, has_begun_to_move, PATIENCE_MS, "63 transfers in flight");
    uint64_t kept = machine_late_ms();
    group_begin(&late);
    good = good && groups_until(&scene->world, &others, &late, is_not_late, PATIENCE_MS, "the late transfer");
    if (good)
        check_late(&late.moves[0], (double)(machine_late_ms() - kept));
    for (uint32_t i = 0; i < others.count; i++)
        move_release(&others.moves[i]);
    (void)groups_until(&scene->world, &others, NULL, move_over, PATIENCE_MS, "the other transfers");
    uint32_t done = group_finish(&others);
    printf("  %u of %u others DONE\n", done, OTHERS);
    (void)move_finish(&late.moves[0]);
    free(late.moves);
    world_check_rest(&scene->world);
}

/* As many as before, through the same arenas. */
static void round_after(struct scene *scene)
{
    struct group group;
    group_init(&group, OTHERS);
    add_others(&group, scene, false);
    group_begin(&group);
    (void)groups_until(&scene->world, &group, NULL, move_over, PATIENCE_MS, "transfers after a missed deadline");
    (void)group_finish(&group);
    world_check_rest(&scene->world);
}

static void deadline_run(struct scene *scene, const char *transport)
{
    printf("deadline, %s: the others wait for more\n", transport);
    deadline_round_of(scene, true);
    printf("deadline, %s: the others move\n", transport);
    deadline_round_of(scene, false);
    round_after(scene);
}

enum { IN_FLIGHT = 8 };
#define WORKS_S     5.0
#define VERDICT_MS  15000u
#define DEADLINE_MS 10000u

static const struct form restart_form = {
    .name = "16 KiB, 4 layers", .page_bytes = 16384, .layers = 4, .roles = 2, .ids = 256};

static struct move_plan plan_of(const struct scene *scene, uint32_t i, bool held, uint32_t deadline_ms)
{
    return (struct move_plan){.route = scene->ways[i % 2],
                              .pages = 8,
                              .style = STYLE_CHUNKS,
                              .parts = 2,
                              .starter = i / 2 % STARTERS,
                              .held = held,
                              .deadline_ms = deadline_ms};
}

/* ---- Those in flight --------------------------------------------------------------------------------------------- */

static bool moves_pages(const struct move *move)
{
    return move->sink.state == STRAIT_TRANSFERRING;
}

static void begin_flight(struct scene *scene, struct group *group)
{
    group_init(group, IN_FLIGHT);
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        const struct move_plan plan = plan_of(scene, i, true, DEADLINE_MS);
        group_add(group, &plan);
    }
    group_begin(group);
    (void)groups_until(&scene->world, group, NULL, moves_pages, VERDICT_MS, "transfers in flight before a restart");
}

/* They were not complete: all have to fail, none may be silent. */
static void end_flight(struct scene *scene, struct group *group)
{
    (void)groups_until(&scene->world, group, NULL, move_over, VERDICT_MS, "verdicts of what a restart interrupted");
    for (uint32_t i = 0; i < group->count; i++) {
        const struct move *move = &group->moves[i];
        if (move->source.state != STRAIT_FAILED || move->sink.state != STRAIT_FAILED)
            move_complain(move);
        (void)move_finish(&group->moves[i]);
    }
    free(group->moves);
}

/* ---- New requests ------------------------------------------------------------------------------------------------ */

/* One request after the other, each with a name of its own, until one is DONE. */
struct attempt {
    struct move move;
    bool live, done;
    uint32_t failures;
    double done_at;
};

static void try_again(struct scene *scene, struct attempt *attempt, uint32_t way)
{
    const struct move_plan plan = plan_of(scene, way + 2 * attempt->failures, false, DEADLINE_MS);
    move_prepare(&attempt->move, &plan);
    move_begin(&attempt->move);
    attempt->live = true;
}

static void attempt_turn(struct scene *scene, struct attempt *attempt, uint32_t way)
{
    if (!attempt->live)
        try_again(scene, attempt, way);
    move_turn(&attempt->move);
    if (attempt->move.source.state == STRAIT_FAILED || attempt->move.sink.state == STRAIT_FAILED)
        move_abort(&attempt->move); /* as a framework does, whose sides tell each other */
    if (!move_over(&attempt->move))
        return;
    attempt->live = false;
    attempt->done_at = attempt->move.sink.decided_at;
    attempt->done = move_finish(&attempt->move);
    attempt->failures += !attempt->done;
}

static void attempt_end(struct attempt *attempt)
{
    if (attempt->live)
        (void)move_finish(&attempt->move);
}

/* Seconds since `begin` until requests of both directions succeeded. */
static double until_it_works(struct scene *scene, double begin, uint32_t *failures)
{
    struct attempt attempts[2] = {{.live = false}};
    while (!(attempts[0].done && attempts[1].done) && now_seconds() < begin + 4 * WORKS_S) {
        for (uint32_t way = 0; way < 2; way++)
            if (!attempts[way].done)
                attempt_turn(scene, &attempts[way], way);
        if (!world_pump(&scene->world, 2))
            break;
    }
    attempt_end(&attempts[0]);
    attempt_end(&attempts[1]);
    *failures = attempts[0].failures + attempts[1].failures;
    if (!attempts[0].done || !attempts[1].done)
        return 4 * WORKS_S;
    return (attempts[0].done_at > attempts[1].done_at ? attempts[0].done_at : attempts[1].done_at) - begin;
}

/* ---- Restarts ---------------------------------------------------------------------------------------------------- */

enum { FIRST = 1, SECOND = 2, BOTH = 3 };

static void end_daemon(struct soak_daemon *daemon, bool killed)
{
    if (killed)
        daemon_kill(daemon);
    else
        daemon_stop(daemon);
}

static void restart(struct scene *scene, unsigned which, bool killed)
{
    static const char *const names[] = {[FIRST] = "the first", [SECOND] = "the second", [BOTH] = "both"};
    struct group flight;
    uint32_t failures;
    begin_flight(scene, &flight);
    for (uint32_t i = 0; i < 2; i++)
        if (which & 1u << i)
            end_daemon(&scene->world.daemons[i], killed);
    double begin = now_seconds(), kept = (double)machine_late_ms();
    for (uint32_t i = 0; i < 2; i++)
        if (which & 1u << i)
            (void)daemon_launch(&scene->world.daemons[i]);
    double seconds = until_it_works(scene, begin, &failures);
    kept = ((double)machine_late_ms() - kept) / 1e3; /* in which the machine ran nobody */
    for (uint32_t i = 0; i < 2; i++)
        (void)daemon_await_ready(&scene->world.daemons[i]); /* from then on its metrics can be asked */
    printf("  %s, %s: requests succeed after %.3f s, %u failed before\n", names[which],
           killed ? "killed" : "terminated", seconds, failures);
    if (seconds > WORKS_S + kept)
        complain("after a restart of %s, requests succeed after %.1f s only", names[which], seconds);
    end_flight(scene, &flight);
}

/* Now nothing fails any more. */
static void check_healthy(struct scene *scene)
{
    struct group group;
    group_init(&group, 2 * IN_FLIGHT);
    for (uint32_t i = 0; i < 2 * IN_FLIGHT; i++) {
        const struct move_plan plan = plan_of(scene, i, false, DEADLINE_MS);
        group_add(&group, &plan);
    }
    group_begin(&group);
    (void)groups_until(&scene->world, &group, NULL, move_over, VERDICT_MS, "transfers after a restart");
    (void)group_finish(&group);
    world_check_rest(&scene->world);
}

static void restart_run(struct scene *scene, const char *transport)
{
    printf("restart, %s\n", transport);
    scene->world.workers[0].may_lose = scene->world.workers[1].may_lose = true;
    for (unsigned which = FIRST; which <= BOTH; which++)
        for (int killed = 0; killed < 2 && complaints() == 0; killed++) {
            restart(scene, which, killed);
            check_healthy(scene);
        }
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static const struct scenario {
    const char *name;
    uint64_t arena_bytes;
    const struct form *form;
    void (*run)(struct scene *scene, const char *transport);
} scenarios[] = {
    {"one-slot", MIB, &one_slot_form, one_slot_run},
    {"deadline", 8 * MIB, &deadline_form, deadline_run},
    {"restart", 16 * MIB, &restart_form, restart_run},
};

static void run(const struct scenario *scenario, const char *program, const char *transport)
{
    static struct scene scene;
    const struct daemon_options daemon = {
        .transports = transport, .arena_bytes = scenario->arena_bytes, .chunk_bytes = MIB};
    const struct world_plan plan = {.daemon_count = 2,
                                    .worker_count = 2,
                                    .form_count = 1,
                                    .daemons = {daemon, daemon},
                                    .worker_nodes = {0, 1},
                                    .forms = scenario->form};
    bool good = world_init(&scene.world, program, &plan);
    for (uint32_t i = 0; i < 2 && good; i++)
        good = (scene.ways[i] = world_route(&scene.world, i, 1 - i, 0)) != NULL;
    if (good)
        scenario->run(&scene, transport);
    world_fini(&scene.world);
}

bool soak_scenario(const struct soak_options *options)
{
    for (int i = 0; i < COUNT(scenarios); i++) {
        bool all = strcmp(options->transport, "mixed") == 0;
        if (strcmp(options->scenario, scenarios[i].name) != 0)
            continue;
        if (all || strcmp(options->transport, "shm") == 0)
            run(&scenarios[i], options->daemon, "shm");
        if ((all && SOAK_UCX) || strcmp(options->transport, "ucx") == 0)
            run(&scenarios[i], options->daemon, "ucx");
        return true;
    }
    return false;
}
