#!/bin/sh
# nccl_ep_kit.sh BUILD DIR [EXTENSIONS NCCL]: gathers in DIR what a machine with GPUs needs to measure NCCL EP beside this
# project's libnccl_ep.so.0: rivals_nccl_ep, that library and what it loads, and of NVIDIA's, whose kernels are compiled
# when they are first called, the library, its headers and NCCL with its own. EXTENSIONS and NCCL are the unpacked wheels
# nccl-extensions and nvidia-nccl-cu13; LIBNCCL_EP and LIBNCCL name other files than theirs, such as smaller ones.
# Without EXTENSIONS, run.sh measures ours alone, with the machine's NCCL, from 2.30 on where ranks share a GPU.
#
# Build targets rivals_nccl_ep, strait-nccl-ep and strait-ep-cuda for the machine's compute capability. It needs nvcc for
# NVIDIA's kernels, and xz or python3. There: DIR/run.sh [one] [mps] [slices] [gpus] [threads], see its head.
set -eu
here=$(dirname "$0")
build=${1:?usage: nccl_ep_kit.sh BUILD DIR [EXTENSIONS NCCL]} kit=${2:?usage: nccl_ep_kit.sh BUILD DIR [EXTENSIONS NCCL]}
rm -rf "${kit:?}/lib" "$kit/theirs"
mkdir -p "$kit/lib"

. "$here/../../tests/gpu/kit_files.sh"

copy "$build/bench/rivals_nccl_ep" "$kit"
copy "$build/ep/nccl_ep/libnccl_ep.so.0" "$kit/lib"
copy "$build/kernels/libstrait-ep-cuda.so.0" "$kit/lib"
for library in $(needs "$build/bench/rivals_nccl_ep") $(needs "$build/ep/nccl_ep/libnccl_ep.so.0"); do
    copy "$library" "$kit/lib"
done

if [ $# -ge 4 ]; then
    mkdir -p "$kit/theirs/lib" "$kit/theirs/nccl"
    cp -r "$3/nccl/ep/include" "$kit/theirs/include"
    cp -r "$4/nvidia/nccl/include" "$kit/theirs/nccl/include"
    xz -6 -c "${LIBNCCL_EP:-$3/nccl/ep/lib/cu13/libnccl_ep.so}" >"$kit/theirs/lib/libnccl_ep.so.xz"
    xz -6 -c "${LIBNCCL:-$4/nvidia/nccl/lib/libnccl.so.2}" >"$kit/theirs/lib/libnccl.so.2.xz"
fi

cp "$here/nccl_ep_kit_run.sh" "$kit/run.sh"
chmod +x "$kit/run.sh"
du -sh "$kit"
