"""Keys, objects and an adapter that waits, for the tests of LMCache."""

import select
import time

import numpy as np
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

SHAPE = (2, 4, 64, 128)
BYTES = int(np.prod(SHAPE)) * 2
RANK = ObjectKey.ComputeKVRank(1, 0, 1, 0)


def key_of(number, model="meta/llama 8b", salt=""):
    return ObjectKey(number.to_bytes(8, "big"), model, RANK, 0, salt)


def values_of(number, count=BYTES // 2):
    values = np.random.default_rng(number).standard_normal(count, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def object_of(values=None, shape=SHAPE, dtype=torch.bfloat16):
    size = int(np.prod(shape)) * dtype.itemsize
    raw = torch.zeros(size, dtype=torch.uint8)
    if values is not None:
        raw[:] = torch.from_numpy(values.view(np.uint8).reshape(-1).copy())
    meta = MemoryObjMetadata(
        shape=torch.Size(shape),
        dtype=dtype,
        address=0,
        phy_size=size,
        ref_count=1,
        fmt=MemoryFormat.KV_2LTD,
        shapes=[torch.Size(shape)],
        dtypes=[dtype],
    )
    return TensorMemoryObj(raw, meta, None)


def config_of(folder, **params):
    return PluginL2AdapterConfig.from_dict(
        {
            "module_path": "strait.lmcache",
            "class_name": "FileAdapter",
            "adapter_params": {"folder": str(folder), **params},
        }
    )


class Adapter:
    """An adapter that LMCache's factory has made, and its tasks as calls that wait."""

    def __init__(self, folder, **params):
        self.real = create_l2_adapter_from_registry(config_of(folder, **params))
        fds = [self.real.get_store_event_fd(), self.real.get_lookup_and_lock_event_fd(), self.real.get_load_event_fd()]
        assert len(set(fds)) == 3
        self.fds = fds

    def wait(self, which, ask):
        end = time.monotonic() + 30
        while (answer := ask()) is None:
            assert time.monotonic() < end
            select.select([self.fds[which]], [], [], 0.2)
        return answer

    def store(self, keys, objects):
        task, done = self.real.submit_store_task(keys, objects), {}

        def ask():
            done.update(self.real.pop_completed_store_tasks())
            return done.get(task)

        return self.wait(0, ask)

    def lookup(self, keys):
        task = self.real.submit_lookup_and_lock_task(keys, {})
        return self.wait(1, lambda: self.real.query_lookup_and_lock_result(task)).get_indices_list()

    def load(self, keys, objects):
        task = self.real.submit_load_task(keys, objects)
        return self.wait(2, lambda: self.real.query_load_result(task)).get_indices_list()

    def put(self, *numbers):
        result = self.store([key_of(n) for n in numbers], [object_of(values_of(n)) for n in numbers])
        assert result.is_successful()
        return result.bytes_transferred()

    def get(self, *numbers):
        """Numbers of the objects that came back, each compared."""
        objects = [object_of() for _ in numbers]
        found = self.load([key_of(n) for n in numbers], objects)
        for i in found:
            assert (objects[i].raw_data.numpy().view(np.uint16) == values_of(numbers[i])).all()
        return [numbers[i] for i in found]


def file_of(adapter, number):
    return adapter.real._files.path_of(key_of(number))


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
