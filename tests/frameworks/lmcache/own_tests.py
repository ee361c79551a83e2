"""A plug-in of pytest for LMCache's own tests, as they are: FileAdapter in the place of the adapters that they make.

    PYTHONPATH=HERE:... pytest -p own_tests [--their-adapters] [--strait-serde] TESTS

Without a GPU the host takes its place. Sizes that adapters count are those of the objects, as LMCache's have them, not
of the coded files; a bandwidth is a sleep. At the end stands how many tests have made an adapter of ours.
"""

from __future__ import annotations

import importlib
import itertools
import shutil
import sys
import tempfile
import time
import types
from pathlib import Path

import lmcache
import lmcache.v1.distributed.serde.factory as serdes
import numpy as np
import pytest
import strait
import strait.lmcache
from lmcache.v1.platform.devices.cpu.stub_cpu_device import StubCPUDevice
from strait.lmcache import FileAdapter, register_serde

# Tests that ask for something else of an adapter, and must fail; and what it is.
DIFFERENT = {
    "test_serde_fs_e2e.py::": "files in the folder itself: ours are in subfolders",
    "::test_raw_block_l2_adapter_uses_global_eviction_accounting": "a full store refuses: ours removes the oldest",
    "hfbucket_l2_adapter.py::TestListener::": "keys are accessed when found: ours when loaded, as FSL2Adapter has it",
    "::test_length_mismatch_raises": "ValueError for lists of unequal lengths: ours fails the task, as FSL2Adapter",
}
# Tests of options that only theirs have, or that look into the service or the device where theirs keep objects.
ELSEWHERE = (
    "::test_raw_block_l2_adapter_buffered_iouring_accepts_unaligned_l1",
    "::test_raw_block_l2_adapter_uring_cmd_rejects_regular_file",
    "::TestRawBlockWorkerFailure::",
    "::TestPadBuffersToAlignment::",
    "::test_factory_derives_padding_from_use_odirect",
    "hfbucket_l2_adapter.py::TestStoreLookupLoad::test_partial_store_failure_accounts_written_keys",
    "hfbucket_l2_adapter.py::TestEviction::",
    "hfbucket_l2_adapter.py::TestCleanup::",
    "valkey_l2_adapter.py::TestStore::test_partial_failure_accounting",
    "valkey_l2_adapter.py::TestLoad::test_size_mismatch_treated_as_miss",
    "valkey_l2_adapter.py::TestDelete::test_lock_blocks_delete",
    "valkey_l2_adapter.py::TestDelete::test_refcount_blocks_until_fully_unlocked",
)

session = types.SimpleNamespace(folder=None, codebook=None, made=0, with_ours=set())
numbers = itertools.count()


class Stand(FileAdapter):
    """FileAdapter, made from the configuration of one of theirs."""

    kind = "FileAdapter"

    def __init__(self, folder=None, capacity=0, bandwidth=None, slot=None):
        session.made += 1
        folder = folder or session.folder / f"adapter-{next(numbers)}"
        self._bandwidth, self._slot = bandwidth, slot
        super().__init__(
            {"folder": str(folder), "codebook": str(session.codebook), "capacity_gb": capacity / (1 << 30)}
        )
        self._store, self._load = self._files.store, self._files.load
        self._files.store, self._files.load = self._store_as_theirs, self._load_as_theirs

    def _count_all(self):
        if self._slot:  # before the first call the folder has been read, and nothing counted
            every = self._files.all
            self._files.all = lambda: [stored._replace(size=self._slot) for stored in every()]
        return super()._count_all()

    def _store_as_theirs(self, key, obj, used):
        stored = self._store(key, obj, used)
        self._sleep(obj)
        return stored and (self._slot or len(obj.byte_array))

    def _load_as_theirs(self, key, obj, descriptor, used):
        self._load(key, obj, descriptor, used)
        self._sleep(obj)

    def _sleep(self, obj):
        if self._bandwidth:
            time.sleep(len(obj.byte_array) / self._bandwidth)

    def report_status(self):
        return {**super().report_status(), "type": self.kind}

    # ---- Where failures are injected

    def _run_lookup_task(self):
        pass

    def _run_load_task(self):
        pass

    def _open_to_keep(self, path):
        self._run_lookup_task()
        return super()._open_to_keep(path)

    def _open_to_load(self, path):
        self._run_load_task()
        return super()._open_to_load(path)

    # ---- What their mock tells tests

    def debug_get_stored_object_count(self):
        return len(self._counted)

    def debug_get_locked_key_count(self):
        return len(self._locks)

    def debug_has_key(self, key):
        return self._files.path_of(key) in self._counted


class MockL2Adapter(Stand):
    kind = "MockL2Adapter"

    def __init__(self, config):
        capacity, bandwidth = (int(gb * (1 << 30)) for gb in (config.max_size_gb, config.mock_bandwidth_gb))
        super().__init__(capacity=capacity, bandwidth=bandwidth)


class FSL2Adapter(Stand):
    kind = "FSL2Adapter"

    def __init__(self, config):
        super().__init__(folder=config.base_path)


class RawBlockL2Adapter(Stand):
    kind = "RawBlockL2Adapter"

    def __init__(self, config, l1_memory_desc=None):
        size = config.capacity_bytes or Path(config.device_path).stat().st_size
        super().__init__(
            folder=config.device_path + ".folder",
            capacity=size - config.meta_total_bytes,
            slot=config.slot_bytes,
        )


class NativeConnectorL2Adapter(Stand):
    kind = "NativeConnectorL2Adapter"

    def __init__(self, client, max_capacity_gb=0, **options):
        super().__init__(capacity=max_capacity_gb * (1 << 30))


class Remote(Stand):
    """Of an adapter that keeps objects at a service."""

    def __init__(self, config, *_, **options):
        super().__init__(capacity=config.max_capacity_gb * (1 << 30))


# The module of each adapter, and what takes its place.
STANDS = {
    "mock_l2_adapter": MockL2Adapter,
    "fs_l2_adapter": FSL2Adapter,
    "raw_block_l2_adapter": RawBlockL2Adapter,
    "native_connector_l2_adapter": NativeConnectorL2Adapter,
    "hfbucket_l2_adapter": type("HFBucketL2Adapter", (Remote,), {}),
    "valkey_l2_adapter": type("ValkeyL2Adapter", (Remote,), {}),
}


def pytest_addoption(parser):
    parser.addoption("--their-adapters", action="store_true", help="LMCache's own adapters, to compare with")
    parser.addoption("--strait-serde", action="store_true", help="the serde strait in the place of fp8")


def pytest_configure(config):
    session.folder = Path(tempfile.mkdtemp(prefix="strait-own-tests-"))
    session.codebook = session.folder / "codebook"
    values = np.random.default_rng(1).standard_normal(400000, np.float32)
    strait.calibrate({"kv": (values.view(np.uint32) >> 16).astype(np.uint16)}).save(session.codebook)
    if not lmcache.torch_dev.is_available():
        StubCPUDevice.is_available = lambda self: True
    if config.getoption("--strait-serde"):
        del serdes._SERDE_FACTORY_REGISTRY["fp8"]
        register_serde("fp8")
    if config.getoption("--their-adapters"):
        return
    for name, stand in STANDS.items():
        module = importlib.import_module("lmcache.v1.distributed.l2_adapters." + name)
        setattr(module, stand.__name__, stand)
    sys.modules.setdefault("lmcache_rust_raw_block_io", types.ModuleType("lmcache_rust_raw_block_io"))


def pytest_unconfigure():
    if session.folder is not None:
        shutil.rmtree(session.folder, ignore_errors=True)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--their-adapters"):
        return
    elsewhere = [item for item in items if any(name in item.nodeid for name in ELSEWHERE)]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if item not in elsewhere]
    for item in items:
        for name, why in DIFFERENT.items():
            if name in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=why, strict=True))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    before = session.made
    yield
    if session.made > before:
        session.with_ours.add(item.nodeid)


def pytest_terminal_summary(terminalreporter):
    reports = ((outcome, report) for outcome, those in terminalreporter.stats.items() for report in those)
    of_ours = [outcome for outcome, report in reports if getattr(report, "nodeid", None) in session.with_ours]
    counts = ", ".join(f"{of_ours.count(name)} {name}" for name in dict.fromkeys(of_ours) if name)
    terminalreporter.line(f"{len(session.with_ours)} tests have made a FileAdapter: {counts}")
