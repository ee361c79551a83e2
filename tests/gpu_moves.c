#include "tests/gpu_moves.h"

#include <dlfcn.h>

#include "daemon/device/device.h"

struct fake_control *control(void)
{
    void *plugin = dlopen(DEVICE_PLUGIN, RTLD_NOW);
    ck_assert_msg(plugin != NULL, "%s", dlerror());
    struct fake_control *found = dlsym(plugin, "fake_device_control");
    ck_assert_msg(found != NULL, "not the fake plugin");
    return found;
}

static uint32_t turn;

static uint32_t list_all(const struct test_pool *pool, char key[16], struct strait_page_list lists[4])
{
    uint32_t groups = pool->geometry.groups;
    ck_assert_uint_le(groups, 4);
    snprintf(key, 16, "%u", turn);
    for (uint32_t g = 0; g < groups; g++)
        lists[g] = (struct strait_page_list){.group = g, .count = pool->geometry.pages};
    return groups;
}

struct flow *offer_all(struct test_pool *source)
{
    char key[16];
    struct strait_page_list lists[4];
    pool_fill(source, ++turn);
    uint32_t count = list_all(source, key, lists);
    return flow_offer(source,
                      (struct strait_offer_params){KEY(key), .lists = lists, .list_count = count, .last = true});
}

struct flow *expect_all(struct test_pool *sink)
{
    char key[16];
    struct strait_page_list lists[4];
    uint32_t count = list_all(sink, key, lists);
    return flow_expect(sink, (struct strait_expect_params){KEY(key), .lists = lists, .list_count = count});
}

void move_all(struct test_pool *source, struct test_pool *sink)
{
    struct flow *o = offer_all(source), *e = expect_all(sink);
    flow_start(e, source);
    arrives(e, o);
    flow_release(e);
    flow_release(o);
}

double peer_bytes(struct test_pool *source)
{
    return stat_of(source->party, "counters.wire_bytes_peer");
}

double pinned_bytes(struct test_pool *source)
{
    return stat_of(source->party, "counters.wire_bytes_pinned");
}

void move_until_reached(struct test_pool *source, struct test_pool *sink)
{
    double before = peer_bytes(source);
    for (int i = 0; i < 200 && peer_bytes(source) == before; i++) {
        move_all(source, sink);
        pump(5);
    }
    ck_assert_double_gt(peer_bytes(source), before);
}
