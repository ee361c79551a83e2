#!/usr/bin/env bash
# install.sh BUILD_DIR: installs to a scratch prefix, builds programs against all libraries, once through pkg-config and
# once through CMake's exported targets, runs them, and runs the installed commands.
set -euo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >/dev/null

# Commands open plugins for GPUs by name: they have to look where these are.
for command in "$prefix"/bin/*; do
    readelf -d "$command" | grep -q 'RUNPATH.*\$ORIGIN/\.\./lib' || { echo "$command does not look into lib"; exit 1; }
done

cat >"$work/codec.c" <<'C'
#include <stdio.h>
#include <strait/codec.h>

int main(void)
{
    printf("libstrait-codec %s, %s\n", strait_version(), strait_codec_name(strait_codec_get(NULL)));
    return 0;
}
C
# With a daemon of its own, which is in libstrait-node: a pool that is plain memory is registered.
cat >"$work/client.c" <<'C'
#include <stdio.h>
#include <strait/strait.h>

static char pages[4][4096];

static int await_pool(struct strait_client *client)
{
    struct strait_event event;
    while (strait_wait(client, &event, 1, 10000) == 1)
        if (event.type == STRAIT_EVENT_POOL)
            return event.status;
    return STRAIT_ERR_AGAIN;
}

int main(void)
{
    struct strait_client_config config = {sizeof(config), NULL,
                                          "listen =\nmetrics =\nsocket =\narena-bytes = 8M\n"};
    struct strait_pool_region region = {.handle = STRAIT_HANDLE_POINTER, .device = -1, .pointer = pages,
                                        .page_stride = 4096, .page_count = 4, .rows = 1, .row_bytes = 4096};
    struct strait_pool_params params = {sizeof(params), &region, 1};
    struct strait_client *client;
    struct strait_pool *pool;
    int status = strait_client_open(&config, &client);
    if (status == STRAIT_OK)
        status = strait_pool_register(client, &params, &pool);
    if (status == STRAIT_OK)
        status = await_pool(client);
    printf("libstrait: a pool in an embedded daemon: %s\n", strait_status_string(status));
    if (status == STRAIT_OK)
        strait_client_close(client);
    return status != STRAIT_OK;
}
C
# Without NCCL, or with one that loads without a GPU.
cat >"$work/coll.c" <<'C'
#include <stdio.h>
#include <strait/collective.h>

int main(void)
{
    char text[4096];
    size_t size = strait_coll_report(NULL, text, sizeof(text));
    printf("libstrait-coll %s: %s", strait_coll_version(), text);
    return size == 0 || strait_coll_pin(NULL, STRAIT_COLL_RAW) != STRAIT_OK;
}
C
cat >"$work/checkpoint.c" <<'C'
#include <stdio.h>
#include <string.h>
#include <strait/checkpoint.h>

int main(int argc, char **argv)
{
    static float values[10000], loaded[10000];
    uint64_t shape = 10000;
    struct strait_checkpoint_save_options options = {.size = sizeof(options), .rank_count = 1};
    struct strait_checkpoint_tensor tensor = {
        .size = sizeof(tensor), .name = "t", .dtype = "F32", .shape = &shape, .data = values, .dims = 1};
    struct strait_checkpoint_commit_options commit = {.size = sizeof(commit), .rank_count = 1};
    struct strait_checkpoint_box box = {.data = loaded};
    struct strait_checkpoint_save *save;
    struct strait_checkpoint_reader *reader;
    char text[500] = "";
    for (int i = 0; i < 10000; i++)
        values[i] = 1.0f / (float)(i + 1);
    int status = argc == 2 ? strait_checkpoint_save_begin(argv[1], &options, &save, text, sizeof(text)) : -1;
    if (status == STRAIT_OK) {
        status = strait_checkpoint_save_add(save, &tensor);
        if (status == STRAIT_OK)
            status = strait_checkpoint_save_end(save, NULL);
        strait_checkpoint_save_free(save);
    }
    commit.flags = STRAIT_CHECKPOINT_REPLACE;
    if (status == STRAIT_OK)
        status = strait_checkpoint_commit(argv[1], &commit, text, sizeof(text));
    if (status == STRAIT_OK)
        status = strait_checkpoint_open(argv[1], &reader, text, sizeof(text));
    if (status == STRAIT_OK) {
        status = strait_checkpoint_load(reader, &box, 1, NULL, text, sizeof(text));
        strait_checkpoint_close(reader);
    }
    printf("libstrait-checkpoint: a save and a load: %s %s\n", strait_status_string(status), text);
    return status != STRAIT_OK || memcmp(values, loaded, sizeof(values)) != 0;
}
C
cat >"$work/ep.c" <<'C'
#include <stdio.h>
#include <string.h>
#include <strait/ep.h>

static int alone(void *context, const void *send, void *receive, size_t bytes)
{
    (void)context;
    memcpy(receive, send, bytes);
    return 0;
}

int main(void)
{
    static float row[16] __attribute__((aligned(16))) = {1, 2, 3}, sum[16] __attribute__((aligned(16)));
    struct strait_ep_config config = {.size = sizeof(config), .all_gather = alone, .rank_count = 1, .experts = 4,
                                      .tokens_max = 1, .row_bytes_max = sizeof(row), .topk_max = 1};
    struct strait_ep_handle_config shape = {.size = sizeof(shape), .layout = STRAIT_EP_RANK_MAJOR, .topk = 1};
    struct strait_ep_tensor rows = {row, sizeof(row), STRAIT_ELEMENT_FP32}, sums = {sum, sizeof(sum), STRAIT_ELEMENT_FP32};
    int32_t expert = 3;
    struct strait_ep_routing routing = {.size = sizeof(routing), .topk = &expert, .tokens = 1, .topk_bytes = 4};
    static float received[16] __attribute__((aligned(16)));
    struct strait_ep_tensor came = {received, sizeof(received), STRAIT_ELEMENT_FP32};
    struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = rows};
    struct strait_ep_dispatch_out out = {.size = sizeof(out), .tokens = came};
    struct strait_ep_combine_in back = {.size = sizeof(back), .tokens = came};
    struct strait_ep_combine_out home = {.size = sizeof(home), .tokens = sums};
    struct strait_ep_group *group;
    struct strait_ep_handle *handle;
    char text[200];
    int status = strait_ep_group_create(&config, &group, text, sizeof(text));
    if (status == STRAIT_OK)
        status = strait_ep_handle_create(group, &shape, &handle);
    if (status == STRAIT_OK)
        status = strait_ep_update(handle, &routing, NULL);
    if (status == STRAIT_OK)
        status = strait_ep_dispatch(handle, &in, &out, 0, NULL);
    if (status == STRAIT_OK)
        status = strait_ep_combine(handle, &back, &home, 0, NULL);
    printf("libstrait-ep: a token to its expert and back: %s %s\n", strait_status_string(status), text);
    return status != STRAIT_OK || memcmp(row, sum, sizeof(row)) != 0;
}
C
libdir=$(dirname "$(find "$prefix" -name libstrait-codec.so)")
export LD_LIBRARY_PATH=$libdir

echo "pkg-config:"
export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046
cc "$work/codec.c" -o "$work/codec" $(pkg-config --cflags --libs strait-codec)
# shellcheck disable=SC2046
cc "$work/client.c" -o "$work/client" $(pkg-config --cflags --libs strait)
# shellcheck disable=SC2046
cc "$work/coll.c" -o "$work/coll" $(pkg-config --cflags --libs strait-coll)
# shellcheck disable=SC2046
cc "$work/checkpoint.c" -o "$work/checkpoint" $(pkg-config --cflags --libs strait-checkpoint)
# shellcheck disable=SC2046
cc "$work/ep.c" -o "$work/ep" $(pkg-config --cflags --libs strait-ep)
"$work/codec"
"$work/client"
"$work/coll"
"$work/checkpoint" "$work/saved"
"$work/ep"
# The loader says what it cannot preload, and goes on.
[ -z "$(LD_PRELOAD=$libdir/strait/nccl/libnccl.so.2 true 2>&1)" ]
# It finds libstrait-ep by itself.
[ -z "$(env -u LD_LIBRARY_PATH LD_PRELOAD="$libdir/strait/nccl_ep/libnccl_ep.so.0" true 2>&1)" ]

echo "CMake:"
cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(use C)
find_package(strait REQUIRED)
add_executable(codec codec.c)
target_link_libraries(codec strait::codec)
add_executable(client client.c)
target_link_libraries(client strait::client)
add_executable(coll coll.c)
target_link_libraries(coll strait::coll)
add_executable(checkpoint checkpoint.c)
target_link_libraries(checkpoint strait::checkpoint)
add_executable(ep ep.c)
target_link_libraries(ep strait::ep)
CMAKE
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/codec"
unset LD_LIBRARY_PATH # CMake gives the programs a path to the libraries; libstrait finds libstrait-node beside itself
"$work/build/client"
"$work/build/coll"
"$work/build/checkpoint" "$work/saved"
"$work/build/ep"

"$prefix/bin/strait" --version
"$prefix/bin/straitd" --version
"$prefix/bin/straitd" --config "$prefix/etc/strait/straitd.conf" --print-config >/dev/null
"$prefix/bin/strait" demo --json >"$work/demo.json"
grep -q '"verified":.*true' "$work/demo.json"
echo "strait demo: verified"
for file in share/man/man1/strait.1 share/man/man8/straitd.8 lib/systemd/system/straitd.{service,socket}; do
    test -f "$prefix/$file"
done
for program in strait straitd; do # for shells
    bash -n "$prefix/share/bash-completion/completions/$program"
    test -s "$prefix/share/zsh/site-functions/_$program"
    test -s "$prefix/share/fish/vendor_completions.d/$program.fish"
done
# The socket unit opens what the options name by default.
socket=$(XDG_RUNTIME_DIR='' "$prefix/bin/straitd" --print-config | sed -n 's/^socket = //p')
grep -qx "ListenStream=$socket" "$prefix/lib/systemd/system/straitd.socket"
mapfile -t installed < <(find "$prefix/bin" "$libdir" -type f)
"$(dirname "$0")/hardening.sh" "${installed[@]}"
grep -q "ExecStart=.*/bin/straitd" "$prefix/lib/systemd/system/straitd.service"
! find "$prefix" -name '*internal*' | grep .
docs=$(dirname "$(find "$prefix" -name operations.md)")
grep -oE '\]\([^)]*\)' "$docs"/*.md | sed 's/:](/ /; s/[#)].*//' | while read -r file link; do
    case $link in
    '' | http*) ;;
    *) test -e "$docs/$link" || { echo "$file links to $link, which is not installed" && false; } ;;
    esac
done
grep -q '](security.md)' "$docs/operations.md"

# A second installation leaves the operator's configuration alone.
echo "# changed" >>"$prefix/etc/strait/straitd.conf"
cmake --install "$build" --prefix "$prefix" >/dev/null
grep -q "# changed" "$prefix/etc/strait/straitd.conf"
echo "installed libraries and commands are usable"
