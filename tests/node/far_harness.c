#include "tests/node/far_harness.h"

#include <dlfcn.h>

#include "daemon/device/device.h"

enum { LISTS_MAX = 4 };

const char *const far_codings[] = {"auto", "raw", "top16", "tiered"};
const struct geometry far_small = {.pages = 64, .layers = 2, .gpu = 1};
const struct geometry far_large = {.pages = 256, .layers = 8, .gpu = 1};

static uint32_t turn;

struct fake_control *far_control(void)
{
    void *plugin = dlopen(DEVICE_PLUGIN, RTLD_NOW);
    ck_assert_msg(plugin != NULL, "%s", dlerror());
    struct fake_control *found = dlsym(plugin, "fake_device_control");
    ck_assert_msg(found != NULL, "not the fake plugin");
    return found;
}

void far_pools(struct pair *pair, struct geometry shape, struct test_pool **source, struct test_pool **sink)
{
    *source = pool_open(pair->source, shape);
    shape.gpu = 2;
    *sink = pool_open(pair->sink, shape);
}

static uint32_t all_pages(const struct test_pool *pool, struct strait_page_list lists[LISTS_MAX])
{
    uint32_t groups = pool->geometry.groups != 0 ? pool->geometry.groups : 1;
    for (uint32_t g = 0; g < groups; g++)
        lists[g] = (struct strait_page_list){.group = g, .count = pool->geometry.pages};
    return groups;
}

struct flow *far_offer(struct test_pool *source)
{
    struct strait_page_list lists[LISTS_MAX];
    static char key[16];
    snprintf(key, sizeof(key), "%u", ++turn);
    pool_fill(source, turn);
    uint32_t count = all_pages(source, lists);
    return flow_offer(source,
                      (struct strait_offer_params){KEY(key), .lists = lists, .list_count = count, .last = true});
}

struct flow *far_expect(struct test_pool *sink)
{
    struct strait_page_list lists[LISTS_MAX];
    static char key[16];
    snprintf(key, sizeof(key), "%u", turn);
    uint32_t count = all_pages(sink, lists);
    return flow_expect(sink, (struct strait_expect_params){KEY(key), .lists = lists, .list_count = count});
}

void far_move(struct test_pool *source, struct test_pool *sink)
{
    struct flow *o = far_offer(source), *e = far_expect(sink);
    flow_start(e, source);
    arrives(e, o);
    flow_release(e);
    flow_release(o);
}

void far_begin_slowly(struct test_pool *source, struct test_pool *sink, struct flow **o, struct flow **e)
{
    far_control()->delay_us = 50000; /* there is time for what the test does next */
    *o = far_offer(source);
    *e = far_expect(sink);
    uint32_t batches = far_control()->batches;
    flow_start(*e, source);
    WAIT(far_control()->batches >= batches + 2);
}

void far_fail_device(struct pair *pair, int device, struct flow *o, struct flow *e)
{
    far_control()->fail = 1u << device;
    ends_failed(device == 0 ? o : e, STRAIT_REASON_LOCAL);
    ends_failed(device == 0 ? e : o, STRAIT_REASON_PEER_DOWN);
    undefined(e);
    wait_quiet(pair->source);
    wait_quiet(pair->sink);
}

double far_bytes(struct test_pool *source, const char *wire)
{
    char path[64];
    snprintf(path, sizeof(path), "counters.wire_bytes_%s", wire);
    WAIT(stat_of(source->party, "gauges.send_slots_used") == 0);
    return stat_of(source->party, path);
}

void far_move_until(struct test_pool *source, struct test_pool *sink, const char *wire)
{
    const double before = far_bytes(source, wire);
    for (int i = 0; i < 400 && far_bytes(source, wire) == before; i++) {
        far_move(source, sink);
        pump(5);
    }
    ck_assert_msg(far_bytes(source, wire) > before, "nothing went by %s: %s", wire, stats_text(source->party));
}

void far_move_without(struct test_pool *source, struct test_pool *sink, const char *wire)
{
    for (int i = 0; i < 3; i++) {
        far_move(source, sink);
        pump_for(20);
    }
    ck_assert_double_eq(0, far_bytes(source, wire));
    ck_assert_double_gt(far_bytes(source, "pinned"), 0);
}

/* ---- What holds for every wire ----------------------------------------------------------------------------------- */

void far_slots_go_round(struct pair *pair, const char *wire)
{
    struct test_pool *sources[4], *sinks[4];
    struct flow *offers[4], *expectations[4];
    for (int i = 0; i < 4; i++)
        far_pools(pair, (struct geometry){.pages = 256, .layers = 2, .gpu = 1}, &sources[i], &sinks[i]);
    far_move_until(sources[0], sinks[0], wire);
    pump_for(50);
    double before = far_bytes(sources[0], "pinned");
    for (int i = 0; i < 4; i++) {
        offers[i] = far_offer(sources[i]);
        expectations[i] = far_expect(sinks[i]);
        flow_start(expectations[i], sources[i]);
    }
    for (int i = 0; i < 4; i++)
        arrives(expectations[i], offers[i]);
    ck_assert_double_eq(before, far_bytes(sources[0], "pinned"));
    wait_quiet(pair->sink);
    wait_quiet(pair->source);
}

void far_pools_come_and_go(struct pair *pair, const char *wire)
{
    struct test_pool *source, *sink;
    far_pools(pair, (struct geometry){.pages = 64, .gpu = 1}, &source, &sink);
    for (int i = 0; i < 4; i++) {
        far_move_until(source, sink, wire);
        strait_pool_remove(source->pool);
        WAIT(source->removed);
        source = pool_open(pair->source, (struct geometry){.pages = 64, .gpu = 1 + (uint32_t)i % 2});
    }
}
