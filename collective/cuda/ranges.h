/* NVTX ranges around what the engine launches, for tools that show timelines (docs/collectives.md, "Profilers").
 * Without such a tool in the process each stage costs one comparison more. */
#ifndef STRAIT_COLLECTIVE_CUDA_RANGES_H
#define STRAIT_COLLECTIVE_CUDA_RANGES_H

#include "collective/engine.h"

/* Returns the engine with ranges around its stages; called once for each process. */
const struct coll_engine_ops *ranges_around(const struct coll_engine_ops *engine);

#endif
