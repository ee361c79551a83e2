"""The communication hook of DistributedDataParallel through libstrait-coll, without a preload.

    model = DistributedDataParallel(model, device_ids=[device.index])
    model.register_comm_hook(None, strait.torch.ddp_hook)

The first bucket makes the communicator; strait.torch.close() ends it.
"""

from typing import Any  # register_comm_hook looks at annotations: they are not to be text

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .communicator import TYPES, Communicator, communicator_of

__all__ = ["ddp_hook"]


def ddp_hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket of gradients: what torch's allreduce_hook does, and what no hook does where the number of
    ranks is a power of two. state: the process group, or None for the default one; or a Communicator.

    Buckets are of the type of the gradients: BF16 of models in BF16. Under bf16_compress_wrapper(ddp_hook) those of
    FP32 are rounded to BF16 first, as bf16_compress_hook does. Other types than BF16, FP16 and FP32 are left to torch.
    """
    communicator = state if isinstance(state, Communicator) else communicator_of(state)
    tensor = bucket.buffer()
    if tensor.dtype not in TYPES:
        return allreduce_hook(communicator.group, bucket)
    tensor.div_(communicator.size)
    future = communicator.gpu.future()
    with communicator.gpu.beside(tensor):
        communicator.all_reduce(tensor)
        future.set_result(tensor)  # for whoever waits: behind what this stream has now
    return future


_distributed: Any = dist  # whose types do not declare GradBucket
ddp_hook.__annotations__["bucket"] = _distributed.GradBucket
