#!/usr/bin/env python3
"""Files of a folder call downwards only: each folder's sources in order, from the bottom to the top, as data."""
import pathlib
import re
import sys

ORDER = {
    "kernels": "status codebook codebook_why value_scalar value_avx2 value_avx512 block_scalar block_avx2 block_avx512 block_neon block_fp8 block_parts"
               " block_typed pages chunk codec container",
    "proto": "trace message message_table text blob reshape channel ring_layer socket_ring",
    "client": "events outbox gpu peer transfer serve pool connection client",
    "tools": "util coll_report files report input batch pipeline kinds calibrate tally decode_file tensor_file encode_file"
             " ask node_sample sample top_table terminal doctor doctor_host doctor_daemon cmd_calibrate cmd_codebook cmd_collectives cmd_decode cmd_encode cmd_inspect checkpoint_open checkpoint_survey checkpoint_picture checkpoint_inspect checkpoint_verify checkpoint_diff checkpoint_export checkpoint_convert checkpoint_clean cmd_checkpoint cmd_status cmd_top cmd_doctor completion main",
    "collective": "settings nccl rendezvous rdv_server comm group join report report_file hooks exports reduce check_header",
    "collective/engine": "ccomm tally liveness budget compare levels consensus peer proxy plan codec_rate hosts shm measure timing local op overlap decide join figures plugin",
    "checkpoint": "plugin boxes format group message storage folder crew rounding encode_host writer pipeline catalog packer save commit"
                  " walk reader_file reader newest load_plan batch target_host chunk_reader faults load verify",
    "ep": "arena share heap host_sync host_sum host_quantize host_route host_code host_move host_reduce host proxy group handle",
    "ep/cuda": "memory side_stream coder run plugin",
    "ep/nccl_ep": "device arguments handle group step",
    "bench": "bench table fp8 data device process codec codec_device daemons moves transfer hosts pairs transfer_device ranks collective_rank collective checkpoint ep_reference ep_rank ep ep_device"
             " demo_layout demo_report demo",
    "transport": "core loopback shm_hello shm tcp_stream tcp_accept tcp rank_address rank_listener ucx_setup ucx transport nccl_wire nccl_engine nccl",
    "daemon/protocol": "leg page_set coverage readiness segments sink_leg source_leg",
    "daemon/base": "address address_list lock inherited listen auth credentials tls seal hello fault log watch process metrics option_table http options tenants service_manager",
    "daemon/memory": "arena limits codebooks codebook_parts job job_pages pool view count",
    "daemon/device/cuda": "failure stage batch copy memory plugin",
    "daemon/peers": "connection poll gpu_link transports peer_link dial peer listener peers",
    "daemon": "peer_figures peer_codebooks coding_runs policy gpu_links gpu_path session notes sampling request span withdraw part descriptions sink sink_peer source local expectation"
              " offer pending serve match exchange report handover client_requests clients node reload check probe examine embed main",
}

DEFINITION = re.compile(r"^(?!#)[a-z_][^;={}()\n]*?\b(\w+)\([^;{}]*\)\s*\n\{", re.M)
COMMENT_OR_TEXT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def upward_calls(folder, order):
    names = order.split()
    there = {path.stem for path in pathlib.Path(folder).glob("*.c")}
    for name in there.symmetric_difference(names):
        yield f"{folder}/{name}.c: in the folder or in the order of {__file__}, but not in both"
    texts = {name: COMMENT_OR_TEXT.sub("", pathlib.Path(folder, name + ".c").read_text()) for name in names if name in there}
    own = {name: {d[1]: d[0].startswith("static") for d in DEFINITION.finditer(text)} for name, text in texts.items()}
    level = {f: names.index(name) for name in texts for f, is_static in own[name].items() if not is_static}
    for name, text in texts.items():
        for called in sorted(set(re.findall(r"\b(\w+)\(", text)) - set(own[name])):
            if level.get(called, -1) > names.index(name):
                yield f"{folder}/{name}.c calls {called} of {names[level[called]]}.c, which is above it"


wrong = [line for folder, order in ORDER.items() for line in upward_calls(folder, order)]
print("\n".join(wrong), end="\n" if wrong else "")
sys.exit(bool(wrong))
