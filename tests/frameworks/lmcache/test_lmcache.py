"""The adapter and the serde with LMCache's own classes: its storage manager, factories, wrapper and memory objects."""

import os
import threading
import time

import numpy as np
import pytest

pytest.importorskip("lmcache", reason="lmcache is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.serde.base import SerdeConfig
from lmcache.v1.distributed.serde.factory import create_serde_processor
from lmcache.v1.distributed.storage_controllers.eviction_controller import L2AdapterEvictionState
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryObjMetadata, TensorMemoryObj
from rig import BYTES, SHAPE, Adapter, config_of, file_of, key_of, object_of, until, values_of
from strait.lmcache import Coder, register_serde


@pytest.fixture(scope="session")
def serde():
    register_serde()
    return "strait"


# ---- Storing and loading --------------------------------------------------------------------------------------------


def test_objects_come_back_and_are_smaller(adapter):
    stored = adapter.put(*range(1, 9))
    assert 1.4 < 8 * BYTES / stored < 1.6
    assert adapter.put(1) == 0  # it is there
    assert adapter.lookup([key_of(n) for n in (1, 100, 8)]) == [0, 2]
    assert sorted(adapter.get(8, 100, 1)) == [1, 8]
    usage = adapter.real.get_usage()
    assert usage.total_bytes_used == stored and adapter.real.report_status()["is_healthy"]
    assert adapter.lookup([]) == [] and adapter.load([], []) == [] and adapter.store([], []).is_successful()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.uint8, torch.float8_e4m3fn, torch.bfloat16])
@pytest.mark.parametrize("with_codebook", [True, False])
def test_every_type_comes_back(tmp_path, codebook, dtype, with_codebook):
    adapter = Adapter(tmp_path, **({"codebook": str(codebook)} if with_codebook else {}))
    values = np.random.default_rng(1).integers(0, 256, 3 * 5 * 7 * dtype.itemsize, np.uint8)  # odd sizes, NaNs
    assert adapter.store([key_of(1)], [object_of(values, (3, 5, 7), dtype)]).is_successful()
    back = object_of(shape=(3, 5, 7), dtype=dtype)
    assert adapter.load([key_of(1)], [back]) == [0] and (back.raw_data.numpy() == values).all()
    adapter.real.close()


def test_objects_without_groups_or_types_come_back(adapter):
    one = TensorMemoryObj(
        torch.from_numpy(values_of(1).copy().view(np.int16)).view(torch.bfloat16),
        MemoryObjMetadata(torch.Size([BYTES // 2]), torch.bfloat16, 0, BYTES, 1),
        None,
    )
    other = BytesBufferMemoryObj(bytes(range(256)))
    stored = adapter.store([key_of(1), key_of(2)], [one, other])
    assert stored.is_successful() and stored.bytes_transferred() < BYTES / 1.3  # as BF16
    assert adapter.get(1) == [1]
    back = BytesBufferMemoryObj(bytearray(256))
    assert adapter.load([key_of(2)], [back]) == [0] and bytes(back.raw_data) == bytes(range(256))


def test_an_object_that_was_made_shorter(adapter):
    coded = object_of(np.arange(256, dtype=np.uint8).repeat(40), (256 * 40,), torch.uint8)
    coded.set_used_size(1000)
    adapter.store([key_of(1)], [coded])
    for shape in (999, 1001, 256 * 41):
        assert adapter.load([key_of(1)], [object_of(shape=(shape,), dtype=torch.uint8)]) == []
    back = object_of(shape=(256 * 40,), dtype=torch.uint8)
    assert adapter.load([key_of(1)], [back]) == [0]
    assert len(back.byte_array) == 1000 and bytes(back.byte_array) == bytes(coded.byte_array)
    assert not back.raw_data[1000:].any()


def test_names_are_kept_apart(adapter):
    keys = [key_of(1), key_of(1, "meta/llama"), key_of(1, salt="user"), key_of(1, "meta/llama", "user")]
    assert adapter.store(keys, [object_of(values_of(i)) for i in range(4)]).is_successful()
    objects = [object_of() for _ in keys]
    assert adapter.load(keys, objects) == [0, 1, 2, 3]
    for i, obj in enumerate(objects):
        assert (obj.raw_data.numpy().view(np.uint16) == values_of(i)).all()
    assert dict(adapter.real.get_usage().bytes_by_cache_salt).keys() == {"", "user"}


def test_the_next_process_finds_them(tmp_path, codebook):
    first = Adapter(tmp_path, codebook=str(codebook))
    stored = first.put(1, 2)
    first.real.close()
    second = Adapter(tmp_path, codebook=str(codebook))
    assert second.real.get_usage().total_bytes_used == stored
    assert second.get(1, 2) == [1, 2]
    second.real.close()


# ---- What listeners hear ---------------------------------------------------------------------------------------------


class FailingListener(L2AdapterListener):
    def on_l2_keys_stored(self, keys, sizes):
        raise RuntimeError("stored")

    def on_l2_keys_accessed(self, keys):
        raise RuntimeError("accessed")

    def on_l2_keys_deleted(self, keys):
        raise RuntimeError("deleted")


def test_a_listener_that_fails_costs_no_answer(adapter):
    adapter.real.register_listener(FailingListener())
    stored = adapter.put(1, 2)
    assert adapter.get(1, 2) == [1, 2] and adapter.lookup([key_of(2)]) == [0]
    adapter.real.delete([key_of(1)])
    assert adapter.get(1) == [] and adapter.lookup([key_of(1)]) == []
    assert 0 < adapter.real.get_usage().total_bytes_used < stored
    adapter.real.register_listener(FailingListener())  # hears of 2


def test_a_failure_to_evict_costs_no_answer(tmp_path, codebook, monkeypatch):
    adapter = Adapter(tmp_path, codebook=str(codebook), capacity_gb=1)

    def fail():
        raise OSError(5, "input/output error")

    monkeypatch.setattr(adapter.real, "_evict", fail)
    adapter.put(1)
    assert adapter.get(1) == [1]
    adapter.real.close()


def test_lmcaches_eviction_knows_files_of_earlier_processes(tmp_path, codebook):
    first = Adapter(tmp_path, codebook=str(codebook))
    first.put(*range(4))
    for n in range(4):
        os.utime(file_of(first, n), (2000 - n, 2000 - n))
    first.real.close()
    second = Adapter(tmp_path, codebook=str(codebook))
    state = L2AdapterEvictionState(0, second.real, EvictionConfig(eviction_policy="LRU", eviction_ratio=0.5))
    assert state.eviction_policy.get_eviction_candidates(4) == [key_of(n) for n in (3, 2, 1, 0)]
    assert second.get(3) == [3]
    (action,) = state.eviction_policy.get_eviction_actions(0.5)
    second.real.delete(action.keys)
    assert [n for n in range(4) if file_of(second, n).exists()] == [0, 3]
    assert sorted(state.eviction_policy.get_eviction_candidates(4), key=str) == [key_of(0), key_of(3)]
    second.real.close()


# ---- Files that are not what they should be --------------------------------------------------------------------------


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "empty":
        data = b""
    elif how == "cut":
        data = data[: len(data) * 2 // 3]
    elif how == "longer":
        data += b"x"
    elif how == "head":
        data[20] ^= 1
    elif how == "middle":
        data[len(data) // 2] ^= 1
    elif how == "last":
        data[-1] ^= 0x80
    elif how == "foreign":
        data = os.urandom(len(data))
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["empty", "cut", "longer", "head", "middle", "last", "foreign"])
def test_a_file_that_was_changed_is_a_miss_and_goes(adapter, how):
    adapter.put(1, 2)
    damage(file_of(adapter, 1), how)
    assert adapter.get(1, 2) == [2]
    assert not file_of(adapter, 1).exists() and adapter.lookup([key_of(1)]) == []
    adapter.put(1)
    assert adapter.get(1) == [1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
def test_no_change_of_a_byte_gives_other_values(adapter, dtype):
    values = values_of(1).view(np.uint8) if dtype.itemsize > 1 else np.arange(BYTES, dtype=np.uint8)
    shape = (BYTES // dtype.itemsize,)
    adapter.store([key_of(1)], [object_of(values, shape, dtype)])
    path, chance = file_of(adapter, 1), np.random.default_rng(3)
    whole = path.read_bytes()
    misses = 0
    for at in {*range(0, 200), *chance.integers(0, len(whole), 200).tolist()}:
        changed = bytearray(whole)
        changed[at] ^= 1 << int(chance.integers(8))
        path.write_bytes(changed)
        back = object_of(shape=shape, dtype=dtype)
        if adapter.load([key_of(1)], [back]):
            assert (back.raw_data.numpy() == values).all()
        else:
            misses += 1
            assert not path.exists(), at  # or it would be in the way of a whole one
    assert misses > 300


def test_another_objects_file_is_a_miss(adapter):
    adapter.put(1)
    file_of(adapter, 2).parent.mkdir(exist_ok=True)
    file_of(adapter, 1).rename(file_of(adapter, 2))
    assert adapter.get(1, 2) == []


def test_an_object_of_another_size_is_a_miss(adapter):
    adapter.put(1)
    assert adapter.load([key_of(1)], [object_of(shape=(2, 4, 32, 128))]) == []
    assert adapter.get(1) == [1]  # and stays


def test_names_of_any_length(tmp_path, codebook):
    keys = [key_of(1, "m" * 3000), key_of(1, "\u6f22" * 80, "s~%"), key_of(1, "m" * 3001)]
    first = Adapter(tmp_path, codebook=str(codebook))
    assert first.lookup(keys) == [] and not first.real._locks
    stored = first.store(keys, [object_of(values_of(i)) for i in range(3)])
    assert stored.is_successful() and first.lookup(keys) == [0, 1, 2]
    first.real.submit_unlock(keys)
    first.real.close()
    second = Adapter(tmp_path, codebook=str(codebook))
    assert second.real.get_usage().total_bytes_used == stored.bytes_transferred()
    assert "s~%" in second.real.get_usage().bytes_by_cache_salt
    objects = [object_of() for _ in keys]
    assert second.load(keys, objects) == [0, 1, 2]
    for i, obj in enumerate(objects):
        assert (obj.raw_data.numpy().view(np.uint16) == values_of(i)).all()
    second.real.close()


def test_a_lookup_that_fails_locks_nothing(adapter):
    adapter.put(1)
    path = file_of(adapter, 1)
    path.unlink()
    path.symlink_to(path.name)  # opening fails with ELOOP
    assert adapter.lookup([key_of(1)]) == [] and not adapter.real._locks
    assert adapter.get(1) == []


@pytest.mark.parametrize(
    "params, text",
    [
        ({"folder": ""}, "folder is needed"),
        ({"size": 1}, "no parameter 'size'"),
        ({"capacity_gb": -1}, "capacity_gb is a number"),
        ({"workers": 0}, "workers is a number"),
        ({"codebook": "/no/such/file"}, "no/such/file"),
    ],
)
def test_parameters_are_checked(tmp_path, params, text):
    with pytest.raises((ValueError, OSError), match=text):
        create_l2_adapter_from_registry(config_of(**{"folder": tmp_path, **params}))


# ---- Room ------------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_but_nothing_that_is_locked(tmp_path, codebook):
    size = BYTES * 0.68
    adapter = Adapter(tmp_path, codebook=str(codebook), capacity_gb=10.5 * size / (1 << 30))
    adapter.put(*range(10))
    for n in range(10):
        os.utime(file_of(adapter, n), (1000 + n, 1000 + n))
    assert adapter.get(0) == [0]  # used now
    assert adapter.lookup([key_of(1)]) == [0]  # locked
    adapter.put(10, 11)
    left = {n for n in range(12) if file_of(adapter, n).exists()}
    assert {0, 1, 10, 11} <= left and 2 not in left and len(left) <= 10
    assert adapter.real.get_usage().total_bytes_used == sum(file_of(adapter, n).stat().st_size for n in left)
    adapter.real.delete([key_of(1), key_of(10)])
    assert file_of(adapter, 1).exists() and not file_of(adapter, 10).exists()
    adapter.real.submit_unlock([key_of(1), key_of(500)])  # the other is locked by nobody
    adapter.real.delete([key_of(1)])
    assert not file_of(adapter, 1).exists()
    adapter.real.close()


def test_a_full_folder_is_emptied_at_the_start(tmp_path, codebook):
    first = Adapter(tmp_path, codebook=str(codebook))
    stored = first.put(*range(10))
    first.real.close()
    second = Adapter(tmp_path, codebook=str(codebook), capacity_gb=stored / 2 / (1 << 30))
    left = sum(path.stat().st_size for path in tmp_path.glob("*/*.strait"))
    assert second.real.get_usage().total_bytes_used == left and 0.3 * stored < left <= 0.5 * stored
    second.real.close()


def test_what_another_process_removes_can_be_loaded_while_it_is_locked(tmp_path, codebook):
    mine, other = (Adapter(tmp_path, codebook=str(codebook)) for _ in range(2))
    stored = mine.put(1, 2)
    assert mine.lookup([key_of(1)]) == [0]
    other.real.delete([key_of(1), key_of(2)])
    assert mine.get(1, 2) == [1]
    mine.real.submit_unlock([key_of(1)])
    assert mine.get(1) == [] and not mine.real._locks
    assert mine.real.get_usage().total_bytes_used == 0  # although another has removed them
    assert stored and other.put(1) and mine.get(1) == [1]
    for adapter in (mine, other):
        adapter.real.close()


def test_more_locks_than_descriptors(tmp_path, codebook):
    adapter = Adapter(tmp_path, codebook=str(codebook))
    adapter.real._open_at_most = 2
    adapter.put(*range(6))
    keys = [key_of(n) for n in range(6)]
    assert adapter.lookup(keys) == list(range(6))
    assert 2 <= sum(lock.descriptor is not None for lock in adapter.real._locks.values()) <= 3  # by two workers at once
    adapter.real.delete(keys)
    assert sorted(adapter.get(*range(6))) == list(range(6))
    adapter.real.submit_unlock(keys)
    assert not adapter.real._locks
    adapter.real.close()


def test_a_damaged_file_does_not_take_a_good_one_with_it(adapter):
    adapter.put(1)
    path = file_of(adapter, 1)
    whole = path.read_bytes()
    damage(path, "last")
    assert adapter.lookup([key_of(1)]) == [0]  # keeps the damaged one open
    path.unlink()
    path.write_bytes(whole)
    assert adapter.get(1) == []
    assert path.read_bytes() == whole
    adapter.real.submit_unlock([key_of(1)])
    assert adapter.get(1) == [1]


def test_a_lock_counts(adapter):
    adapter.put(1)
    adapter.lookup([key_of(1)])
    adapter.lookup([key_of(1)])
    adapter.real.submit_unlock([key_of(1)])
    adapter.real.delete([key_of(1)])
    assert adapter.get(1) == [1]


def test_threads_store_load_and_evict_at_once(tmp_path, codebook):
    adapter = Adapter(tmp_path, codebook=str(codebook), capacity_gb=8 * BYTES * 0.68 / (1 << 30), workers=4)
    failures = []

    def run(seed):
        chance = np.random.default_rng(seed)
        try:
            for _ in range(40):
                numbers = chance.integers(30, size=3).tolist()
                objects = [object_of(values_of(n)) for n in numbers]
                adapter.real.submit_store_task([key_of(n) for n in numbers], objects)
                back = [object_of() for _ in numbers]
                task = adapter.real.submit_load_task([key_of(n) for n in numbers], back)
                end = time.monotonic() + 30
                while (found := adapter.real.query_load_result(task)) is None:
                    assert time.monotonic() < end
                    time.sleep(0.001)
                for i in found.get_indices_list():
                    assert (back[i].raw_data.numpy().view(np.uint16) == values_of(numbers[i])).all()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    adapter.real.close()
    assert not failures, failures[0]


# ---- Through LMCache's own manager -----------------------------------------------------------------------------------


def manager_of(adapter_config):
    return StorageManager(
        StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(
                memory_config=L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False)
            ),
            eviction_config=EvictionConfig(eviction_policy="LRU"),
            l2_adapter_config=L2AdaptersConfig(adapters=[adapter_config]),
        )
    )


def test_the_storage_manager_stores_and_prefetches(tmp_path, codebook):
    manager = manager_of(config_of(tmp_path, codebook=str(codebook)))
    try:
        layout = MemoryLayoutDesc(shapes=[torch.Size(SHAPE)], dtypes=[torch.bfloat16])
        keys = [key_of(n) for n in range(6)]
        for n, (_, obj) in enumerate(manager.reserve_write(keys, layout).items()):
            np.frombuffer(obj.byte_array, np.uint8)[:] = values_of(n).view(np.uint8)
        manager.finish_write(keys)
        until(lambda: len(list(tmp_path.glob("*/*.strait"))) == 6)
        manager.clear(force=True)
        spec = PrefetchTaskSpec([GroupedObjectKeys([*keys, key_of(77)], 0, layout)])
        handle = manager.submit_prefetch_task(spec)
        assert manager.wait_prefetch_status(handle, 30)
        result = manager.query_prefetch_status(handle)
        assert result.l2_hit_count == 6 and result.l1_hit_count == 0
        with manager.read_prefetched_results(keys) as objects:
            for n, obj in enumerate(objects):
                assert (np.frombuffer(obj.byte_array, np.uint16) == values_of(n)).all()
        manager.finish_read_prefetched(keys)
    finally:
        manager.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_serde_stores_and_loads_by_lmcaches_wrapper(tmp_path, codebook, serde, dtype):
    config = config_of(tmp_path)
    config.serde_config = SerdeConfig(serde, {"codebook": str(codebook)})
    manager = manager_of(config)
    try:
        layout = MemoryLayoutDesc(shapes=[torch.Size([3, 7, 64, 128])], dtypes=[dtype])
        keys, count = [key_of(n) for n in range(6)], 3 * 7 * 64 * 128
        values = [values_of(n, count * dtype.itemsize // 2).view(np.uint8) for n in range(6)]
        for n, (_, obj) in enumerate(manager.reserve_write(keys, layout).items()):
            np.frombuffer(obj.byte_array, np.uint8)[:] = values[n]
        manager.finish_write(keys)
        until(lambda: len(list(tmp_path.glob("*/*.strait"))) == 6)
        sizes = [path.stat().st_size for path in tmp_path.glob("*/*.strait")]
        assert dtype != torch.bfloat16 or sum(sizes) < sum(map(len, values)) / 1.4
        until(lambda: manager.report_status()["store_controller"]["in_flight_task_count"] == 0)
        manager.clear(force=True)
        (gone,) = tmp_path.glob(f"*/*@{keys[4].chunk_hash.hex()}@*")
        gone.unlink()
        handle = manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, layout)]))
        assert manager.wait_prefetch_status(handle, 30)
        assert manager.query_prefetch_status(handle).l2_hit_count == 4  # what comes before the one that is gone
        with manager.read_prefetched_results(keys[:4]) as objects:
            for n, obj in enumerate(objects):
                assert (np.frombuffer(obj.byte_array, np.uint8) == values[n]).all()
        manager.finish_read_prefetched(keys[:4])
        until(lambda: manager.report_status()["l1_manager"]["memory_used_bytes"] == 0)
    finally:
        manager.close()


# ---- The serde -------------------------------------------------------------------------------------------------------


def test_the_serde_codes_and_decodes(codebook, serde):
    processor = create_serde_processor(SerdeConfig(serde, {"codebook": str(codebook)}))
    layout = MemoryLayoutDesc(shapes=[torch.Size(SHAPE)], dtypes=[torch.bfloat16])
    serializer, deserializer = processor._serializer, processor._deserializer
    coded = object_of(shape=(serializer.estimate_serialized_size(layout),), dtype=torch.uint8)
    size = serializer.serialize(object_of(values_of(1)), coded, key_of(1))
    assert 1.4 < BYTES / size < 1.6
    for length in (size, len(coded.raw_data)):  # narrowed to what was written, or not
        coded.set_used_size(length)
        back = object_of()
        deserializer.deserialize(coded, back, key_of(1))
        assert (back.raw_data.numpy().view(np.uint16) == values_of(1)).all()
    noise = np.random.default_rng(1).integers(0, 65536, BYTES // 2, np.uint16)  # cannot be coded: it still fits
    size = serializer.serialize(object_of(noise), coded, key_of(1))
    assert size <= serializer.estimate_serialized_size(layout)
    processor.close()


def test_large_objects_are_cut(codebook, monkeypatch):
    monkeypatch.setattr("strait.lmcache._PART_BYTES", 100 << 10)
    coder, values = Coder(codebook), values_of(5).view(np.uint8)
    described, chunks = coder.encode([("bf16", values)])
    assert len(described) == -(-len(values) // (100 << 10))
    out = np.zeros_like(values)
    coder.decode(np.frombuffer(b"".join(chunks), np.uint8), described, out)
    assert (out == values).all()
