/* What is tried with real GPUs. */
#ifndef STRAIT_TESTS_GPU_SCENES_H
#define STRAIT_TESTS_GPU_SCENES_H

#include "tests/gpu/world.h"

struct scene {
    const char *name;
    void (*run)(void);
};

extern const struct scene scenes[];
extern const int scene_count;

void scene_shm(void);
void scene_ucx(void);
void scene_local(void);
void scene_shapes(void);
void scene_ready(void);
void scene_refusals(void);
void scene_client_dies(void);
void scene_daemon_dies(void);
void scene_rates(void);
void scene_reach(void);

#endif
