/* NCCL and the CUDA driver of the process, and memory of a group's device by them, or of the host where the driver does
 * not start. */
#ifndef STRAIT_EP_NCCL_EP_DEVICE_H
#define STRAIT_EP_NCCL_EP_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ep/nccl_ep/abi.h"

/* What is called of NCCL; functions of windows are NULL before NCCL 2.29.7. */
struct nep_nccl {
    nep_result (*AllGather)(const void *send, void *receive, size_t count, int type, nep_comm comm, nep_stream stream);
    nep_result (*CommCount)(nep_comm comm, int *count);
    nep_result (*CommUserRank)(nep_comm comm, int *rank);
    nep_result (*CommCuDevice)(nep_comm comm, int *device);
    nep_result (*WinGetUserPtr)(nep_comm comm, nep_window window, void **pointer);
    nep_result (*GetPeerDevicePointer)(nep_window window, size_t offset, int peer, void **pointer);
};

/* That which the program has loaded, or else libnccl.so.2. NULL: there is none. */
const struct nep_nccl *nep_nccl(void);

/* Memory that tensors of a group lie in. What takes a stream only enqueues work on GPUs, wait excepted, and can be
 * captured. False: the driver failed. */
struct nep_memory {
    bool (*enter)(int device); /* makes the device current, until leave */
    void (*leave)(void);
    void *(*alloc)(size_t bytes); /* for a device that is current; NULL: no room */
    void (*free)(void *memory);
    bool (*fill)(void *to, uint8_t value, size_t bytes, nep_stream stream);
    void *(*alloc_pinned)(size_t bytes); /* of the host, for copy from and to */
    void (*free_pinned)(void *memory);
    bool (*copy)(void *to, const void *from, size_t bytes, nep_stream stream); /* of the device, or pinned */
    bool (*wait)(nep_stream stream);
    bool (*run)(nep_stream stream, void (*function)(void *argument), void *argument); /* on the host, in order */
    /* int32 that are not negative to int64. */
    bool (*widen)(int64_t *to, const int32_t *from, size_t count, nep_stream stream);
    nep_stream (*stream)(void); /* a new one on the current device */
    void (*stream_end)(nep_stream stream);
};

/* The device's, or the host's where the CUDA driver does not start or has no such device. */
const struct nep_memory *nep_memory(int device);
bool nep_memory_is_cuda(const struct nep_memory *memory);

#endif
