#!/bin/sh
# layering.sh: who may include whom, as data, and whether each installed header compiles alone. Run from anywhere;
# CC and CXX choose the compilers.
set -eu
cd "$(dirname "$0")/.."
bad=0

# Prints the offending lines, if any, after what is wrong with them.
report() { # TEXT LINES
    [ -z "$2" ] && return 0
    printf '%s\n%s\n' "$1" "$2"
    bad=1
}

# includes DIR: every #include of a folder's sources as FILE:LINE:TEXT.
includes() {
    grep -rnE '^[[:space:]]*#[[:space:]]*include' "$1" --include='*.h' --include='*.c' --include='*.cu' --include='*.cuh' \
        --include='*.cc' || true
}

# Our folders: what is included from others is a library and not looked at.
folders='strait|internal|kernels|proto|transport|daemon|client|collective|checkpoint|ep|frameworks|tools|bench|tests'

# ---- Each folder includes only from those beneath it ----------------------------------------------------------------

while read -r dir allowed; do
    [ -d "$dir" ] || continue
    lines=$(includes "$dir" | grep -E "include[[:space:]]*[\"<]($folders)/" |
        grep -vE "include[[:space:]]*[\"<]($allowed)/" || true)
    report "$dir may include only from $allowed:" "$lines"
    report "$dir: our headers are named by their folder:" \
        "$(includes "$dir" | grep -E 'include[[:space:]]*"([^/]*|\.+/.*)"' || true)"
done <<RULES
include/strait    strait
include/internal  strait|internal
kernels           strait|internal|kernels
proto             strait|internal|proto
transport         strait|internal|transport
daemon            strait|internal|daemon|kernels|transport|proto
client            strait|internal|client|proto
collective        strait|internal|collective|transport|kernels
checkpoint        strait|internal|checkpoint
ep                strait|internal|ep|transport
frameworks        strait|frameworks
tools             strait|internal|tools|kernels|proto|transport|daemon|client|collective|checkpoint|ep
bench             $folders
tests             $folders
RULES

# ---- The daemon's components too: the node, beside them, may use all ---------------------------------------------------

while read -r dir allowed; do
    report "$dir may include only from $allowed:" \
        "$(includes "$dir" | grep -E "include[[:space:]]*[\"<]($folders)/" |
            grep -vE "include[[:space:]]*[\"<](strait|internal|$allowed)/" || true)"
done <<RULES
daemon/base  daemon/base|proto
daemon/protocol   daemon/protocol|proto|kernels
daemon/device     daemon/device
daemon/memory     daemon/memory|daemon/device|daemon/protocol|daemon/base|proto|kernels
daemon/peers      daemon/peers|daemon/base|proto|transport
RULES

# ---- Files of one folder call downwards only ----------------------------------------------------------------------------

report "calls from a file to one above it (tests/layering.py):" "$(python3 tests/layering.py || true)"

# ---- Block coders are the kernels' own; tests and benches look at them too -------------------------------------------

for dir in include proto transport daemon client collective checkpoint ep tools; do
    [ -d "$dir" ] || continue
    report "$dir may not look inside the codec:" "$(includes "$dir" | grep -E '"kernels/block[_.]' || true)"
done

# ---- Kernels do no I/O ----------------------------------------------------------------------------------------------

report "kernels do no I/O:" \
    "$(includes kernels | grep -E '<(stdio|fcntl|unistd|sys/(socket|mman|stat|uio))\.h>' || true)"

# ---- Files that documents name are there -----------------------------------------------------------------------------

tracked=$(git ls-files 2>/dev/null || find . -type f | sed 's|^\./||')
for document in README.md CONTRIBUTING.md docs/architecture.md docs/transports.md docs/collectives.md docs/protocol.md docs/operations.md docs/checkpoints.md docs/expert-parallel.md; do
    report "$document names files that are not there:" \
        "$(grep -oE '`[a-zA-Z_0-9./-]+\.(c|h|cu|cuh|py|sh|md|cmake)`' "$document" | tr -d '`' | sort -u | while read -r name; do
            printf '%s\n' "$tracked" | grep -qE "(^|/)$name\$" || echo "$name"
        done)"
done

# Tests and suites that promises of security rest on; "name_..." is how a name begins.
report "docs/security.md names tests that are not there:" \
    "$(grep -oE '(\*|`)[a-z0-9]+(_[a-z0-9]+)+(_\.\.\.)?(\*|`)' docs/security.md | tr -d '*`' | grep -v '^strait_' | sort -u |
        while read -r name; do
            case $name in
            test_* | fuzz_*) printf '%s\n' "$tracked" | grep -qE "/${name#fuzz_}\.c$" || printf '%s\n' "$tracked" | grep -qE "/$name\.c$" ;;
            node_*) grep -rqE "\b$name\b" tests/node/CMakeLists.txt ;;
            *) grep -rqE "^TEST[A-Z_]*\(${name%_...}" tests ;;
            esac || echo "$name"
        done)"

# ---- Installed headers compile alone, as C11 and as C++17 ------------------------------------------------------------

# alone COMPILER LANGUAGE STANDARD HEADER
alone() {
    "$1" -x "$2" -std="$3" -Wall -Wextra -Werror -Iinclude -fsyntax-only "$4" >"$log" 2>&1 ||
        report "$4 as $3:" "$(cat "$log")"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cc=${CC:-cc} cxx=${CXX:-c++}
for header in include/strait/*.h; do
    alone "$cc" c c11 "$header"
    if command -v "$cxx" >/dev/null; then
        alone "$cxx" c++ c++17 "$header"
    fi
done
command -v "$cxx" >/dev/null || echo "no C++ compiler: headers were compiled as C only"

[ $bad -eq 0 ] && echo "layering: all passed"
exit $bad
