/* For the tests of chunks between GPUs of two nodes: pools of the fake device plugin, and transfers of all their pages.
 */
#ifndef STRAIT_TESTS_FAR_HARNESS_H
#define STRAIT_TESTS_FAR_HARNESS_H

#include "tests/fakes/device.h"
#include "tests/node/harness.h"

extern const char *const far_codings[4];
extern const struct geometry far_small, far_large;

struct fake_control *far_control(void); /* of this process's fake devices */

/* On the first device of the source's node, and on the second one of the sink's. */
void far_pools(struct pair *pair, struct geometry shape, struct test_pool **source, struct test_pool **sink);

/* Offers all pages, filled anew; far_expect expects the latest far_offer. */
struct flow *far_offer(struct test_pool *source);
struct flow *far_expect(struct test_pool *sink);
void far_move(struct test_pool *source, struct test_pool *sink);

/* Begins a transfer whose device work is slow, and waits until some of it has begun. */
void far_begin_slowly(struct test_pool *source, struct test_pool *sink, struct flow **o, struct flow **e);
/* Makes the first device (the source's) or the second (the sink's) fail: this transfer must fail, and nothing else. */
void far_fail_device(struct pair *pair, int device, struct flow *o, struct flow *e);

/* Bytes that the source's node has sent over a wire: "peer", "nccl", "pinned", ... A chunk counts once its slot is
 * free, possibly after its transfer is DONE, so this waits. */
double far_bytes(struct test_pool *source, const char *wire);
/* Repeats moves until some bytes have gone over that wire, which is set up by a few messages. */
void far_move_until(struct test_pool *source, struct test_pool *sink, const char *wire);
/* Moves a few times; everything must go through the host, and nothing over that wire. */
void far_move_without(struct test_pool *source, struct test_pool *sink, const char *wire);

/* ---- What holds for every wire ----------------------------------------------------------------------------------- */

/* Four requests at once need more slots than there are; still, none may go through the host. */
void far_slots_go_round(struct pair *pair, const char *wire);
void far_pools_come_and_go(struct pair *pair, const char *wire);

#endif
