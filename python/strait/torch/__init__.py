"""torch with Strait: tensors that a daemon can reach, collectives compressed without a preload, and checkpoints.

    host_pool       CPU tensors in memory of strait.service.alloc()
    fsdp2           all-gathers and reduce-scatters of FSDP2 (fully_shard)
    ddp_hook        the communication hook of DistributedDataParallel
    Communicator    the ranks of a process group, through libstrait-coll
    checkpoint      storage of torch.distributed.checkpoint
    ep              expert parallelism: dispatch and combine with gradients

Each is imported when it is asked for: importing strait.torch needs neither torch, nor a GPU, nor any library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import checkpoint, ep, fsdp2
    from .communicator import Communicator, close, communicator_of
    from .ddp import ddp_hook
    from .host import host_pool

__all__ = ["Communicator", "checkpoint", "close", "communicator_of", "ddp_hook", "ep", "fsdp2", "host_pool"]

_MODULES = {
    "Communicator": "communicator",
    "checkpoint": "checkpoint",
    "close": "communicator",
    "communicator_of": "communicator",
    "ddp_hook": "ddp",
    "ep": "ep",
    "fsdp2": "fsdp2",
    "host_pool": "host",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return module if name == _MODULES[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
