"""A worker that holds pages on a GPU and offers them; test_gpu_service.py tells it what to do, line by line, and reads
answers.

    SOCKET PAGES  ->  the pool's blob, in hex
    offer KEY IDS...  ->  "offered", then the state of the verdict
    ready KEY IDS...  ->  the same, with an event behind slow work on a side stream
    later KEY IDS...  ->  the same, layer by layer
    idle KEY IDS...   ->  the same, but the pages are never ready, and the verdict is not waited for
"""

import sys

import torch
from gpu_pages import CLASSES, make_pool, values_of

from strait import service
from strait.service import State


def slow(stream):
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)


def take_away(tensors):
    """Clears pages, so that old values are not taken for moved ones."""
    final = {cls: tensor.clone() for cls, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.zero_()
    torch.cuda.synchronize()
    return final


def give_back(tensors, final, classes, stream):
    """The same values, when the stream has come to them; returns the event behind that."""
    slow(stream)
    with torch.cuda.stream(stream):
        for cls in classes:
            tensors[cls].copy_(final[cls])
    event = torch.cuda.Event(interprocess=True)
    event.record(stream)
    return event


def offer_ready(pool, tensors, key, ids):
    event = give_back(tensors, take_away(tensors), CLASSES, torch.cuda.Stream())
    offer = pool.offer(key, ids, lease=20, last=True, ready=event)
    assert not event.query()
    return offer


def offer_later(pool, tensors, key, ids):
    side, final = torch.cuda.Stream(), take_away(tensors)
    offer, layers = pool.offer(key, ids, lease=20, later=True), sorted({layer for _, layer in CLASSES})
    for layer in layers:
        event = give_back(tensors, final, [("k", layer), ("v", layer)], side)
        offer.append(layers=range(layer, layer + 1), ready=event, last=layer == layers[-1])
    assert not event.query()
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
        elif what == "ready":
            offer = offer_ready(pool, tensors, key, ids)
        else:
            offer = pool.offer(key, ids, lease=20, last=what == "offer", later=what == "idle")
        print("offered", flush=True)
        if what != "idle":
            print(verdict(client, offer).name, flush=True)


main()
