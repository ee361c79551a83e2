/* Whether what is put on a stream goes into a CUDA graph. */
#ifndef STRAIT_COLLECTIVE_CAPTURE_H
#define STRAIT_COLLECTIVE_CAPTURE_H

#include <stdbool.h>

#include "collective/nccl_types.h"

/* Asks the driver, when the program has loaded it. Any thread. */
bool coll_is_captured(coll_stream stream);

#endif
