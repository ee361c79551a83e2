"""A connector of vLLM that moves nothing: what is left of a decode engine's wait when a transfer takes no time. Its
tokens are wrong."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    SupportsHMA,
)


class Loads(KVConnectorMetadata):
    def __init__(self, requests: set[str]):
        self.requests = requests


class NothingConnector(KVConnectorBase_V1, SupportsHMA):
    """Option "asynchronous": whether a load has a step of its own, as it must where it takes time and other requests
    are to go on meanwhile."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        self._asynchronous = bool(self._kv_transfer_config.kv_connector_extra_config["asynchronous"])
        self._loads: set[str] = set()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        results.finished_recving = set(self._get_connector_metadata().requests)  # type: ignore[attr-defined]
        return results

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params or {}
        # Where it is loaded within a step, the last token is left to be computed in that step.
        count = request.num_prompt_tokens - num_computed_tokens - (not self._asynchronous)
        return (count, self._asynchronous) if params.get("do_remote_prefill") and count > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0 and self._asynchronous:
            self._loads.add(request.request_id)
        if request.kv_transfer_params:
            request.kv_transfer_params["do_remote_prefill"] = False

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        loads, self._loads = self._loads, set()
        return Loads(loads)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, {"do_remote_prefill": True}

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, {"do_remote_prefill": True}
