/* Queue of events for the legs of a node, in their order.
 *
 * An event for a leg is appended, wherever it comes from. The legs' machines take events only from leg_queue.run, which
 * every callback of the loop calls before it returns, so no machine is stepped while the actions of a step are carried
 * out, and the queue is empty whenever the loop goes on. Only the announcement of a chunk, which the transport makes
 * from the loop, is not queued (sink_arriving): it needs its answer at once. */
#ifndef STRAIT_DAEMON_LEG_QUEUE_H
#define STRAIT_DAEMON_LEG_QUEUE_H

#include "daemon/protocol/leg.h"

struct node;
struct sink;
struct source;

struct leg_post {
    struct sink *sink; /* exactly one of sink and source is the receiver */
    struct source *source;
    struct leg_event event;
};

struct leg_queue {
    struct leg_post *posts; /* a ring */
    uint32_t first, count, capacity;
    uint32_t legs;                  /* for which there is room */
    void (*run)(struct node *node); /* carries out all queued events */
    bool running;
};

/* Makes room for the events of one more leg: called for each leg before its first event. False: no memory. */
bool leg_queue_reserve(struct leg_queue *queue);
void leg_queue_release(struct leg_queue *queue); /* the leg has ended */
void leg_queue_fini(struct leg_queue *queue);

void leg_queue_append(struct leg_queue *queue, const struct leg_post *post);
bool leg_queue_take(struct leg_queue *queue, struct leg_post *post); /* false: the queue is empty */

#endif
