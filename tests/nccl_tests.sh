#!/usr/bin/env bash
# nccl_tests.sh LIBSTRAIT_COLL SCRATCH: bench/nccl_tests.sh with programs that print what nccl-tests prints, on GPUs that
# only nvidia-smi knows. SCRATCH is overwritten.
set -euo pipefail
coll=$(realpath "$1")
script=$(realpath "$(dirname "$0")/../bench/nccl_tests.sh")
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
rm -rf "$2"
mkdir -p "$2/build" "$2/path"
cd "$2"
unset RANKS HOSTS PAUSE MPIEXEC MATRIX OPS ROUNDS WAYS GPUS ITERS DATA OUT SECONDS_MAX SECONDS_ALL LD_PRELOAD STRAIT_COLL
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

# A row as nccl-tests prints it. With the library the bus bandwidth is 12.5 in place of 10, and there is a report.
cat >build/all_gather_perf <<'PROGRAM'
#!/bin/sh
busbw=10.00 wrong=0
case "${LD_PRELOAD:-}" in
*strait-coll*)
    busbw=12.50 wrong=${FAKE_WRONG:-0}
    [ -z "${FAKE_SLEEP:-}" ] || sleep "$FAKE_SLEEP"
    [ -z "${FAKE_NO_SUCH_WAY:-}" ] || [ "${STRAIT_COLL:-}" = "$FAKE_NO_SUCH_WAY" ] || exit 4
    echo "operation      type         calls            bytes  in groups   captured  failed compressed      their bytes  way" >&2
    echo "all_gather     bf16           320      21474836480          0        320       0        ${FAKE_COMPRESSED:-0}      10  raw: a reason" >&2
    ;;
esac
echo "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
echo "           0             0  bfloat16    none      -1     0.00    0.00    0.00       0     0.00    0.00    0.00     N/A"
echo "     1048576        262144  bfloat16    none      -1    34.61   30.29   $busbw       0    33.85   30.98   20.0      $wrong"
[ -n "${FAKE_SHORT:-}" ] && [ $busbw = 12.50 ] ||
    echo "   134217728      33554432  bfloat16    none      -1    34.61   30.29   $busbw       0    33.85   30.98   20.0     N/A"
[ -z "${FAKE_CUT:-}" ] || printf '   134217728      33554432      half    none      -1    34.61   30.29   12.50       0'
exit "${FAKE_EXIT:-0}"
PROGRAM
chmod +x build/all_gather_perf
for op in alltoall reduce_scatter all_reduce sendrecv broadcast; do cp build/all_gather_perf build/${op}_perf; done
printf '#!/bin/sh\nprintf "GPU 0: one\\nGPU 1: two\\n"\n' >path/nvidia-smi
chmod +x path/nvidia-smi
export PATH=$PWD/path:$PATH

# ends STATUS TEXT NAME=VALUE...: ends so, and says so.
ends() {
    local status=$1 text=$2 code=0
    shift 2
    env "$@" "$script" run build "$coll" >out 2>&1 || code=$?
    [ $code -eq "$status" ] || fail "exit status $code, not $status: $*: $(cat out)"
    grep -qE -- "$text" out || fail "no '$text' with $*: $(cat out)"
}

ends 0 '^all_gather +bfloat16-threads +strait +bfloat16 +134217728 +10.00 +12.50 +1.250 +20.00 +20.00 +1.000 +0 +0$' OUT=small ROUNDS=3
[ "$(grep -cE ' ok +(raw: a reason .*|not reported)$' out)" -eq 6 ] || fail "not six operations: $(cat out)"
grep -qE '^all_gather .* 3 +1.125 +1.000 +1048576 bfloat16 in +ok +raw: a reason .0 of 320 calls compressed.$' out || fail "no way: $(cat out)"
[ "$(ls small/*.log | wc -l)" -eq 36 ] || fail "not 36 runs: $(ls small)"
grep -qE '^all_gather +bfloat16-threads +strait +bfloat16 +0 ' small/table.txt || fail "the table lacks rows: $(cat small/table.txt)"
ends 0 '^all_reduce +bfloat16-max .* ok ' OUT=full MATRIX=full
[ "$(grep -c ' ok ' out)" -eq 52 ] || fail "not 52 cases: $(cat out)"
ends 1 '^all_gather .* WRONG ' OPS=all_gather FAKE_WRONG=2
ends 1 'FAILED all_gather.bfloat16-threads.plain.1: exit status 3' OPS=all_gather FAKE_EXIT=3
ends 1 '^all_gather .* FAILED ' OPS=all_gather FAKE_SHORT=1 # rows that only one of them has
ends 1 '^all_gather .* FAILED ' OPS=all_gather FAKE_CUT=1 FAKE_EXIT=3 # ended in mid-row
ends 1 'exit status 124' OPS=all_gather SECONDS_MAX=1 FAKE_SLEEP=3
ends 1 'no time for 2 runs' OPS=all_gather SECONDS_ALL=0
ends 0 '^all_gather +bfloat16-threads +strait +bfloat16 +134217728 +- +12.50 +- +- +20.00 +- +0 +0$' OUT=one WAYS=strait OPS=all_gather
[ "$(ls one/*.log | wc -l)" -eq 1 ] || fail "not one run: $(ls one)"
ends 1 '^all_gather .* WRONG ' WAYS=strait OPS=all_gather FAKE_WRONG=1
# Ways that are set here; of compress one round, and something has to be compressed.
ends 0 '^all_gather +bfloat16-threads +auto +bfloat16 +134217728 +10.00 +12.50 ' OUT=ways "WAYS=plain auto compress" ROUNDS=2 \
    OPS=all_gather FAKE_COMPRESSED=7
[ "$(ls ways/*.log | wc -l)" -eq 5 ] || fail "not five runs: $(ls ways)"
ends 1 '^all_gather .* compress .* RAW ' "WAYS=plain compress" OPS=all_gather
ends 0 ' ok ' OPS=all_gather WAYS=auto FAKE_NO_SUCH_WAY=auto
ends 0 '^all_gather +all-types +auto +1 ' OUT=show MATRIX=show "WAYS=plain auto" OPS=all_gather ROUNDS=2
[ "$(ls show/*.log | wc -l)" -eq 6 ] || fail "not six runs: $(ls show)"
ends 2 'nothing to compare with' WAYS=plain
ends 2 'is none of plain' WAYS=fast
ends 77 '4 GPUs are needed, there are 2' GPUS=4
ends 2 'is none of' OPS=all_sing
ends 2 'none of small, full, show' MATRIX=large
# Ranks that are processes on the first GPU: each starts with a number of its own, and with what its NCCL has to know.
cat >path/ranks <<'PROGRAM'
#!/bin/sh
[ "$1" = -n ] || exit 9
count=$2 rank=0
shift 2
while [ $rank -lt "$count" ]; do
    PMI_RANK=$rank "$@" >$rank.out || exit
    rank=$((rank + 1))
done
cat 0.out
PROGRAM
chmod +x path/ranks
sed -i '2i echo "on $NCCL_TESTS_DEVICE of ${NCCL_HOSTID:-this}, ${NCCL_MULTI_RANK_GPU_ENABLE:-0} $*" >>"$RANKS_LOG"' build/all_gather_perf
ends 0 ' ok ' RANKS=3 MPIEXEC=ranks OPS=all_gather RANKS_LOG=here
[ "$(grep -c '^on 0 of this, 1 .*-t 1 -g 1' here)" -eq 6 ] || fail "not three ranks, twice: $(cat here)"
ends 0 ' ok ' RANKS=3 HOSTS=1 MPIEXEC=ranks OPS=all_gather RANKS_LOG=there
[ "$(grep -c '^on 0 of host 2, 0 ' there)" -eq 2 ] || fail "no hosts of their own: $(cat there)"
ends 1 'FAILED all_gather.bfloat16-threads.plain.1' RANKS=2 MPIEXEC=no-such-mpiexec OPS=all_gather RANKS_LOG=none
rm build/broadcast_perf
ends 2 'no .*broadcast_perf' OUT=none
"$script" build build >out 2>&1 && fail "something was built"
grep -q 'no checkout' out || fail "no checkout: $(cat out)"

[ "$failed" -eq 0 ] && echo "nccl_tests: all passed"
exit "$failed"
