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

/* scenes.c */
void scene_shm(void);
void scene_ucx(void);
void scene_local(void);
void scene_shapes(void);
void scene_refusals(void);
void scene_client_dies(void);
void scene_daemon_dies(void);
void scene_rates(void);
void scene_few(void);
/* links.c */
void scene_reach(void);
void scene_ucx_link(void);
void scene_ucx_link_dies(void);
void scene_ucx_link_busy(void);
void scene_nccl(void);
void scene_nccl_dies(void);
void scene_nccl_auto(void);
void scene_nccl_busy(void);
/* scenes.c: events, daemons inside of the process */
void scene_ready(void);
void scene_embedded(void);
/* faults.c: of clients and daemons */
void scene_silence(void);
void scene_client_faults(void);
void scene_freed(void);
/* faults.c: of devices */
void scene_device_fails(void);
void scene_device_stalls(void);

/* ---- What they share --------------------------------------------------------------------------------------------- */

extern const struct pool_shape small, medium, large; /* 24, 96 and 256 MiB */

int last_device(void);
struct pool_shape on(struct pool_shape shape, int device, enum strait_handle handle);
/* Registers a pool like pool_try, and requires that it is refused with this status. */
void refused(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device, int status);

#endif
