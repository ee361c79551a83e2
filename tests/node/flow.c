/* The harness's transfers: what was asked, what came of it, and which pages have landed. */
#include "tests/node/harness_parts.h"

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static void remember(struct flow *flow, const struct strait_page_list *lists, uint32_t count)
{
    if (flow->list_count + count > flow->list_room) {
        struct strait_page_list *grown = keep(2 * (size_t)(flow->list_count + count) * sizeof(*grown));
        if (flow->list_count != 0)
            memcpy(grown, flow->lists, flow->list_count * sizeof(*grown));
        flow->lists = grown;
        flow->list_room = 2 * (flow->list_count + count);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct strait_page_list *list = &flow->lists[flow->list_count++];
        *list = lists[i];
        if (lists[i].ids == NULL || lists[i].count == 0)
            continue;
        uint32_t *ids = keep(lists[i].count * sizeof(*ids));
        memcpy(ids, lists[i].ids, lists[i].count * sizeof(*ids));
        list->ids = ids;
    }
}

static struct flow *new_flow(struct test_pool *pool, const struct strait_page_list *lists, uint32_t count)
{
    struct flow *flow = keep(sizeof(*flow));
    flow->pool = pool;
    flow->state = STRAIT_BOOTSTRAP;
    remember(flow, lists, count);
    return flow;
}

struct flow *flow_expect(struct test_pool *pool, struct strait_expect_params params)
{
    struct flow *flow = new_flow(pool, params.lists, params.list_count);
    flow->sink = true;
    params.size = sizeof(params);
    params.context = flow;
    params.deadline_ms = params.deadline_ms != 0 ? params.deadline_ms : 20000 * SLOW;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool->pool, &params, &flow->transfer));
    return flow;
}

struct flow *flow_offer(struct test_pool *pool, struct strait_offer_params params)
{
    struct flow *flow = new_flow(pool, params.lists, params.list_count);
    params.size = sizeof(params);
    params.context = flow;
    params.lease_ms = params.lease_ms != 0 ? params.lease_ms : 20000 * SLOW;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool->pool, &params, &flow->transfer));
    return flow;
}

void flow_append(struct flow *flow, struct strait_append_params params)
{
    params.size = sizeof(params);
    remember(flow, params.lists, params.list_count);
    ck_assert_int_eq(STRAIT_OK, strait_append(flow->transfer, &params));
}

void flow_start_as(struct flow *flow, struct test_pool *peer, const char *peer_key)
{
    struct strait_start_params params = {.size = sizeof(params), .peer_key = peer_key};
    params.peer_key_size = peer_key != NULL ? strlen(peer_key) : 0;
    struct strait_peer *known = peer_of(flow->pool->party, peer);
    ck_assert_int_eq(STRAIT_OK, strait_start(flow->transfer, known, &params));
    strait_peer_remove(known);
}

void flow_start(struct flow *flow, struct test_pool *peer)
{
    flow_start_as(flow, peer, NULL);
}

void flow_release(struct flow *flow)
{
    strait_release(flow->transfer);
    flow->transfer = NULL;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void on_state(struct flow *flow, const struct strait_event *event)
{
    ck_assert_msg(!flow->decided, "a second verdict");
    if (event->state != STRAIT_FAILED)
        ck_assert_int_gt(event->state, flow->state);
    flow->state = event->state;
    flow->moved |= event->state == STRAIT_TRANSFERRING;
    if (event->state != STRAIT_FAILED && event->state != STRAIT_DONE)
        return;
    flow->decided = true;
    flow->decided_at = uv_hrtime();
    flow->reason = event->reason;
    flow->drained = event->drained;
    flow->drained_at = flow->decided_at;
    ck_assert(event->state == STRAIT_FAILED || event->drained);
    ck_assert_int_eq(event->state == STRAIT_FAILED, event->reason != STRAIT_REASON_NONE);
    ck_assert(event->data_size == 0 || (event->state == STRAIT_DONE && flow->sink));
    snprintf(flow->text, sizeof(flow->text), "%s", event->text != NULL ? event->text : "");
    flow->aux_size = event->data_size;
    flow->aux = keep(event->data_size);
    if (event->data_size != 0)
        memcpy(flow->aux, event->data, event->data_size);
    flow->failed_count = event->failed_count;
    flow->failed = keep(event->failed_count * sizeof(*flow->failed));
    if (event->failed_count != 0)
        memcpy(flow->failed, event->failed, event->failed_count * sizeof(*flow->failed));
}

static void on_layer(struct flow *flow, const struct strait_event *event)
{
    ck_assert(!flow->decided);
    ck_assert_int_lt(event->layer, LAYERS_MAX);
    ck_assert_int_ge(event->layer, 0);
    ck_assert_uint_eq(0, flow->layers[event->layer]++);
    flow->layer_count++;
}

void flow_event(struct flow *flow, const struct strait_event *event)
{
    if (event->type == STRAIT_EVENT_STATE) {
        on_state(flow, event);
    } else if (event->type == STRAIT_EVENT_LAYER) {
        on_layer(flow, event);
    } else {
        ck_assert(flow->decided && !flow->drained);
        flow->drained = true;
        flow->drained_at = uv_hrtime();
    }
}

/* ---- What has come of it ----------------------------------------------------------------------------------------- */

void ends_done(struct flow *flow)
{
    WAIT(flow->decided);
    ck_assert_msg(flow->state == STRAIT_DONE, "%s failed: %s %s", flow->sink ? "sink" : "source",
                  strait_reason_string((int)flow->reason), flow->text);
}

void ends_failed(struct flow *flow, enum strait_reason reason)
{
    WAIT(flow->decided && flow->drained);
    ck_assert_msg(flow->state == STRAIT_FAILED && flow->reason == reason, "%s: %s instead of %s (%s)",
                  flow->sink ? "sink" : "source", strait_reason_string((int)flow->reason),
                  strait_reason_string((int)reason), flow->text);
}

static bool find_id(const struct flow *flow, uint32_t group, uint32_t index, uint32_t *id)
{
    for (uint32_t i = 0; i < flow->list_count; i++) {
        const struct strait_page_list *list = &flow->lists[i];
        if (list->group != group || index < list->first || index - list->first >= list->count)
            continue;
        *id = list->ids != NULL ? list->ids[index - list->first] : list->first_id + (index - list->first);
        return true;
    }
    return false;
}

void landed(struct flow *sink, const struct flow *source)
{
    uint32_t from, to;
    for (uint32_t l = 0; l < sink->list_count; l++) {
        const struct strait_page_list *list = &sink->lists[l];
        for (uint32_t i = 0; i < list->count; i++) {
            ck_assert(find_id(sink, list->group, list->first + i, &to));
            if (find_id(source, list->group, list->first + i, &from))
                pool_copy_page(sink->pool, sink->pool->image, to, source->pool, source->pool->bytes, from, list->group);
        }
    }
}

void undefined(struct flow *sink)
{
    uint32_t id;
    for (uint32_t l = 0; l < sink->list_count; l++)
        for (uint32_t i = 0; i < sink->lists[l].count; i++)
            if (find_id(sink, sink->lists[l].group, sink->lists[l].first + i, &id))
                pool_copy_page(sink->pool, sink->pool->image, id, sink->pool, sink->pool->bytes, id,
                               sink->lists[l].group);
}

void arrives(struct flow *sink, struct flow *source)
{
    ends_done(sink);
    ends_done(source);
    landed(sink, source);
    ck_assert_msg(pool_as_imagined(sink->pool), "the sink's pool differs");
    ck_assert_msg(pool_as_imagined(source->pool), "the source's pool differs");
}

bool failed_page(const struct flow *sink, uint32_t group, uint32_t id)
{
    for (uint32_t i = 0; i < sink->failed_count; i++)
        if (sink->failed[i].group == group && sink->failed[i].id == id)
            return true;
    return false;
}
