/* What the tests of nodes with GPUs share: the fake plugin's control, and moves of all pages of a pool. */
#ifndef STRAIT_TESTS_GPU_MOVES_H
#define STRAIT_TESTS_GPU_MOVES_H

#include "tests/fake_device.h"
#include "tests/node_harness.h"

struct fake_control *control(void);

/* An offer of all pages, after they were filled anew, and an expectation of all pages for the latest offer. */
struct flow *offer_all(struct test_pool *source);
struct flow *expect_all(struct test_pool *sink);
void move_all(struct test_pool *source, struct test_pool *sink);

/* That the source's node sent: straight into the peer's GPU, and by way of the host's memory. */
double peer_bytes(struct test_pool *source);
double pinned_bytes(struct test_pool *source);
/* Moves until the daemons have found the way between their GPUs, which takes a few messages. */
void move_until_reached(struct test_pool *source, struct test_pool *sink);

#endif
