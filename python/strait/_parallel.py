"""Engines of other tensor and pipeline parallelism: which ranks of a prefill engine have what a decode engine's rank
wants."""

from __future__ import annotations

from typing import Any, NamedTuple

RANKS_MAX = 512  # of an engine; a description that says more is none
_HEADS_MAX = _LAYERS_MAX = 65536


class Rank(NamedTuple):
    stage: int
    tensor: int


class Parallel(NamedTuple):
    """How an engine's cache is spread over its ranks."""

    heads: int  # KV heads of the model, in all of its layers; 0: not known, so that ranks must be alike
    tensor: int  # ranks of a pipeline stage. With more of them than heads, several in a row have the same head
    stages: tuple[tuple[int, int], ...]  # the first of their layers, and the number behind the last

    @classmethod
    def of(cls, described: Any) -> Parallel | None:
        """What describe() returned, after a way through JSON; None: it is something else, which may be anything."""
        try:
            heads, tensor, stages = described
            found = cls(heads, tensor, tuple((first, end) for first, end in stages))
        except (TypeError, ValueError):
            return None
        if not all(type(number) is int for number in (heads, tensor, *(n for stage in found.stages for n in stage))):
            return None
        fits = 0 <= heads <= _HEADS_MAX and tensor > 0 and 0 < tensor * len(found.stages) <= RANKS_MAX
        fits = fits and all(0 <= first <= end <= _LAYERS_MAX for first, end in found.stages)
        return found if fits and (heads == 0 or found._divides()) else None

    def _divides(self) -> bool:
        return self.heads % self.tensor == 0 or self.tensor % self.heads == 0

    def describe(self) -> list[Any]:
        return [self.heads, self.tensor, [list(stage) for stage in self.stages]]

    def __str__(self) -> str:
        layers = ", ".join(f"{first} to {end - 1}" for first, end in self.stages)
        heads = f"{self.heads} KV heads" if self.heads else "an unknown number of KV heads"
        return f"{heads} over {self.tensor} ranks, {len(self.stages)} pipeline stages with the layers {layers}"

    def ranks(self) -> list[Rank]:
        return [Rank(stage, tensor) for stage in range(len(self.stages)) for tensor in range(self.tensor)]

    def heads_of(self, tensor: int) -> range:
        """KV heads of a rank. They are known."""
        count = max(1, self.heads // self.tensor)
        first = tensor * self.heads // self.tensor
        return range(first, first + count)

    def _replicas(self) -> int:
        """Ranks in a row that have the same head."""
        return max(1, self.tensor // self.heads)


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _tensor_sources(prefill: Parallel, decode: Parallel, tensor: int) -> list[int]:
    if prefill.heads == 0 or prefill.tensor == decode.tensor:
        return [tensor]
    wanted, replicas = decode.heads_of(tensor), prefill._replicas()
    return [
        first + tensor % replicas  # so that decode ranks take from all of them
        for first in range(0, prefill.tensor, replicas)
        if _overlap(wanted, prefill.heads_of(first))
    ]


def sources_of(prefill: Parallel, decode: Parallel, rank: Rank) -> list[Rank]:
    """The prefill engine's ranks that together have all that the decode engine's rank wants, and nothing of it twice.
    ValueError, with both descriptions: there are none."""
    layers = range(*decode.stages[rank.stage])
    stages = [stage for stage, bounds in enumerate(prefill.stages) if _overlap(layers, range(*bounds))]
    if prefill.heads != decode.heads or (prefill.heads == 0 and prefill.tensor != decode.tensor) or not stages:
        raise ValueError(f"the engines do not fit: the prefill engine has {prefill}; the decode engine has {decode}")
    return [Rank(stage, source) for stage in stages for source in _tensor_sources(prefill, decode, rank.tensor)]


def consumers_of(prefill: Parallel, decode: Parallel) -> dict[Rank, int]:
    """How many of the decode engine's ranks take from each of the prefill engine's; 0: none. ValueError."""
    counts = dict.fromkeys(prefill.ranks(), 0)
    for rank in decode.ranks():
        for source in sources_of(prefill, decode, rank):
            counts[source] += 1
    return counts


def spare_of(prefill: Parallel, decode: Parallel) -> dict[Rank, list[Rank]]:
    """The prefill engine's ranks from which nobody takes, because others have the same heads; by a rank of the decode
    engine that has some of their heads and layers. ValueError."""
    found: dict[Rank, list[Rank]] = {}
    for source in [source for source, count in consumers_of(prefill, decode).items() if count == 0]:
        layers, heads = range(*prefill.stages[source.stage]), prefill.heads_of(source.tensor)
        for rank in decode.ranks():
            if _overlap(layers, range(*decode.stages[rank.stage])) and _overlap(heads, decode.heads_of(rank.tensor)):
                found.setdefault(rank, []).append(source)
                break
    return found
