#!/bin/sh
# seeds.sh MAKE_CORPUS CORPUS SCRATCH: the corpus has every seed that MAKE_CORPUS writes, as it writes it. To bring it up
# to date: make_corpus tests/fuzz/corpus. Files of other names are findings, and stay. SCRATCH is overwritten.
set -eu
rm -rf "$3"
mkdir -p "$3"
"$1" "$3"
failed=0
for seed in "$3"/*/*; do
    name=${seed#"$3"/}
    cmp -s "$seed" "$2/$name" || { echo "FAIL: $name is not as make_corpus writes it" && failed=1; }
done
exit $failed
