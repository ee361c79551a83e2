"""What the ranks of the tests do: a small model under FSDP2 and AdamW, and states without one."""

import hashlib
import os
import signal
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from strait.torch.checkpoint import Reader, Stager, Writer

warnings.simplefilter("ignore")

WIDTH = 90  # which four and eight ranks do not divide


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Training:
    """A model, its optimizer, and how far it has come."""

    def __init__(self, seed=1):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(16, WIDTH), Block(), Block(), nn.Linear(WIDTH, 4))
        for part in self.model:
            fully_shard(part)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def run(self, steps):
        for _ in range(steps):
            generator = torch.Generator().manual_seed(1000 * self.steps + dist.get_rank())
            x = torch.randn(8, 16, generator=generator)
            loss = (self.model(x) - x[:, :4].sin()).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "steps": self.steps, "arguments": {"lr": 1e-3, "names": ["a"]}}

    def load(self, path):
        state = self.state()
        dcp.load(state, storage_reader=Reader(path))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.steps = state["steps"]
        assert state["arguments"] == {"lr": 1e-3, "names": ["a"]}


def digest_of(value, found=None):
    """A sha256 of all tensors of a state: what is sharded as a whole."""
    whole = found is None
    found = hashlib.sha256() if whole else found
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            digest_of(value[name], found)
    return found.hexdigest() if whole else None


# ---- Training -------------------------------------------------------------------------------------------------------


def train(steps, load=None, save=None, seed=1):
    """The digest of the state that it ends with."""
    training = Training(seed)
    if load is not None:
        training.load(load)
    training.run(steps)
    if save is not None:
        dcp.save(training.state(), storage_writer=Writer(save))
    return digest_of(training.state())


def load_wrong_model(path):
    dcp.load({"model": {"0.weight": torch.zeros(3, 3)}}, storage_reader=Reader(path))


def load_missing(path):
    dcp.load({"model": {"head.weight": torch.zeros(3, 3)}}, storage_reader=Reader(path))


# ---- States without a model -----------------------------------------------------------------------------------------


def values_of(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sharded_state(fill=True):
    """Tensors that are sharded in several ways, replicated, or plain; zeroes unless filled."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def place(shape, seed, placement, dtype=torch.float32):
        values = values_of(shape, seed).to(dtype) if fill else torch.zeros(shape, dtype=dtype)
        return distribute_tensor(values, mesh, [placement])

    return {
        "rows": place((123, 45), 1, Shard(0)),
        "columns": place((31, 77, 3), 2, Shard(1)),
        "half": place((50, 64), 3, Shard(0), torch.bfloat16),
        "few": place((2, 9), 4, Shard(0)),  # fewer than ranks
        "same": place((64, 64), 5, Replicate()),
        "plain": values_of((40, 50), 6) if fill else torch.zeros(40, 50),
        "complex": values_of((5, 6, 2), 7).double().view(torch.complex128)
        if fill
        else torch.zeros(5, 6, 1).to(torch.complex128),
        "scalar": torch.tensor(3.5 if fill else 0.0),
        "object": {"text": "a text", "list": [1, 2]} if fill else {"text": "", "list": []},
    }


def save_sharded(path):
    state = sharded_state()
    writer = Writer(path)
    dcp.save(state, storage_writer=writer)
    return digest_of(state), writer.summary.shards


def load_sharded(path):
    state = sharded_state(fill=False)
    dcp.load(state, storage_reader=Reader(path))
    assert state["object"] == {"text": "a text", "list": [1, 2]}
    return digest_of(state)


def save_with_torch(path, extensions):
    from torch.distributed.checkpoint._extension import ZStandard

    state = sharded_state()
    writer = dcp.FileSystemWriter(path, _extensions=[ZStandard()] if extensions else None)
    dcp.save(state, storage_writer=writer)
    return digest_of(state)


def save_megatron(path):
    """BF16 parameters, and their F32 masters and moments, sharded alike, by Megatron's names."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"model": {}, "optimizer": {"state": {"fp32_param": {}, "exp_avg": {}, "exp_avg_sq": {}}}}
    for number in range(6):
        name = f"decoder.layers.{number}.weight"
        master = distribute_tensor(values_of((64, 96), number), mesh, [Shard(0)])
        state["model"][name] = master.to(torch.bfloat16)
        state["optimizer"]["state"]["fp32_param"][name] = master
        state["optimizer"]["state"]["exp_avg"][name] = master * 0.01
        state["optimizer"]["state"]["exp_avg_sq"][name] = master * master
    writer = Writer(path)
    dcp.save(state, storage_writer=writer)
    return writer.summary.rounded_shards, digest_of(state)


def load_megatron(path):
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    return digest_of(_load_state_dict_from_keys(storage_reader=Reader(path)))


# ---- Asynchronous saves ---------------------------------------------------------------------------------------------


def save_async(folder, process):
    """Digests of three states at their saves, while the training goes on."""
    training, stager, digests = Training(), Stager(shared=process), []
    kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
    for number in range(3):
        training.run(2)
        digests.append(digest_of(training.state()))
        future = dcp.async_save(
            training.state(),
            storage_writer=Writer(f"{folder}/step-{number}"),
            async_stager=stager,
            async_checkpointer_type=kind,
            process_group=dist.new_group(backend="gloo"),
        )
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.zero_()  # which what is being saved must not see
        future.result()
        training.load(f"{folder}/step-{number}")
    sets = len(stager._sets)
    stager.close()
    return digests, sets


def load_digest(path):
    training = Training(seed=5)
    training.load(path)
    return digest_of(training.state())


# ---- Planners -------------------------------------------------------------------------------------------------------


def save_cached(folder):
    """Plans of earlier saves, of which one rank's changes once, and saves of rank 0 alone between them."""
    planner = lambda: DefaultSavePlanner(enable_plan_caching=True)  # noqa: E731
    for number in range(6):
        state = {"w": torch.full((4, 4), float(number)), "own": {f"{dist.get_rank()}": torch.full((3,), float(number))}}
        if number >= 3 and dist.get_rank() == 1:
            state["own"]["more"] = torch.full((5,), float(number))
        dcp.save(state, storage_writer=Writer(f"{folder}/step-{number}"), planner=planner())
        if dist.get_rank() == 0:
            dcp.save({"w": torch.zeros(2)}, storage_writer=Writer(f"{folder}/alone-{number}"), no_dist=True)
    dist.barrier()
    return [
        (float(found["w"][0, 0]), sorted(found["own"]), {float(one[0]) for one in found["own"].values()})
        for found in (_load_all(f"{folder}/step-{number}") for number in range(6))
    ]


def _load_all(path):
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    return _load_state_dict_from_keys(storage_reader=Reader(path))


class FaultyPlanner(DefaultSavePlanner):
    """On one rank resolves only so many items, and then raises, or kills the process."""

    def __init__(self, rank, items, kill):
        super().__init__()
        self._rank, self._left, self._kill = rank, items, kill

    def resolve_data(self, write_item):
        if dist.get_rank() == self._rank:
            self._left -= 1
            if self._left < 0:
                if self._kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("this rank has no more memory")
        return super().resolve_data(write_item)


def save_faulty(path, rank, items, kill):
    state = sharded_state()
    dcp.save(state, storage_writer=Writer(path), planner=FaultyPlanner(rank, items, kill))


class KilledInTheMiddle(Writer):
    """Dies after so many of its shards have been added."""

    def __init__(self, path, rank):
        super().__init__(path)
        self._victim = rank

    def write_data(self, plan, planner):
        if dist.get_rank() == self._victim:
            from strait import checkpoint

            add, left = checkpoint.Save.add, [3]

            def counted(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                add(*args, **kwargs)

            checkpoint.Save.add = counted
        return super().write_data(plan, planner)


def save_killed(path, rank):
    state = sharded_state()
    dcp.save(state, storage_writer=KilledInTheMiddle(path, rank))


def save_without_collectives(path):
    dcp.save({"w": torch.zeros(3)}, storage_writer=Writer(path), use_collectives=False)


def save_refusing(path):
    dcp.save({"w": torch.zeros(3)}, storage_writer=Writer(path, overwrite=False))
