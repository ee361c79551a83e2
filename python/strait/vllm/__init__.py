"""Strait as a KV connector of vLLM: a prefill engine's blocks go straight into those of a decode engine.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "StraitConnector",
        "kv_connector_module_path": "strait.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": "/run/strait/straitd.sock"}}'

Options (kv_connector_extra_config), each with its default:

    socket           the daemon of this node: as for strait.service.Client
    coding           "auto", "raw", "top16", "tiered", "base" or "split": how blocks are coded on the way
    deadline         30: seconds that a decode engine waits for the blocks of a request
    lease            30: seconds that a prefill engine keeps the blocks of a request that nobody takes
    connect_timeout  30: seconds that an engine waits for its daemon when it starts
    layerwise        false: layers are sent as soon as the model has them, for requests whose key is known beforehand
    compat           a token that must be equal at both ends; "": the model's name, its geometry and vLLM's version

Requests carry kv_transfer_params, as with vLLM's own connectors: {"do_remote_decode": true} to the prefill engine, with
max_tokens 1, and what that engine returns to the decode engine. A router that has such an answer of a prefill engine
may send both halves of a request at once, under a key of its own: {"do_remote_decode": true, "strait_key": KEY} and
the answer with "remote_request_id": KEY. The blocks then move while the prefill runs.

Engines may differ in tensor and pipeline parallelism, block size and layout of the cache: the decode engine is told of
the other one's, and tells its daemons how many of its ranks take from each.

Written for vLLM 0.32. Where engines do not fit, blocks are computed anew and the log says what differs. So they are
whenever anything fails, if the failure policy is "recompute"; but while the daemon of its node hangs, an engine waits
for what that had begun, whatever the deadline and the lease are.
"""

from .connector import StraitConnector

__all__ = ["StraitConnector"]
