import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from conftest import values_like_kv

import strait


def test_threads_share_a_codebook_a_chunk_and_a_pool(codebook):
    pool = values_like_kv(64 * 4096).reshape(64, 4096)
    expected = strait.encode(strait.PageList(pool), codebook)
    received = np.zeros_like(pool)

    def work(part):
        stats = strait.Stats()
        assert strait.encode(strait.PageList(pool), codebook, stats=stats) == expected
        mine = np.arange(part, 64, 8)
        strait.decode(expected, codebook, strait.PageList(received, mine), select=mine, stats=stats)
        strait.verify(expected, codebook)
        return stats.raw_bytes

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [8 * 8192] * 8
    assert (received == pool).all()


def test_codebooks_come_and_go_in_threads():
    def work(seed):
        for _ in range(50):
            book = strait.calibrate(values_like_kv(200, seed))
            assert strait.Codebook.from_bytes(book.to_bytes()) == book
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_python_runs_while_the_library_works(codebook):
    values = values_like_kv(1 << 20)
    values = np.tile(values, 48)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    chunk = strait.encode(values, codebook, codec="scalar", out=np.empty(strait.encode_bound(values), np.uint8))
    end = time.perf_counter()
    done.set()
    ticker.join()
    assert len(chunk) < values.nbytes
    assert sum(begin < at < end for at in ticks) >= min(5, (end - begin) * 50)
