/* What coders of checkpoints on GPUs share: a thread's stream and scratch on a device, and the kernels. */
#ifndef STRAIT_CHECKPOINT_CUDA_H
#define STRAIT_CHECKPOINT_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "checkpoint/plugin.h"
#include "checkpoint/walk.h"

/* What the plugin gives the library. */
extern const struct encoder encoder_cuda;
extern const struct target target_cuda;

#define STREAM_LOW  true  /* behind whatever else the device does */
#define STREAM_HIGH false /* as the program's own */

/* Memory of one kind that grows when more of it is needed. */
struct room {
    void *memory;
    uint64_t bytes;
};

/* A thread's place on the device that its tensors are on. Zeroed: on none. */
struct place {
    const struct strait_codec *codec; /* NULL: on none */
    int device;
    cudaStream_t stream;
    cudaEvent_t done;
    struct room scratch; /* the codec's */
};

/* Sets `told` to a text and returns the status of an error. */
enum strait_status cuda_told(struct encoder_text told, const char *what, cudaError_t error);

/* The device whose memory this is; -1: no device's. */
int device_of(const void *data);

/* Goes to the device that `data` is memory of, and makes it the thread's current one. What the place had on another
 * device is freed; *moved tells so, to owners of more that lies there. ERR_INVALID (no memory of a device),
 * ERR_UNSUPPORTED (no kernels for it), ERR_DEVICE. */
enum strait_status place_take(struct place *place, const void *data, bool low, bool *moved, struct encoder_text told);
void place_leave(struct place *place);
/* Waits for the stream, asleep. */
cudaError_t place_wait(struct place *place);

/* At least so much device memory, zeroed when it is new; pinned memory of the host. What was there before is gone. */
cudaError_t room_device(struct room *room, uint64_t bytes);
cudaError_t room_pinned(struct room *room, uint64_t bytes);

/* ---- Kernels: enqueued on a stream ------------------------------------------------------------------------------- */

/* Adds to *different, in memory that the device writes, the number of values that are not the roundings (rounding.h).
 */
cudaError_t kernel_compare(const void *fp32, const void *bf16, uint64_t count, uint32_t *different, uint32_t blocks,
                           cudaStream_t stream);

/* Writes those of a shard's values first..end-1 that the walk has to their places, from `page`, which begins with value
 * `first`: as they are, or F32 rounded to BF16. Any alignment. */
cudaError_t kernel_place(const struct walk *walk, uint64_t first, uint64_t end, const uint8_t *page, bool rounded,
                         cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
