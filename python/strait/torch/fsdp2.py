"""Collectives of FSDP2 (torch.distributed.fsdp.fully_shard) through libstrait-coll, without a preload.

    from strait.torch import fsdp2

    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    fsdp2.install(model)                  all-gathers of parameters and reduce-scatters of gradients
    ...
    strait.torch.close()                  before destroy_process_group()

Losses and parameters are the same bits as without, for two ranks, and for any number of ranks where a sum is exact;
docs/collectives.md has the rest, "Order of sums". Without install(), on single modules:
module.set_custom_all_gather(AllGather()), module.set_custom_reduce_scatter(ReduceScatter()).

Needs a torch whose FSDPModule has set_custom_all_gather: 2.11 was tried on GPUs, 2.13 on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_api, _fsdp_collectives

from .communicator import Communicator, Gpu, communicator_of, reduction_of

if not hasattr(_fsdp_api, "ReduceScatter"):
    raise ImportError(f"torch {torch.__version__} is too old for strait.torch.fsdp2: it has no set_custom_all_gather")

__all__ = ["AllGather", "Arena", "ReduceScatter", "install", "remove"]


class Arena:
    """Memory of a pool of torch for the buffers of collectives: apart from that of the model, so that a buffer is used
    again and again.

    registered: the memory is ncclMemAlloc's, and is registered with the communicators that it is used with. NCCL can
    then leave out a copy of what is passed on to it raw, over NVLink; what is compressed has a copy more. The process
    group of the call has to be of the backend nccl.
    """

    def __init__(self, registered: bool = False):
        self.registered = registered
        self._pools: dict[torch.device, Any] = {}

    def allocate(self, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if device.type != "cuda":
            return torch.empty(size, dtype=dtype, device=device)
        pool = self._pools.get(device)
        if pool is None:
            pool = self._pools[device] = self._make_pool(device)
        with torch.cuda.use_mem_pool(pool, device):
            return torch.empty(size, dtype=dtype, device=device)

    def _make_pool(self, device: torch.device) -> Any:
        world: Any = dist.group.WORLD
        allocator = world._get_backend(device).mem_allocator if self.registered else None
        with torch.cuda.device(device):
            return torch.cuda.MemPool(allocator)

    def register(self, communicator: Communicator, tensor: torch.Tensor) -> None:
        """Registers what of the arena is not yet, if the tensor lies there."""
        if not self.registered or communicator.is_registered(tensor.data_ptr()):
            return
        pool = self._pools.get(tensor.device)
        for segment in pool.snapshot() if pool is not None else ():
            if not communicator.is_registered(segment["address"]):
                communicator.register(segment["address"], segment["total_size"], pool)


class _Work(dist.Work):
    """What is queued on a communicator's side stream."""

    def __init__(self, gpu: Gpu, event: Any):
        super().__init__()
        self._gpu, self._event = gpu, event

    def is_completed(self) -> bool:
        done: bool = self._event.query()
        return done

    def is_success(self) -> bool:
        return self.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The current stream waits."""
        self._gpu.wait(self._event)
        return True


class _Collective:
    """What all-gathers and reduce-scatters have in common."""

    def __init__(self, arena: Arena | None = None):
        self.arena = arena or Arena()

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self.arena.allocate(size, dtype, device)

    def issue(
        self,
        communicator: Communicator,
        tensors: tuple[torch.Tensor, ...],
        async_op: bool,
        collective: Callable[[], None],
    ) -> dist.Work | None:
        """On the current stream; if async_op, on the communicator's side stream behind what the current one has."""
        for tensor in tensors:
            self.arena.register(communicator, tensor)
        if not async_op:
            collective()
            return None
        with communicator.gpu.beside(*tensors):
            collective()
            return _Work(communicator.gpu, communicator.gpu.record())


class AllGather(_Collective, _fsdp_api.AllGather):
    """For FSDPModule.set_custom_all_gather. Values of several types, which FSDP2 packs as uint8, are compressed as
    STRAIT_COLL_BYTES says."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        communicator = communicator_of(group)
        return self.issue(
            communicator,
            (output_tensor, input_tensor),
            async_op,
            lambda: communicator.all_gather(output_tensor, input_tensor),
        )


class ReduceScatter(_Collective, _fsdp_api.ReduceScatter):
    """For FSDPModule.set_custom_reduce_scatter. What is no sum or average of BF16, FP16 or FP32 (as with a divide
    factor of one's own) is torch's own."""

    def __init__(self, arena: Arena | None = None):
        super().__init__(arena)
        self._by_torch = _fsdp_collectives.DefaultReduceScatter()

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        if reduction_of(op, input_tensor.dtype) is None:
            return self._by_torch(output_tensor, input_tensor, group, op, async_op)
        communicator = communicator_of(group)
        return self.issue(
            communicator,
            (output_tensor, input_tensor),
            async_op,
            lambda: communicator.reduce_scatter(output_tensor, input_tensor, op),
        )


def install(model: nn.Module, arena: Arena | None = None) -> int:
    """Gives every module of the model that fully_shard was applied to an AllGather and a ReduceScatter; returns how
    many there are. ValueError: there are none, or a module has several meshes, for which torch takes no such objects.

    Communicators are made by the first collectives: their errors come then.
    """
    gather, scatter = AllGather(arena := arena or Arena()), ReduceScatter(arena)
    return _set(model, gather, scatter)


def remove(model: nn.Module) -> int:
    """The opposite: torch's own collectives."""
    return _set(model, _fsdp_collectives.DefaultAllGather(), _fsdp_collectives.DefaultReduceScatter())


def _set(model: nn.Module, gather: Any, scatter: Any) -> int:
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError("fully_shard was applied to no module of this model")
    for module in modules:
        module.set_custom_all_gather(gather)
        module.set_custom_reduce_scatter(scatter)
    return len(modules)
