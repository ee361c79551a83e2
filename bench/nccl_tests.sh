#!/usr/bin/env bash
# nccl_tests.sh: NCCL's own tests, unmodified, with and without libstrait-coll, in turn; one table last.
#
#   nccl_tests.sh build CHECKOUT      builds those of a checkout of github.com/NVIDIA/nccl-tests, for GPUs of --arch 90
#                                     (ARCH), with NCCL's header from NCCL_HOME (here: CUDA_HOME); with MPI_HOME also
#                                     what RANKS needs, and its mpi.h is where CPATH says
#   nccl_tests.sh run TESTS LIBRARY   TESTS: the folder with all_gather_perf and the others, CHECKOUT/build;
#                                     LIBRARY: libstrait-coll.so.0
#
#   MATRIX    small: BF16, a thread for each GPU. full: more layouts, CUDA graphs, other types. show: BF16 in full with
#             NCCL alone and some way in turn, all else (graphs, all types) for its results alone: small
#   OPS       of those below: all             ROUNDS  that each is run with and without, in turn: 1
#   GPUS      2                               ITERS   of nccl-tests, -n: 20
#   CYCLES    of all sizes in each run: 1     BYTES   the largest size: 512M; FIRST, the smallest: 4
#   WAYS      plain: NCCL alone; again: the same, to see what is noise; strait: with the library, set as the environment says; auto, compress, raw: with this
#             STRAIT_COLL. Of compress one round is enough: "plain strait"
#   DATA      libstrait-nccl-tests-data.so: values that can be compressed in all_gather, alltoall and sendrecv, where
#             nccl-tests has some that cannot, and the same ones in every round; none: those of nccl-tests
#   RANKS     so many ranks that share the first GPU, processes started by mpiexec (MPIEXEC), instead of GPUS. NCCL
#             takes them from 2.30 on. HOSTS=1: each is on a host of its own, as NCCL is told, so that all goes by TCP
#             and older ones take them, too. PAUSE: seconds before each program; CUDA MPS refuses processes while it
#             ends for those before: 0
#   OUT       folder of the logs: nccl-tests-out
#   SECONDS_MAX  that one program may take: 120      SECONDS_ALL  after which nothing new is begun: 3600
#
# What the environment says of NCCL and of libstrait-coll (NCCL_P2P_DISABLE, STRAIT_COLL) is for all of them. Every
# result is compared by the tests themselves. Exit status: 1 one of them is wrong or failed, 77 too few GPUs, 2 bad usage.
set -uo pipefail
here=$(realpath "$(dirname "$0")")
fail() {
    echo "nccl_tests.sh: $*" >&2
    exit 2
}

all_ops="all_gather alltoall reduce_scatter all_reduce sendrecv broadcast"

build() { # CHECKOUT
    [ -f "$1/src/all_gather.cu" ] || fail "$1 is no checkout of nccl-tests"
    local cuda=${CUDA_HOME:-/usr/local/cuda} arch=${ARCH:-90} targets=()
    [ -f "${NCCL_HOME:=$cuda}/include/nccl.h" ] || fail "no $NCCL_HOME/include/nccl.h: NCCL_HOME names where it is"
    for op in ${OPS:-$all_ops}; do targets+=("../build/${op}_perf"); done
    set -e
    # DSO: what makes and checks data is a library of its own then, which DATA gets before.
    for target in os.build "${targets[@]}"; do
        make -C "$1/src" CUDA_HOME="$cuda" NCCL_HOME="$NCCL_HOME" DSO=1 \
            NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" ${MPI_HOME:+MPI=1 "MPI_HOME=$MPI_HOME"} "$target"
    done
}

# ---- Runs ------------------------------------------------------------------------------------------------------------

failed=0

# What starts the ranks of a program.
launch() {
    launcher=()
    [ -n "${RANKS:-}" ] || return 0
    local set="NCCL_MULTI_RANK_GPU_ENABLE=1"
    # shellcheck disable=SC2016 # the ranks' shells are to see it
    [ "${HOSTS:-}" != 1 ] || set='NCCL_NET=Socket "NCCL_HOSTID=host ${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"'
    launcher=("${MPIEXEC:-mpiexec}" -n "$RANKS" sh -c "exec env NCCL_TESTS_DEVICE=0 $set \"\$@\"" rank)
}

# once OP CASE WAY ROUND OPTION...: one program; its output is $out/OP.CASE.WAY.ROUND.log, its errors .err beside it.
once() {
    local op=$1 name=$1.$2.$3.$4 preload=${DATA:-} set_way code
    case $3 in
    plain | again) ;;
    *) preload=$library${DATA:+ $DATA} ;;
    esac
    case $3 in
    plain | again | strait) set_way=STRAIT_COLL_PRINT=1 ;;
    *) set_way=STRAIT_COLL=$3 ;;
    esac
    shift 4
    [ ${#launcher[@]} -eq 0 ] || sleep "${PAUSE:-0}"
    timeout --foreground -k 5 "${SECONDS_MAX:-120}" "${launcher[@]}" env ${preload:+"LD_PRELOAD=$preload"} \
        STRAIT_COLL_PRINT=1 "$set_way" "$tests/${op}_perf" "$@" >"$out/$name.log" 2>"$out/$name.err"
    code=$?
    printf '\nexit %s: %s\n' "$code" "${op}_perf $*" >>"$out/$name.log" # it may have ended in mid-line
    if [ $code -ne 0 ]; then
        echo "FAILED $name: exit status $code: ${op}_perf $*: $(tail -n 1 "$out/$name.err" | cut -c1-200)"
        failed=1
    fi
}

# both OP CASE OPTION...: with and without, in turn, ROUNDS times.
both() {
    local op=$1 name=$2
    shift 2
    case " $ops " in
    *" $op "*) ;;
    *) return 0 ;;
    esac
    for round in $(seq "${ROUNDS:-1}"); do
        for way in $ways; do
            # Nothing that is slow on purpose is measured again and again.
            if [ "$way" = compress ] && [ "$ways" != compress ] && [ "$round" -gt 1 ]; then continue; fi
            if [ $SECONDS -ge "${SECONDS_ALL:-3600}" ]; then
                echo "$op.$name.$way.$round" >>"$out/left-out"
            else
                once "$op" "$name" "$way" "$round" "$@"
            fi
        done
    done
}

matrix() {
    local most=${BYTES:-512M} every ragged five="-b 64K -e 256M -f 8"
    local threads="-t $gpus -g 1" iters="-n ${ITERS:-20} -w 2 -c 1"
    every="-b ${FIRST:-4} -e $most -f 8" ragged="-b 1 -e $most -f 8"
    for op in $all_ops; do
        # shellcheck disable=SC2086
        both "$op" bfloat16-threads -d bfloat16 $threads $every $iters -N "${CYCLES:-1}"
    done
    case ${MATRIX:-small} in
    show) show ;;
    full) full ;;
    esac
}

# One process for all types, and one for graphs: each costs seconds to begin with.
show() {
    local ways=${ways#plain } ROUNDS=1
    for op in $all_ops; do
        # shellcheck disable=SC2086
        {
            both "$op" all-types -d all $threads $five -n 3 -w 1 -c 1
            both "$op" bfloat16-graph -d bfloat16 $threads $ragged -n 5 -w 1 -c 1 -G 2
        }
    done
}

full() {
    for op in $all_ops; do
        # shellcheck disable=SC2086
        {
            both "$op" bfloat16-one -d bfloat16 -t 1 -g "$gpus" $ragged $iters
            both "$op" bfloat16-graph -d bfloat16 $threads $every $iters -G 2
            both "$op" bfloat16-unaligned -d bfloat16 $threads $five $iters -u 3
            both "$op" bfloat16-aggregated -d bfloat16 $threads $five $iters -m 4
            for type in float half int8; do both "$op" $type-threads -d $type $threads $five $iters; done
        }
    done
    for op in reduce_scatter all_reduce; do
        for reduction in avg max; do
            # shellcheck disable=SC2086
            both $op bfloat16-$reduction -d bfloat16 -o $reduction $threads $five $iters
        done
    done
}

run() { # TESTS LIBRARY
    tests=$(realpath "$1") library=$(realpath "$2") ops=${OPS:-$all_ops} ways=${WAYS:-plain strait} gpus=${RANKS:+1} out=${OUT:-nccl-tests-out}
    gpus=${gpus:-${GPUS:-2}} # of a process
    [ -f "$library" ] || fail "no library $2"
    case ${MATRIX:-small} in
    small | full | show) ;;
    *) fail "MATRIX=$MATRIX is none of small, full, show" ;;
    esac
    for way in $ways; do
        case $way in
        plain | again | strait | raw | auto | compress) ;;
        *) fail "WAYS: '$way' is none of plain, again, strait, raw, auto, compress" ;;
        esac
    done
    [ "${ways#plain}" != "" ] || fail "WAYS: NCCL alone is nothing to compare with"
    for op in $ops; do
        case " $all_ops " in
        *" $op "*) ;;
        *) fail "OPS: '$op' is none of $all_ops" ;;
        esac
        [ -x "$tests/${op}_perf" ] || fail "no $tests/${op}_perf: nccl_tests.sh build makes it"
    done
    local found
    found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
    if [ "$found" -lt "$gpus" ]; then
        echo "skipped: $gpus GPUs are needed, there are $found"
        exit 77
    fi
    launch
    mkdir -p "$out"
    rm -f "$out"/*.log "$out"/*.err "$out"/left-out
    matrix
    env -u LD_LIBRARY_PATH python3 "$here/nccl_tests_table.py" "$out" "$ways" || failed=1
    [ ! -f "$out/left-out" ] || echo "no time for $(wc -l <"$out/left-out") runs: $out/left-out"
    exit $failed
}

case ${1:-} in
build) build "${2:?usage: nccl_tests.sh build CHECKOUT}" ;;
run) run "${2:?usage: nccl_tests.sh run TESTS LIBRARY}" "${3:?usage: nccl_tests.sh run TESTS LIBRARY}" ;;
*) fail "usage: nccl_tests.sh build CHECKOUT | run TESTS LIBRARY" ;;
esac
