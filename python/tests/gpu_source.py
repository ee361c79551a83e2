"""A worker that holds pages on a GPU and offers them; test_gpu.py tells it what to do, line by line, and reads answers.

    SOCKET PAGES  ->  the pool's blob, in hex
    offer KEY IDS...  ->  "offered", then the state of the verdict
    later KEY IDS...  ->  the same, with events behind slow work on a side stream, layer by layer
"""

import sys

import torch
from gpu_pages import CLASSES, make_pool, values_of

from strait import service
from strait.service import State


def slow(stream):
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)


def offer_later(pool, tensors, key, ids):
    """Values that are there only when a stream has come to them."""
    side = torch.cuda.Stream()
    final = {cls: tensor.clone() for cls, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.zero_()
    torch.cuda.synchronize()
    offer, events = pool.offer(key, ids, lease=20, later=True), []
    for layer in sorted({layer for _, layer in CLASSES}):
        slow(side)
        with torch.cuda.stream(side):
            for cls in (("k", layer), ("v", layer)):
                tensors[cls].copy_(final[cls])
        events.append(torch.cuda.Event(interprocess=True))
        events[-1].record(side)
        offer.append(layers=range(layer, layer + 1), ready=events[-1], last=layer == max(layer for _, layer in CLASSES))
    assert not events[-1].query()
    return offer


def verdict(client, transfer):
    while transfer.progress.state not in (State.DONE, State.FAILED):
        client.wait(1)
    return transfer.progress.state


def main():
    socket, pages = sys.argv[1], int(sys.argv[2])
    client = service.Client(socket)
    while not client.connected:
        client.wait(1)
    pool, tensors = make_pool(client, pages)
    for cls, tensor in tensors.items():
        tensor.copy_(values_of(cls, pages))
    torch.cuda.synchronize()
    print(pool.export().hex(), flush=True)
    for line in sys.stdin:
        what, key, *ids = line.split()
        ids = [int(each) for each in ids]
        if what == "later":
            offer = offer_later(pool, tensors, key, ids)
        else:
            offer = pool.offer(key, ids, lease=20, last=True)
        print("offered", flush=True)
        print(verdict(client, offer).name, flush=True)


main()
