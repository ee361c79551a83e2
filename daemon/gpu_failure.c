/* A GPU that fails takes all others of the process with it (device.h). Requests that wait for them fail at once, not
 * when the next chunk is tried. What the driver still holds of theirs is drained as usual, when the driver returns. */
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"

#define LAST_MS 1000u /* time for live transfers before the node stops because of it: a quick restart is worth more */

/* Records the GPUs that have newly failed. */
static void note_failed(struct node *node)
{
    struct device_state state;
    char why[2 * sizeof(state.why)];
    for (int32_t number = 0; number < DEVICES_MAX; number++) {
        if ((node->gpus_failed >> number & 1) != 0 || !devices_state(node->devices, number, &state) || !state.failed)
            continue;
        node->gpus_failed |= UINT64_C(1) << number;
        log_quote(why, sizeof(why), state.why, strlen(state.why));
        log_write(node->log, LOG_ERROR, "msg=\"GPU failed\" device=%d why=%s", number, why);
    }
}

static void fail_stranded(struct node *node)
{
    struct expectation *e, *next_e;
    DL_FOREACH_SAFE (node->exchange.expectations, e, next_e)
        if (request_is_stranded(&e->request))
            expectation_fail(e, STRAIT_REASON_LOCAL, "");
    struct offer *o, *next_o;
    DL_FOREACH_SAFE (node->exchange.offers, o, next_o)
        if (request_is_stranded(&o->request))
            offer_fail(o, STRAIT_REASON_LOCAL, "");
}

static void stop_soon(struct node *node)
{
    const uint64_t last = uv_now(node->loop) + LAST_MS;
    if (node->draining)
        return; /* it was already told to end */
    node->gpu_failed(node->owner);
    node_stop(node, true);
    if (node->drain_until > last)
        node->drain_until = last;
}

void node_gpu_failed(void *owner)
{
    struct node *node = owner;
    const uint64_t before = node->gpus_failed;
    note_failed(node);
    if (node->gpus_failed == before)
        return;
    fail_stranded(node);
    if (node->gpu_failed != NULL && strcmp(node->options.gpu_failure, "exit") == 0)
        stop_soon(node);
}
