"""The codec's plugin for CUDA, where it lies beside the codec."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from .._abi import lib

_NAME = "libstrait-cuda.so.0"


@functools.cache
def load_plugin() -> None:
    """The codec looks for it by its name alone: that finds what is where libraries are, or is loaded already."""
    beside = Path(lib._name).resolve().parent / _NAME
    for candidate in (_NAME, str(beside)):
        try:
            ctypes.CDLL(candidate)
            return
        except OSError:  # whoever asks for the variant reports that it is missing
            continue
