"""Agents of NIXL with the plug-in, and one in a process of its own that does nothing but hold memory.

python agents.py NAME SEED: registers memory, prints its metadata and address in hex, and answers lines on stdin: "sum",
"notes", "forget" (deregisters the memory).
"""

import sys
import time

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

BYTES = 8 << 20
OPTIONS = {"listen": "127.0.0.1:0", "timeout": "20"}


def make_agent(name, **options):
    agent = nixl_agent(name, nixl_agent_config(backends=[]))
    agent.create_backend("STRAIT", {**OPTIONS, **options})
    return agent


def values(seed, size=BYTES):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def register(agent, array):
    return agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM", backends=["STRAIT"])


def main():
    name, seed = sys.argv[1], int(sys.argv[2])
    agent = make_agent(name, **dict(option.split("=", 1) for option in sys.argv[3:]))
    array = values(seed)
    memory = register(agent, array)
    print(agent.get_agent_metadata().hex(), array.ctypes.data, flush=True)
    for line in sys.stdin:
        if line == "sum\n":
            print(int(np.bitwise_xor.reduce(array.view(np.uint64) * np.arange(1, BYTES // 8 + 1, dtype=np.uint64))))
        elif line == "notes\n":
            notes, end = {}, time.monotonic() + 20
            while not notes and time.monotonic() < end:
                notes = agent.get_new_notifs()
            print({sender: [note.decode() for note in those] for sender, those in notes.items()})
        elif line == "forget\n":
            agent.deregister_memory(memory)
            print("forgotten")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
