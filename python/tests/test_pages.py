"""Paged pools: read and written in place."""

import numpy as np
import pytest
from conftest import values_like_kv

import strait
from strait.pages import geometry_of

LAYERS = 3


def make_pools(page_count=20, shape=(16, 2, 64)):
    """Class to pool, as an engine has them: [page count, tokens, heads, head size]."""
    size = page_count * int(np.prod(shape))
    return {
        (role, layer): values_like_kv(size, 10 * layer + i, 1 + layer).reshape(page_count, *shape)
        for layer in range(LAYERS)
        for i, role in enumerate("kv")
    }


def empty_like(pools):
    """Canaries: every pool full of one pattern."""
    return {key: np.full_like(pool, 0xA55A) for key, pool in pools.items()}


def assert_only(pools, ids, sources, source_ids):
    """Pages `ids` equal the sources' pages, all others still hold the pattern."""
    for pool, source in zip(pools.values(), sources.values()):
        others = np.delete(pool, ids, axis=0)
        assert (pool[ids] == source[source_ids]).all() and (others == 0xA55A).all()


def test_pools_travel_to_other_ids(codebook, rng):
    pools = make_pools()
    for count in (1, 7, 20):
        ids, other_ids = rng.permutation(20)[:count], rng.permutation(20)[:count]
        stats = strait.Stats()
        chunk = strait.encode(strait.PageList(pools, ids), codebook, stats=stats)
        assert stats.raw_bytes == 2 * LAYERS * count * 4096
        tables = strait.chunk_pages(chunk)["table"].reshape(2 * LAYERS, count)
        assert tables.tolist() == [[codebook.find(key)] * count for key in pools]
        received = empty_like(pools)
        out = strait.PageList(received, other_ids)
        assert strait.decode(chunk, codebook, out, stats=stats) is out
        assert stats.page_status.tolist() == [0] * len(out) and stats.raw_bytes == out.nbytes
        assert_only(received, other_ids, pools, ids)


def test_a_page_list_encodes_like_the_pages_copied_together(codebook, rng):
    pools = list(make_pools().values())
    ids = rng.integers(0, 20, 30)
    copied = np.stack([pool[ids] for pool in pools])
    expected = strait.encode(copied, codebook, page_bytes=4096, table=2)
    assert strait.encode(strait.PageList(pools, ids), codebook, table=2) == expected
    assert strait.encode(strait.PageList(pools, ids, tables=2), codebook) == expected
    assert strait.encode(strait.PageList(pools, ids, tables=[2] * len(pools)), codebook) == expected
    assert strait.encode(strait.PageList(pools, iter(ids.tolist()), tables=codebook.cls(2)), codebook) == expected
    assert strait.encode_bound(strait.PageList(pools, ids)) >= len(expected)


def test_a_subset_of_a_chunk(codebook, rng):
    pools = make_pools()
    ids = rng.permutation(20)[:10]
    chunk = strait.encode(strait.PageList(pools, ids), codebook)
    received = empty_like(pools)
    wanted = np.array([8, 2, 5])
    select = (np.arange(2 * LAYERS)[:, None] * 10 + wanted).reshape(-1)
    strait.decode(chunk, codebook, strait.PageList(received, [3, 0, 19]), select=select)
    assert_only(received, [3, 0, 19], pools, ids[wanted])
    with pytest.raises(strait.InvalidError, match="the list has 18 pages, there are 2 "):
        strait.decode(chunk, codebook, strait.PageList(received, [3, 0, 19]), select=[0, 1])
    with pytest.raises(strait.InvalidError, match="the list has 18 pages, there are 60 "):
        strait.decode(chunk, codebook, strait.PageList(received, [3, 0, 19]))
    with pytest.raises(ValueError, match="of a chunk of 60"):
        strait.decode(chunk, codebook, strait.PageList(received, [3, 0, 19]), select=select + 10)


def interleaved(pool):
    """The K half of a pool that keeps K and V of a page together: [pages, 2, ...]."""
    both = np.full((len(pool), 2, *pool.shape[1:]), 0xA55A, np.uint16)
    both[:, 0] = pool
    return both, both[:, 0]


def heads_apart(pool):
    """Head 1 of three: rows of one head, three heads apart."""
    wide = np.full((*pool.shape[:2], 3, *pool.shape[2:]), 0xA55A, np.uint16)
    wide[:, :, 1] = pool
    return wide, wide[:, :, 1]


def tokens_outside(pool):
    """Tokens before pages: the rows of all pages in turn."""
    turned = pool.transpose(1, 0, *range(2, pool.ndim)).copy()
    return turned, turned.transpose(1, 0, *range(2, pool.ndim))


def spaced(pool):
    wide = np.full((2 * len(pool), *pool.shape[1:]), 0xA55A, np.uint16)
    wide[::2] = pool
    return wide, wide[::2]


@pytest.mark.parametrize("layout", [interleaved, heads_apart, tokens_outside, spaced])
@pytest.mark.parametrize("shape", [(16, 2, 64), (5, 3), (1, 9), (300, 70)])
def test_strided_pools(layout, shape, codebook, rng):
    plain = make_pools(shape=shape)["k", 1]
    memory, pool = layout(plain)
    ids, other_ids = rng.permutation(20)[:9], rng.permutation(20)[:9]
    chunk = strait.encode(strait.PageList(plain, ids), codebook)
    assert strait.encode(strait.PageList(pool, ids), codebook) == chunk
    pool[:] = 0x1111
    before = memory.copy()
    strait.decode(chunk, codebook, strait.PageList(pool, other_ids))
    assert (pool[other_ids] == plain[ids]).all()
    pool[other_ids] = 0x1111
    assert (memory == before).all()  # nothing else was touched


def test_geometries():
    flat = np.zeros((6, 4, 2, 8), np.uint16)
    assert geometry_of(flat, "pool") == (6, 128, 1, 128, 128)
    assert geometry_of(flat[:, 1:3], "pool") == (6, 128, 1, 64, 64)
    assert geometry_of(flat[:, :, 1], "pool") == (6, 128, 4, 16, 32)
    assert geometry_of(flat[:, :, :, :3], "pool") == (6, 128, 8, 6, 16)
    assert geometry_of(flat[:, :, :, ::2], "pool") == (6, 128, 32, 2, 4)
    assert geometry_of(flat[::3], "pool") == (2, 384, 1, 128, 128)
    assert geometry_of(flat.transpose(1, 0, 2, 3), "pool") == (4, 32, 6, 32, 128)
    assert geometry_of(np.zeros(5, np.uint16), "pool") == (5, 2, 1, 2, 2)
    assert geometry_of(np.zeros((1, 3), np.uint16), "pool")[2:] == (1, 6, 6)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((6, 4, 4, 8), np.uint16)[:, :2, :2, :3],
        np.zeros((6, 4, 4), np.uint16)[:, ::-1],
        np.zeros((6, 4, 4), np.uint16)[::-1],
        np.zeros((6, 4, 4), np.uint16).transpose(0, 2, 1),
        np.broadcast_to(np.zeros((1, 4), np.uint16), (6, 4)),
        np.broadcast_to(np.zeros((6, 1, 4), np.uint16), (6, 3, 4)),
        np.zeros((0, 4), np.uint16),
        np.zeros((4, 0), np.uint16),
        np.zeros((), np.uint16),
        np.zeros((2, (8 << 20) + 1), np.uint16),
    ],
)
def test_strides_that_cannot_be_expressed(bad):
    with pytest.raises(ValueError, match="pool 0"):
        strait.PageList(bad)


def test_pages_of_several_sizes(codebook, rng):
    pools = [values_like_kv(10 * n, n).reshape(10, n) for n in (2048, 100, 1, 20000)]
    ids = rng.permutation(10)[:4]
    chunk = strait.encode(strait.PageList(pools, ids), codebook)
    assert strait.info(chunk).page_bytes == 40000
    received = [np.zeros_like(pool) for pool in pools]
    strait.decode(chunk, codebook, strait.PageList(received, [1, 2, 3, 4]))
    for pool, source in zip(received, pools):
        assert (pool[1:5] == source[ids]).all() and not pool[5:].any()
    flat = strait.decode(chunk, codebook)
    assert (flat == np.concatenate([pool[ids].reshape(-1) for pool in pools])).all()


def test_odd_pages_inside_a_chunk(codebook):
    pool = values_like_kv(80).view(np.uint8).reshape(10, 16)[:, :7]
    chunk = strait.encode(strait.PageList(pool), codebook)
    back = strait.decode(chunk, codebook)
    assert back.tobytes() == pool.tobytes()
    out = bytearray(70)
    strait.decode(chunk, codebook, out, select=[9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    assert out == pool[::-1].tobytes()


def test_pages_of_another_size_fail_alone(codebook):
    pools = [values_like_kv(300, n).reshape(3, 100) for n in range(2)]
    chunk = strait.encode(strait.PageList(pools), codebook)
    received = [np.zeros((3, 100), np.uint16), np.full((3, 99), 5, np.uint16)]
    out = strait.PageList(received)
    with pytest.raises(strait.InvalidError) as caught:
        strait.decode(chunk, codebook, out)
    assert caught.value.failed_pages == [3, 4, 5]
    assert caught.value.page_status.tolist() == [0, 0, 0] + [strait.Status.ERR_INVALID] * 3
    assert [out.locate(page) for page in caught.value.failed_pages] == [(1, 0), (1, 1), (1, 2)]
    assert (received[0] == pools[0]).all() and (received[1] == 5).all()


def test_ids_out_of_range(codebook):
    pools = [values_like_kv(300).reshape(3, 100), values_like_kv(400).reshape(4, 100)]
    with pytest.raises(strait.PageIdError) as caught:
        strait.encode(strait.PageList(pools, [2, 3, 4]), codebook)
    assert isinstance(caught.value, IndexError) and caught.value.status == strait.Status.ERR_PAGE_ID
    assert caught.value.failed_pages == [1, 2, 5]
    chunk = strait.encode(strait.PageList(pools, [0, 1]), codebook)
    received = [np.zeros_like(pool) for pool in pools]
    stats = strait.Stats()
    strait.decode(chunk, codebook, strait.PageList(received, [3, 0]), check=False, stats=stats)
    assert stats.page_status.tolist() == [strait.Status.ERR_PAGE_ID, 0, 0, 0] and stats.failed_pages == [0]
    assert (received[0][0] == pools[0][1]).all() and (received[1][[3, 0]] == pools[1][:2]).all()
    assert stats.raw_bytes == 600


def test_bad_lists_are_refused(codebook):
    pool = values_like_kv(400).reshape(4, 100)
    for ids in ([], [[0]], [-1], [2**32], np.zeros(0, np.uint32)):
        with pytest.raises(ValueError):
            strait.PageList(pool, ids)
    for ids in ([0.5], ["a"], np.zeros(2, bool)):
        with pytest.raises(TypeError):
            strait.PageList(pool, ids)
    with pytest.raises(ValueError, match="no pools"):
        strait.PageList([])
    with pytest.raises(ValueError, match="say which with ids"):
        strait.PageList([pool, pool[:3]])
    with pytest.raises(ValueError, match="2 pools, but 1"):
        strait.PageList([pool, pool], tables=[0])
    with pytest.raises(ValueError, match="mapping"):
        strait.PageList({"k": pool}, tables=0)
    with pytest.raises(ValueError, match="1048576"):
        strait.PageList(pool, np.zeros((1 << 20) + 1, np.uint32))
    with pytest.raises(TypeError, match="pool 0"):
        strait.encode(strait.PageList(pool.astype(np.float32)), codebook, element="bf16")
    with pytest.raises(TypeError, match="bf16 and fp32"):
        strait.encode(strait.PageList([pool, pool.astype(np.float32)]), codebook)
    with pytest.raises(IndexError):
        strait.PageList(pool).locate(4)


def test_outputs_that_cannot_be_written_are_refused(codebook):
    pool = values_like_kv(400).reshape(4, 100)
    chunk = strait.encode(strait.PageList(pool, [0, 1]), codebook)
    fixed = np.zeros_like(pool)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="pool 0 is read-only"):
        strait.decode(chunk, codebook, strait.PageList(fixed, [0, 1]))
    with pytest.raises(ValueError, match="twice"):
        strait.decode(chunk, codebook, strait.PageList(pool, [2, 2]))
    windows = np.lib.stride_tricks.sliding_window_view(np.zeros(110, np.uint16), 100, writeable=True)
    with pytest.raises(ValueError, match="overlap"):
        strait.decode(chunk, codebook, strait.PageList(windows, [0, 1]))
    assert len(strait.encode(strait.PageList(windows), codebook)) > 0
    two = strait.encode(strait.PageList([pool, pool], [0]), codebook)
    with pytest.raises(ValueError, match="a pool comes twice"):
        strait.decode(two, codebook, strait.PageList([pool, pool], [0]))


def test_a_list_keeps_its_pools_alive_and_its_ids_to_itself(codebook):
    ids = np.array([1, 0])
    pages = strait.PageList(values_like_kv(400).reshape(4, 100), ids)
    ids[:] = 9
    assert pages.ids.tolist() == [1, 0] and len(pages) == 2 and pages.nbytes == 400 and "2 ids" in repr(pages)
    with pytest.raises(ValueError):
        pages.ids[0] = 3
    back = strait.decode(strait.encode(pages, codebook), codebook)
    assert (back.reshape(2, 100) == values_like_kv(400).reshape(4, 100)[[1, 0]]).all()
