"""A prefill rank in a process of its own, which offers requests and computes no more than their first chunk.

usage: prefill_process.py SOCKET ADDRESS ROOM...: says "ready" when its rank is registered, and "sent" after that."""

import sys
from types import SimpleNamespace

from rig import WAITING, Rank, until

if __name__ == "__main__":
    socket, address, *rooms = sys.argv[1:]
    rank = Rank(SimpleNamespace(socket=socket), address, "prefill", seed=9)
    senders = [rank.sender(int(room)) for room in rooms]
    print("ready", flush=True)
    for sender in senders:
        until(lambda sender=sender: sender.poll() == WAITING, 60, "the handshake")
        sender.init(24, 0)
        sender.send(rank.chunk(8))
    print("sent", flush=True)
    sys.stdin.read()
