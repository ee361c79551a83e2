"""Finds and loads the C libraries."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

#: Per function: what it returns, what it takes.
Prototypes: TypeAlias = Mapping[str, tuple[Any, Any]]


def _candidates(name: str, variable: str) -> list[str]:
    """Names to try, in order. What the variable names alone when it is set: who names a library wants no other."""
    named = os.environ.get(variable)
    if named:
        return [named]
    beside = Path(__file__).resolve().parent / name
    return ([str(beside)] if beside.exists() else []) + [f"{name}.0", name]


def load(name: str, variable: str, prototypes: Prototypes) -> ctypes.CDLL:
    """The library of that name with its prototypes set. ImportError, with what was tried, when there is none."""
    failures = []
    for candidate in _candidates(name, variable):
        try:
            library = ctypes.CDLL(candidate)
            for function, (result, arguments) in prototypes.items():
                entry = getattr(library, function)
                entry.restype, entry.argtypes = result, arguments
            return library
        except (OSError, AttributeError) as failure:  # absent or unusable; lacks a function
            failures.append(f"{candidate}: {failure}")
    raise ImportError(f"no usable {name} (set {variable} to its path):\n  " + "\n  ".join(failures))
