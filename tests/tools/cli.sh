#!/bin/sh
# cli.sh STRAIT SCRATCH: `strait encode`, `decode` and `inspect` from end to end. SCRATCH is overwritten.
set -eu
strait=$(realpath "$1")
slice=$(realpath "$(dirname "$0")/../data/kv-slice.safetensors")
rm -rf "$2"
mkdir -p "$2"
cd "$2"
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

same() { # FILE OTHER WHAT
    cmp -s "$1" "$2" || fail "$3: $1 and $2 differ"
}

# round_trip FILE OPTION...: comes back, is verified, and leaves nothing else behind
round_trip() {
    file=$1
    shift
    rm -f rt.*
    "$strait" encode -q "$@" "$file" rt.strait || fail "encode $* $file"
    "$strait" decode -q rt.strait rt.back || fail "decode of $* $file"
    "$strait" decode -q --verify rt.strait || fail "verify of $* $file"
    "$strait" inspect rt.strait >rt.inspect || fail "inspect of $* $file"
    same "$file" rt.back "round trip with '$*'"
    [ "$(ls rt.* | wc -l)" -eq 3 ] || fail "files left behind by $* $file: $(ls rt.*)"
}

# refused STATUS TEXT COMMAND ARG...: exits so, says so, and makes no file "none"
refused() {
    status=$1 text=$2
    shift 2
    code=0
    "$strait" "$@" >refused.out 2>refused.err || code=$?
    [ "$code" -eq "$status" ] || fail "exit status $code, not $status: $*"
    grep -q "^strait.*: .*$text" refused.err || fail "no '$text' from $*: $(cat refused.err)"
    [ -z "$(ls -d none* 2>/dev/null)" ] || fail "an output of $*"
}

json() { # COMMAND ARG...
    "$strait" "$@" >json.out 2>json.err || fail "exit status of $*"
    python3 -m json.tool <json.out >json.formatted || fail "no JSON from $*"
}

# ---- Inputs -------------------------------------------------------------------------------------------------------

data_begin=$((8 + $(od -An -tu8 -N8 "$slice")))
tail -c +$((data_begin + 1)) "$slice" >values
head -c 300000 /dev/urandom >noise
head -c 100000 /dev/zero >zeroes

header() { # JSON
    printf '%b' "$(printf '\\0%03o\\0%03o' $((${#1} % 256)) $((${#1} / 256)))\\0\\0\\0\\0\\0\\0"
    printf '%s' "$1"
}

entry() { # NAME DTYPE COUNT BEGIN END
    printf '"%s":{"dtype":"%s","shape":[%d],"data_offsets":[%d,%d]}' "$@"
}

# all kinds of tensors: odd lengths that put the next one at odd addresses, an empty one, gaps before, between and behind
{
    header "{$(entry m.layers.0.k BF16 40000 5 80005),$(entry b U8 3 80005 80008),$(entry m.layers.0.v BF16 7 80008 80022),\
$(entry empty F32 0 80022 80022),$(entry w F32 1000 80023 84023),$(entry h F16 8 84023 84039),$(entry q F8_E4M3 5 84039 84044),\
$(entry i I64 2 84044 84060),$(entry n.weight BF16 20001 84060 124062)}"
    head -c 130000 values
} >mixed.safetensors
{
    header '{}'
    printf xyz
} >no-tensors.safetensors
{
    header '{"x":'
    head -c 5000 values
} >broken.safetensors
head -c 60 "$slice" >cut.safetensors

# ---- Round trips --------------------------------------------------------------------------------------------------

round_trip "$slice"
for mode in auto raw top16 tiered; do
    round_trip "$slice" --mode $mode
    round_trip mixed.safetensors --mode $mode --page 4K --chunk 16K
done
for file in mixed.safetensors no-tensors.safetensors values noise zeroes; do
    round_trip $file
    round_trip $file --raw -T 1
    round_trip $file --page 16 --chunk 48 -T 3
    for type in bytes fp16 fp32 fp8_e4m3 fp8_e5m2; do
        round_trip $file --raw --dtype $type --page 80
    done
done
for size in 0 1 2 3 15 16 17 31 33 16383 16384 16385 32767 32768 32769 65537; do
    head -c $size values >sized
    round_trip sized
    round_trip sized --dtype bytes
done
round_trip broken.safetensors 2>/dev/null
round_trip cut.safetensors
"$strait" encode broken.safetensors rt.warned 2>&1 | grep -q warning || fail "no warning about a broken safetensors header"

# a chunk much larger than what decode holds at a time, of an odd length
head -c 140000001 /dev/zero >long
round_trip long --chunk 1G
round_trip long --chunk 1G --dtype fp32 --page 1000000
rm -f long

# tiny tensors beside a long page: a row for each block of it in every page would take twenty times what they hold
python3 - <<'PYTHON' || fail "could not make tiny tensors"
import json, struct
count, long = 20000, 16 << 20
entries = {f"t{i}": {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]} for i in range(count)}
entries["w"] = {"dtype": "BF16", "shape": [long // 2], "data_offsets": [2 * count, 2 * count + long]}
header = json.dumps(entries).encode()
with open("tiny.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + bytes(2 * count) + open("values", "rb").read(300000) * 56)
    file.truncate(8 + len(header) + 2 * count + long)
PYTHON
round_trip tiny.safetensors --page 16M --chunk 64M
[ "$(wc -c <rt.strait)" -lt "$(wc -c <tiny.safetensors)" ] || fail "rows of blocks that no page has: $(wc -c <rt.strait) bytes"
rm -f tiny.safetensors rt.*

# tensors that do not shrink, whose types take turns: chunks of their own would cost more than 1 % up to 16 KiB
python3 - <<'PYTHON' || fail "could not make tensors that take turns"
import json, random, struct

noise = random.Random(1)
types = (("U8", 1), ("BF16", 2), ("F32", 4), ("F16", 2), ("I64", 8))
for size in (64, 256, 504, 600, 1024, 1100, 1800, 2048, 4096, 8192, 12000, 16384):
    for kinds in (2, 5):
        count = max(12, 400000 // size)
        entries = {}
        for i in range(count):
            dtype, width = types[i % kinds]
            entries[f"t{i}"] = {"dtype": dtype, "shape": [size // 8 * 8 // width],
                                "data_offsets": [i * (size // 8 * 8), (i + 1) * (size // 8 * 8)]}
        header = json.dumps(entries).encode()
        with open(f"turn-{size}-{kinds}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + noise.randbytes(count * (size // 8 * 8)))
PYTHON
for file in turn-*.safetensors; do
    round_trip $file
    [ $(($(wc -c <rt.strait) * 200)) -le $(($(wc -c <$file) * 201 + 200000)) ] ||
        fail "$file grows to $(wc -c <rt.strait) of $(wc -c <$file) bytes"
    "$strait" encode -qf -T 3 - rt.strait <$file && cat $file | "$strait" encode -q -T 1 - - | cmp - rt.strait ||
        fail "$file by threads and from a pipe"
done
for options in "--mode tiered" "--mode raw" "--page 16 --mode base"; do
    round_trip turn-4096-5.safetensors $options
done
"$strait" encode -qf turn-1100-5.safetensors -o rt.strait
for number in 0 1 2 63 64 65 362; do
    "$strait" decode -q --tensor t$number rt.strait >other
    tail -c $(((363 - number) * 1096)) turn-1100-5.safetensors | head -c 1096 | cmp - other || fail "tensor $number of those that take turns"
done
# those that shrink keep chunks of their own
python3 - <<'PYTHON' || fail "could not make tensors of which some shrink"
import json, random, struct

noise, values = random.Random(1), open("values", "rb").read()
entries, data = {}, b""
for i in range(300):
    piece = noise.randbytes(1500) if i % 2 else values[3000 * (i % 40) : 3000 * (i % 40) + 3000]
    entries[f"t{i}"] = {"dtype": "U8" if i % 2 else "BF16", "shape": [len(piece) if i % 2 else len(piece) // 2],
                        "data_offsets": [len(data), len(data) + len(piece)]}
    data += piece
header = json.dumps(entries).encode()
open("turn-some.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + data)
PYTHON
round_trip turn-some.safetensors
[ "$(wc -c <rt.strait)" -le $(($(wc -c <turn-some.safetensors) * 91 / 100)) ] || fail "some that shrink: $(wc -c <rt.strait) of $(wc -c <turn-some.safetensors) bytes"
rm -f turn-*.safetensors rt.*

# ---- What the bytes may depend on ---------------------------------------------------------------------------------

"$strait" calibrate -q -o set "$slice"
for input in mixed.safetensors values "$slice"; do
    for set in "" --codebook=set; do
        "$strait" encode -qf $set -T 1 --chunk 16K --page 4K "$input" one
        for threads in 2 5; do
            "$strait" encode -qf $set -T $threads --chunk 16K --page 4K "$input" -o other
            same one other "$threads threads"
        done
        for codec in scalar avx2 avx512 neon; do
            "$strait" encode -qf --codec $codec --page 16 /dev/null -o other 2>/dev/null || continue
            "$strait" encode -qf $set --codec $codec --chunk 16K --page 4K "$input" -o other
            same one other "codec $codec"
            "$strait" decode -qf --codec $codec one -o other && same "$input" other "decoding with $codec"
        done
        "$strait" encode -q $set --chunk 16K --page 4K - - <"$input" >other
        same one other "a redirected input"
        cat "$input" | "$strait" encode -q $set --chunk 16K --page 4K - - | cat >other
        same one other "a pipe"
        cat one | "$strait" decode -q -T 3 - - | cat >other
        same "$input" other "decoding a pipe"
    done
done
cat cut.safetensors | "$strait" encode -q --codebook set - - 2>/dev/null | "$strait" decode -q - - >other
same cut.safetensors other "a pipe that ends early"
cat values | "$strait" encode -q - from-pipe && "$strait" decode -qf from-pipe -o other && same values other "a pipe to a file"
(
    dd bs=1 count=7 status=none >skipped
    "$strait" encode -q --raw - - | "$strait" decode -q - other2
) <values
tail -c +8 values | cmp -s - other2 || fail "an input that begins in the middle of a file"

# a file that tells no size, and files that change while they are read: encode waits for the reader of its output
if grep -q . /proc/version 2>/dev/null; then
    "$strait" encode -qf /proc/version rt.strait && "$strait" decode -qf rt.strait -o other || fail "a file without a size"
    cat /proc/version | cmp - other || fail "a file without a size"
    "$strait" encode -qf --codebook set - rt.strait </proc/version && "$strait" decode -qf rt.strait -o other ||
        fail "a redirected file without a size"
    cat /proc/version | cmp - other || fail "a redirected file without a size"
fi
waits_with_it() { # encode has the file open, and sleeps for a while: until somebody reads what it writes
    slept=0
    for _ in $(seq 1200); do
        slept=$((slept + 1))
        ls -l /proc/$writer/fd 2>/dev/null | grep -q changing && grep -q '^State:.S' /proc/$writer/status || slept=0
        [ $slept -lt 5 ] || return 0
        sleep 0.05
    done
    fail "encode does not wait for its reader"
}
mkfifo slow
for change in 'grew:printf xy >>changing' 'became shorter:truncate -s 5000 changing' \
    'was written to:printf xy | dd of=changing conv=notrunc bs=1 seek=100 status=none'; do
    cp values changing
    "$strait" encode -q --page 4K --chunk 16K changing slow 2>changing.err &
    writer=$!
    waits_with_it
    eval "${change#*:}"
    timeout 60 cat slow >other
    wait $writer && fail "a file that ${change%%:*} is encoded"
    grep -q "changing: ${change%%:*} while it was read" changing.err || fail "a file that ${change%%:*}: $(cat changing.err)"
done
rm slow

# ---- Standard descriptors that are closed ---------------------------------------------------------------------------

"$strait" encode -q - closed <&- 2>closed.err && fail "standard input that is closed is encoded"
grep -q 'Bad file descriptor' closed.err && [ ! -e closed ] || fail "standard input that is closed: $(cat closed.err)"
"$strait" encode -q values - >&- 2>closed.err && fail "values are written to a standard output that is closed"
grep -q 'Bad file descriptor' closed.err || fail "a standard output that is closed: $(cat closed.err)"
"$strait" encode -q values closed 2>&- && "$strait" decode -q closed - | cmp - values || fail "stderr that is closed"
rm closed closed.err

# ---- Names --------------------------------------------------------------------------------------------------------

cp values named
"$strait" encode -q named && [ -s named.strait ] || fail "the default output of encode"
rm named
"$strait" decode -q named.strait && same values named "the default output of decode"
refused 1 'exists' encode named
refused 1 'exists' decode named.strait
refused 1 'exists' decode named.strait values
same values named "after a refusal"
ln values hard
cp named.strait before
for out in values ./values hard; do
    refused 1 'is the input itself' encode -f values $out
done
"$strait" encode -f - - <values >>values 2>refused.err && fail "an input is written to its own end"
grep -q 'stdout: is the input itself' refused.err || fail "the input is stdout: $(cat refused.err)"
refused 1 'is the input itself' decode -f named.strait named.strait
cp "$slice" first.safetensors
cp "$slice" second.safetensors
refused 1 'no compressed file: .*-o' encode -f first.safetensors second.safetensors
same "$slice" second.safetensors "what a pattern has matched"
cp broken.safetensors second.bin
chmod 000 second.bin
refused 1 'no compressed file: .*-o' encode -f first.safetensors second.bin
chmod 600 second.bin
same broken.safetensors second.bin "what a pattern has matched and may not be read"
for other in broken.safetensors cut.safetensors zeroes noise values no-tensors.safetensors; do
    cp $other second.bin
    refused 1 'no compressed file: .*-o' encode -f first.safetensors second.bin
    same $other second.bin "what a pattern has matched, like $other"
done
for text in x 'STRCTURAL notes'; do
    printf %s "$text" >second.bin
    refused 1 'no compressed file: .*-o' encode -f first.safetensors second.bin
done
cp values unnamed
printf notes >unnamed.strait
refused 1 'no compressed file: .*-o' encode -f unnamed
"$strait" encode -qf unnamed -o unnamed.strait && "$strait" encode -qf unnamed || fail "-f keeps what was compressed"
: >second.bin
for size in 2000000 5; do # an empty file, and a compressed one, also of fewer bytes than a header
    "$strait" encode -qf values second.bin && "$strait" decode -q second.bin - | cmp - values || fail "-f replaces what may be lost"
    truncate -s $size second.bin
done
"$strait" encode -qf values second.bin || fail "-f replaces the beginning of a compressed file"
"$strait" encode -qf values -o second.safetensors && "$strait" decode -q second.safetensors -o other -f &&
    same values other "a safetensors file that -o names"
cp before second.strait
refused 1 'compressed file: .*-o' decode -f named.strait second.strait
same before second.strait "what a pattern has matched, decoded"
"$strait" decode -qf named.strait -o second.strait && same values second.strait "a compressed file that -o names"
refused 2 'IN and OUT' encode -o none values other
refused 2 'too many' decode -o none named.strait other
refused 2 'verify' decode --verify -o none named.strait
rm -f first.* second.*
rm hard
same values named "what was to replace itself" && same before named.strait "the same, decoded"
ln -sf named.strait link
"$strait" encode -qf noise link && [ -L link ] && "$strait" decode -q named.strait other3 && same noise other3 "a symbolic link"
"$strait" encode -q values /dev/null && [ -c /dev/null ] || fail "encoding to a device"

# one tensor
python3 - "$slice" mixed.safetensors <<'PYTHON' || fail "could not cut tensors"
import json, struct, sys

for number, name in enumerate(sys.argv[1:]):
    data = open(name, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    for tensor, entry in json.loads(data[8 : 8 + size]).items():
        if tensor != "__metadata__":
            begin, end = entry["data_offsets"]
            open(f"cut-{number}-{tensor}.bin", "wb").write(data[8 + size + begin : 8 + size + end])
PYTHON
for options in "" "--mode raw" "--page 4K --chunk 16K" "--codebook set --page 1M"; do
    "$strait" encode -qf $options "$slice" -o whole-0
    "$strait" encode -qf $options mixed.safetensors -o whole-1
    for cut in cut-*.bin; do
        tensor=${cut#cut-?-} number=${cut#cut-}
        "$strait" decode -q "whole-${number%%-*}" --tensor "${tensor%.bin}" | cmp - "$cut" || fail "$cut with '$options'"
    done
done
"$strait" encode -qf --page 4K --chunk 16K "$slice" -o whole-0
json decode --json -f -o other --tensor "$(ls cut-0-* | head -1 | sed 's/cut-0-//; s/.bin$//')" whole-0
[ "$(python3 -c 'import json; print(json.load(open("json.out"))["read_bytes"])')" -lt $(($(wc -c <whole-0) / 2)) ] ||
    fail "one tensor of many: $(cat json.out)"
refused 1 "has no tensor 'none'" decode --tensor none whole-0 none
refused 1 'not made of a safetensors file' decode --tensor none named.strait none
refused 1 'not a Strait file' decode --tensor none values none
refused 2 'without --verify' decode --tensor none --verify whole-0
cat whole-0 | "$strait" decode --tensor x - - 2>refused.err && fail "a tensor of a pipe"
grep -q 'is no file' refused.err || fail "a tensor of a pipe: $(cat refused.err)"
head -c $(($(wc -c <whole-0) - 1)) whole-0 >short
refused 1 'input ends early' decode --tensor none short none
rm -f cut-*.bin whole-* short

# folders and many files
mkdir -p model/parts empty-folder
for shard in 1 2; do cp "$slice" model/parts/shard-$shard.safetensors; done
cp values model/values
echo '{"x": 1}' >model/config.json
: >model/empty
ln -s parts/shard-1.safetensors model/link.safetensors
"$strait" encode -q --output-dir model/packed model || fail "a folder"
"$strait" encode -q --output-dir model/packed model 2>/dev/null && fail "a folder over what is there"
[ "$(ls -R model/packed | grep -c 'strait$')" -eq 3 ] || fail "files of a folder: $(ls -R model/packed)"
for copied in values config.json empty; do same model/$copied model/packed/$copied "a file of a folder"; done
"$strait" decode -q --output-dir back model/packed && rm -r model/packed && diff -r model back || fail "a folder and back"
for options in "--dtype bf16" "--raw"; do
    "$strait" encode -q $options --output-dir packed model && [ "$(ls -R packed | grep -c 'strait$')" -eq 6 ] ||
        fail "all files of a folder: $(ls -R packed)"
    rm -r back packed
    mkdir back
done
# what cannot be read, in a folder or by name, keeps nothing else from being written
chmod 640 model/config.json
ln -s nowhere model/dangling
ln -s turning model/turning
ln -s .. model/parts/up
echo junk >model/junk.strait
"$strait" encode --output-dir packed missing model/parts/shard-1.safetensors model nowhere 2>refused.err && fail "a folder with bad files"
[ "$(ls -R packed | grep -c 'strait$')" -eq 5 ] || fail "beside bad files: $(ls -R packed)"
for text in 'missing: No such file' 'nowhere: No such file' 'model/dangling: No such file' 'model/turning: ' \
    'parts/up: is a folder inside itself' 'config.json: 9 bytes, copied'; do
    grep -q "$text" refused.err || fail "no '$text' from a folder with bad files: $(cat refused.err)"
done
[ "$(stat -c %a packed/config.json)" = 640 ] || fail "a copy gets other permissions"
echo other >packed/config.json
"$strait" encode -q --output-dir packed model 2>refused.err && fail "a copy over what is there"
grep -q 'packed/config.json: exists; -f' refused.err && [ "$(cat packed/config.json)" = other ] || fail "a copy over what is there: $(cat refused.err)"
"$strait" encode -qf --output-dir packed model 2>/dev/null && fail "a folder with bad files"
same model/config.json packed/config.json "a copy that replaces"
rm model/dangling model/turning model/parts/up model/junk.strait packed/shard-1.safetensors.strait
"$strait" decode -q --output-dir back packed 2>refused.err && rm back/junk.strait && diff -r model back || fail "beside bad files, and back: $(cat refused.err)"
mkdir model/same
echo x >model/same/x
refused 1 'is the output folder itself' encode --output-dir model/same model/same
rm -r packed model/same
"$strait" encode -qf --output-dir packed model/parts/shard-1.safetensors model/parts/shard-2.safetensors values &&
    [ "$(ls packed | wc -l)" -eq 3 ] || fail "several files: $(ls packed)"
json encode -f --json --output-dir packed values
echo junk >packed/a.strait
"$strait" decode -q --output-dir apart packed 2>refused.err && fail "a folder with a bad file"
[ "$(ls apart | tr '\n' ' ')" = "shard-1.safetensors shard-2.safetensors values " ] || fail "beside a bad file: $(ls apart)"
grep -q 'a.strait: not a Strait file' refused.err || fail "a bad file: $(cat refused.err)"
refused 1 'would hold both' encode --output-dir packed2 model/values values
refused 1 'does not end in' decode --output-dir packed2 values
refused 1 'no file for this' encode --output-dir packed2 empty-folder
refused 1 'No such file' encode --output-dir packed2 values missing
refused 2 'output-dir takes any number' encode values noise zeroes
refused 2 'for several' encode --output-dir packed2 -o none values
refused 2 'verify' decode --verify --output-dir packed2 named.strait
rm -rf model back packed packed2 apart empty-folder

refused 1 'is compressed already; --raw' encode named.strait none
"$strait" encode -q --raw named.strait -o other -f && "$strait" decode -q other - | cmp - named.strait || fail "compressed twice"
"$strait" inspect - <named.strait | grep -q '^stdin: Strait file' || fail "inspect of stdin"
cat named.strait | "$strait" inspect - | grep -q '^stdin: Strait file' || fail "inspect of a pipe"
for file in /sys/kernel/mm/transparent_hugepage/enabled /proc/self/status; do
    [ -r $file ] && { "$strait" encode -q --dtype bytes $file - | "$strait" decode -qf - -o other && [ -s other ] || fail "$file"; }
done

# names of tensors: a terminal does not obey them, and JSON stays JSON
python3 - <<'PYTHON'
import json, struct

raw = '{"a\\u001b]0;title\\u0007b\\u009bc":{"dtype":"U8","shape":[5000],"data_offsets":[0,5000]},'
raw = raw.encode() + b'"\xff\xfe\xc3\x28":{"dtype":"BF16","shape":[50000],"data_offsets":[5000,105000]},'
raw += '"größe\\\\x41":{"dtype":"BF16","shape":[50000],"data_offsets":[105000,205000]},'.encode()
raw += b'"zero":{"dtype":"\\u001b[8m","shape":[5000],"data_offsets":[205000,210000]},'
raw += '"turn\\u202e\u2066d\\u009b\u0085":{"dtype":"BF16","shape":[20000],"data_offsets":[210000,250000]},'.encode()
raw += b'"zero\\u0000":{"dtype":"U8","shape":[5000],"data_offsets":[250000,255000]}}'
data = open("values", "rb").read(255000)
open("names.safetensors", "wb").write(struct.pack("<Q", len(raw)) + raw + data)
PYTHON
"$strait" encode -qf names.safetensors -o other && "$strait" inspect --pages other >inspect.out || fail "odd names"
grep -q 'a\\x1b\]0;title\\x07b' inspect.out && grep -q '\\xff\\xfe' inspect.out && grep -q größe inspect.out ||
    fail "names for people: $(cat inspect.out)"
grep -q 'zero$' inspect.out && grep -q 'zero␀$' inspect.out || fail "names with a zero character: $(cat inspect.out)"
grep -q 'turn\\xe2\\x80\\xae\\xe2\\x81\\xa6d\\xc2\\x9b\\xc2\\x85$' inspect.out || fail "names that turn text: $(cat inspect.out)"
LC_ALL=C grep -q "$(printf '\033')" inspect.out && fail "a terminal obeys the name of a tensor"
json inspect --json --pages other
python3 - <<'PYTHON' || fail "names in JSON"
import json

text = open("json.out", encoding="utf-8").read()
assert not any(c in text for c in "\x85\x9b\u202e\u2066\u2028"), text
names = {page["tensor"] for page in json.loads(text)["page_list"]}
assert {"turn\u202e\u2066d\x9b\x85", "zero", "zero\u2400", "größe\\x41"} <= names, names
PYTHON
[ "$("$strait" decode -q --tensor zero␀ other - | wc -c)" -eq 5000 ] || fail "a tensor whose name has a zero character"
"$strait" decode -f other -o names.back 2>report.out && cmp names.back names.safetensors || fail "odd names, back"
"$strait" encode -f names.safetensors -o other 2>>report.out || fail "odd names"
"$strait" decode --tensor zero other - 2>>report.out >/dev/null || fail "the type of a tensor"
LC_ALL=C grep -q "$(printf '\033')" report.out && fail "a terminal obeys the type of a tensor"
# names of files
odd=$(printf 'a\033[31mb\nc\342\200\256')
cp names.safetensors "$odd"
cp set "$odd.set"
"$strait" calibrate -q --partial -o "$odd.partial" "$slice"
"$strait" encode "$odd" 2>report.out && "$strait" decode -f "$odd.strait" 2>>report.out || fail "a file with an odd name"
"$strait" decode --tensor zero "$odd.strait" - 2>>report.out >/dev/null || fail "a tensor of a file with an odd name"
"$strait" encode "$odd" 2>>report.out && fail "a file with an odd name is replaced"
for file in "$odd.strait" "$odd.set" "$odd.partial"; do "$strait" inspect "$file" >>report.out || fail "inspect of an odd name"; done
"$strait" codebook diff "$odd.set" set >>report.out
[ "$(grep -c 'a\\x1b\[31mb\\x0ac\\xe2\\x80\\xae' report.out)" -ge 8 ] || fail "names of files: $(cat report.out)"
LC_ALL=C grep -q "$(printf '\033')" report.out && fail "a terminal obeys the name of a file"
rm -f names.safetensors names.back "$odd" "$odd".*
cp values other

# ---- Permissions, and names that are taken meanwhile ---------------------------------------------------------------

cp values secret
chmod 600 secret
"$strait" encode -q secret && [ "$(stat -c %a secret.strait)" = 600 ] || fail "a secret is told: encode"
rm secret
"$strait" decode -q secret.strait && [ "$(stat -c %a secret)" = 600 ] || fail "a secret is told: decode"
chmod 640 secret.strait
"$strait" encode -qf secret && [ "$(stat -c %a secret.strait)" = 640 ] || fail "a replaced file gets other permissions"
mkfifo slow
"$strait" encode -q --codebook set slow meanwhile 2>meanwhile.err &
writer=$!
exec 9>slow
sleep 0.5
echo other >meanwhile
exec 9>&-
wait $writer && fail "a file that appeared meanwhile is replaced"
[ "$(cat meanwhile)" = other ] && grep -q 'meanwhile: exists' meanwhile.err || fail "meanwhile: $(cat meanwhile.err)"
[ "$(ls -d meanwhile*)" = "meanwhile
meanwhile.err" ] || fail "left behind: $(ls -d meanwhile*)"

# ---- Refusals -----------------------------------------------------------------------------------------------------

refused 2 'command' nonsense
refused 2 'which file' encode
refused 2 'which file' decode
refused 2 'FILE' inspect
refused 2 'takes IN and OUT' encode a b c
refused 2 'too many' decode a b c
refused 2 'too many' decode --verify named.strait none
refused 2 'option' encode --nonsense values none
refused 2 'mode' encode --mode best values none
refused 2 'dtype' encode --dtype bf15 values none
refused 2 'page' encode --page 24 values none
refused 2 'page' encode --page 0 values none
refused 2 'page' encode --page 32M values none
refused 2 'page' encode --page 64K --chunk 32K values none
refused 2 'chunk' encode --chunk 2G values none
refused 2 '-T' encode -T x values none
refused 2 '-T' decode -T 5000 named.strait none
refused 2 'codec' encode --codec z80 values none
refused 2 'class' encode --class nonsense values none
refused 2 'name' decode values
refused 1 'No such file' encode missing none
refused 1 'No such file' decode missing none
refused 1 'No such file' inspect missing
refused 1 'Is a directory' encode . none
refused 1 'Is a directory' decode . none
refused 1 'No such file' encode --codebook missing values none
refused 1 'not a codebook set' encode --codebook values values none
refused 1 'No such file' encode values missing/none
refused 1 'No such file' decode named.strait missing/none
refused 1 'Not a directory' encode values values/none
refused 1 'not a Strait file' decode values none
refused 1 'truncated' decode /dev/null none
refused 1 'neither' inspect values
refused 1 'space' encode -f values /dev/full
refused 1 'space' decode -f named.strait /dev/full
if [ "$(id -u)" -ne 0 ]; then
    mkdir -p locked
    chmod 555 locked
    refused 1 'Permission denied' encode values locked/none
fi
"$strait" >help.out 2>&1 && fail "strait without a command succeeds"
for command in "" encode decode inspect calibrate demo status; do
    "$strait" $command --help | grep -q 'usage: strait' || fail "help of '$command'"
done
for word in --version -V version; do
    "$strait" $word | grep -q '^strait [0-9]' || fail "the version by $word"
done
[ "$("$strait" help)" = "$("$strait" --help)" ] || fail "help"
[ "$("$strait" help decode)" = "$("$strait" decode --help)" ] || fail "help of a command"
refused 2 "no command 'encod': is 'encode' meant" encod values
refused 2 "no command 'stauts': is 'status' meant" stauts
refused 2 "no command 'compress'; " compress
"$strait" inspect named.strait >/dev/full 2>refused.err && fail "a full disk behind stdout"

# ---- Damage -------------------------------------------------------------------------------------------------------

# damaged FILE: decode fails with a message and makes no file, and so does verify
damaged() {
    refused 1 "$2" decode "$1" none
    refused 1 "$2" decode --verify "$1"
    "$strait" decode "$1" - >damaged.out 2>damaged.err && fail "$1 is decoded to stdout"
    return 0
}

flip() { # FILE OFFSET: changes one byte
    byte=$(od -An -tu1 -j"$2" -N1 "$1")
    printf '%b' "\\0$(printf %03o $(((byte + 1 + $2 % 255) % 256)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

head -c 20000 values >small.values
"$strait" encode -q --chunk 16K --page 4K small.values small
"$strait" encode -q --chunk 16K --page 4K mixed.safetensors tensors
for file in small tensors; do
    size=$(wc -c <$file)
    offset=0
    while [ $offset -lt $size ]; do
        cp $file bad
        flip bad $offset
        damaged bad 'bad: .'
        offset=$((offset + 1 + (offset < 600 ? 12 : size / 40)))
    done
    for back in 1 8 9 16 17 32 33 40 41 47 48 49 64 70; do
        cp $file bad
        flip bad $((size - back))
        damaged bad 'bad: .'
        refused 1 'bad: .' inspect bad
    done
    length=0
    while [ $length -lt $size ]; do
        head -c $length $file >bad
        damaged bad truncated
        refused 1 . inspect bad
        length=$((length + 1 + (length < 100 ? 12 : size / 40)))
    done
    head -c $((size - 1)) $file >bad
    damaged bad truncated
    (cat $file && printf x) >bad
    damaged bad 'bytes follow'
    cat $file $file >bad
    damaged bad 'bytes follow'
done

# the message names the chunk, the page and the bytes; verify goes on to name the next
json inspect --json --pages small
python3 - <<'PYTHON' || fail "could not damage two pages"
import json
pages = json.load(open("json.formatted"))["page_list"]
assert len(pages) == 5 and pages[4]["chunk"] == 1
data = bytearray(open("small", "rb").read())
at = data.index(b"STRC")
for page, chunk in ((1, 0), (0, 1)):  # a byte of sign and mantissa in each
    chunk_at = at if chunk == 0 else data.index(b"STRC", at + 4)
    row = int.from_bytes(data[chunk_at + 48 + 16 * page:][:4], "little")
    data[chunk_at + (row >> 4) * 16] ^= 0x55
open("bad", "wb").write(data)
PYTHON
refused 1 'chunk 0 .*page 1, bytes 4096-8191 of the original: checksum mismatch' decode bad none
refused 1 'chunk 0 .*page 1, bytes 4096-8191 of the original: checksum mismatch' decode --verify bad
grep -q 'chunk 1 .*page 0, bytes 16384-19999 of the original' refused.err || fail "verify stops at the first bad page"

for run in "--verify bad" "-f bad other"; do
    # shellcheck disable=SC2086 # split into arguments
    "$strait" decode --json $run >json.out 2>/dev/null && fail "decode --json of damage: $run"
    python3 - "$run" <<'PYTHON' || fail "JSON of damage: decode $run"
import json, sys
report = json.load(open("json.out"))
assert report["verified"] is False and len(report["failures"]) == (2 if "verify" in sys.argv[1] else 1)
assert "bytes 4096-8191 of the original: checksum mismatch" in report["failures"][0]
PYTHON
done

# whole chunks out of place
python3 - <<'PYTHON' || fail "could not move chunks"
data = open("tensors", "rb").read()
first = data.index(b"STRC")
size = int.from_bytes(data[first + 16:first + 20], "little")
second = first + size
size2 = int.from_bytes(data[second + 16:second + 20], "little")
end = second + size2
open("bad-swapped", "wb").write(data[:first] + data[second:end] + data[first:second] + data[end:])
open("bad-dropped", "wb").write(data[:first] + data[second:])
open("bad-doubled", "wb").write(data[:second] + data[first:])
open("chunk", "wb").write(data[first:second])
PYTHON
for file in bad-swapped bad-dropped bad-doubled; do
    damaged $file 'footer\|XXH3'
done

# a signal leaves nothing behind, even one that cannot be caught, where files without names are to be had
mkfifo fifo
mkdir ends
unnamed() { python3 -c 'import os; os.open(".", os.O_TMPFILE | os.O_RDWR)' 2>/dev/null; }
for signal in TERM USR2 KILL; do
    [ $signal = TERM ] || unnamed || continue
    "$strait" encode -q --codebook set fifo ends/none &
    writer=$!
    exec 9>fifo
    cat values >&9
    sleep 0.2
    kill -$signal $writer
    wait $writer 2>/dev/null && fail "encode succeeds after $signal"
    exec 9>&-
    [ -z "$(ls -A ends)" ] || fail "encode leaves after $signal: $(ls -A ends)"
done

# the longest names there are, new and replaced
long=$(printf '%0255d' 0)
for option in -q -qf; do
    "$strait" encode $option values -o "$long" && "$strait" decode -qf "$long" -o other && same values other "a long name"
done
rm -f "$long"

# ---- JSON ---------------------------------------------------------------------------------------------------------

json encode -f --json mixed.safetensors tensors
grep -q '"dtype": "F32"' json.formatted || fail "no data types in JSON"
[ ! -s json.err ] || fail "encode --json talks: $(cat json.err)"
json decode -f --json tensors -o other
json decode --verify --json tensors
grep -q '"verified": true' json.formatted || fail "decode --verify --json of a sound file"
for file in tensors chunk set; do
    json inspect --json $file
    json inspect --json --pages $file
    "$strait" inspect --pages $file >inspect.out || fail "inspect --pages $file"
done
for file in tensors chunk; do
    json inspect --json $file
    grep -q '"format": 1,' json.formatted || fail "format of $file: $(head -5 json.formatted)"
    "$strait" inspect $file | grep -q ', format 1$' || fail "inspect $file names no format"
done
"$strait" calibrate -q --partial -o partial "$slice"
json inspect --json partial
"$strait" inspect partial >inspect.out || fail "inspect of a partial file"
"$strait" encode --json values - 2>json.err | "$strait" decode --json - - 2>json.err2 | cmp - values || fail "JSON beside data"
python3 -m json.tool <json.err >json.formatted || fail "JSON of encode on stderr"
python3 -m json.tool <json.err2 >json.formatted || fail "JSON of decode on stderr"
"$strait" encode -f values -o other 2>report.out && grep -q 'ratio 1.[34]' report.out || fail "the report: $(cat report.out)"

cat noise | "$strait" encode --dtype bytes --codebook set - - 2>report.out >other
grep -q 'carried uncompressed (not BF16, FP16, FP32 or FP8): 300000 bytes' report.out || fail "bytes of a pipe: $(cat report.out)"
json encode -f --json --dtype bytes noise -o other
grep -q '"compressed": false' json.formatted || fail "no plain data type in JSON"

# ---- What auto chooses ------------------------------------------------------------------------------------------

python3 - <<'PYTHON' || fail "could not make tensors"
import json, random, struct

random.seed(1)
gauss = [random.gauss(0, 1) for _ in range(1 << 15)]


def bf16(scale, count, begin=0):
    return b"".join(struct.pack("<f", scale * x)[2:] for x in gauss[begin : begin + count])


def write(name, tensors):
    entries, at = {}, 0
    for tensor, dtype, size, data in tensors:
        entries[tensor] = {"dtype": dtype, "shape": [len(data) // size], "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(entries).encode()
    with open(name, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"".join(data for *_, data in tensors))


write("float32.safetensors", [("w", "F32", 4, b"".join(struct.pack("<f", x) for x in gauss))])
write("float16.safetensors", [("w", "F16", 2, b"".join(struct.pack("<e", x) for x in gauss))])
write("scales.safetensors", [(f"a.layers.0.w{i}", "BF16", 2, bf16(2.0 ** -(4 * i), 1 << 14)) for i in range(8)])
write("wide.safetensors", [("w", "BF16", 2, b"".join(bf16(2.0 ** -(3 * i), 1 << 12) for i in range(8)))])
small = [(f"a.layers.{i}.norm", "BF16", 2, bf16(1, 16, i % 30000)) for i in range(20000)]
write("small.safetensors", small)
turns = []
for i in range(3000):
    turns += [(f"{i}.weight", "F32", 4, bf16(1, 32, i)), (f"{i}.steps", "I64", 8, bytes(8)), (f"{i}.h", "BF16", 2, bf16(1, 20))]
write("turns.safetensors", turns)
write("medium.safetensors", [(f"a.layers.{i}.w", "BF16", 2, bf16(1, 1800, i % 30000)) for i in range(2000)])
# values that were of a narrower type before, and squares
words = open("values", "rb").read()
values = struct.unpack(f"<{len(words) // 2}f", b"".join(b"\0\0" + words[i : i + 2] for i in range(0, len(words) - 1, 2)))
halves = struct.pack(f"<{len(values)}e", *values)
write("narrow16.safetensors", [("k", "F16", 2, halves)])
write("narrow32.safetensors", [("w", "F32", 4, b"".join(struct.pack("<f", struct.unpack("<e", struct.pack("<e", x))[0]) for x in gauss))])
write("squares.safetensors", [("v", "F32", 4, b"".join(struct.pack("<f", x * x) for x in gauss))])
PYTHON
size() { wc -c <"$1"; }
for kind in "float32 84" "float16 87" "scales 68" "small 101" "turns 101" "medium 75" "wide 76" "narrow16 69" "narrow32 50" "squares 86"; do
    set -- $kind
    round_trip "$1.safetensors"
    [ "$(size rt.strait)" -le $(($(size "$1.safetensors") * $2 / 100)) ] ||
        fail "auto makes $(size rt.strait) bytes of $(size "$1.safetensors") in $1.safetensors"
    round_trip "$1.safetensors" --codebook set
    "$strait" encode -qf --mode base "$1.safetensors" -o other
    [ "$(size rt.strait)" -le $(($(size other) * 1003 / 1000 + 10240)) ] || # the set is in the file
        fail "auto with a set makes $(size rt.strait) bytes of $1.safetensors, base $(size other)"
    for mode in base split parts; do # auto is not larger than any, but for choices between tensors in one chunk
        "$strait" encode -qf --mode $mode "$1.safetensors" -o other
        "$strait" encode -qf "$1.safetensors" -o rt.strait
        [ "$(size rt.strait)" -le $(($(size other) * 1006 / 1000)) ] || fail "$1.safetensors: mode $mode is smaller than auto: $(size other), $(size rt.strait)"
    done
done
# a set of other values: no table of it fits, and base is taken instead
"$strait" calibrate -q -f -o other.set wide.safetensors
"$strait" encode -f --codebook other.set "$slice" -o rt.strait 2>report.out
grep -q 'base instead of tables: .*warning: the codebook set does not fit' report.out || fail "drift: $(cat report.out)"
json encode -f --json --codebook other.set "$slice" -o rt.strait
grep -q '"codebook_fits": false' json.formatted || fail "drift in JSON: $(cat json.formatted)"
"$strait" encode -f --codebook set "$slice" -o rt.strait 2>report.out
grep -q warning report.out && fail "a set that fits: $(cat report.out)"
"$strait" calibrate -q --raw -o scaled.set zeroes values
"$strait" encode -f --mode tiered --codebook scaled.set "$slice" -o rt.strait 2>report.out
grep -q 'tables spend over 5% more than the set expects' report.out || fail "bits of a table: $(cat report.out)"
json encode -f --json --codebook set "$slice" -o rt.strait
python3 - <<'PYTHON' || fail "bits that tables spend: $(cat json.formatted)"
import json

tables = json.load(open("json.out"))["tables"]
assert tables and all(0.98 < table["bits"] / table["expected_bits"] < 1.03 for table in tables)
PYTHON
grep -q '"codebook_fits": true' json.formatted || fail "a set that fits, in JSON: $(cat json.formatted)"
"$strait" encode -qf --codebook other.set "$slice" -o rt.strait
[ "$(size rt.strait)" -le $(($(size "$slice") * 70 / 100)) ] || fail "a set that does not fit: $(size rt.strait) bytes"
for options in "--mode top16 --dtype fp32" "--mode tiered --dtype fp8" "--mode split --dtype bytes" "--mode top16 --dtype fp8"; do
    refused 2 'codes no values of this input' encode $options values none
done
refused 2 'codes no values of this input' encode --mode tiered float32.safetensors none
tail -c 65536 float32.safetensors >plain
"$strait" encode -f plain -o other 2>report.out
grep -q 'nothing is gained as values of type bf16; --dtype says' report.out || fail "no hint at --dtype: $(cat report.out)"
for options in "--dtype fp32" "--dtype bytes" "--mode raw"; do
    "$strait" encode -f $options plain -o other 2>report.out
    grep -q 'nothing is gained' report.out && fail "a hint at --dtype with $options"
done
rm plain
# a header that ends beyond the file
{
    printf '\020\047\0\0\0\0\0\0'
    tail -c +9 float32.safetensors | head -c 5000
} >short.safetensors
"$strait" encode -f short.safetensors -o other 2>report.out || fail "a file that is cut off in its header"
grep -q 'warning: looks like a safetensors file, but' report.out || fail "a header that is cut off: $(cat report.out)"
"$strait" decode -q other - | cmp - short.safetensors || fail "a file that is cut off in its header, back"
rm short.safetensors
rm -f float32.safetensors float16.safetensors scales.safetensors small.safetensors turns.safetensors medium.safetensors narrow*.safetensors squares.safetensors rt.*

# ---- Modes of other types ---

for type in bf16 fp16 fp32 fp8_e4m3 fp8_e5m2; do
    for mode in base split parts; do
        "$strait" encode -q -f --mode $mode --dtype $type values -o other && "$strait" decode other - 2>/dev/null |
            cmp - values || fail "$type in mode $mode"
    done
done
"$strait" encode -f --mode base values -o other 2>report.out
grep -q 'ratio 1.4' report.out || fail "values in mode base: $(cat report.out)"
grep -q codebook report.out && fail "mode base has a codebook: $(cat report.out)"
"$strait" encode -f --mode base --codebook set values -o other 2>report.out && fail "a codebook for mode base"
grep -q 'no use for a codebook' report.out || fail "a codebook for mode base: $(cat report.out)"
cat values | "$strait" encode -q --mode base - - | "$strait" decode -q - - | cmp - values || fail "mode base in a pipe"
"$strait" encode -f --mode split mixed.safetensors -o other 2>report.out || fail "mixed types in mode split"
grep -q 'carried uncompressed (not BF16, FP16, FP32 or FP8)' report.out || fail "what mode split carries: $(cat report.out)"
"$strait" decode -q other - | cmp - mixed.safetensors || fail "mixed types in mode split and back"
LC_ALL=C tr -d '\020-\377' <noise >noise.fp8_e5m2 # of four exponents
for kind in "auto fp16 split" "auto bf16 tiered" "base bf16 base" "base fp8_e5m2 fp8" "parts bf16 parts" "raw bf16 raw" "top16 bf16 top16"; do
    # shellcheck disable=SC2086 # split into mode, type and block mode
    set -- $kind
    [ -e noise.$2 ] || cp values noise.$2
    "$strait" encode -f --mode $1 --dtype $2 noise.$2 -o other 2>report.out && "$strait" decode other - 2>>report.out >/dev/null
    [ "$(grep -c "^  blocks: $3[a-z_]* [0-9.]*%" report.out)" -eq 2 ] && { [ $3 = tiered ] || ! grep -q tiered report.out; } ||
        fail "blocks of $2 in mode $1: $(cat report.out)"
done
rm noise.*
json decode -f --json other -o rt.back
python3 -c 'import json; r = json.load(open("json.out")); m = r["mode_bytes"]; assert sum(m.values()) == r["original_bytes"] and m["tiered"] == 0 < m["top16_escapes"] + m["top16"], m' ||
    fail "bytes by block mode: $(cat json.out)"
"$strait" encode -q -f --mode base --dtype fp32 values -o other && "$strait" inspect other >inspect.out
grep -q '^  split  *blocks in [1-9]' inspect.out || fail "block modes: $(cat inspect.out)"
for options in "" "--codebook set"; do
    "$strait" encode -q -f --mode parts $options values -o other && "$strait" inspect other >inspect.out
    grep -q '^  parts  *blocks in [1-9]' inspect.out || fail "block modes by parts: $(cat inspect.out)"
    "$strait" decode -q other - | cmp - values || fail "mode parts $options"
done

# ---- The sample of bench -----------------------------------------------------------------------------------------

bench() { # STRAIT
    "$1" bench codec --size 1M --repeats 1 --mode raw --variant scalar >bench.out 2>bench.err
}

mkdir -p lonely installed/bin installed/share/strait sources/build/dev/tools sources/tests/data
for folder in lonely installed/bin sources/build/dev/tools; do
    cp "$strait" $folder/strait
done
cp "$slice" installed/share/strait
cp "$slice" sources/tests/data
bench lonely/strait && fail "a bench with a sample from elsewhere"
grep -q 'no --input' bench.err || fail "a bench without a sample: $(cat bench.err)"
bench installed/bin/strait || fail "the sample beside an installed program: $(cat bench.err)"
bench sources/build/dev/tools/strait || fail "the sample in the sources: $(cat bench.err)"
for type in fp8_e4m3:1.1[5-9] fp8_e5m2:1.[34]; do
    sources/build/dev/tools/strait bench codec --dtype ${type%:*} --size 1M --repeats 1 --mode base --variant scalar >bench.out
    grep -q "^strait .* ${type#*:}[0-9]* .* ok " bench.out || fail "a bench of $type: $(cat bench.out)"
done
rm -r lonely installed sources

[ $failed -eq 0 ] && echo "cli: all passed"
exit $failed
