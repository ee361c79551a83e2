/* Calls of the CUDA driver, which the library does not link: a process that has a stream has loaded the driver. */
#ifndef STRAIT_CLIENT_GPU_H
#define STRAIT_CLIENT_GPU_H

#include <stddef.h>
#include <stdint.h>

/* Results are the driver's: 0 is success. */
struct gpu {
    int (*stream_context)(void *stream, void **context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*stream_is_capturing)(void *stream, int *status);
    int (*host_register)(void *base, size_t size, unsigned flags);
    int (*host_device_pointer)(uint64_t *address, void *host, unsigned flags);
    int (*stream_wait_value)(void *stream, uint64_t address, uint32_t value, unsigned flags);
};

#define GPU_REGISTER_FLAGS 3u /* portable: pinned for all contexts; mapped: GPUs can address it */
#define GPU_WAIT_GEQ       0u /* until (int32_t)(*address - value) >= 0 */

/* NULL: this process has no driver, or one without these calls. Any thread. */
const struct gpu *gpu_driver(void);

#endif
