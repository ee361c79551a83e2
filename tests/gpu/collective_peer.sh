#!/usr/bin/env bash
# collective_peer.sh TESTS LIBRARY DATA: the wire `peer` on two GPUs that reach each other's memory: nccl-tests, whose
# results are compared by themselves, and processes of PyTorch (CUDA IPC), if there is one; then its times beside NCCL's.
#
#   TESTS    the folder with all_gather_perf and the others     LIBRARY  libstrait-coll.so.0
#   DATA     libstrait-nccl-tests-data.so: values that can be compressed
#   PARTS    right ipc trace auto times tuned: all                   OPS      all_gather sendrecv alltoall reduce_scatter all_reduce
#   TUNINGS  values of STRAIT_COLL_PEER to compare              OUT      folder of the logs: peer-out
#   ROUNDS   of times: 1
#   SECONDS_ALL  after which nothing new is begun: 115
#
# Exit status: 1 something is wrong or failed.
# shellcheck disable=SC2317 # parts are called by their names
set -uo pipefail
usage="usage: collective_peer.sh TESTS LIBRARY DATA"
tests=$(realpath "${1:?$usage}") library=$(realpath "${2:?$usage}") data=$(realpath "${3:?$usage}")
here=$(dirname "$(realpath "$0")")
out=${OUT:-peer-out}
mkdir -p "$out"
rm -f "$out"/*.log
parts=${PARTS:-right ipc trace auto times tuned}
ops=${OPS:-all_gather sendrecv alltoall reduce_scatter all_reduce}
tunings=${TUNINGS:-bare=0 bare=1 bare=2 bare=3 bare=4 bare=2,cross=2 bare=4,cross=2 piece=16384,bare=3 kernel,bare=3,blocks=64}
failed=0
export NCCL_NVLS_ENABLE=0 CUDA_MODULE_LOADING=EAGER
strait="STRAIT_COLL=compress STRAIT_COLL_WIRE=peer STRAIT_COLL_PAIRS=1 STRAIT_COLL_PRINT=1"

wanted() { [[ " $parts " == *" $1 "* ]] && [ $SECONDS -lt "${SECONDS_ALL:-115}" ]; }

# once NAME PRELOAD SETTINGS OP OPTION...: one program of nccl-tests; false when it failed.
once() {
    local name=$1 preload=$2 settings=$3 op=$4
    shift 4
    # shellcheck disable=SC2086
    timeout -k 5 40 env LD_PRELOAD="$preload" $settings "$tests/${op}_perf" -d bfloat16 -g 1 "$@" >"$out/$name.log" 2>&1
    local code=$?
    [ "$code" -eq 0 ] || echo "FAILED $name: exit status $code: $(grep -v '^#' "$out/$name.log" | tail -n 1 | cut -c1-160)"
    [ "$code" -eq 0 ] || failed=1
    return "$code"
}

# rows FILE: size, then times in us out of place and in place.
rows() { awk '$1 ~ /^[0-9]+$/ && NF >= 13 { print $1, $6, $10 }' "$1"; }

# way FILE: how the operation went, as the report says; and how many results were wrong.
way() {
    awk '/wire peer/ { peer = 1 } /[Oo]ut of bounds values/ { wrong = $0 } END { print (peer ? "wire peer" : "NOT BY PEER"), wrong }' "$1"
}

right() {
    local op
    for op in $ops; do
        once "right-$op" "$library" "$strait" "$op" -t 2 -b 1 -e 512M -f 8 -n 2 -w 1 -c 1 && echo "right $op: $(way "$out/right-$op.log")"
        once "graph-$op" "$library" "$strait" "$op" -t 2 -b 64K -e 256M -f 16 -n 4 -w 1 -c 1 -G 2 && echo "graph $op: $(way "$out/graph-$op.log")"
    done
    once one-thread "$library" "$strait" all_gather -t 1 -g 2 -b 32M -e 256M -f 8 -n 2 -w 1 -c 1 && echo "one thread: $(way "$out/one-thread.log")"
    once pieces "$library" "$strait STRAIT_COLL_PEER=piece=64" all_gather -t 2 -b 64K -e 32M -f 8 -n 2 -w 1 -c 1 &&
        echo "pieces of 64 KiB: $(way "$out/pieces.log")"
}

ipc() {
    python3 -c 'import torch' 2>/dev/null || return 0
    local code
    # shellcheck disable=SC2086
    timeout -k 5 60 env LD_PRELOAD="$library" LD_LIBRARY_PATH="$(dirname "$library")" $strait python3 -m torch.distributed.run --standalone --nproc-per-node=2 \
        "$here/collective_peer.py" >"$out/ipc.log" 2>&1
    code=$?
    grep -E '^ipc|wire peer' "$out/ipc.log" | cut -c1-160
    [ "$code" -eq 0 ] || { echo "FAILED ipc: exit status $code: $(tail -n 3 "$out/ipc.log" | cut -c1-200)"; failed=1; }
}

# beside NAME FILE FILE: quotients.
beside() {
    paste <(rows "$2") <(rows "$3") | awk -v name="$1" '{ printf "%-32s %6d MiB  %9.1f %9.1f %6.3f  %9.1f %9.1f %6.3f\n", name, $1 / 1048576, $2, $5, $2 / $5, $3, $6, $3 / $6 }'
}

head_of_times() { printf '%-32s %10s  %9s %9s %6s  %9s %9s %6s\n' "us" size NCCL peer x "in place" peer x; }

# pair NAME PRELOAD SETTINGS OP OPTION...: plain and by peer, one after the other.
pair() {
    local name=$1 preload=$2 settings=$3
    shift 3
    once "$name.plain" "$preload" "" "$@" && once "$name.peer" "$library $preload" "$strait $settings" "$@" &&
        beside "$name" "$out/$name.plain.log" "$out/$name.peer.log"
}

sizes="-t 2 -b 64M -e 1G -f 2 -n 20 -w 3 -c 0"
# shellcheck disable=SC2086 # sizes are words
times() {
    local op
    head_of_times
    for round in $(seq "${ROUNDS:-1}"); do
        for op in $ops; do
            wanted times && pair "$op.$round" "$data" "" "$op" $sizes
        done
    done
    wanted times && pair all_gather.incompressible "" "" all_gather $sizes
    wanted times && pair all_gather.graph "$data" "" all_gather $sizes -G 5
}

# What was measured when communicators were made, and what came of it: NCCL where it is faster.
# shellcheck disable=SC2086
auto() {
    head_of_times
    for op in all_gather sendrecv; do
        pair "$op.auto" "$data" "STRAIT_COLL=auto STRAIT_COLL_WIRE=auto" "$op" $sizes &&
            grep -hE 'where NCCL has|^(all_gather|send) ' "$out/$op.auto.peer.log" | sort -u | cut -c1-190
    done
}

# Beside the first all_gather.
# shellcheck disable=SC2086
tuned() {
    local tuning
    head_of_times
    for tuning in $tunings; do
        wanted tuned && once "tuned.$tuning" "$library $data" "$strait STRAIT_COLL_PEER=$tuning" all_gather $sizes &&
            beside "all_gather $tuning" "$out/all_gather.1.plain.log" "$out/tuned.$tuning.log"
    done
}

# Of each of the last pieces: when it was encoded, or left as it is; how long after the one before it had crossed; from
# when it had come, and the one before was decoded, until it was decoded or copied out of its slot.
trace() {
    once trace "$library $data" "$strait STRAIT_COLL_PEER=trace,${TRACE:-bare=2}" all_gather -t 2 -b 256M -e 256M -n 1 -w 2 -c 0 || return
    awk -v most="${TRACE_PIECES:-12}" '/rank 0: .*us: / { sub(/.*rank 0: */, ""); at[$3, $4] = $1 + 0; if ($4 > last) last = $4 }
        END { for (i = last > most ? last - most + 1 : 1; i <= last; i++)
                  printf "piece %3d: encoded at %8.1f us, claimed %8.1f, crossed %8.1f (+%5.1f), there %8.1f; came %8.1f, done +%5.1f\n", i, at["encoded", i],
                      at["claimed", i], at["crossed", i], at["crossed", i] - at["crossed", i - 1], at["posted", i], at["arrived", i],
                      at["decoded", i] - at["arrived", i] }' "$out/trace.log"
}

for part in right ipc trace auto times tuned; do
    wanted $part || continue
    printf '\n--- %s\n' "$part"
    $part
done
exit $failed
