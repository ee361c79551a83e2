#!/usr/bin/env bash
# run.sh: libstrait-coll between programs and NCCL on two GPUs. Made by tests/gpu/collective_kit.sh.
#
#   STEPS   of these, in this order; without it the first three, in less than 120 s:
#             passthrough  nccl-tests with and without the library, a small matrix
#             torch        FSDP2, DDP, all-to-all and a CUDA graph of PyTorch, with and without it, compared bit for bit
#             kill         a rank is killed in mid-collective, with NCCL alone and with the library
#             nccltests    the whole matrix of nccl-tests (NCCLTESTS_SECONDS: 300; OPS and WAYS: bench/nccl_tests.sh)
#             gaussian     nccl-tests on values that can be compressed (ROUNDS: 3)
#             peer         the wire peer (bench/collective_peer.sh says what it can be told), in less than 130 s
#             bench        strait bench collective (BENCH: its options; BENCH_SECONDS: 90)
#   KILL    scenes of gpu_collective_kill: "all_gather waiting"       TOLD=1  an error has to be told within 10 s
#   TORCH   parts of collective_pytorch.py: all                       ITERS   of nccl-tests: 20, in passthrough 5
#   OUT     folder of the logs: out
#
# lib/ has the library; a plugin that it opens by name is looked for there too. lib/programs is for programs of the kit
# alone. Exit status: 1 a step failed.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
kit=$PWD
steps=${STEPS:-passthrough torch kill}
out=$(mkdir -p "${OUT:-out}" && cd "${OUT:-out}" && pwd)
coll=$kit/lib/libstrait-coll.so.0
export LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
programs=LD_LIBRARY_PATH=$kit/lib:$kit/lib/programs:$LD_LIBRARY_PATH
# Multicast over NVLink can put GPUs that others share out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
rows=() failed=0 running='' ended=''
# Whoever ends this script ends what it runs, which has a process group of its own, and sees what there is.
trap 'ended=1; [ -z "$running" ] || kill "$running" 2>/dev/null' TERM INT

for step in $steps; do
    case $step in
    passthrough | torch | kill | nccltests | gaussian | peer | bench) ;;
    *)
        echo "STEPS: there is no '$step'" >&2
        exit 2
        ;;
    esac
done

# step NAME SECONDS COMMAND...: if it is wanted; its output is a log, and shown at the end.
step() {
    local name=$1 seconds=$2 begin=$SECONDS code
    shift 2
    case " $steps " in
    *" $name "*) ;;
    *) return 0 ;;
    esac
    [ -z "$ended" ] || return 0
    timeout -k 5 "$seconds" "$@" >"$out/$name.log" 2>&1 &
    running=$!
    wait "$running"
    code=$?
    if [ -n "$ended" ]; then
        wait "$running"
        code=143
    fi
    running=''
    case $code in
    0) row=ok ;;
    77) row=skipped ;;
    124 | 137) row="FAILED (after $seconds s)" ;;
    143) row="ended from outside" ;;
    *) row="FAILED ($code)" ;;
    esac
    [ $code -eq 0 ] || [ $code -eq 77 ] || failed=1
    rows+=("$(printf '%-12s %-9s %4s s  %s' "$name" "$row" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log" | cut -c1-120)")")
    printf '\n=== %s: %s\n' "$name" "$row"
    tail -n "${LINES_MAX:-90}" "$out/$name.log" | cut -c1-200
}

find_nccl() {
    local found
    found=$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ { print $NF; exit }')
    if [ -z "$found" ]; then
        found=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
    fi
    echo "${found:-libnccl.so.2}"
}

# NCCL alone and ours beside it: they mostly wait.
kill_scenes() {
    local scenes=${KILL:-all_gather waiting} nccl plain code=0
    nccl=$(find_nccl)
    # shellcheck disable=SC2086
    bin/gpu_collective_kill "$nccl" $scenes >"$out/kill-plain.log" 2>&1 &
    plain=$!
    # shellcheck disable=SC2086
    STRAIT_COLL_NCCL=$nccl bin/gpu_collective_kill ${TOLD:+--told} "$coll" $scenes || code=$?
    wait $plain || echo "NCCL alone: exit status $?"
    echo "NCCL alone, $nccl:"
    cat "$out/kill-plain.log"
    return $code
}
export -f kill_scenes find_nccl
export out coll KILL TOLD

unpack() {
    python3 - "$1" <<'PYTHON'
import lzma, pathlib, sys
for packed in pathlib.Path("data").glob("*.xz"):
    pathlib.Path(sys.argv[1], packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
PYTHON
}

# shellcheck disable=SC2016
{
    step passthrough 70 env "$programs" "OUT=$out/passthrough" MATRIX=small ITERS="${ITERS:-5}" SECONDS_MAX=30 SECONDS_ALL=60 \
        bench/nccl_tests.sh run bin "$coll"
    # shellcheck disable=SC2086
    step torch 100 env "OUT=$out/torch" RANKS_START=one SECONDS_MAX=45 examples/collective_pytorch.sh "$coll" ${TORCH:-}
    step kill 75 bash -c kill_scenes
    step nccltests "$((${NCCLTESTS_SECONDS:-300} + 30))" env "$programs" "OUT=$out/nccltests" MATRIX=full SECONDS_MAX=60 \
        SECONDS_ALL="${NCCLTESTS_SECONDS:-300}" bench/nccl_tests.sh run bin "$coll"
    step gaussian 150 env "$programs" "OUT=$out/gaussian" "DATA=$kit/lib/programs/libstrait-nccl-tests-data.so" MATRIX=small \
        OPS="all_gather alltoall sendrecv" ROUNDS="${ROUNDS:-3}" SECONDS_MAX=30 SECONDS_ALL=120 \
        bench/nccl_tests.sh run bin "$coll"
    step peer 130 env "$programs" "OUT=$out/peer" bench/collective_peer.sh bin "$coll" lib/programs/libstrait-nccl-tests-data.so
}
case " $steps " in
*" bench "*)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    unpack "$scratch" || failed=1
    inputs=()
    for file in "$scratch"/*.safetensors; do
        [ -f "$file" ] && inputs+=(--input "$file")
    done
    # shellcheck disable=SC2086
    step bench "${BENCH_SECONDS:=90}" env "$programs" bin/strait bench collective --timeout "$((BENCH_SECONDS - 10))" --library "$coll" --nccl "$(find_nccl)" \
        --save "$out/collective.json" "${inputs[@]}" ${BENCH:-}
    ;;
esac

printf '\n=== all\n'
nvidia-smi topo -m >"$out/topology.log" 2>&1
printf '%s\n' "${rows[@]}"
exit $failed
