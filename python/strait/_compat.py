"""The token by which connectors of frameworks tell pools apart that have the same geometry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def compat_token(model: str, described: Sequence[Any]) -> str:
    """A pool's `compat`: the last part of the model's name, for people, and a digest of all that must be equal."""
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
    name = model.rstrip("/").rpartition("/")[2]
    return "".join(c for c in name if " " <= c <= "~")[:47] + "@" + digest
