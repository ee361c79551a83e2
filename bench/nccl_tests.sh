#!/usr/bin/env bash
# nccl_tests.sh: NCCL's own tests, unmodified, with and without libstrait-coll preloaded, in turn; a table last.
#
#   nccl_tests.sh build CHECKOUT      builds those of a checkout of github.com/NVIDIA/nccl-tests for GPUs of ARCH (90) with
#                                     CUDA_HOME and, for nccl.h, NCCL_HOME; with MPI_HOME also what RANKS needs
#   nccl_tests.sh run TESTS LIBRARY   TESTS: CHECKOUT/build; LIBRARY: libstrait-coll.so.0
#
#   MATRIX  small: BF16, a thread per GPU. full: also one thread, CUDA graphs, unaligned and grouped calls, all types
#   WAYS    plain (NCCL alone), again (the same, for the noise), strait (with the library), and auto, compress and raw:
#           with this STRAIT_COLL: "plain strait"
#   OPS     of those below: all       GPUS  2       ROUNDS  in turn: 1      ARGS  further options of nccl-tests
#   DATA    libstrait-nccl-tests-data.so: values that can be compressed, in operations that do not reduce
#   RANKS   so many processes that share the first GPU, started by MPIEXEC; from NCCL 2.30 on, or with HOSTS=1, where each
#           is on a host of its own, as NCCL is told. PAUSE: seconds before each program, for CUDA MPS: 0
#   OUT     folder of the logs: nccl-tests-out
#   SECONDS_MAX  of one program: 120      SECONDS_ALL  after which none is begun: 3600
#
# The tests compare their results themselves. Exit status: 1 one is wrong or failed, 77 too few GPUs, 2 bad usage.
set -uo pipefail
usage="usage: nccl_tests.sh build CHECKOUT | run TESTS LIBRARY"
all_ops="all_gather alltoall reduce_scatter all_reduce sendrecv broadcast"
ops=${OPS:-$all_ops}

build() { # CHECKOUT. DSO=1: what makes and checks data is a library of its own, which DATA replaces.
    local cuda=${CUDA_HOME:-/usr/local/cuda} arch=${ARCH:-90}
    # Before an NCCL beside CUDA, which may be older than the headers.
    [ -z "${NCCL_HOME:-}" ] || export NVCC_PREPEND_FLAGS="-L$NCCL_HOME/lib ${NVCC_PREPEND_FLAGS:-}"
    # shellcheck disable=SC2046,SC2086 # these are words
    for target in os.build $(printf '../build/%s_perf ' $ops); do
        make -C "$1/src" CUDA_HOME="$cuda" NCCL_HOME="${NCCL_HOME:-$cuda}" DSO=1 \
            NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" ${MPI_HOME:+MPI=1 "MPI_HOME=$MPI_HOME"} "$target" || exit 1
    done
}

# one OP CASE WAY ROUND OPTION...: one program, and its line of rows.tsv: average bus bandwidth, check, way of the library.
one() {
    local log="$out/$1.$2.$3.$4" op=$1 key="$1\t$2\t$3\t$4" preload=$library${DATA:+ $DATA} way=STRAIT_COLL=$3 code check
    case $3 in
    plain | again) preload=${DATA:-} way=STRAIT_COLL_PRINT=1 ;;
    strait) way=STRAIT_COLL_PRINT=1 ;;
    esac
    shift 4
    [ $SECONDS -lt "${SECONDS_ALL:-3600}" ] || return 0
    sleep "${PAUSE:-0}"
    # shellcheck disable=SC2086 # ARGS is words
    timeout --foreground -k 5 "${SECONDS_MAX:-120}" "${launcher[@]}" env ${preload:+"LD_PRELOAD=$preload"} STRAIT_COLL_PRINT=1 \
        "$way" "$tests/${op}_perf" "$@" ${ARGS:-} >"$log.log" 2>"$log.err"
    code=$?
    check=$(awk '/Out of bounds values/ { print ($7 == 0) ? "ok" : "WRONG" }' "$log.log")
    [ $code -eq 0 ] || [ "$check" = WRONG ] || check=FAILED
    [ "${check:=FAILED}" = ok ] || failed=1
    op=$(echo "$op" | sed 's/alltoall/all_to_all/; s/sendrecv/send/') # as the library's report has it
    printf "$key\t%s\t%s\t%s\n" "$(awk '/Avg bus bandwidth/ { print $6 }' "$log.log")" "$check" "$(awk -v op="$op" '
        /^strait-coll .* process / { calls = compressed = 0 }
        $1 == op && $3 ~ /^[0-9]+$/ { calls += $3; compressed += $8; way = $0; sub(/^[^ ]+ +[^ ]+( +[0-9]+)+ +/, "", way) }
        END { if (calls) print way " (" compressed " of " calls " calls compressed)" }' "$log.err")" >>"$out/rows.tsv"
}

case_of() { # NAME OPTION...: the case by all operations, rounds and ways
    local name=$1
    shift
    for op in $ops; do for round in $(seq "${ROUNDS:-1}"); do for way in ${WAYS:-plain strait}; do
        one "$op" "$name" "$way" "$round" -n 20 -w 2 "$@"
    done; done; done
}

run() { # TESTS LIBRARY
    tests=$(realpath "$1") library=$(realpath "$2") out=${OUT:-nccl-tests-out} failed=0 launcher=()
    local gpus=${RANKS:+1} set=NCCL_MULTI_RANK_GPU_ENABLE=1 every="-d bfloat16 -b 4 -e 512M -f 8" five="-b 64K -e 256M -f 8"
    gpus=${gpus:-${GPUS:-2}}
    [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge "$gpus" ] || { echo "skipped: $gpus GPUs are needed" && exit 77; }
    # shellcheck disable=SC2016 # the ranks' shells are to see it
    [ "${HOSTS:-}" != 1 ] || set='NCCL_NET=Socket "NCCL_HOSTID=host ${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"'
    [ -z "${RANKS:-}" ] || launcher=("${MPIEXEC:-mpiexec}" -n "$RANKS" sh -c "exec env NCCL_TESTS_DEVICE=0 $set \"\$@\"" rank)
    mkdir -p "$out" && rm -f "$out"/*
    # shellcheck disable=SC2086 # these are words
    {
        case_of threads -t "$gpus" -g 1 $every
        if [ "${MATRIX:-small}" = full ]; then
            case_of one-thread -t 1 -g "$gpus" $every
            case_of graph -t "$gpus" -g 1 $every -G 2
            case_of unaligned -t "$gpus" -g 1 -d bfloat16 $five -u 3
            case_of grouped -t "$gpus" -g 1 -d bfloat16 $five -m 4
            case_of all-types -t "$gpus" -g 1 -d all $five -n 3
        fi
    }
    echo "average bus bandwidth of all sizes, GB/s; x: by that of NCCL alone in the same round"
    awk -F '\t' 'BEGIN { form = "%-15s %-11s %-9s %5s %9s %7s  %-6s  %s\n"; printf form, "operation", "case", "way", "round", "GB/s", "x", "check", "way of libstrait-coll" }
        $3 == "plain" { plain[$1 $2 $4] = $5 }
        { base = plain[$1 $2 $4]; printf form, $1, $2, $3, $4, $5, (base > 0 ? sprintf("%.3f", $5 / base) : "-"), $6, $7 }' "$out/rows.tsv"
    exit $failed
}

case ${1:-} in
build) build "${2:?$usage}" ;;
run) run "${2:?$usage}" "${3:?$usage}" ;;
*) echo "$usage" >&2 && exit 2 ;;
esac
