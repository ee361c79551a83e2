/* For the tests of chunks between GPUs of two nodes: pools of the fake device plugin, and transfers of all their pages.
 */
#ifndef STRAIT_TESTS_FAR_HARNESS_H
#define STRAIT_TESTS_FAR_HARNESS_H

#include "tests/fake_device.h"
#include "tests/node_harness.h"

struct fake_control *far_control(void); /* of this process's fake devices */

/* On the first device of the source's node, and on the second one of the sink's. */
void far_pools(struct pair *pair, struct geometry shape, struct test_pool **source, struct test_pool **sink);

/* All pages, filled anew. far_expect is the latest far_offer's. */
struct flow *far_offer(struct test_pool *source);
struct flow *far_expect(struct test_pool *sink);
void far_move(struct test_pool *source, struct test_pool *sink);

/* Bytes that the source's node has sent by a wire: "peer", "nccl", "pinned", ... */
double far_bytes(struct test_pool *source, const char *wire);
/* Moves until some have gone by that wire, which takes a few messages. */
void far_move_until(struct test_pool *source, struct test_pool *sink, const char *wire);
/* Moves a few times; nothing goes by that wire, but by way of the host. */
void far_move_without(struct test_pool *source, struct test_pool *sink, const char *wire);

#endif
