/* Coded rows on a GPU: the phases that move rows, as kernels with launches of the codec between them. */
#ifndef STRAIT_EP_CUDA_CODER_H
#define STRAIT_EP_CUDA_CODER_H

#include "ep/cuda/backend.h"

/* Gets the codec, and memory for a group. ERR_UNSUPPORTED: no codec for this GPU, see args->text. ERR_NO_MEMORY. */
enum strait_status ep_cuda_coder_open(struct ep_cuda *cuda, const struct ep_open_args *args);
void ep_cuda_coder_close(struct ep_cuda *cuda);

/* Phases of a coded group: enqueue, on the current device. False: a launch failed. */
bool ep_cuda_coded_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream);
bool ep_cuda_coded_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream);
bool ep_cuda_coded_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream);
bool ep_cuda_coded_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream);
bool ep_cuda_coded_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream);

#endif
