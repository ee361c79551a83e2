/* 64 transfers in flight, one of which cannot meet its deadline of 50 ms: it alone fails, by TIMEOUT and in time, and
 * what it held of the arenas serves others. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/machine.h"
#include "tests/soak/report.h"
#include "tests/soak/scene.h"
#include "tests/soak/soak.h"

enum { OTHERS = 63 };
#define DEADLINE_MS 50u
#define EARLY_MS    2u                   /* timers count whole milliseconds */
#define LATE_MS     (200u * SOAK_SLOWER) /* after its deadline, at most */
#define PATIENCE_MS 60000u
#define OTHER_PAGES 4u   /* of 1 MiB */
#define LATE_PAGES  128u /* more than its share of the arenas, by far */

static const struct form form = {.name = "64 KiB, 8 layers", .page_bytes = 65536, .layers = 8, .roles = 2, .ids = 448};
static const struct daemon_options small = {NULL, 8 * MIB, MIB};

static bool moves_pages(const struct move *move)
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
                                         .deadline_ms = DEADLINE_MS});
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
    if (ms < DEADLINE_MS - EARLY_MS || ms > DEADLINE_MS + LATE_MS + kept)
        complain("the verdict of a deadline of %u ms came after %.1f ms", DEADLINE_MS, ms);
}

static void release_all(struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        move_release(&group->moves[i]);
}

/* Both groups turn until the late one has its verdict. */
static bool await_late(struct scene *scene, struct group *others, struct group *late)
{
    for (uint64_t end = now_ms() + PATIENCE_MS; !move_over(&late->moves[0]);) {
        for (uint32_t i = 0; i < others->count; i++)
            move_turn(&others->moves[i]);
        move_turn(&late->moves[0]);
        if (!world_pump(&scene->world, 1) || now_ms() > end) {
            complain("the late transfer has no end");
            return false;
        }
    }
    return true;
}

static void round_of(struct scene *scene, bool held)
{
    struct group others, late;
    group_init(&others, OTHERS);
    group_init(&late, 1);
    add_others(&others, scene, held);
    add_late(&late, scene);
    group_begin(&others);
    bool good = !held || group_until(&others, &scene->world, moves_pages, PATIENCE_MS, "63 transfers in flight");
    uint64_t kept = machine_late_ms();
    group_begin(&late);
    good = good && await_late(scene, &others, &late);
    if (good)
        check_late(&late.moves[0], (double)(machine_late_ms() - kept));
    release_all(&others);
    (void)group_until(&others, &scene->world, move_over, PATIENCE_MS, "the other transfers");
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
    (void)group_until(&group, &scene->world, move_over, PATIENCE_MS, "transfers after a missed deadline");
    (void)group_finish(&group);
    world_check_rest(&scene->world);
}

void soak_deadline(const struct soak_options *options, const char *transport)
{
    static struct scene scene;
    struct daemon_options daemon = small;
    daemon.transports = transport;
    if (scene_init(&scene, options->daemon, &daemon, &form)) {
        printf("deadline, %s: the others wait for more\n", transport);
        round_of(&scene, true);
        printf("deadline, %s: the others move\n", transport);
        round_of(&scene, false);
        round_after(&scene);
    }
    scene_fini(&scene);
}
