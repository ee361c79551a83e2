/* The kernels of collective/engine/peer_gpu.h, and access to other ranks' memory. */
#ifndef STRAIT_COLLECTIVE_CUDA_PEER_H
#define STRAIT_COLLECTIVE_CUDA_PEER_H

#include <cuda_runtime_api.h>

#include "collective/engine/peer_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernels on the current device. */
cudaError_t peer_kernels_prepare(void);
cudaError_t peer_claim_launch(const struct peer_claim *claim, cudaStream_t stream);
cudaError_t peer_post_launch(const struct peer_post *post, cudaStream_t stream);
cudaError_t peer_turn_launch(const struct peer_receive_step *turn, cudaStream_t stream);

extern const struct gpu_peer_ops cuda_gpu_peer;

#ifdef __cplusplus
}
#endif
#endif
