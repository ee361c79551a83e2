"""torch with Strait: tensors that a daemon can reach, and checkpoints.

    host_pool       CPU tensors in memory of strait.service.alloc()
    checkpoint      storage of torch.distributed.checkpoint

Each is imported when it is asked for: importing strait.torch needs neither torch, nor a GPU, nor any library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import checkpoint
    from .host import host_pool

__all__ = ["checkpoint", "host_pool"]

_MODULES = {
    "checkpoint": "checkpoint",
    "host_pool": "host",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return module if name == _MODULES[name] else getattr(module, name)
