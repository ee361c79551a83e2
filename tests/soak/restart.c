/* A daemon is restarted, then the other, then both: what was in flight gets its verdict, and new requests succeed
 * within 5 s, with the peers that were imported before. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/machine.h"
#include "tests/soak/report.h"
#include "tests/soak/scene.h"
#include "tests/soak/soak.h"

enum { IN_FLIGHT = 8 };
#define WORKS_S     5.0
#define VERDICT_MS  15000u
#define DEADLINE_MS 10000u

static const struct form form = {.name = "16 KiB, 4 layers", .page_bytes = 16384, .layers = 4, .roles = 2, .ids = 256};
static const struct daemon_options options_of_both = {NULL, 16 * MIB, MIB};

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
    (void)group_until(group, &scene->world, moves_pages, VERDICT_MS, "transfers in flight before a restart");
}

/* They were not complete: all have to fail, none may be silent. */
static void end_flight(struct scene *scene, struct group *group)
{
    (void)group_until(group, &scene->world, move_over, VERDICT_MS, "verdicts of what a restart interrupted");
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
    (void)group_until(&group, &scene->world, move_over, VERDICT_MS, "transfers after a restart");
    (void)group_finish(&group);
    world_check_rest(&scene->world);
}

static void run(struct scene *scene)
{
    scene->world.workers[0].may_lose = scene->world.workers[1].may_lose = true;
    for (unsigned which = FIRST; which <= BOTH; which++)
        for (int killed = 0; killed < 2 && complaints() == 0; killed++) {
            restart(scene, which, killed);
            check_healthy(scene);
        }
}

void soak_restart(const struct soak_options *options, const char *transport)
{
    static struct scene scene;
    struct daemon_options daemon = options_of_both;
    daemon.transports = transport;
    printf("restart, %s\n", transport);
    if (scene_init(&scene, options->daemon, &daemon, &form))
        run(&scene);
    scene_fini(&scene);
}
