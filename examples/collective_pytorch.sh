#!/usr/bin/env bash
# collective_pytorch.sh LIBSTRAIT_COLL [PART ...]: collective_pytorch.py on RANKS (2) GPUs, first as it is, then with the
# library preloaded; compares what the ranks printed: losses, parameters and everything received, bit for bit.
#
#   DIRECT       1: without a preload, through the package strait, which python3 has to find: FSDP2 and DDP
#   WAYS         with the library once for each of these, as STRAIT_COLL: what the environment says, else auto
#   OUT          folder of the logs: a temporary one, which goes        SECONDS_MAX   that one run may take: 120
#   SHARED       1: all ranks on the first GPU, each on a host of its own, as NCCL is told, so that all
#                goes by TCP; with RANKS_START=one
#   RANKS_START  how to start the ranks: "torchrun --nproc-per-node=$RANKS"; one: each by itself, which is quicker
#
# Exit status: 1 they differ or failed, 77 no PyTorch or too few GPUs, 2 bad usage.
set -uo pipefail
[ $# -ge 1 ] || { echo "usage: collective_pytorch.sh LIBSTRAIT_COLL [PART ...]" >&2; exit 2; }
[ -f "$1" ] || { echo "collective_pytorch.sh: no library $1" >&2; exit 2; }
library=$(realpath "$1")
program=$(realpath "$(dirname "$0")")/collective_pytorch.py
shift
parts=("$@") every=
if [ $# -eq 0 ]; then
    every=1
    [ "${DIRECT:-}" != 1 ] || parts=(fsdp-bf16 fsdp-fp32 ddp-fp32 ddp-bf16)
fi
ranks=${RANKS:-2}
if [ -n "${OUT:-}" ]; then
    mkdir -p "$OUT"
    out=$OUT
else
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi

# alone NAME ENVIRONMENT... -- PART...: starts every rank itself.
alone() {
    local name=$1 port=$((20000 + RANDOM % 12000)) pids=() status=0 set=()
    shift
    while [ "$1" != -- ]; do
        set+=("$1")
        shift
    done
    shift
    for rank in $(seq 0 $((ranks - 1))); do
        if [ "${SHARED:-}" = 1 ]; then
            set+=("LOCAL_RANK=0" "NCCL_HOSTID=host $rank" NCCL_NET=Socket)
        fi
        env RANK="$rank" LOCAL_RANK="$rank" WORLD_SIZE="$ranks" MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "${set[@]}" \
            timeout --foreground -k 5 "${SECONDS_MAX:-120}" python3 "$program" "$@" >"$out/$name.$rank.out" 2>"$out/$name.$rank.err" &
        pids+=($!)
    done
    for _ in "${pids[@]}"; do
        wait -n && continue
        status=$?
        kill "${pids[@]}" 2>/dev/null # the others would wait for it
        break
    done
    wait
    cat "$out/$name".*.out >"$out/$name.out"
    cat "$out/$name".*.err >"$out/$name.err"
    return $status
}

# together: the same with torchrun.
together() {
    local name=$1 set=()
    shift
    while [ "$1" != -- ]; do
        set+=("$1")
        shift
    done
    shift
    env "${set[@]}" timeout -k 5 "${SECONDS_MAX:-120}" torchrun --standalone --nproc-per-node="$ranks" "$program" "$@" \
        >"$out/$name.out" 2>"$out/$name.err"
}

run() { # NAME ENVIRONMENT... -- PART...
    local status=0 begin=$SECONDS
    if [ "${RANKS_START:-torchrun}" = one ]; then
        alone "$@" || status=$?
    else
        together "$@" || status=$?
    fi
    grep '^skipped:' "$out/$1.out" && exit 77
    if [ $status -ne 0 ]; then
        echo "$1: exit status $status"
        grep -v '^strait-coll' "$out/$1.err" | tail -n 20
        exit 1
    fi
    echo "$1: $((SECONDS - begin)) s; $(grep -h ' a step$' "$out/$1.err" | tr -s ' ' | paste -sd ';')"
}

python3 -c 'import torch' 2>/dev/null || { echo "skipped: no PyTorch"; exit 77; }
run plain -- "${parts[@]}"
grep '^rank ' "$out/plain.out" | sort >"$out/plain.lines"
cat "$out/plain.lines"
[ -s "$out/plain.lines" ] || exit 1

# is_compressed LOG: whether a report in it counts any compressed call.
is_compressed() {
    awk '$1 ~ /^(all_gather|all_to_all|reduce_scatter|all_reduce)$/ && $8 > 0 { found = 1 } END { exit !found }' "$1"
}

# compare WAY: runs with the library in that way, prints its report, and compares.
compare() {
    if [ "${DIRECT:-}" = 1 ]; then
        run "$1" "STRAIT_COLLECTIVE_LIBRARY=$library" "STRAIT_COLL=$1" STRAIT_COLL_PRINT=1 -- --direct "${parts[@]}"
    else
        run "$1" "LD_PRELOAD=$library" "STRAIT_COLL=$1" STRAIT_COLL_PRINT=1 -- "${parts[@]}"
    fi
    grep '^rank ' "$out/$1.out" | sort >"$out/$1.lines"
    grep -E -A40 '^strait-coll .* process' "$out/$1.err" | grep -vE '^(W|E|I|\[)[0-9]{4}' | tail -n 16
    if ! diff "$out/plain.lines" "$out/$1.lines"; then
        echo "they differ: without libstrait-coll (<) and with it as $1 (>)"
        exit 1
    fi
    if [ "$1" = compress ] && [ -n "$every" ] && ! is_compressed "$out/$1.err"; then
        echo "compress: nothing was compressed: $(grep -m 1 'stays raw' "$out/$1.err")"
        exit 1
    fi
}

for way in ${WAYS:-${STRAIT_COLL:-auto}}; do
    compare "$way"
done
echo "the same with libstrait-coll (${WAYS:-${STRAIT_COLL:-auto}}) and without: $(wc -l <"$out/plain.lines") lines"
