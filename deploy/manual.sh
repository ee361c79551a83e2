#!/bin/sh
# manual.sh STRAITD MANUAL: prints the manual with its section OPTIONS made anew from the daemon's options.
#   deploy/manual.sh build/dev/daemon/straitd docs/straitd.8 >new && mv new docs/straitd.8
set -eu
"$1" --sample-config | awk '
    function text(line) { gsub(/\\/, "\\e", line); gsub(/-/, "\\-", line); return line }
    FNR == NR && /^# ---- / { sub(/^# ---- /, ""); sub(/ -+$/, ""); options = options ".SS " $0 "\n"; began = 1; next }
    FNR == NR && !began { next }
    FNR == NR && /^# / { help = help text(substr($0, 3)) "\n"; next }
    FNR == NR && /^#/ {
        name = $0
        sub(/^#/, "", name); sub(/ =.*/, "", name)
        value = $0
        sub(/^[^=]*= ?/, "", value)
        options = options ".TP\n.B " text(name) (value == "" ? "" : " \\fR(" text(value) ")") "\n" help
        help = ""
        next
    }
    FNR == NR { next }
    /^\.SH OPTIONS/ { print; printf "%s", options; inside = 1; next }
    inside && /^\.SH / { inside = 0 }
    !inside { print }
' - "$2"
