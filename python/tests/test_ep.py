"""strait.ep between ranks that are threads, against sums and lists made from the routing."""

import threading

import numpy as np
import pytest
from strait.errors import InvalidError, NoSpaceError

ep = pytest.importorskip("strait.ep", reason="libstrait-ep.so", exc_type=ImportError)

RANKS, EXPERTS, TOPK, TOKENS, HIDDEN = 4, 8, 3, 9, 32
LOCAL = EXPERTS // RANKS


class Ranks:
    """Threads that run one function at once, and what they gather."""

    def __init__(self, count):
        self.count, self.barrier, self.given = count, threading.Barrier(count, timeout=60), [b""] * count

    def gather(self, rank):
        def gather(given):
            self.given[rank] = given
            self.barrier.wait()
            gathered = b"".join(self.given)
            self.barrier.wait()
            return gathered

        return gather

    def run(self, function):
        """What it returned, by rank. Raises the first that a rank has raised."""
        results, failures = [None] * self.count, []

        def one(rank):
            try:
                results[rank] = function(rank)
            except BaseException as failure:
                failures.append(failure)
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return results


def routing(rng):
    """Of each rank: numbers with some -1, weights and rows; one rank has no tokens."""
    counts = [TOKENS, 0, 4, 7]
    topk = [np.stack([rng.permutation(EXPERTS)[:TOPK] for _ in range(n)]) if n else np.empty((0, TOPK)) for n in counts]
    topk = [np.where(rng.random(one.shape) < 0.2, -1, one).astype(np.int64) for one in topk]
    weights = [rng.random((n, TOPK), np.float32) for n in counts]
    rows = [rng.standard_normal((n, HIDDEN), np.float32) for n in counts]
    return topk, weights, rows


def came(topk, rank):
    """(source, token) of what a rank receives, in order."""
    return [
        (s, t) for s, one in enumerate(topk) for t, numbers in enumerate(one) if rank in numbers[numbers >= 0] // LOCAL
    ]


def group(ranks, rank, algorithm, **options):
    options = {"experts": EXPERTS, "tokens_max": TOKENS, "row_bytes_max": 4 * HIDDEN, "topk_max": TOPK} | options
    return ep.Group(ranks.gather(rank), rank, ranks.count, algorithm=algorithm, timeout=60, **options)


def addresses(ranks, rank, array):
    """Of all ranks' arrays, which are threads."""
    return np.frombuffer(ranks.gather(rank)(np.uint64(array.ctypes.data).tobytes()), np.uint64).tolist()


@pytest.mark.parametrize("coding", ["raw", "coded"])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("in_place", [False, True])
def test_flat_there_and_back(rng, coding, kind, in_place):
    ranks = Ranks(RANKS)
    topk, weights, rows = routing(rng)

    def step(rank):
        with group(ranks, rank, "high_throughput", coding=coding) as found:
            handle = found.handle("flat", TOPK)
            total, counts = np.zeros(1, np.int32), np.zeros(LOCAL, np.int32)
            handle.update(topk[rank].astype(kind), total=total, expert_counts=counts)
            expected = came(topk, rank)
            assert total[0] == len(expected)
            assert counts.tolist() == [sum((one == rank * LOCAL + e).sum() for one in topk) for e in range(LOCAL)]
            out, numbers = np.empty((total[0], HIDDEN), np.float32), np.empty((total[0], TOPK), np.int32)
            made = np.empty((total[0], TOPK), np.float32)
            peers = addresses(ranks, rank, out) if in_place else None
            handle.dispatch(rows[rank], out, weights=weights[rank], out_weights=made, out_topk=numbers, peers=peers)
            for at, (s, t) in enumerate(expected):
                assert (out[at] == rows[s][t]).all()
                here = (topk[s][t] >= 0) & (topk[s][t] // LOCAL == rank)
                assert (numbers[at] == np.where(here, topk[s][t] - rank * LOCAL, -1)).all()
                assert (made[at] == np.where(here, weights[s][t], 0)).all()
            summed, gradients = np.empty_like(rows[rank]), np.empty_like(weights[rank])
            back = out * np.float32(rank + 1)
            peers = addresses(ranks, rank, back) if in_place else None
            handle.combine(back, summed, weights=made, out_weights=gradients, peers=peers)
            for t, numbers_of in enumerate(topk[rank]):
                sums = np.zeros(HIDDEN, np.float32)
                for place, d in enumerate(sorted(set(numbers_of[numbers_of >= 0] // LOCAL))):
                    term = rows[rank][t] * np.float32(d + 1)
                    sums = sums + term if place else term
                assert (summed[t] == sums).all()
            assert (gradients == np.where(topk[rank] >= 0, weights[rank], 0)).all()
            info = found.info
            assert info.medium == "shared memory" and info.coded == (coding == "coded")
            assert info.sent_bytes > 0 or len(topk[rank]) == 0 or coding == "raw"
            found.check()

    ranks.run(step)


def test_low_latency_weighs_rows_of_experts_in_one_call_and_in_two(rng):
    ranks = Ranks(RANKS)
    topk, weights, rows = routing(rng)

    def step(rank):
        with group(ranks, rank, "low_latency", mask=True) as found:
            handle = found.handle("expert_major", TOPK)
            assert found.mask() == [True] * RANKS
            for send_only in (False, True):
                handle.update(topk[rank])
                out, counts = np.empty((LOCAL, RANKS * TOKENS, HIDDEN), np.float32), np.zeros(LOCAL, np.int32)
                handle.dispatch(rows[rank], out, expert_counts=counts, send_only=send_only)
                if send_only:
                    handle.complete()
                for e in range(LOCAL):
                    expected = [(s, t) for s, t in came(topk, rank) if rank * LOCAL + e in topk[s][t]]
                    assert counts[e] == len(expected)
                    for at, (s, t) in enumerate(expected):
                        assert (out[e, at] == rows[s][t]).all()
                summed = np.empty_like(rows[rank])
                handle.combine(out, summed, out_weights=weights[rank], send_only=send_only)
                if send_only:
                    handle.complete()
                for t, numbers in enumerate(topk[rank]):
                    sums = None
                    for k in sorted(range(TOPK), key=lambda k: (numbers[k] // LOCAL, k)):
                        if numbers[k] >= 0:
                            term = weights[rank][t][k] * rows[rank][t]
                            sums = term if sums is None else sums + term
                    assert (summed[t] == (0 if sums is None else sums)).all()

    ranks.run(step)


def test_memory_of_the_heap():
    ranks = Ranks(1)
    with group(ranks, 0, "high_throughput", heap_bytes=1 << 16) as found:
        first = found.alloc(4096)
        assert first % 256 == 0
        with pytest.raises(MemoryError):
            found.alloc(1 << 20)
        found.free(first)
        assert found.alloc(4096) == first


def test_what_is_refused(rng):
    ranks = Ranks(1)
    with pytest.raises(InvalidError, match="algorithm"):
        group(ranks, 0, "quick")
    with pytest.raises(InvalidError, match="expert"):
        group(ranks, 0, "high_throughput", experts=0)
    with group(ranks, 0, "high_throughput") as found:
        handle = found.handle("flat", 2)
        with pytest.raises(InvalidError):
            found.handle("rank_major", 2)
        with pytest.raises(ValueError, match="int32 or int64"):
            handle.update(np.zeros((3, 2), np.float32))
        with pytest.raises(ValueError, match="not contiguous"):
            handle.update(np.zeros((3, 4), np.int64)[:, ::2])
        handle.update(np.zeros((3, 2), np.int64))
        rows = np.zeros((3, HIDDEN), np.float32)
        with pytest.raises(ValueError, match="the update had 3 tokens"):
            handle.dispatch(rows[:2], rows)
        with pytest.raises(ValueError, match="weights"):
            handle.dispatch(rows, rows.copy(), weights=np.zeros((3, 2)))
        with pytest.raises(InvalidError):
            handle.dispatch(rows, rows.copy(), send_only=True)
        with pytest.raises(ValueError, match="peers has 2 addresses for 1 ranks"):
            handle.dispatch(rows, rows.copy(), peers=[64, 64])
        with pytest.raises(InvalidError):
            handle.dispatch(rows, rows.copy(), peers=[8])
        with pytest.raises(ValueError, match="not of float32, uint8 and float32"):
            found.quantize(rows, rows.view(np.uint8), rows)
        with pytest.raises(NoSpaceError):  # one row for three
            handle.dispatch(rows, np.empty((1, HIDDEN), np.float32))
        with pytest.raises(NoSpaceError):
            found.check()
    with pytest.raises(InvalidError, match="closed"):
        found.handle("flat", 2)


def test_what_all_gather_raises_is_raised():
    def gather(given):
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        ep.Group(gather, 0, 2, algorithm="low_latency", experts=2, tokens_max=1, row_bytes_max=16, topk_max=1)
