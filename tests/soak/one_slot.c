/* Arenas of one chunk: 64 transfers each way, of which half append every 200 ms. A slow source that kept the only slot
 * while it computes would hold up all others for seconds; the ready ones may take twice as long as by themselves. */
#include <stdio.h>

#include "tests/soak/report.h"
#include "tests/soak/scene.h"
#include "tests/soak/soak.h"

enum { HALF = 32, ROUNDS = 5 };
#define READY_PAGES 16u /* of 256 KiB */
#define SLOW_PARTS  6u
#define PAUSE_MS    200u
#define ROUND_MS    60000u
#define DELAY_MAX   2.0

static const struct form form = {
    .name = "16 KiB, 8 layers", .page_bytes = 16384, .layers = 8, .roles = 2, .ids = 1408, .interleaved = true};
static const struct daemon_options one_slot = {NULL, MIB, MIB};

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

static bool is_over(const struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        if (!move_over(&group->moves[i]))
            return false;
    return true;
}

static void turn_all(struct group *group)
{
    for (uint32_t i = 0; i < group->count; i++)
        move_turn(&group->moves[i]);
}

static bool await_both(struct scene *scene, struct group *ready, struct group *slow)
{
    for (uint64_t end = now_ms() + ROUND_MS + 5000; !is_over(ready) || !is_over(slow);) {
        turn_all(ready);
        turn_all(slow);
        if (!world_pump(&scene->world, 1))
            return false;
        if (now_ms() > end) {
            complain("transfers through one slot have no end");
            return false;
        }
    }
    return true;
}

/* Seconds from the beginning of the ready ones until the last of them was DONE. */
static double round_of(struct scene *scene, bool with_slow)
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
    bool over = await_both(scene, &ready, &slow);
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
static void run(struct scene *scene, const char *transport)
{
    double alone[ROUNDS], beside[ROUNDS];
    (void)round_of(scene, false); /* connections and caches */
    for (int i = 0; i < ROUNDS && complaints() == 0; i++) {
        alone[i] = round_of(scene, false);
        beside[i] = round_of(scene, true);
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

void soak_one_slot(const struct soak_options *options, const char *transport)
{
    static struct scene scene;
    struct daemon_options daemon = one_slot;
    daemon.transports = transport;
    if (scene_init(&scene, options->daemon, &daemon, &form))
        run(&scene, transport);
    scene_fini(&scene);
}
