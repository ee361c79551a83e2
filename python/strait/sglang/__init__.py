"""Transfer backend of SGLang's prefill-decode disaggregation: the KV cache moves by the daemons of both nodes.

    sglang serve MODEL --disaggregation-mode prefill --disaggregation-transfer-backend strait
    sglang serve MODEL --disaggregation-mode decode  --disaggregation-transfer-backend strait

SGLang finds it by the entry point of this package; see docs/frameworks.md. $STRAIT_SOCKET names the daemon's socket,
SGLANG_DISAGGREGATION_WAITING_TIMEOUT and ..._BOOTSTRAP_TIMEOUT how long a request waits.
"""

from .registration import plugin, register

__all__ = ["plugin", "register"]
