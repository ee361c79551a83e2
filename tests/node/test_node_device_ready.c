/* Pages that are ready after an event of a GPU. */
#include "tests/node/harness.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fakes/device.h"

/* An event of the fake plugin: an eventfd. */
struct event {
    struct fake_handle handle;
};

static struct event event_make(void)
{
    struct event event = {.handle = {.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)}};
    ck_assert_int_ge(event.handle.fd, 0);
    return event;
}

static void event_complete(const struct event *event)
{
    ck_assert_int_eq(0, eventfd_write(event->handle.fd, 1));
}

static void event_fail(const struct event *event)
{
    ck_assert_int_eq(0, eventfd_write(event->handle.fd, FAKE_EVENT_FAILED));
}

struct scene {
    struct pair pair;
    struct test_pool *source, *sink;
    struct flow *o, *e;
};

static void scene_begin(struct scene *scene, enum wire wire, struct strait_offer_params offer)
{
    struct geometry shape = {.pages = 20, .layers = 4, .gpu = 1};
    pair_open(&scene->pair, wire);
    scene->source = pool_open(scene->pair.source, shape);
    scene->sink = pool_open(scene->pair.sink, shape);
    pool_fill(scene->source, 1);
    scene->o = flow_offer(scene->source, offer);
    scene->e = flow_expect(scene->sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(scene->e, scene->source);
}

#define LATER                                         \
    (struct strait_offer_params)                      \
    {                                                 \
        KEY("k"), LISTS({.count = 20}), .later = true \
    }

START_TEST(layers_wait_for_their_events)
{
    struct scene s;
    struct event events[4];
    scene_begin(&s, (enum wire)_i, LATER);
    for (int layer = 0; layer < 4; layer++) {
        events[layer] = event_make();
        flow_append(s.o, (struct strait_append_params){
                             .layer_first = layer, .layer_count = 1, .ready = &events[layer], .last = layer == 3});
    }
    pump_for(50);
    ck_assert_uint_eq(0, s.e->layer_count);
    static const int order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++) {
        ck_assert(!s.e->decided);
        event_complete(&events[order[i]]);
        WAIT(s.e->layers[order[i]] == 1);
        ck_assert_uint_eq((uint32_t)i + 1, s.e->layer_count);
        close(events[order[i]].handle.fd);
    }
    arrives(s.e, s.o);
}
END_TEST

START_TEST(listed_pages_wait_for_their_event)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, (struct strait_offer_params){KEY("k"), LISTS({.count = 8})});
    flow_append(s.o, (struct strait_append_params){LISTS({.first = 8, .first_id = 8, .count = 12}), .ready = &event,
                                                   .last = true, .aux = "aux", .aux_size = 3});
    WAIT(s.e->moved);
    pump_for(50);
    ck_assert(!s.e->decided);
    event_complete(&event);
    arrives(s.e, s.o);
    ck_assert_uint_eq(3, s.e->aux_size);
}
END_TEST

START_TEST(offered_pages_wait_for_their_event)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i,
                (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .ready = &event, .last = true,
                                             .aux = "aux", .aux_size = 3});
    pump_for(50);
    ck_assert(!s.e->decided && !s.e->moved);
    ck_assert_double_eq(0, stat_of(s.pair.sink, "gauges.slots_used"));
    event_complete(&event);
    arrives(s.e, s.o);
    ck_assert_uint_eq(3, s.e->aux_size);
}
END_TEST

/* Of two events it is the later one that ends the offer, whichever that is. */
START_TEST(an_offer_with_an_event_may_be_appended_to)
{
    struct scene s;
    struct event events[2] = {event_make(), event_make()};
    scene_begin(&s, (enum wire)_i, (struct strait_offer_params){KEY("k"), LISTS({.count = 8}), .ready = &events[0]});
    flow_append(s.o, (struct strait_append_params){LISTS({.first = 8, .first_id = 8, .count = 12}), .ready = &events[1],
                                                   .last = true});
    event_complete(&events[1]);
    WAIT(s.e->moved);
    pump_for(50);
    ck_assert(!s.e->decided);
    event_complete(&events[0]);
    arrives(s.e, s.o);
}
END_TEST

START_TEST(an_event_that_fails_fails_an_offer_made_with_it)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i,
                (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .ready = &event, .last = true});
    event_fail(&event);
    ends_failed(s.o, STRAIT_REASON_LOCAL);
    ck_assert_str_eq("the event of its pages failed", s.o->text);
    WAIT(s.e->decided);
    ck_assert(pool_as_imagined(s.sink));
}
END_TEST

START_TEST(others_are_not_held_up)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, LATER);
    flow_append(s.o, (struct strait_append_params){.ready = &event, .last = true});
    struct geometry shape = {.pages = 20, .layers = 2, .gpu = 1};
    struct test_pool *source = pool_open(s.pair.source, shape), *sink = pool_open(s.pair.sink, shape);
    for (uint32_t i = 0; i < 5; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%u", i);
        pool_fill(source, i);
        struct flow *o = flow_offer(source, (struct strait_offer_params){KEY(key), LISTS({.count = 20}), .last = true});
        struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY(key), LISTS({.count = 20})});
        flow_start(e, source);
        arrives(e, o);
    }
    ck_assert_double_eq(0, stat_of(s.pair.sink, "gauges.slots_used"));
    event_complete(&event);
    arrives(s.e, s.o);
}
END_TEST

START_TEST(an_event_that_fails_fails_its_offer)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, LATER);
    flow_append(s.o, (struct strait_append_params){.ready = &event, .last = true});
    event_fail(&event);
    ends_failed(s.o, STRAIT_REASON_LOCAL);
    ck_assert_str_eq("the event of its pages failed", s.o->text);
    WAIT(s.e->decided);
    ck_assert(pool_as_imagined(s.sink));
}
END_TEST

START_TEST(nothing_waits_for_an_event_that_is_forgotten)
{
    struct scene s;
    struct event event = event_make();
    scene_begin(&s, (enum wire)_i, LATER);
    flow_append(s.o, (struct strait_append_params){.ready = &event, .last = true});
    strait_abort(s.o->transfer);
    ends_failed(s.o, STRAIT_REASON_ABORTED);
    wait_quiet(s.pair.source);
    struct flow *o = flow_offer(s.source, (struct strait_offer_params){KEY("m"), LISTS({.count = 20}), .later = true});
    flow_append(o, (struct strait_append_params){.ready = &event, .last = true}); /* when the daemon stops */
    pump_for(20);
}
END_TEST

START_TEST(pools_of_the_host_have_no_events)
{
    struct pair pair;
    struct event event = event_make();
    pair_open(&pair, SAME);
    struct test_pool *pool = pool_open(pair.source, (struct geometry){0});
    struct flow *o = flow_offer(pool, (struct strait_offer_params){KEY("k"), LISTS({.count = 1}), .later = true});
    struct strait_append_params append = {.size = sizeof(append), .ready = &event};
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_append(o->transfer, &append));
}
END_TEST

START_TEST(events_of_the_same_process_are_named_by_themselves)
{
    struct party *party = party_embedded("arena-bytes = 2M\nchunk-bytes = 256K\ntransports = shm\n");
    struct geometry shape = {.pages = 20, .layers = 2, .pointers = true, .gpu = 1};
    struct test_pool *source = pool_open(party, shape), *sink = pool_open(party, shape);
    struct event event = event_make();
    pool_fill(source, 1);
    struct flow *o =
        flow_offer(source, (struct strait_offer_params){KEY("k"), LISTS({.count = 20}), .later = _i == 0,
                                                        .ready = _i == 0 ? NULL : &event, .last = _i != 0});
    struct flow *e = flow_expect(sink, (struct strait_expect_params){KEY("k"), LISTS({.count = 20})});
    flow_start(e, source);
    if (_i == 0)
        flow_append(o, (struct strait_append_params){.ready = &event, .last = true});
    pump_for(50);
    ck_assert(!e->decided);
    event_complete(&event);
    arrives(e, o);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_device_ready");
    TCase *tcase = node_case(suite, "events");
    tcase_add_loop_test(tcase, layers_wait_for_their_events, 0, WIRES);
    tcase_add_loop_test(tcase, listed_pages_wait_for_their_event, 0, WIRES);
    tcase_add_loop_test(tcase, offered_pages_wait_for_their_event, 0, WIRES);
    tcase_add_loop_test(tcase, an_offer_with_an_event_may_be_appended_to, 0, WIRES);
    tcase_add_loop_test(tcase, an_event_that_fails_fails_an_offer_made_with_it, 0, WIRES);
    tcase_add_loop_test(tcase, others_are_not_held_up, 0, WIRES);
    tcase_add_loop_test(tcase, an_event_that_fails_fails_its_offer, 0, WIRES);
    tcase_add_loop_test(tcase, nothing_waits_for_an_event_that_is_forgotten, 0, WIRES);
    tcase_add_test(tcase, pools_of_the_host_have_no_events);
    tcase_add_loop_test(tcase, events_of_the_same_process_are_named_by_themselves, 0, 2);
    return node_main(suite);
}
