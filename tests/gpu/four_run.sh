#!/usr/bin/env bash
# run.sh STEP ...: collectives and transfers of four GPUs. Made by tests/gpu/four.sh. Steps, and what they may take; mostly
# it is half of that:
#
#   nvlink      200 s  scenes of groups, overflows, rings and ranks that are killed, over what links there are
#   join        200 s  how communicators join
#   kill        160 s  ranks that are killed, over what links there are and by memory of the host
#   shm, socket 100 s  the most of these by memory of the host, and by TCP
#   torch       390 s  PyTorch with and without the library, by each of the three
#   fan-out     120 s  strait bench transfer: one GPU to all others, large requests and many small ones
#   fan-in      120 s  all others to one
#   collective  375 s  strait bench collective on gradients, by each of the three: NCCL beside auto and compress
#   hosts        80 s  the same on two hosts, as NCCL is told
#   show        280 s  nccl-tests with compress, by each of the three
#
#   GPUS     4             SECONDS_ALL  after which nothing is begun, and what runs is ended: 540
#   OUT      folder of the results: out. tables.txt, which grows as steps go on; logs.tar.gz, packed after each step
#
# Exit status: 1 a step failed, 77 too few GPUs, 2 bad usage.
# shellcheck disable=SC2317 # functions are steps, called by their names, or in a shell of their own
set -uo pipefail
steps=${*:-nvlink join shm socket torch fan-out fan-in collective hosts show}
for step in $steps; do
    case $step in
    nvlink | join | kill | shm | socket | torch | fan-out | fan-in | collective | hosts | show) ;;
    *) echo "there is no step '$step'" >&2 && exit 2 ;;
    esac
done
gpus=${GPUS:-4}
there=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "$there" -lt "$gpus" ]; then
    echo "skipped: $gpus GPUs are needed, there are $there"
    exit 77
fi
packed=$(cd "$(dirname "$0")" && pwd)/kit.tar.xz
mkdir -p "${OUT:=out}" && out=$(cd "$OUT" && pwd) && scratch=$(mktemp -d) || exit 1
logs=$scratch/logs kit=$scratch/collective service=$scratch/service failed=0 rows=() running='' ended=''
mkdir -p "$logs"
trap 'rm -rf "$scratch"' EXIT
# Whoever ends this script ends what it runs, which has a process group of its own.
trap 'ended=1; [ -z "$running" ] || kill "$running" 2>/dev/null' TERM INT
python3 - "$packed" "$scratch" <<'PYTHON' || exit 1
import lzma, pathlib, sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2])
for path in pathlib.Path(sys.argv[2], "collective", "data").glob("*.xz"):
    path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
PYTHON
nccl=$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ { print $NF; exit }')
[ -n "$nccl" ] || nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
programs=LD_LIBRARY_PATH=$service/lib:$kit/lib:$kit/lib/programs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -z "$nccl" ] || programs=$programs:$(dirname "$nccl")
# Multicast over NVLink can put GPUs that others share out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 GPUS=$gpus UCX_MEM_EVENTS=no STRAITD=$service/straitd
export scratch logs kit service gpus nccl programs
seconds_left() { echo $((${SECONDS_ALL:-540} - SECONDS)); }

# one NAME SECONDS COMMAND...: part of a step, in what time there is. What it prints is shown and kept, and so is the table
# that it leaves in $logs/NAME.txt, without being shown.
one() {
    local name=$1 seconds=$2 begin=$SECONDS code row
    shift 2
    [ "$seconds" -le "$(seconds_left)" ] || seconds=$(seconds_left)
    if [ "$seconds" -lt 5 ] || [ -n "$ended" ]; then
        rows+=("$(printf '%-24s not begun' "$name")")
        return
    fi
    printf '=== %s\n' "$name" | tee -a "$out/tables.txt"
    timeout -k 5 "$seconds" "$@" > >(tee "$logs/$name.log" | tee -a "$out/tables.txt" | stdbuf -oL cut -c1-150) 2>&1 &
    running=$!
    wait "$running"
    code=$?
    [ -z "$ended" ] || wait "$running"
    running=''
    sleep 0.2 # until all is written that it has printed
    [ ! -f "$logs/$name.txt" ] || cat "$logs/$name.txt" >>"$out/tables.txt"
    case $code in
    0) row=ok ;;
    77) row=skipped ;;
    124 | 137) row="FAILED (after $seconds s)" ;;
    *) row="FAILED ($code)" ;;
    esac
    [ $code -eq 0 ] || [ $code -eq 77 ] || failed=1
    rows+=("$(printf '%-24s %-20s %4s s' "$name" "$row" $((SECONDS - begin)))")
    printf '%s\n' "${rows[-1]}" | tee -a "$out/tables.txt"
    tar -C "$logs" -czf "$out/logs.new" . && mv "$out/logs.new" "$out/logs.tar.gz"
}

# links NAME: what has NCCL use them, as words.
links() {
    case $1 in
    shm) echo NCCL_P2P_DISABLE=1 ;;
    socket) echo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket ;;
    esac
}

# scenes NAME SECONDS LINKS STEPS SETTING...: steps of the kit of collectives.
scenes() {
    local name=$1 seconds=$2 by=$3 kit_steps=$4
    shift 4
    # shellcheck disable=SC2046 # settings are words
    one "$name" "$seconds" env $(links "$by") "OUT=$logs/$name" STEPS="$kit_steps" LINES_MAX=6 "$@" "$kit/run.sh"
}

# x of collectives, and at what GB/s pages move: from what benches save as JSON.
cat >"$scratch/figures.py" <<'PYTHON'
import json, sys
try:
    rows = json.load(open(sys.argv[1]))["rows"]
except (OSError, ValueError, KeyError):
    sys.exit("no figures")
if sys.argv[2] == "fan":
    print(f"{'MiB':>5} {'case':<7}{'mode':<7}{'path':<7}{'GB/s':>8}{'x copy':>8}{'in turn':>8}{'p50 ms':>8}{'p99 ms':>8}{'slow/quick':>12}  check")
    for row in (row for row in rows if row.get("pairs", "at once") == "at once"):
        times, spread = row.get("request_ms", {}), row.get("spread", {})
        figures = [row["GBps"]["p50"], row.get("x_copy"), row.get("x_in_turn"), times.get("p50"), times.get("p99"), spread.get("p50")]
        cells = ["-" if x is None else f"{x:.3g}" if x < 100 else f"{x:.0f}" for x in figures]
        print(f"{row['bytes'] >> 20:>5} {row['case']:<7}{row.get('coding', '-'):<7}{row.get('path', '-'):<7}" +
              "".join(f"{cell:>8}" for cell in cells[:5]) + f"{cells[5]:>12}  {'ok' if row['wrong'] == 0 else 'WRONG'}")
else:
    table, sizes = {}, sorted({row["size"] for row in rows})
    for row in rows:
        share = row["compressed"] / row["calls"] if row["calls"] else 0
        notes = ("" if share > 0.99 else " raw" if share == 0 else f" {share:.2f}") + (" WRONG" if row["wrong"] else "")
        cells = table.setdefault((row["operation"], row["type"]), {})
        cells[row["size"]] = f"{row['x']:.3f} ({row['x_min']:.2f}-{row['x_max']:.2f}){notes}"
    print(f"{'time of NCCL by ours':<24}" + "".join(f"{size >> 20:>20} MiB" for size in sizes))
    for (operation, kind), cells in table.items():
        print(f"{operation:<15}{kind:<9}" + "".join(f"{cells.get(size, '-'):>24}" for size in sizes))
PYTHON

# bench NAME WAY LINKS OPTION...
bench() {
    local name=$1 way=$2 links=$3 code
    shift 3
    "$kit/bin/strait" bench collective --library "$kit/lib/libstrait-coll.so.0" --nccl "${nccl:-libnccl.so.2}" --gpus "$gpus" \
        --input "$kit"/data/*.safetensors --data gradients --links "$links" --repeats 5 --env STRAIT_COLL="$way" \
        --env NCCL_NET=Socket --save "$logs/$name.json" "$@" >"$logs/$name.txt"
    code=$?
    env -u LD_LIBRARY_PATH python3 "$scratch/figures.py" "$logs/$name.json" collective
    return "$code"
}

# fan NAME OPTION...
fan() {
    local name=$1 code
    shift
    "$kit/bin/strait" bench transfer --device --input "$service/pages.safetensors" --calib "$service/calib.safetensors" \
        --wires peer,pinned --coding raw,tiered,auto --save "$logs/$name.json" "$@" >"$logs/$name.txt"
    code=$?
    env -u LD_LIBRARY_PATH python3 "$scratch/figures.py" "$logs/$name.json" fan
    return "$code"
}
export -f bench fan

collective() {
    local some="--types bf16 --ops all_gather,all_to_all,reduce_scatter,all_reduce,broadcast --size 16M,64M,256M,1G"
    one nvlink-auto 45 env "$programs" bash -c "bench nvlink-auto auto as-is $some --timeout 40"
    for way in compress auto; do
        one "shm-$way" 60 env "$programs" bash -c "bench shm-$way $way shm $some --timeout 55"
        one "socket-$way" 90 env "$programs" bash -c "bench socket-$way $way socket $some --warmups 1 --iterations 1 --timeout 85"
    done
    one shm-fp32 30 env "$programs" bash -c "bench shm-fp32 compress shm --types fp32-bf16 --ops reduce_scatter,all_reduce \
        --size 64M,256M --timeout 25"
}

hosts() {
    for way in compress auto; do
        one "hosts-$way" 40 env "$programs" bash -c "bench hosts-$way $way as-is --hosts 2 --types bf16 \
            --ops reduce_scatter,all_reduce,all_gather,all_to_all --size 16M,64M,256M --warmups 1 --iterations 1 --timeout 35"
    done
}

# fans NAME OPTION
fans() {
    local others=$((gpus - 1))
    one "$1-large" 60 env "$programs" bash -c "fan $1-large $2 $others --size 64M,256M,1G --repeats 11"
    one "$1-many" 60 env "$programs" bash -c "fan $1-many $2 $others --requests 16 --size 8M,64M --repeats 9 --warmups 1"
}

show() {
    local data=DATA=$kit/lib/programs/libstrait-nccl-tests-data.so
    scenes show-shm 60 shm show LINES_MAX=45 WAYS=compress MATRIX=small "$data" SHOW_SECONDS=40 "ARGS=-n 3"
    scenes show-socket 60 socket show LINES_MAX=45 WAYS=compress MATRIX=small "$data" SHOW_SECONDS=40 "ARGS=-n 2 -w 1 -e 64M"
    scenes show-nvlink 160 nvlink show LINES_MAX=45 WAYS=compress MATRIX=full SHOW_SECONDS=140 "ARGS=-n 3"
}

: >"$out/tables.txt"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | uniq -c | tee -a "$out/tables.txt"
nvidia-smi topo -m >"$logs/topology.txt" 2>&1
few=(FEW=1 KILL_WAYS=compress "KILL=waiting all_gather" "RINGS=one_sided graphs" "JOIN=late full" "ORDER=all_reduce exchange streams")
for step in $steps; do
    case $step in
    nvlink) scenes nvlink 200 nvlink "order overflow kill rings" STEP_SECONDS=60 ;;
    join) scenes join 200 nvlink join STEP_SECONDS=195 ;;
    kill) for by in nvlink shm; do scenes "kill-$by" 80 "$by" kill STEP_SECONDS=75; done ;;
    shm | socket) scenes "$step" 100 "$step" "order overflow kill rings join" STEP_SECONDS=45 "${few[@]}" ;;
    # Sums of NCCL's own order, so that they have its bits.
    torch) for by in nvlink shm socket; do
        scenes "torch-$by" 130 "$by" torch STEP_SECONDS=125 TORCH_WAYS=compress STRAIT_COLL_ORDER=nccl-ring NCCL_ALGO=Ring
    done ;;
    fan-out) fans fan-out --sinks ;;
    fan-in) fans fan-in --sources ;;
    *) $step ;;
    esac
done
printf '\n=== all, %s s\n' "$SECONDS" | tee -a "$out/tables.txt"
printf '%s\n' "${rows[@]}" | tee -a "$out/tables.txt"
exit $failed
