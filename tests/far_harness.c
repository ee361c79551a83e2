#include "tests/far_harness.h"

#include <dlfcn.h>

#include "daemon/device/device.h"

enum { LISTS_MAX = 4 };

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

double far_bytes(struct test_pool *source, const char *wire)
{
    char path[64];
    snprintf(path, sizeof(path), "counters.wire_bytes_%s", wire);
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
