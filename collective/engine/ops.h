/* The engine on given GPUs, as its plugin exports it (collective/engine.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_OPS_H
#define STRAIT_COLLECTIVE_ENGINE_OPS_H

#include "collective/engine.h"
#include "collective/engine/gpu.h"

/* Call once per process; *gpu has to stay. */
const struct coll_engine_ops *engine_ops(const struct gpu_ops *gpu);

#endif
