/* Whether what is put on a stream goes into a CUDA graph. */
#ifndef STRAIT_COLLECTIVE_CAPTURE_H
#define STRAIT_COLLECTIVE_CAPTURE_H

#include <stdbool.h>

#include "collective/nccl_types.h"

/* Looks for the driver, which NCCL has loaded when the first communicator is made; not with every call, as the loader
 * may not be asked in a process that has just been forked. Any thread. */
void coll_capture_prepare(void);

/* False without a driver. Any thread. */
bool coll_is_captured(coll_stream stream);

#endif
