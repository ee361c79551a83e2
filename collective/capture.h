/* Whether work queued on a stream goes into a CUDA graph. */
#ifndef STRAIT_COLLECTIVE_CAPTURE_H
#define STRAIT_COLLECTIVE_CAPTURE_H

#include <stdbool.h>

#include "collective/nccl_types.h"

/* Looks for the driver, which NCCL has loaded by the time the first communicator is made. Not done in every call,
 * because the loader must not be called in a process that has just been forked. Any thread. */
void coll_capture_prepare(void);

/* False if there is no driver. Any thread. */
bool coll_is_captured(coll_stream stream);

#endif
