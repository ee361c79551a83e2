"""What a decode rank tells its prefill rank about a request, by SGLang's own control socket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HELLO_TAG = b"STRAIT_HELLO"
STATUS_TAG = b"STRAIT_STATUS"
_CONSUMERS_MAX = 64  # STRAIT_PARTS_MAX


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
    page: int  # tokens
    ranks: list[int]  # of attention TP, and pipeline stages, of the decode engine
    is_dummy: bool  # another prefill rank has the same: nothing is wanted of this one
    required_dst_info_num: int  # decode ranks that say so of this request, each

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
            numbers = (
                *(hello.room, hello.dst_port, hello.pages, hello.decode_prefix_len),
                *(hello.page, hello.required_dst_info_num, *hello.states, *hello.aux, *hello.ranks),
            )
        except (IndexError, TypeError, ValueError) as failure:
            raise ValueError(f"not a request of a decode rank: {failure}") from None
        texts = (hello.key, hello.endpoint)
        if not all(type(number) is int for number in numbers) or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a request of a decode rank: its fields are of other types")
        counts = (hello.page, hello.required_dst_info_num, *hello.ranks)
        if len(hello.ranks) != 2 or min(counts) < 1 or hello.required_dst_info_num > _CONSUMERS_MAX:
            raise ValueError("not a request of a decode rank: its numbers are out of range")
        return hello

    def fits(self, pages: int, page: int) -> bool:
        """Whether so many pages of so many tokens may be of a prompt as long as its own."""
        return (pages - 1) * page < self.pages * self.page and (self.pages - 1) * self.page < pages * page

    @property
    def address(self) -> str:
        return f"{self.endpoint}:{self.dst_port}"


def counts_of(states: Sequence[Any] | None, components: int) -> list[int]:
    """Pages of each state component of a request; -1: none."""
    given = list(states or [])
    if len(given) > components:
        raise ValueError(f"{len(given)} kinds of state are given, where {components} are registered")
    return [-1 if state is None else len(state) for state in given] + [-1] * (components - len(given))
