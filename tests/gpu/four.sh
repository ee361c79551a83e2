#!/bin/sh
# four.sh BUILD NCCL_TESTS DIR TENSORS PAGES CALIB: puts into DIR what a machine with four GPUs, their driver, NCCL and
# PyTorch needs for what takes more than two: the kits of collectives and of the service, packed, and run.sh. NCCL_TESTS: what
# `bench/nccl_tests.sh build` built. Safetensors files: TENSORS of a model in training, PAGES of a KV cache, and CALIB, from
# which its codebook is made.
set -eu
usage="usage: four.sh BUILD NCCL_TESTS DIR TENSORS PAGES CALIB"
build=${1:?$usage} nccl_tests=${2:?$usage} kit=${3:?$usage} tensors=${4:?$usage} pages=${5:?$usage} calib=${6:?$usage}
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sh "$here/collective_kit.sh" "$build" "$nccl_tests" "$work/collective" "$tensors"
sh "$here/kit.sh" "$build" "$work/service"
# Of the service the daemon alone, with the libraries that the other kit lacks.
rm -r "$work/service/chaos" "$work/service/chaos-driver" "$work/service/straitd-chaos" "$work/service/gpu_pools" \
    "$work/service/run.sh"
for library in "$work"/service/lib/*.so*; do
    name=$(basename "$library")
    for other in "$work/collective/lib/$name" "$work/collective/lib/programs/$name"; do
        ! cmp -s "$library" "$other" || rm -f "$library"
    done
done
cp "$pages" "$work/service/pages.safetensors"
cp "$calib" "$work/service/calib.safetensors"
mkdir -p "$kit"
tar -C "$work" -cJf "$kit/kit.tar.xz" collective service
cp "$here/four_run.sh" "$kit/run.sh"
chmod +x "$kit/run.sh"
du -sh "$kit"
