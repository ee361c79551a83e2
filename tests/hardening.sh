#!/usr/bin/env bash
# hardening.sh FILE...: programs and libraries are built as cmake/StraitBuild.cmake says: position independent, tables of
# addresses read-only from the start, no executable stack, checks of the stack and of buffers, and branch targets marked.
# Files that are no ELF are passed over.
set -uo pipefail
failed=0
looked=0

fail() {
    echo "FAIL: $*"
    failed=1
}

# A file has the property of CET only if everything in it has, and so do not all C libraries' first objects.
crt=$(${CC:-cc} -print-file-name=crti.o)
crt_has_cet=$(readelf -nW "$crt" 2>/dev/null | grep -c IBT || true)

check() { # FILE
    local file=$1 segments dynamic symbols
    segments=$(readelf -lW "$file") dynamic=$(readelf -dW "$file") symbols=$(readelf --dyn-syms -W "$file")
    readelf -hW "$file" | grep -q 'Type:.*DYN' || fail "$file is not position independent"
    grep -q GNU_RELRO <<<"$segments" || fail "$file has no read-only relocations"
    grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || fail "$file binds functions late"
    grep 'GNU_STACK' <<<"$segments" | grep -q ' RW ' || fail "$file has an executable stack"
    grep -q '__stack_chk_fail' <<<"$symbols" || fail "$file does not check its stack"
    # printf's family always goes by its checked twins; a small library that formats nothing may need none of them.
    grep -q '_chk@' <<<"$symbols" || ! grep -qE ' v?(f|s|sn|as)?printf@' <<<"$symbols" || cuda "$file" ||
        fail "$file does not check its buffers"
    case $(uname -m) in
    x86_64)
        [ "$(objdump -d --no-show-raw-insn "$file" | grep -c endbr64)" -gt 0 ] || fail "$file marks no branch targets"
        [ "$crt_has_cet" = 0 ] || cuda "$file" || readelf -nW "$file" | grep -q 'IBT, SHSTK' || fail "$file lacks CET"
        ;;
    aarch64)
        [ "$(objdump -d --no-show-raw-insn "$file" | grep -cE 'bti|paciasp')" -gt 0 ] || fail "$file marks no branch targets"
        ;;
    esac
    looked=$((looked + 1))
}

cuda() { # it has the static runtime in it, which NVIDIA compiled
    readelf -SW "$1" | grep -q '\.nv_fatbin'
}

for file in "$@"; do
    [ -L "$file" ] || ! readelf -hW "$file" >/dev/null 2>&1 || check "$file"
done
[ "$looked" -gt 0 ] || fail "there is nothing to look at"
echo "$looked files looked at"
exit $failed
