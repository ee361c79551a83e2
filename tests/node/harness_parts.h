/* Shared by the files of the harness. */
#ifndef STRAIT_TESTS_NODE_HARNESS_PARTS_H
#define STRAIT_TESTS_NODE_HARNESS_PARTS_H

#include "tests/node/harness.h"

/* Memory that lives until the end of the test. */
void *keep(size_t size);

void pools_event(const struct strait_event *event);
void pools_close(void);
/* Copies all rows of a group's page; each base is that of the pool's memory, or of its image. */
void pool_copy_page(struct test_pool *to, uint8_t *to_base, uint32_t to_id, const struct test_pool *from,
                    uint8_t *from_base, uint32_t from_id, uint32_t group);

void flow_event(struct flow *flow, const struct strait_event *event);

#endif
