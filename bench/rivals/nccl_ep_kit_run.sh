#!/bin/sh
# run.sh [PART ...]: what a kit of bench/rivals/nccl_ep_kit.sh runs. Parts, all without arguments: one (one rank), mps
# (RANKS ranks, two unless that is set, on all GPUs, with CUDA MPS, without which kernels of a GPU's ranks take turns of
# milliseconds), slices (the same without it), gpus (a rank on each GPU; low latency also with as many multiprocessors as
# a library takes by itself), threads (ranks are threads of one process). In each: low latency with 128 tokens and high
# throughput with 4096, ours and theirs in turn. Every run has a log and a minute; what fails runs once more as calls
# instead of a graph, with all that NCCL says; runs that would begin after LIMIT seconds (540) are left out. WORK is a
# folder for what is unpacked and compiled, LOGS one for logs.
cd "$(dirname "$0")" || exit 1
kit=$PWD work=${WORK:-$PWD/work} logs=${LOGS:-$PWD/logs} ranks=${RANKS:-2} limit=${LIMIT:-540}
begin=$(date +%s) worst=0
mkdir -p "$work/lib" "$work/jit" "$logs"

for packed in theirs/lib/*.xz; do
    [ -e "$packed" ] || continue
    file=$work/lib/$(basename "$packed" .xz)
    [ -s "$file" ] || xz -dc "$packed" >"$file" 2>/dev/null ||
        python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
            "$packed" "$file" || exit 1
done

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
CUDA_HOME=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}
export CUDA_HOME PATH="$CUDA_HOME/bin:$PATH" LD_LIBRARY_PATH="$work/lib:$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# Several ranks on a GPU; nothing but this machine; few blocks of NCCL's own, as all kernels of a GPU have to fit at once.
export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=8
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
# Where NVIDIA's library finds what it compiles, and keeps what it has compiled.
export NCCL_EP_JIT_SOURCE_DIR="$kit/theirs/include/nccl_ep" NCCL_EP_JIT_BUILD_INCLUDE_DIR="$kit/theirs/nccl/include"
export NCCL_EP_JIT_CACHE_DIR="$work/jit"

echo "=== machine"
nvidia-smi -L
nvidia-smi --query-gpu=driver_version,clocks.sm,clocks.max.sm,compute_mode --format=csv,noheader
"$nvcc" --version | tail -2

start_mps() {
    export CUDA_MPS_PIPE_DIRECTORY="/tmp/nccl_ep_mps.$$" CUDA_MPS_LOG_DIRECTORY="$logs/mps"
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d
}

stop_mps() {
    [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
trap stop_mps EXIT
trap 'exit 1' INT TERM

# once NAME LIBRARY OPTION ...: one run. MPS is started anew for each, as a client that ends badly may spoil its server.
once() {
    name=$1 library=$2
    shift 2
    [ -z "$with_mps" ] || start_mps || return 1
    timeout -k 5 60 ./rivals_nccl_ep "$@" "$library" "$nccl" >"$logs/$name.log" 2>&1
    status=$?
    stop_mps
    echo "=== $name: exit status $status: $*"
    tail -n 60 "$logs/$name.log"
    return $status
}

# both NAME OPTION ...: ours, then theirs.
both() {
    pair=$1
    shift
    for side in ours theirs; do
        [ $side = ours ] && library=$kit/lib/libnccl_ep.so.0 || library=$work/lib/libnccl_ep.so
        [ -e "$library" ] || continue
        if [ $(($(date +%s) - begin)) -ge "$limit" ]; then
            echo "=== $pair-$side: left out, $limit s are over"
            worst=1
            continue
        fi
        if once "$pair-$side" "$library" "$@"; then continue; fi
        worst=1
        case $status in 124 | 137) continue ;; esac # it hung
        (export NCCL_DEBUG=INFO NCCL_EP_DEBUG=1 && once "$pair-$side-calls" "$library" --stream "$@") || true
    done
}

# Low latency: 64 multiprocessors for each of two ranks, since kernels have a block on each, which fills it, and wait for
# those of the other rank. High throughput: 16, NCCL EP's default and, by its header, its most.
share=$((128 / ranks))
pairs() {
    both "$part-ll" --ranks="$ranks" --sms="$share" "$@"
    both "$part-ht" --ranks="$ranks" --ht --tokens=4096 --sms=16 "$@"
}
more_pairs() {
    both "$part-ht-window" --ranks="$ranks" --ht --tokens=4096 --sms=16 --windows
    both "$part-ll-experts" --ranks="$ranks" --expert-major --sms="$share"
    both "$part-ll-fp8" --ranks="$ranks" --fp8 --sms="$share"
    both "$part-ll-fp8-experts" --ranks="$ranks" --fp8 --round-scales --expert-major --sms="$share"
    both "$part-ht-experts" --ranks="$ranks" --ht --expert-major --tokens=4096 --sms=16
}

nccl=$work/lib/libnccl.so.2 with_mps=
[ -e "$nccl" ] || nccl=libnccl.so.2
[ $# -gt 0 ] || set -- one mps slices threads
for part in "$@"; do
    case $part in
    one)
        both one-ll --ranks=1
        both one-ll-fp8 --ranks=1 --fp8
        both one-ht --ranks=1 --ht --tokens=4096 --sms=16
        ;;
    mps)
        command -v nvidia-cuda-mps-control >/dev/null || { echo "=== mps: there is no nvidia-cuda-mps-control"; continue; }
        with_mps=yes
        pairs
        more_pairs
        with_mps=
        ;;
    slices) pairs --runs=50 ;;
    gpus)
        max_ctas=$NCCL_MAX_CTAS
        unset NCCL_MAX_CTAS NCCL_MULTI_RANK_GPU_ENABLE
        both gpus-ll-own --ranks="$ranks"
        both gpus-ll-experts-own --ranks="$ranks" --expert-major
        pairs
        more_pairs
        export NCCL_MAX_CTAS="$max_ctas" NCCL_MULTI_RANK_GPU_ENABLE=1
        ;;
    threads)
        # Loading a kernel when it is first called would wait for those that wait for it.
        export CUDA_MODULE_LOADING=EAGER
        pairs --threads
        unset CUDA_MODULE_LOADING
        ;;
    *) echo "run.sh: no part $part" >&2; exit 2 ;;
    esac
done
exit $worst
