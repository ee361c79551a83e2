"""A vLLM engine in a process of its own, driven step by step."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import queue
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32  # tokens
DEADLINE, LEASE = 5, 3  # seconds


@dataclass
class Settings:
    model: Path
    connector: dict[str, Any] | None = None  # of KVTransferConfig; None: an engine without one
    blocks: int = 128
    step_tokens: int = 1024
    own_core: bool = False  # the engine core in yet another process, as `vllm serve` has it
    block: int = BLOCK  # tokens
    tensor: int = 1  # ranks of a pipeline stage, each a process
    stages: int = 1
    dtype: str = "bfloat16"
    cache: str = "auto"  # type of the KV cache
    environment: dict[str, str] = field(default_factory=dict)


def strait_connector(socket: Path, **options: Any) -> dict[str, Any]:
    return {
        "kv_connector": "StraitConnector",
        "kv_connector_module_path": "strait.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "socket": str(socket),
            "deadline": DEADLINE,
            "lease": LEASE,
            **options,
        },
    }


class _Served:
    """Within the process."""

    def __init__(self, settings: Settings):
        from vllm import LLM
        from vllm.config import KVTransferConfig

        connector = settings.connector
        self.model = LLM(
            model=str(settings.model),
            skip_tokenizer_init=True,
            dtype=settings.dtype,
            kv_cache_dtype=settings.cache,
            tensor_parallel_size=settings.tensor,
            pipeline_parallel_size=settings.stages,
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=16,
            block_size=settings.block,
            num_gpu_blocks_override=settings.blocks,
            max_num_batched_tokens=settings.step_tokens,
            enable_chunked_prefill=True,
            disable_log_stats=False,
            kv_transfer_config=KVTransferConfig(**connector) if connector else None,
        )
        self.engine = self.model.llm_engine
        self.number = 0

    def add(self, prompt: list[int], count: int, params: dict[str, Any] | None, trace: str = "") -> str:
        """Adds a request and returns its name."""
        from vllm import SamplingParams, TokensPrompt

        self.number += 1
        name = f"{os.getpid()}-{self.number}"
        sampling = SamplingParams(
            max_tokens=count,
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            extra_args={"kv_transfer_params": params} if params else None,
        )
        headers = {"traceparent": trace} if trace else None
        self.engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), sampling, trace_headers=headers)
        return name

    def run(self, requests: list[tuple[Any, ...]]) -> list[tuple[list[int], Any, float]]:
        """Tokens, kv_transfer_params and seconds of each request; they run together."""
        began = time.perf_counter()
        names = [self.add(*request) for request in requests]
        ended: dict[str, tuple[list[int], Any, float]] = {}
        while len(ended) < len(names):
            for output in self.engine.step():
                if output.finished:
                    found = (
                        list(output.outputs[0].token_ids),
                        output.kv_transfer_params,
                    )
                    ended[output.request_id] = (*found, time.perf_counter() - began)
        return [ended[name] for name in names]

    def abort(self, requests: list[tuple[list[int], int, dict[str, Any] | None]], steps: int) -> None:
        """Requests that are aborted after so many steps."""
        names = [self.add(*request) for request in requests]
        for _ in range(steps):
            self.engine.step()
        self.engine.abort_request(names)

    def rest(self, seconds: float) -> None:
        """Steps as an engine does that is served: as long as there is something to do."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.engine.step()
            time.sleep(0.005)

    def _core(self) -> Any:
        return self.engine.engine_core.engine_core

    def held(self) -> int:
        """Blocks in use, by the scheduler's own count."""
        pool = self._core().scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()

    def live(self) -> int:
        """Requests that the scheduler still has."""
        return len(self._core().scheduler.requests)

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric in self.model.get_metrics():
            value = getattr(metric, "value", getattr(metric, "count", None))
            if value is not None:
                found[metric.name] = found.get(metric.name, 0) + value
        return found


def _serve(settings: Settings, calls: Any, answers: Any) -> None:
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING=str(int(settings.own_core)),
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        **settings.environment,
    )
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        served = _Served(settings)
        answers.put((None, None))
        for name, arguments in iter(calls.get, None):
            try:
                answers.put((getattr(served, name)(*arguments), None))
            except Exception:
                answers.put((None, traceback.format_exc()))
        del served
    except BaseException:
        answers.put((None, traceback.format_exc()))
        raise


class Engine:
    """engine.run(...), engine.held() and so on: the methods of _Served, in the other process."""

    def __init__(self, settings: Settings):
        context = multiprocessing.get_context("spawn")
        self._calls, self._answers = context.Queue(), context.Queue()
        self.process = context.Process(target=_serve, args=(settings, self._calls, self._answers))
        self.process.start()

    def ready(self, seconds: float = 300) -> Engine:
        self._answer(seconds)
        return self

    def begin(self, name: str, *arguments: Any) -> None:
        """Begins a call; answer() waits for its result."""
        self._calls.put((name, arguments))

    def answer(self, seconds: float = 120) -> Any:
        return self._answer(seconds)

    def _answer(self, seconds: float) -> Any:
        try:
            value, failure = self._answers.get(timeout=seconds)
        except queue.Empty:
            os.kill(self.process.pid, signal.SIGUSR1)  # which prints where its threads are
            time.sleep(1)
            raise TimeoutError(f"the engine has not answered for {seconds:.0f} s") from None
        if failure is not None:
            raise RuntimeError(f"the engine failed:\n{failure}")
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.begin(name, *arguments)
            return self.answer()

        return call

    def stop(self) -> None:
        if self.process.is_alive():
            self._calls.put(None)
            self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def kill(self) -> None:
        """With the processes that it has started."""
        import psutil

        for process in psutil.Process(self.process.pid).children(recursive=True):
            process.kill()
        self.process.kill()
        self.process.join()
