"""collective_ranks.py STORE RANK RANKS WAY [NAME ...]: a rank, on CPU tensors, over a fake NCCL of processes.

WAY: `checks`, those of tests/gpu/fsdp2.py, by two ranks; `bench`, what a rank of strait.bench_step does, and once more
with a value changed, by two; `groups`, collectives of groups that not all ranks are in. The group of all ranks is
gloo's. STRAIT_COLL_NCCL names the fake.
"""

import contextlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))
import fsdp2 as checks

import strait.torch
from strait import CollectiveError, bench_step
from strait.torch import communicator

CPU = torch.device("cpu")


class Event:
    """Of what is over."""

    def query(self):
        return True


class Host:
    """In place of a GPU: memory of the host, where all is over when a call returns."""

    device = CPU

    def stream(self):
        return 0

    def context(self):
        return contextlib.nullcontext()

    def synchronize(self):
        pass

    @contextlib.contextmanager
    def beside(self, *tensors):
        yield

    def record(self):
        return Event()

    def wait(self, event):
        assert event.query()

    def future(self):
        return torch.futures.Future()


def use_sums(module):
    """gloo has no averages."""
    module.set_force_sum_reduction_for_comms(True)


def run_checks(names):
    checks.WIDTH, checks.ROWS = 64, 8
    chosen = names or [name for name in checks.CHECKS if name not in checks.GPU_ONLY]
    return checks.run(checks.Here(CPU, use_sums), chosen)


def run_bench():
    """The model is small; its result has a line of JSON, as has that of two models that differ in one value."""
    options = bench_step.parse("--links shm --batch 2 --length 32 --rounds 3 --steps 2 --warmups 1".split())
    shape = bench_step.Shape(layers=2, width=64, inner=128, heads=4, kv_heads=2, words=100)
    make_model, made = bench_step.make_model, []

    def make(shape, device):
        made.append(make_model(shape, device))
        for module in made[-1].modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                use_sums(module)
        if len(made) == 4:  # the second model of the second time
            made[-1].norm.weight.to_local().data[0] = 1.5
        return made[-1]

    bench_step.make_model = make
    for _ in range(2):
        result = bench_step.measure(options, shape, CPU)
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    return 0


def run_groups():
    """Each pair of ranks is a group, and all ranks are one."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), 1000
    pairs = [(first, second) for first in range(ranks) for second in range(first + 1, ranks)]
    groups = {members: dist.new_group(list(members)) for members in [*pairs, tuple(range(ranks))]}
    for turn in range(3):
        for members, group in groups.items():
            if rank not in members:
                try:
                    communicator.communicator_of(group)
                    raise checks.Wrong(f"rank {rank} has a communicator of {members}")
                except CollectiveError as failure:
                    checks.demand("not a rank of the group" in str(failure), str(failure))
                continue
            found = communicator.communicator_of(group)
            checks.demand(found.size == len(members) and members[found.rank] == rank, f"{members}: other ranks")
            sent = torch.full((count,), 1.0 + rank + 8 * turn)
            got = torch.empty(len(members), count)
            found.all_gather(got, sent)
            expected = torch.tensor([1.0 + member + 8 * turn for member in members])
            checks.demand(torch.equal(got, expected[:, None].expand_as(got)), f"all_gather of {members}")
            found.all_reduce(sent)
            checks.demand(bool((sent == expected.sum()).all()), f"all_reduce of {members}")
    made = len(communicator._communicators)
    checks.demand(made == 1 + sum(rank in members for members in pairs), f"{made} communicators")
    print("PASS groups", flush=True)
    return 0


WAYS = {"bench": run_bench, "groups": run_groups}


def main():
    store, rank, ranks, way, *names = sys.argv[1:]
    communicator.Gpu = Host
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    failed = run_checks(names) if way == "checks" else WAYS[way]()
    strait.torch.close()
    dist.destroy_process_group()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
