#!/bin/sh
# collective_kit.sh BUILD NCCL_TESTS DIR [DATA [BEFORE]]: gathers in DIR what a machine with two GPUs or more, their driver, NCCL
# and PyTorch needs to try libstrait-coll: it, nccl-tests, the example with PyTorch, the Python package, the scenes of ranks
# that die and of what does not fit, the bench, and run.sh. NCCL_TESTS: what `bench/nccl_tests.sh build` built. DATA: a
# safetensors file for the bench. BEFORE: another build, whose library is measured beside this one's. Of the environment,
# NCCL: another NCCL to try with; MPI=1: what starts processes, for nccl-tests that were built with MPI_HOME.
set -eu
usage="usage: collective_kit.sh BUILD NCCL_TESTS DIR [DATA [BEFORE]]"
build=${1:?$usage} nccl_tests=${2:?$usage} kit=${3:?$usage} data=${4:-} before=${5:-}
here=$(dirname "$0")
root=$here/../..
# lib has what is tried alone: python is not to find anything else there.
mkdir -p "$kit/lib/programs" "$kit/bin" "$kit/bench" "$kit/examples" "$kit/data"

. "$here/kit_files.sh"

for program in "$build"/tests/gpu_collective_* "$build/tools/strait" "$nccl_tests"/*_perf; do
    copy "$program" "$kit/bin"
    for library in $(needs "$program"); do copy "$library" "$kit/lib/programs"; done
done
copy "$nccl_tests/verifiable/libverifiable.so.0" "$kit/lib/programs"
copy "$build/tests/libstrait-nccl-tests-data.so" "$kit/lib/programs"
for library in "$build"/collective/libstrait-coll*.so.0 "$build"/kernels/libstrait-codec.so.0 "$build"/kernels/libstrait-cuda.so.0 \
    $(needs "$build/kernels/libstrait-codec.so.0" | grep protobuf-c); do
    copy "$library" "$kit/lib"
done
if [ -n "$before" ]; then
    mkdir -p "$kit/before"
    for library in "$before"/collective/libstrait-coll*.so.0 "$before"/kernels/libstrait-codec.so.0 "$before"/kernels/libstrait-cuda.so.0; do
        copy "$library" "$kit/before"
    done
fi
if [ -n "${NCCL:-}" ]; then
    mkdir -p "$kit/nccl"
    copy "$NCCL" "$kit/nccl"
    mv "$kit/nccl/$(basename "$NCCL")" "$kit/nccl/libnccl.so.2" 2>/dev/null || true
fi
if [ "${MPI:-}" = 1 ]; then
    for program in mpiexec.hydra hydra_pmi_proxy; do
        copy "$(command -v $program)" "$kit/bin"
        for library in $(needs "$kit/bin/$program"); do copy "$library" "$kit/lib/programs"; done
    done
    mv "$kit/bin/mpiexec.hydra" "$kit/bin/mpiexec"
fi
cp "$root/bench/nccl_tests.sh" "$kit/bench"
cp "$root/examples/collective_pytorch.sh" "$root/examples/collective_pytorch.py" "$kit/examples"
mkdir -p "$kit/python"
tar -C "$root/python" --exclude=__pycache__ --exclude='*.so*' -c strait | tar -C "$kit/python" -x
cp "$here/fsdp2.py" "$kit"
[ -z "$data" ] || xz -9c "$data" >"$kit/data/$(basename "$data").xz"
cp "$here/collective_kit_run.sh" "$kit/run.sh"
chmod +x "$kit/run.sh" "$kit"/bench/*.sh "$kit"/examples/*.sh
du -sh "$kit"
