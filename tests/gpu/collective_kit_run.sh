#!/usr/bin/env bash
# run.sh: libstrait-coll between programs and NCCL on GPUs. Made by tests/gpu/collective_kit.sh.
#
#   STEPS   of these, in this order; without it rings, kill, overflow, random and torch, in less than 150 s:
#             kill         a rank is killed in mid-collective: NCCL alone, compressed, passed on by auto
#             overflow     what does not fit, bits compared: straight, in a graph, in groups, on two communicators
#             order        groups that only some ranks make, that are refused, that order streams, also in a graph: with NCCL
#                          alone, too, which does by itself what the library has to do
#             rings        the same of an even number of GPUs, more than the rings hold: beside cudaFree, grouped on one side
#                          only
#             join         how communicators join: what it adds to ncclCommInitRank, those that do not block, a rank that is
#                          raw, one without memory, aborts beside calls
#             late         PyTorch with communicators that do not block, as torch below
#             random       values that cannot be compressed, over NVLink and by memory of the host: with auto from 1 MiB on
#                          0.95 of NCCL in the long run and no call below 0.5; with compress no call where the link is slow
#             torch        FSDP2, DDP, all-to-all and a CUDA graph of PyTorch, without the library, with auto and with
#                          compress, compared bit for bit
#             direct       FSDP2 and DDP as torch, but by strait.torch without a preload
#             fsdp2        strait.torch without a preload: FSDP2, DDP, errors (FSDP2: checks, all); two GPUs
#             training     python -m strait.bench_step: whole training steps (TRAINING: its options; TRAINING_SECONDS: 500)
#             show         nccl-tests with NCCL alone, auto and compress; about 4 minutes (SHOW_SECONDS: 260)
#             sockets      nccl-tests by TCP alone: all_gather, alltoall
#             passthrough  nccl-tests with and without the library, which passes all on, a small matrix
#             nccltests    the whole matrix of nccl-tests (NCCLTESTS_SECONDS: 300; OPS and WAYS: bench/nccl_tests.sh)
#             gaussian     nccl-tests on values that can be compressed (ROUNDS: 3)
#             hosts        ranks on hosts of their own, as NCCL is told, so that all goes by TCP: what does not fit, a rank
#                          that is killed, and NCCL beside compress and auto on real tensors (HOSTS_DATA), in 120 s
#             shared       ranks that share the first GPU, on hosts of their own as above: what does not fit (2 and 4 ranks),
#                          groups, rings, a rank that is killed, joining (SHARED: overflow order rings kill join torch), in 400 s
#             ranks        nccl-tests of ranks that share the first GPU on one host, by CUDA MPS, with an NCCL from 2.30 on
#                          (WITH=kit): RANKS (4), by RANKS_WIRES (shm p2p tcp), all with compress; then scenes of what
#                          does not fit, of groups, rings, kills and joining (RANKS_SCENES); about 8 minutes
#             bench        strait bench collective (BENCH: its options; BENCH_SECONDS: 90)
#             calls        what small calls cost that are passed on, beside NCCL by turns in one process, 30 s: x at least 0.98
#             small        nccl-tests of 1 to 8 MiB, NCCL alone twice, raw and auto (ROUNDS: 2), 80 s
#   GPUS    so many: all that there are, at most 4
#   FEW     1: less of order, overflow and join: without NCCL alone, as processes only
#   RINGS   scenes of gpu_collective_rings: all       JOIN    of gpu_collective_join: "late bare full beside"
#   ORDER   of gpu_collective_order: all
#   KILL    scenes of gpu_collective_kill: "waiting repair all_gather stopped"
#   KILL_WAYS  "nccl compress auto": NCCL alone, and ways of the library
#   TORCH   parts of collective_pytorch.py: all       ARGS    further options of nccl-tests
#   WITH    kit: the NCCL of the kit, if it has one, in place of this machine's
#   MATRIX, WAYS  of nccl-tests in the step show: full, "plain auto compress"
#   STEP_SECONDS  that no step may exceed, whatever it could take otherwise
#   OUT     folder of the logs: out
#
# lib/ has the library; a plugin that it opens by name is looked for there too. lib/programs is for programs of the kit
# alone. Exit status: 1 a step failed.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
kit=$PWD
steps=${STEPS:-rings kill overflow random torch}
out=$(mkdir -p "${OUT:-out}" && cd "${OUT:-out}" && pwd)
coll=$kit/lib/libstrait-coll.so.0

# The kit's own, where it has one and WITH=kit.
find_nccl() {
    local found
    if [ "${WITH:-}" = kit ]; then
        echo "$kit/nccl/libnccl.so.2"
        return
    fi
    found=$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ { print $NF; exit }')
    if [ -z "$found" ]; then
        found=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
    fi
    echo "${found:-libnccl.so.2}"
}

count_gpus() {
    local found
    found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
    echo $((found > 4 ? 4 : found < 2 ? 2 : found))
}

nccl=$(find_nccl)
gpus=${GPUS:-$(count_gpus)}
export LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
programs=LD_LIBRARY_PATH=$kit/lib:$kit/lib/programs:$LD_LIBRARY_PATH
[ "$nccl" = libnccl.so.2 ] || programs=$programs:$(dirname "$nccl")
# Multicast over NVLink can put GPUs that others share out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
rows=() failed=0 running='' ended=''
# Whoever ends this script ends what it runs, which has a process group of its own, and sees what there is.
trap 'ended=1; [ -z "$running" ] || kill "$running" 2>/dev/null' TERM INT

for step in $steps; do
    case $step in
    rings | kill | overflow | order | join | late | random | torch | show | sockets | passthrough | nccltests | gaussian | hosts | shared | ranks | bench | calls | small | direct | fsdp2 | training) ;;
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
    [ "$seconds" -le "${STEP_SECONDS:-$seconds}" ] || seconds=$STEP_SECONDS
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

# shellcheck disable=SC2317,SC2086 # they run in a shell of their own, by bash -c; scenes are words
{
# kill_as WAY [--told] LIBRARY SCENE...
kill_as() {
    local name=$1 way=$1
    shift
    case $name in
    nccl) way=raw ;;
    hosts) way="compress" ;;
    esac
    STRAIT_COLL=$way STRAIT_COLL_NCCL=$nccl STRAIT_COLL_PRINT=1 bin/gpu_collective_kill --ranks="$gpus" "$@" \
        >"$out/kill-$name.log" 2>"$out/kill-$name.err"
}

# NCCL alone beside the library: it mostly waits, for an error that it does not tell.
kill_scenes() {
    local scenes=${KILL:-waiting repair all_gather stopped} ways=${KILL_WAYS:-nccl compress auto} plain='' code=0
    for way in $ways; do
        [ $code -ne 77 ] || break
        if [ $way = nccl ]; then
            kill_as nccl "$nccl" waiting &
            plain=$!
        else
            kill_as $way --told "$coll" $scenes || code=$?
        fi
    done
    [ -z "$plain" ] || wait $plain || echo "NCCL alone: exit status $?"
    [ $code -ne 77 ] || return 77
    printf '%-12s scene\n' library
    for name in $ways; do
        sed "s/^/$(printf '%-12s' $name) /" "$out/kill-$name.log"
        grep -oE 'stays raw.*|[0-9]+ of [0-9]+ other processes watched|has ended without leaving|rank [0-9] of [0-9]: [a-z].*' "$out/kill-$name.err" |
            sort | uniq -c
    done
    echo "of the library: an error within 10 s, ncclCommAbort within 5: $([ $code = 0 ] && echo yes || echo NO)"
    return $code
}

rings_scenes() {
    STRAIT_COLL_NCCL=$nccl bin/gpu_collective_rings --ranks=$((gpus / 2 * 2)) "$coll" ${RINGS:-}
}

overflow_scenes() {
    local code=0
    export STRAIT_COLL=compress STRAIT_COLL_NCCL=$nccl
    echo "processes, $gpus GPUs"
    bin/gpu_collective_overflow --ranks="$gpus" "$coll" || code=$?
    [ $code -ne 77 ] || return 77
    [ "${FEW:-}" != 1 ] || return $code
    echo "threads"
    bin/gpu_collective_overflow --threads --ranks="$gpus" "$coll" straight graph two || code=1
    echo "auto"
    STRAIT_COLL=auto bin/gpu_collective_overflow --ranks="$gpus" "$coll" straight || code=1
    return $code
}

order_scenes() {
    local code=0
    export STRAIT_COLL=compress STRAIT_COLL_NCCL=$nccl
    for library in "$nccl" "$coll"; do
        [ "$library" = "$coll" ] || [ "${FEW:-}" != 1 ] || continue
        echo "$library"
        bin/gpu_collective_order --ranks="$gpus" "$library" ${ORDER:-} || code=$?
        [ $code -ne 77 ] || return 77
    done
    return $code
}

# join_time NAME SETTING... LIBRARY: what ncclCommInitRank takes.
join_time() {
    local name=$1 set=()
    shift
    while [ $# -gt 1 ]; do
        set+=("$1")
        shift
    done
    printf '%-20s ' "$name"
    env "${set[@]}" timeout 40 bin/gpu_collective_join --ranks="$gpus" "$1" times 2>>"$out/join.err" | sed -n 1p
    return "${PIPESTATUS[0]}"
}

join_scenes() {
    local code=0
    export STRAIT_COLL_NCCL=$nccl
    join_time auto STRAIT_COLL=auto "$coll" || code=$?
    [ $code -ne 77 ] || return 77
    if [ "${FEW:-}" != 1 ]; then
        join_time NCCL "$nccl" || code=1
        join_time raw STRAIT_COLL=raw "$coll" || code=1
        join_time "auto, by memory" STRAIT_COLL=auto STRAIT_COLL_MEET=host "$coll" || code=1
        join_time compress STRAIT_COLL=compress "$coll" || code=1
    fi
    export STRAIT_COLL=compress
    for ranks in "" --threads; do
        [ "${FEW:-}" != 1 ] || [ -z "$ranks" ] || continue
        echo "ranks are ${ranks:-processes}"
        # shellcheck disable=SC2086
        timeout 60 bin/gpu_collective_join $ranks --ranks="$gpus" "$coll" ${JOIN:-late bare full beside} 2>"$out/join$ranks.err" || code=1
        grep -hE 'not true|ended|stays raw|no memory' "$out/join$ranks.err" | sed -E 's/communicator 0x[0-9a-f]+, //' | sort | uniq -c | head -n 12
    done
    ls /dev/shm/strait-coll-* 2>/dev/null && code=1 # no name is left
    return $code
}

# one_random WAY SIZE: the first calls of fresh communicators do not fit, whatever was learnt of another size.
one_random() {
    bin/strait bench collective --timeout 15 --library "$coll" --nccl "$nccl" --gpus "$gpus" --data random --types bf16 \
        --ops all_gather,reduce_scatter --links as-is,shm --size "$2" --repeats 5 --singles 10 --env STRAIT_COLL="$1" \
        --save "$out/random-$1-$2.json"
}

random_rows() {
    local code=0
    for size in ${RANDOM_SIZES:-1M 16M 64M}; do
        for way in auto compress; do
            echo "STRAIT_COLL=$way"
            one_random "$way" "$size" || code=1
        done
    done
    env -u LD_LIBRARY_PATH python3 - "$out" <<'PYTHON' || code=1
import glob, json, re, sys
missed = []
print("way       links   operation            MiB       x  worst call")
for path in sorted(glob.glob(f"{sys.argv[1]}/random-*.json")):
    way = re.search(r"random-(\w+)-", path).group(1)
    for row in json.load(open(path))["rows"]:
        singles = row["singles"]
        worst = singles["nccl_p50_ns"] / singles["strait_max_ns"]
        # What NCCL's calls do now and then, too, is the machine's doing.
        slow = worst < 0.5 and singles["strait_max_ns"] > 1.5 * singles["nccl_max_ns"]
        line = f"{way:<9} {row['links']:<7} {row['operation']:<16} {row['bytes'] / 2**20:>7.0f} {row['x']:>7.3f} {worst:>11.3f}"
        # compress has to code whatever it costs: what a fast link moves in less time than that is not judged.
        judged = way == "auto" or (row["links"] == "shm" and row["bytes"] >= 16 << 20)
        bad = judged and (slow or row["x"] < 0.95)
        print(line + ("  missed" if bad else "" if judged else "  (not judged)"))
        missed += [line] if bad else []
print(f"below 0.95 in the long run, or a call below 0.5: {len(missed)} rows")
sys.exit(1 if missed else 0)
PYTHON
    return $code
}

calls_rows() {
    local code=0
    for way in off raw auto; do
        echo "STRAIT_COLL=$way"
        STRAIT_COLL=$way STRAIT_COLL_NCCL=$nccl bin/gpu_collective_calls "$coll" "$nccl" ${CALLS:-40 50} || code=$?
        [ $code -ne 77 ] || return 77
    done >"$out/calls.txt"
    if [ -d before ]; then
        echo "STRAIT_COLL=auto, the library before"
        STRAIT_COLL=auto STRAIT_COLL_NCCL=$nccl bin/gpu_collective_calls before/libstrait-coll.so.0 "$nccl" ${CALLS:-40 50} || code=$?
    fi >>"$out/calls.txt"
    cat "$out/calls.txt"
    awk '/^STRAIT_COLL/ { way = $0 } $2 ~ /^[0-9]+$/ && $2 >= 1024 && way !~ /before/ { n++; if ($7 < 0.98) bad++ }
        END { printf "from 1 MiB on, x below 0.98: %d of %d rows\n", bad + 0, n }' "$out/calls.txt"
    return $code
}

# hosts_bench WAY SECONDS
hosts_bench() {
    bin/strait bench collective --timeout "$2" --library "$coll" --nccl "$nccl" --gpus 2 --links socket ${inputs:-} \
        --data "${HOSTS_DATA:-weights,gradients}" --types bf16 --ops all_gather,all_to_all,reduce_scatter --size "${HOSTS_SIZES:-64M,256M}" \
        --repeats 3 --warmups 3 --iterations 2 --env STRAIT_COLL="$1" --hosts 2 --save "$out/hosts-$1.json"
}

hosts_scenes() {
    local code=0
    export STRAIT_TEST_HOSTS=1 STRAIT_COLL_NCCL=$nccl STRAIT_COLL_PRINT=1 NCCL_NET=Socket
    echo "what does not fit"
    env STRAIT_COLL=compress timeout 40 bin/gpu_collective_overflow --ranks=2 "$coll" 2>"$out/hosts-overflow.err" || code=$?
    [ $code -ne 77 ] || return 77
    timeout 40 bin/gpu_collective_rings "$coll" ${RINGS:-} 2>"$out/hosts-rings.err" || code=1
    kill_as hosts --told "$coll" ${KILL:-waiting repair all_gather} || code=1
    cat "$out/kill-hosts.log"
    grep -ohE '[0-9]+ ranks on other hosts by TCP|stays raw.*|on another host,.*' "$out"/hosts-*.err "$out/kill-hosts.err" | sort | uniq -c
    grep -qh 'ranks on other hosts by TCP' "$out/hosts-overflow.err" || { echo "not by TCP"; code=1; }
    unset STRAIT_TEST_HOSTS STRAIT_COLL_PRINT
    for way in compress auto; do
        echo "STRAIT_COLL=$way"
        hosts_bench $way 40 || code=1
    done
    return $code
}

# shared_one NAME SECONDS COMMAND...: what the library has told of it is counted.
shared_one() {
    local name=$1 seconds=$2 status=0 begin=$SECONDS
    shift 2
    case " ${SHARED:-overflow order rings kill join torch} " in *" ${name%%-*} "*) ;; *) return 0 ;; esac
    echo "$name"
    timeout -k 5 "$seconds" "$@" 2>"$out/shared-$name.err" || status=$?
    echo "exit status $status, $((SECONDS - begin)) s"
    grep -ohE '[0-9]+ ranks on other hosts by TCP|stays raw.*|not true.*|no memory.*|abort.*|[Dd]uplicate GPU.*' "$out/shared-$name.err" |
        sort | uniq -c | head -n 8
    return $status
}

shared_scenes() {
    local code=0
    export CUDA_VISIBLE_DEVICES=0 STRAIT_TEST_HOSTS=1 STRAIT_COLL_NCCL=$nccl STRAIT_COLL_PRINT=1 NCCL_NET=Socket
    export STRAIT_COLL=compress
    shared_one overflow-2 100 bin/gpu_collective_overflow --ranks=2 "$coll" || code=1
    shared_one overflow-4 150 bin/gpu_collective_overflow --ranks=4 "$coll" straight two || code=1
    shared_one order-nccl 60 bin/gpu_collective_order --ranks=4 "$nccl" || code=1
    shared_one order-2 60 bin/gpu_collective_order --ranks=2 "$coll" || code=1
    shared_one order-4 100 bin/gpu_collective_order --ranks=4 "$coll" || code=1
    shared_one rings 150 bin/gpu_collective_rings "$coll" ${RINGS:-} || code=1
    shared_one kill 100 bin/gpu_collective_kill --told "$coll" ${KILL:-waiting repair all_gather} || code=1
    shared_one join 200 bin/gpu_collective_join "$coll" late bare full beside || code=1
    shared_one join-times 60 env STRAIT_COLL=auto bin/gpu_collective_join "$coll" times || code=1
    shared_one torch 200 env "LD_LIBRARY_PATH=$kit/lib" SHARED=1 "OUT=$out/shared-torch" RANKS=2 RANKS_START=one SECONDS_MAX=80 "WAYS=${TORCH_WAYS:-auto compress}" \
        examples/collective_pytorch.sh "$coll" ${TORCH:-} || code=1
    return $code
}

# ranks_tests WIRE SETTING...: real values or, where a wire has had these, what never fits.
ranks_tests() {
    local wire=$1
    shift
    case " ${RANKS_WIRES:-shm p2p tcp} " in *" $wire "*) ;; *) return 0 ;; esac
    env RANKS="${RANKS:-4}" MPIEXEC="$kit/bin/mpiexec" PAUSE=1 OUT="$out/ranks-$wire" MATRIX="${MATRIX:-full}" WAYS="${WAYS:-compress}" \
        ARGS="${ARGS:--n 3}" SECONDS_MAX=45 SECONDS_ALL="${RANKS_SECONDS:-150}" "$@" bench/nccl_tests.sh run bin "$coll" >"$out/ranks-$wire.txt"
    local status=$?
    echo "$wire: exit status $status, $(cat "$out/ranks-$wire"/*.log 2>/dev/null | grep -cE '^ +[0-9]+ +[0-9]+ +[a-z0-9]+ ') rows"
    grep -E ' (ok|WRONG|FAILED) ' "$out/ranks-$wire.txt" | cut -c1-190
    return $status
}

ranks_scenes() {
    local code=0 data=$kit/lib/programs/libstrait-nccl-tests-data.so
    export CUDA_VISIBLE_DEVICES=0 STRAIT_COLL_NCCL=$nccl CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
    # Kernels of all ranks wait for each other, so all have to be on the GPU at once.
    export NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-8}
    mkdir -p "$out/mps"
    nvidia-cuda-mps-control -d || return 77
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
    ranks_tests shm "DATA=$data" NCCL_P2P_DISABLE=1 || code=1
    ranks_tests p2p || code=1
    ranks_tests tcp "DATA=$data" HOSTS=1 "ARGS=-n 3 -e 64M" || code=1
    sleep 3 # MPS refuses processes while it ends for those before
    export NCCL_MULTI_RANK_GPU_ENABLE=1 STRAIT_COLL=compress STRAIT_COLL_PRINT=1 SHARED=${RANKS_SCENES:-overflow order rings kill join}
    shared_one overflow-nccl 60 bin/gpu_collective_overflow --ranks="${RANKS:-4}" "$coll" || code=1
    shared_one order-nccl 60 bin/gpu_collective_order --ranks="${RANKS:-4}" "$nccl" || code=1
    shared_one order-2 60 bin/gpu_collective_order --ranks=2 "$coll" || code=1
    shared_one order 60 bin/gpu_collective_order --ranks="${RANKS:-4}" "$coll" || code=1
    shared_one rings 60 bin/gpu_collective_rings "$coll" ${RINGS:-} || code=1
    shared_one kill 60 bin/gpu_collective_kill --told "$coll" ${KILL:-waiting repair all_gather} || code=1
    shared_one join 100 bin/gpu_collective_join "$coll" late bare beside || code=1
    return $code
}

fsdp2_scenes() {
    local code=0
    python3 fsdp2.py --kill || code=$?
    [ $code -ne 77 ] || return 77
    python3 -m torch.distributed.run --standalone --nproc-per-node=2 fsdp2.py ${FSDP2:-} || code=1
    return $code
}

}
export -f fsdp2_scenes join_time join_scenes order_scenes rings_scenes kill_as kill_scenes overflow_scenes one_random random_rows calls_rows hosts_bench hosts_scenes shared_one shared_scenes ranks_tests ranks_scenes
export kit out coll nccl gpus FSDP2 KILL KILL_WAYS RINGS JOIN ORDER FEW

unpack() {
    python3 - "$1" <<'PYTHON'
import lzma, pathlib, sys
for packed in pathlib.Path("data").glob("*.xz"):
    pathlib.Path(sys.argv[1], packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
PYTHON
}

tests() { # SECONDS NAME SETTING...: nccl-tests
    local seconds=$1 name=$2
    shift 2
    step "$name" $((seconds + 20)) env "$programs" "OUT=$out/$name" GPUS="$gpus" SECONDS_MAX=60 SECONDS_ALL="$seconds" "$@" \
        bench/nccl_tests.sh run bin "$coll"
}

step rings 100 env "$programs" bash -c rings_scenes
step join $((60 + 30 * gpus)) env "$programs" bash -c join_scenes
step kill 100 env "$programs" bash -c kill_scenes
step overflow 100 env "$programs" bash -c overflow_scenes
step order 120 env "$programs" bash -c order_scenes
step shared "${SHARED_SECONDS:-400}" env "$programs" bash -c shared_scenes
step ranks "${RANKS_STEP_SECONDS:-560}" env "$programs" bash -c ranks_scenes
step calls 60 env "$programs" bash -c calls_rows
step random 90 env "$programs" bash -c random_rows
# shellcheck disable=SC2086
step torch 120 env "OUT=$out/torch" RANKS="$gpus" RANKS_START=one SECONDS_MAX=45 "WAYS=${TORCH_WAYS:-auto compress}" \
    examples/collective_pytorch.sh "$coll" ${TORCH:-}
# shellcheck disable=SC2086
step late 120 env "OUT=$out/late" RANKS="$gpus" RANKS_START=one SECONDS_MAX=45 TORCH_NCCL_USE_COMM_NONBLOCKING=1 \
    "WAYS=${TORCH_WAYS:-auto compress}" examples/collective_pytorch.sh "$coll" ${TORCH:-}
# Without a preload: the package finds the library by its name.
python=("PYTHONPATH=$kit/python" "STRAIT_LIBRARY=$kit/lib/libstrait-codec.so.0" "STRAIT_COLLECTIVE_LIBRARY=$coll")
# shellcheck disable=SC2086
step direct 120 env "${python[@]}" DIRECT=1 "OUT=$out/direct" RANKS="$gpus" RANKS_START=one SECONDS_MAX=45 \
    "WAYS=${TORCH_WAYS:-auto compress}" examples/collective_pytorch.sh "$coll"
step fsdp2 360 env "${python[@]}" bash -c fsdp2_scenes
# shellcheck disable=SC2086
step training "${TRAINING_SECONDS:-500}" env "${python[@]}" python3 -m strait.bench_step --save "$out/training.json" ${TRAINING:-}
# Starting a program takes most of its time, so repeats are cycles (-N) of it too.
tests "${SHOW_SECONDS:-260}" show MATRIX="${MATRIX:-full}" "WAYS=${WAYS:-plain auto compress}" "ARGS=${ARGS:--n 5}"
tests "${SMALL_SECONDS:-80}" small "WAYS=plain again raw auto" OPS="${OPS:-reduce_scatter all_gather}" ROUNDS="${ROUNDS:-2}" \
    "ARGS=${ARGS:--b 1M -e 8M -f 2 -n 200 -N 5}"
tests 90 sockets "WAYS=plain auto compress" OPS="all_gather alltoall" ROUNDS=2 "ARGS=-e 32M -n 3 -N 2" \
    NCCL_SHM_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_NET=Socket
tests 60 passthrough WAYS="plain raw" "ARGS=${ARGS:--n 5}"
tests "${NCCLTESTS_SECONDS:-300}" nccltests MATRIX=full
tests 120 gaussian "DATA=$kit/lib/programs/libstrait-nccl-tests-data.so" OPS="all_gather alltoall sendrecv" \
    ROUNDS="${ROUNDS:-3}"
case " $steps " in
*" bench "* | *" hosts "*)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    unpack "$scratch" || failed=1
    inputs=()
    for file in "$scratch"/*.safetensors; do
        [ -f "$file" ] && inputs+=(--input "$file")
    done
    step hosts 150 env "$programs" "inputs=${inputs[*]}" bash -c hosts_scenes
    # shellcheck disable=SC2086
    step bench "${BENCH_SECONDS:=90}" env "$programs" bin/strait bench collective --timeout "$((BENCH_SECONDS - 10))" --library "$coll" --nccl "$nccl" \
        --save "$out/collective.json" "${inputs[@]}" ${BENCH:-}
    ;;
esac

printf '\n=== all\n'
nvidia-smi topo -m >"$out/topology.log" 2>&1
printf '%s\n' "${rows[@]}"
exit $failed
