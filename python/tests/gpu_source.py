"""A worker that holds pages on a GPU and offers them; test_gpu_service.py tells it what to do.

SOCKET PAGES  ->  the pool's blob, in hex
KEY IDS...    ->  "offered", then the state of the verdict: the pages are filled by slow work on a stream, layer by
                  layer, each layer with an event behind it
"""

import sys

import gpus
import numpy as np
from test_gpu_service import LAYERS, make_pool, values_of

from strait import service
from strait.service import State


def offer(gpu, pool, tensors, key, ids):
    stream, zeros = gpu.stream(), {cls: gpu.tensor(np.zeros_like(values_of(cls))) for cls in tensors}
    final = {cls: gpu.tensor(values_of(cls)) for cls in tensors}
    for cls, tensor in tensors.items():
        gpu.copy(tensor, zeros[cls], stream)
    gpu.finish(stream)
    offered = pool.offer(key, ids, lease=20, later=True)
    for layer in range(LAYERS):
        gpu.slow(stream)
        for role in "kv":
            gpu.copy(tensors[role, layer], final[role, layer], stream)
        event = gpu.event(stream)
        offered.append(layers=range(layer, layer + 1), ready=event, last=layer == LAYERS - 1)
    assert not event.query()
    return offered


def main():
    gpu, _ = gpus.find()
    sys.modules["torch"] = gpu.torch
    client = service.Client(sys.argv[1])
    while not client.connected:
        client.wait(1)
    pool, tensors = make_pool(gpu, client)
    print(pool.export().hex(), flush=True)
    for line in sys.stdin:
        key, *ids = line.split()
        offered = offer(gpu, pool, tensors, key, [int(each) for each in ids])
        print("offered", flush=True)
        while offered.progress.state not in (State.DONE, State.FAILED):
            client.wait(1)
        print(offered.progress.state.name, flush=True)


main()
