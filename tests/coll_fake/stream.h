/* Between streams and events. */
#ifndef STRAIT_TESTS_COLL_FAKE_STREAM_H
#define STRAIT_TESTS_COLL_FAKE_STREAM_H

#include "tests/coll_fake/fake.h"

double fake_stream_clock(coll_stream stream); /* from its own work */
/* On a captured stream: what is called, instead of run, whenever the graph is launched. */
typedef void fake_again(coll_stream stream, const void *argument);
void fake_queue_again(coll_stream stream, fake_again *again, fake_end *end, const void *argument, size_t size);
void fake_capture_join(coll_stream stream, coll_stream captured); /* into the same graph */

#endif
