/* What streams and events share. */
#ifndef STRAIT_TESTS_COLL_FAKE_STREAM_H
#define STRAIT_TESTS_COLL_FAKE_STREAM_H

#include "tests/coll_fake/fake.h"

double fake_stream_clock(coll_stream stream); /* called by its own work */
/* For a captured stream: done by whoever launches the graph, with the stream that it is launched on. */
typedef void fake_launch(coll_stream stream, const void *argument);
void fake_queue_launch(coll_stream stream, fake_launch *launch, fake_end *end, const void *argument, size_t size);
void fake_capture_join(coll_stream stream, coll_stream captured); /* into the same graph */

#endif
