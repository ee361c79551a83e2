"""Makes the transfer backend known to SGLang, whose list of them is closed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import Enum
from typing import Any

NAME = "strait"
_CLASSES = {
    "MANAGER": "StraitKVManager",
    "SENDER": "StraitKVSender",
    "RECEIVER": "StraitKVReceiver",
    "BOOTSTRAP_SERVER": "StraitKVBootstrapServer",
}
_TARGET = "sglang.srt.disaggregation.utils.get_kv_class"


def _add_member(enumeration: type[Enum], name: str, value: str) -> None:
    """A member more of an enumeration that has been defined. AttributeError: it has one of that name."""
    member = object.__new__(enumeration)
    member._name_, member._value_ = name, value
    member.__objclass__ = enumeration  # type: ignore[attr-defined]
    member._sort_order_ = len(enumeration._member_names_)  # type: ignore[attr-defined]
    setattr(enumeration, name, member)
    enumeration._member_names_.append(name)
    enumeration._member_map_[name] = member
    enumeration._value2member_map_[value] = member


def _get_kv_class(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    if transfer_backend.value != NAME or class_type.name not in _CLASSES:
        return original(transfer_backend, class_type)
    return getattr(importlib.import_module("strait.sglang.conn"), _CLASSES[class_type.name])


def plugin() -> None:
    """The entry point of the group sglang.srt.plugins: SGLang calls it in each of its processes before it reads its
    options, and applies what was hooked when all plug-ins have run. Nothing is done where SGLang has the backend."""
    from sglang.srt.arg_groups.choices import DISAGG_TRANSFER_BACKEND_CHOICES, add_disagg_transfer_backend_choices
    from sglang.srt.disaggregation.utils import TransferBackend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if NAME not in DISAGG_TRANSFER_BACKEND_CHOICES:
        add_disagg_transfer_backend_choices([NAME])
    if NAME.upper() not in TransferBackend.__members__:
        _add_member(TransferBackend, NAME.upper(), NAME)
        HookRegistry.register(_TARGET, _get_kv_class, HookType.AROUND)


def register() -> None:
    """The same at once, for a process that does not load SGLang's plug-ins. It may be called again."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    plugin()
    HookRegistry.apply_hooks()
