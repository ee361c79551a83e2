"""What a decode rank tells its prefill rank about a request, by SGLang's own control socket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HELLO_TAG = b"STRAIT_HELLO"
STATUS_TAG = b"STRAIT_STATUS"


@dataclass(frozen=True)
class Hello:
    """A decode rank has pages for a request, and expects them under `key`. The names that are not of Strait are those
    by which SGLang's base classes look at it."""

    room: int
    key: str
    endpoint: str
    dst_port: int
    pages: int
    states: list[int]  # pages of each state component, -1: none
    aux: list[int]  # bytes of a row of each metadata buffer
    decode_prefix_len: int
    blob: bytes
    is_dummy: bool = False
    required_dst_info_num: int = 1

    def to_zmq(self) -> list[bytes]:
        said = asdict(self)
        blob: bytes = said.pop("blob")
        return [HELLO_TAG, json.dumps(said).encode(), blob]

    @classmethod
    def from_zmq(cls, message: list[bytes]) -> Hello:
        """ValueError: it is none."""
        try:
            said: dict[str, Any] = json.loads(message[1])
            hello = cls(blob=bytes(message[2]), **said)
            numbers = (hello.room, hello.dst_port, hello.pages, hello.decode_prefix_len, *hello.states, *hello.aux)
        except (IndexError, TypeError, ValueError) as failure:
            raise ValueError(f"not a request of a decode rank: {failure}") from None
        texts = (hello.key, hello.endpoint)
        if not all(type(number) is int for number in numbers) or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a request of a decode rank: its fields are of other types")
        return hello

    @property
    def address(self) -> str:
        return f"{self.endpoint}:{self.dst_port}"


def counts_of(states: Sequence[Any] | None, components: int) -> list[int]:
    """Pages of each state component of a request; -1: none."""
    given = list(states or [])
    if len(given) > components:
        raise ValueError(f"{len(given)} kinds of state are given, where {components} are registered")
    return [-1 if state is None else len(state) for state in given] + [-1] * (components - len(given))
