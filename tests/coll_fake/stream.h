/* Between streams and events. */
#ifndef STRAIT_TESTS_COLL_FAKE_STREAM_H
#define STRAIT_TESTS_COLL_FAKE_STREAM_H

#include "tests/coll_fake/fake.h"

double fake_stream_clock(coll_stream stream);                     /* from its own work */
void fake_capture_join(coll_stream stream, coll_stream captured); /* into the same graph */

#endif
