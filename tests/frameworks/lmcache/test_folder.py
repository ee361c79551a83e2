"""The folder of the adapter: processes that share it, that are killed, that may only read it; and what is in it."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lmcache", reason="lmcache is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import strait
from conftest import PATHS
from lmcache.v1.distributed.config import EvictionConfig
from lmcache.v1.distributed.storage_controllers.eviction_controller import L2AdapterEvictionState
from rig import Adapter, file_of, key_of, object_of, until, values_of


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another codebook set."""
    path = tmp_path_factory.mktemp("set") / "other"
    strait.calibrate({"kv": np.full(1000, 0x1234, np.uint16)}).save(path)
    return path


def start(script, *arguments):
    """A process with the rig, the first argument the folder, the second the codebook."""
    begin = f"import sys\nsys.path[:0] = {[*PATHS, *sys.path]!r}\nfrom rig import *\n"
    command = [sys.executable, "-c", begin + script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends_well(process):
    out, err = process.communicate(timeout=120)
    assert out.endswith("fine\n") and process.returncode == 0, err[-3000:]


# ---- Processes that share it -----------------------------------------------------------------------------------------


def test_another_codebook_is_a_miss(tmp_path, codebook, other):
    first = Adapter(tmp_path / "kv", codebook=str(codebook))
    first.put(1)
    first.real.close()
    for params in ({"codebook": str(other)}, {}):
        second = Adapter(tmp_path / "kv", **params)
        assert second.get(1) == []
        second.put(1)
        assert second.get(1) == [1]
        second.real.close()
    first = Adapter(tmp_path / "kv", codebook=str(codebook))  # what it has stored is still there
    assert first.get(1) == [1] and first.put(1) == 0
    assert first.real.get_usage().total_bytes_used == sum(p.stat().st_size for p in tmp_path.glob("kv/*/*.strait"))
    first.real.close()


WRITER = """
adapter = Adapter(sys.argv[1], codebook=sys.argv[2], capacity_gb=6 * BYTES * 0.68 / (1 << 30))
chance = np.random.default_rng(int(sys.argv[3]))
for _ in range(60):
    number = int(chance.integers(20))
    adapter.put(number)
    assert adapter.get(*chance.integers(20, size=4).tolist()) is not None
adapter.real.close()
print("fine")
"""


@pytest.mark.parametrize("alike", [True, False])
def test_two_processes_share_a_folder(tmp_path, codebook, other, alike):
    writers = [start(WRITER, tmp_path, codebook, 1), start(WRITER, tmp_path, codebook if alike else other, 2)]
    for writer in writers:
        ends_well(writer)
    assert not list(tmp_path.glob("*/.tmp*"))


# ---- Processes that are killed ---------------------------------------------------------------------------------------

DYING = """
import os, resource, signal
import strait.lmcache
adapter = Adapter(sys.argv[1], codebook=sys.argv[2])
adapter.put(1)
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "within a write":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
elif sys.argv[3] == "before it has its name":
    strait.lmcache._set_used = die
else:
    adapter.real._count = die
adapter.put(2)
"""


@pytest.mark.parametrize("when", ["within a write", "before it has its name", "before LMCache is told"])
def test_a_store_that_is_killed_leaves_nothing_or_a_whole_object(tmp_path, codebook, when):
    dying = start(DYING, tmp_path, codebook, when)
    _, err = dying.communicate(timeout=120)
    assert dying.returncode < 0, err[-3000:]
    named = when == "before LMCache is told"
    left = list(tmp_path.glob("*/.tmp*"))
    assert [path.stat().st_size > 0 for path in left] == [True] * (not named)
    adapter = Adapter(tmp_path, codebook=str(codebook))
    assert left == list(tmp_path.glob("*/.tmp*"))  # it might be of a process that still writes
    assert adapter.lookup([key_of(1), key_of(2)]) == ([0, 1] if named else [0])
    assert adapter.get(1, 2) == ([1, 2] if named else [1])
    adapter.put(2)
    assert adapter.get(1, 2) == [1, 2]
    adapter.real.close()
    for path in left:
        os.utime(path, (1, 1))
    Adapter(tmp_path, codebook=str(codebook)).real.close()
    assert not list(tmp_path.glob("*/.tmp*"))


def test_a_writer_that_is_killed_at_any_time_leaves_whole_objects(tmp_path, codebook):
    script = WRITER.replace("range(60)", "range(10**6)")
    adapter = Adapter(tmp_path, codebook=str(codebook))
    for seed in range(3):
        writer = start(script, tmp_path, codebook, seed)
        until(lambda: len(list(tmp_path.glob("*/*.strait"))) > 2)
        time.sleep(0.05 * seed)
        writer.kill()
        writer.communicate()
        there = [n for n in range(20) if file_of(adapter, n).exists()]
        assert there and sorted(adapter.get(*there)) == there
    adapter.real.close()


# ---- Processes that may not write ------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_store_and_nothing_else(tmp_path, codebook):
    script = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
adapter = Adapter(sys.argv[1], codebook=sys.argv[2])
adapter.put(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
assert not adapter.store([key_of(2), key_of(3)], [object_of(values_of(2)), object_of(values_of(3))]).is_successful()
assert adapter.get(1, 2, 3) == [1]
assert not list(adapter.real._files.folder.glob("*/.tmp*"))
adapter.real.close()
print("fine")
"""
    ends_well(start(script, tmp_path, codebook))


READER = """
import os
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
adapter = Adapter(sys.argv[1], codebook=sys.argv[2], capacity_gb=BYTES / (1 << 30))  # more is there, and stays
assert adapter.lookup([key_of(n) for n in range(4)]) == [0, 1, 2, 3]
assert adapter.get(0, 1, 2, 3) == [0, 1, 3]  # 2 is damaged, and cannot be removed
assert adapter.get(2) == [] and adapter.lookup([key_of(2)]) == [0]
assert not adapter.store([key_of(1), key_of(7)], [object_of(values_of(n)) for n in (1, 7)]).is_successful()
adapter.real.submit_unlock([key_of(0)])
adapter.real.delete([key_of(0)])
assert adapter.get(0, 7) == [0] and adapter.real.report_status()["is_healthy"]
assert adapter.real.get_usage().total_bytes_used > BYTES
adapter.real.close()
print("fine")
"""


def test_a_folder_that_can_be_read_only(codebook):
    with tempfile.TemporaryDirectory() as above:  # others may pass through it, unlike through tmp_path
        folder, readable = Path(above, "kv"), Path(above, "codebook")
        readable.write_bytes(codebook.read_bytes())
        first = Adapter(folder, codebook=str(readable))
        first.put(*range(4))
        first.real.close()
        data = bytearray(file_of(first, 2).read_bytes())
        data[-1] ^= 1
        file_of(first, 2).write_bytes(data)
        folders = [Path(above), folder, *folder.iterdir()]
        for path in folders:
            path.chmod(0o555)
        try:
            before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}
            ends_well(start(READER, folder, readable))
            assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}
        finally:
            for path in folders:
                path.chmod(0o755)


# ---- What is in it ---------------------------------------------------------------------------------------------------


def oldest_first(adapter, numbers):
    return sorted(numbers, key=lambda n: file_of(adapter, n).stat().st_mtime_ns)


def test_of_a_request_the_last_keys_go_first(tmp_path, codebook):
    """Without the first ones nothing finds them."""
    adapter = Adapter(tmp_path, codebook=str(codebook), workers=4, capacity_gb=1)
    state = L2AdapterEvictionState(0, adapter.real, EvictionConfig(eviction_policy="LRU", eviction_ratio=0.5))
    stored = adapter.put(*range(8))
    adapter.put(10, 11)
    order = [7, 6, 5, 4, 3, 2, 1, 0, 11, 10]
    assert oldest_first(adapter, order) == order
    assert state.eviction_policy.get_eviction_candidates(10) == [key_of(n) for n in order]
    assert adapter.get(4, 5, 6) == [4, 5, 6]
    order = [7, 3, 2, 1, 0, 11, 10, 6, 5, 4]
    assert oldest_first(adapter, order) == order
    assert state.eviction_policy.get_eviction_candidates(10) == [key_of(n) for n in order]
    adapter.real.close()
    second = Adapter(tmp_path, codebook=str(codebook), capacity_gb=0.7 * stored / (1 << 30))
    left = [n for n in order if file_of(second, n).exists()]
    assert 4 <= len(left) <= 6 and left == order[-len(left) :]
    state = L2AdapterEvictionState(0, second.real, EvictionConfig(eviction_policy="LRU", eviction_ratio=0.5))
    assert state.eviction_policy.get_eviction_candidates(10) == [key_of(n) for n in left]
    second.real.close()


class Listener:
    def __init__(self):
        self.heard = []

    def on_l2_keys_stored(self, keys, sizes):
        self.heard.append(("stored", list(keys)))

    def on_l2_keys_accessed(self, keys):
        self.heard.append(("accessed", list(keys)))

    def on_l2_keys_deleted(self, keys):
        self.heard.append(("deleted", list(keys)))


def test_listeners_hear_of_a_task_at_once_and_in_order(adapter):
    listener = Listener()
    adapter.real.register_listener(listener)
    keys = [key_of(n) for n in (3, 1, 2)]
    adapter.put(3, 1, 2)
    adapter.get(3, 1, 2)
    adapter.real.delete([*keys, key_of(9)])
    assert listener.heard == [("stored", keys), ("accessed", keys), ("deleted", keys)]


def pages_of(adapter, **asked):
    page = adapter.real.list_l2_keys(**asked)
    pages = [page]
    while page.next_page_token is not None:
        page = adapter.real.list_l2_keys(cursor=page.next_page_token, **asked)
        pages.append(page)
    return [[entry.key.to_object_key() for entry in page.entries] for page in pages], pages


def test_keys_are_listed_in_pages(tmp_path, codebook, other):
    adapter, foreign = Adapter(tmp_path, codebook=str(codebook)), Adapter(tmp_path, codebook=str(other))
    assert pages_of(adapter)[0] == [[]]
    keys = [key_of(n << 56, model, salt) for n in range(3) for model in ("a/b", "m" * 3000) for salt in ("", "user")]
    stored = adapter.store(keys, [object_of(values_of(1)) for _ in keys]).bytes_transferred()
    foreign.store([key_of(77)], [object_of(values_of(1))])
    (tmp_path / "00" / "x@y.strait").write_bytes(b"another's")
    (tmp_path / "00" / "~x.strait").write_bytes(b"another's")
    found, pages = pages_of(adapter)
    assert [set(page) for page in found] == [set(keys)]
    assert sum(entry.size_bytes for entry in pages[0].entries) == stored
    found, _ = pages_of(adapter, page_size=5)
    assert [len(page) for page in found] == [5, 5, 2] and {key for page in found for key in page} == set(keys)
    for model in ("a/b", "m" * 3000):
        found, _ = pages_of(adapter, page_size=3, model_name=model)
        assert [len(page) for page in found] == [3, 3]
        assert {key for page in found for key in page} == {key for key in keys if key.model_name == model}
    assert pages_of(adapter, model_name="a")[0] == [[]] and pages_of(foreign)[0] == [[key_of(77)]]
    for wrong in ({"page_size": 0}, {"page_size": -1}, {"cursor": "x"}):
        with pytest.raises(ValueError):
            adapter.real.list_l2_keys(**wrong)
    adapter.real.delete(keys[:6])
    assert set(pages_of(adapter)[0][0]) == set(keys[6:])
    for one in (adapter, foreign):
        one.real.close()
