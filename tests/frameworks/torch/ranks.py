"""Processes that are the ranks of a process group with gloo: run(count, function, ...) calls function(...) in each."""

import atexit
import datetime
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import traceback
from typing import NamedTuple

_SECONDS = 120


class Outcome(NamedTuple):
    """Of a rank: what its function returned, or the text of what it raised, and how its process ended."""

    value: object
    error: str
    exit: int


def _serve(rank, count, folder, function, arguments):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="localhost")
    timeout = datetime.timedelta(seconds=_SECONDS / 2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=timeout)
    value, error = None, ""
    try:
        value = function(*arguments)
    except BaseException:  # of which torch's CheckpointException is one
        error = traceback.format_exc()
    with open(f"{folder}/{rank}.partial", "wb") as file:
        pickle.dump((value, error), file)
    os.rename(f"{folder}/{rank}.partial", f"{folder}/{rank}")
    if not error:
        dist.barrier()
        dist.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)  # what gloo's threads of a rank with an error wait for never comes


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed.fsdp", "strait.torch.checkpoint"])


def try_run(count, function, *arguments):
    """What became of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            _context.Process(target=_serve, args=(rank, count, folder, function, arguments)) for rank in range(count)
        ]
        for rank in ranks:
            rank.start()
        outcomes = []
        try:
            for number, rank in enumerate(ranks):
                rank.join(_SECONDS)
                try:
                    with open(f"{folder}/{number}", "rb") as file:
                        value, error = pickle.load(file)
                except FileNotFoundError:
                    value, error = None, f"rank {number} is gone, or still there"
                outcomes.append(Outcome(value, error, rank.exitcode))
        finally:
            for rank in ranks:
                if rank.is_alive():
                    os.kill(rank.pid, signal.SIGKILL)
                    rank.join()
        return outcomes


def run(count, function, *arguments):
    """What each rank returned; an error of one is an error here."""
    outcomes = try_run(count, function, *arguments)
    for number, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {number}: {outcome.error}"
    return [outcome.value for outcome in outcomes]
