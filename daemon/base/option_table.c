#include "daemon/base/option_table.h"

#include <string.h>

#include "internal/default_socket.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define TIB ((uint64_t)1 << 40)

#define DURATION_MAX (24u * 3600 * 1000)

#define AT(field)     .offset = offsetof(struct node_options, field)
#define TEXT_OF(size) .max = (size)-1

const struct option_row option_rows[] = {
    {.section = "Where it is reached",
     .name = "socket",
     .kind = OPTION_TEXT,
     AT(socket),
     .max = SOCKET_PATH_MAX,
     .initial = SOCKET_OF_NODE,
     .help = "Path of the unix socket for clients of this node, at most 103 bytes; empty: none. It gets mode 0660: its "
             "group may connect. For users other than root the default is $XDG_RUNTIME_DIR/strait/straitd.sock when "
             "that variable is set."},
    {.name = "listen",
     .kind = OPTION_LISTEN,
     AT(listen),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "127.0.0.1:7350",
     .help =
         "host:port for other daemons, up to 8 of them separated by commas, like 10.0.0.7:7350,[2001:db8::7]:7350; "
         "port "
         "0: any free one; empty: none. The host is an address (a link-local one with its zone: [fe80::1%eth0]), the "
         "name of an interface, which stands for its addresses, the name of a host, which is looked up at the start, "
         "0.0.0.0 or [::] for all addresses of a family, or * for those of both.",
     .danger = "An address that is not loopback needs secret-file or tls-certificate (or insecure-no-auth)."},
    {.name = "advertise",
     .kind = OPTION_ADVERTISE,
     AT(advertise),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help =
         "host:port that peers are told to dial, up to 8 of them separated by commas, the best first: peers try them "
         "in this order, and the next one after 250 ms without waiting for the answer of the one before. The host is "
         "an address, a name that peers look up, or an interface of this host. Empty: the addresses of listen, those "
         "of the loopback only if there are no others; where that is the wildcard, the addresses of the only "
         "interface besides the loopback. With several interfaces it must be set, and behind NAT; also for a "
         "link-local address, with the zone as peers name it."},
    {.name = "metrics",
     .kind = OPTION_LISTEN,
     AT(metrics),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "127.0.0.1:7351",
     .help = "host:port of the HTTP server for GET /metrics (Prometheus) and GET /health, or several of them, as in "
             "listen; empty: none.",
     .danger = "It asks for no password: whoever reaches it reads the figures."},

    {.section = "Who may connect",
     .name = "secret-file",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(secret_file),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help =
         "File of 16 to 4096 random bytes, the same on all nodes: daemons prove to each other that they know it, and "
         "speak TLS 1.3. It must be a regular file of the daemon's user with mode 0600 or 0400. Every byte counts, a "
         "newline at its end too. SIGHUP reads it again; peers that still have the one before are let in until the "
         "next SIGHUP.",
     .danger = "Whoever has it can act as any node."},
    {.name = "tls-certificate",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(tls_certificate),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "Certificate of this node in PEM, with those between it and the CA: daemons prove by certificates who "
             "they are, in place of secret-file. Its names (subjectAltName) must have the host that peers dial, and "
             "its key usage, if it names any, client and server. SIGHUP reads it again, with tls-key and tls-ca."},
    {.name = "tls-key",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(tls_key),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "Key of tls-certificate in PEM, without a password. It must be a regular file of the daemon's user with "
             "mode 0600 or 0400."},
    {.name = "tls-ca",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(tls_ca),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "Certificates in PEM of the CAs whose word for a peer is taken.",
     .danger = "Without tls-name, whoever has any certificate of these CAs may connect."},
    {.name = "tls-name",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(tls_name),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "DNS name that the certificate of every peer must have, whether it dials or is dialled; empty: a peer "
             "that is dialled must have the host that was dialled, and one that dials may have any name."},
    {.name = "insecure-no-auth",
     .kind = OPTION_SWITCH,
     AT(insecure_no_auth),
     .initial = "no",
     .help = "Allows addresses that are not loopback without a secret or certificates.",
     .danger = "Whoever reaches the port can read and overwrite pages of live requests. Only for networks where every "
               "host is trusted."},
    {.name = "tenants-file",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(tenants_file),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "File that says which users and groups make a tenant, and what it may use (docs/operations.md). A client "
             "can only reach pools of its own tenant, on every node. Empty: all clients belong together.",
     .danger = "Between daemons the name of the tenant counts: every node must give a name to the same people."},

    {.name = "encrypt-pages",
     .kind = OPTION_SWITCH,
     AT(encrypt_pages),
     .initial = "no",
     .help = "Encrypts page data too, whatever transport carries it between hosts; not over shared memory. Needs "
             "secret-file or tls-certificate, and the same on all nodes: a daemon with it talks to none without. "
             "Between GPUs of two hosts pages go through host memory then.",
     .danger = "Without it page data crosses the network in the clear, and who can change packets can change pages."},

    {.section = "How pages travel",
     .name = "codebook",
     .reloads = true,
     .kind = OPTION_TEXT,
     AT(codebook),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "File of a codebook set made by \"strait calibrate\"; empty: pages are coded by mode base, which needs "
             "none. Peers with different sets fetch each other's; until then, and for pages in GPU memory, base takes "
             "the place of the tables."},
    {.name = "coding",
     .reloads = true,
     .kind = OPTION_ONE_OF,
     AT(coding),
     TEXT_OF(sizeof(((struct node_options *)0)->coding)),
     .initial = "auto",
     .choices = "auto,raw,top16,tiered,base,split,parts",
     .help = "How pages are coded on the way: auto chooses by what the link and the codec are measured to do, the "
             "others pin it. tiered and split are the same, by the tables of the codebook set, and stand for top16 "
             "where the values are not BF16; where the peer cannot use the tables, base takes their place, which "
             "needs none. parts is for FP16 and FP32 in host memory, elsewhere it is base. Values that are not BF16, "
             "FP16 or FP32 always travel raw.",
     .danger = "A pinned coding is used even where it is slower than sending raw."},
    {.name = "transports",
     .kind = OPTION_LIST,
     AT(transports),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "auto",
     .choices = "auto,shm,tcp,ucx",
     .help = "Transports that may be used, best first: shm between daemons of one host, tcp and ucx for the network. "
             "auto: shm, then ucx, from UCX 1.17 on and where a device for RDMA has an active port when the daemon "
             "starts, then tcp.",
     .danger =
         "ucx: before UCX 1.17 (Debian 12 has 1.13.1) what strangers send to its ports for TCP, which it has with "
         "RDMA too, can end the daemon or keep it busy. The log warns of that."},
    {.name = "require-rdma",
     .kind = OPTION_SWITCH,
     AT(require_rdma),
     .initial = "no",
     .help = "Refuses to start where pages cannot go by RDMA, and takes no connection over which they would go by TCP: "
             "between hosts ucx alone is used, with tls=^tcp unless ucx-options has a tls= of its own. Before UCX 1.17 "
             "transports has to name ucx, too."},
    {.name = "tcp-connections",
     .kind = OPTION_COUNT,
     AT(tcp_connections),
     .min = 1,
     .max = 16,
     .initial = "4",
     .help = "Connections of tcp to each peer, besides the one that controls it, over which chunks are spread. Of two "
             "daemons the smaller number counts."},
    {.name = "ucx-options",
     .kind = OPTION_TEXT,
     AT(ucx),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "Settings of the ucx transport, name=value separated by blanks: listen (numeric host), port, tls, "
             "devices, eager, keepalive. Like \"listen=10.0.0.7 tls=rc,tcp devices=mlx5_0:1\". Without listen= it "
             "listens at the host of advertise if that is set, else of listen, if that is a numeric address and no "
             "wildcard; else on loopback, with a warning: so give listen= here when listen is 0.0.0.0, and behind "
             "NAT.",
     .danger = "UCX listens on ports of its own while a peer uses it. They have no authentication: keep them on a "
               "trusted network."},

    {.section = "Memory and threads",
     .name = "arena-bytes",
     .kind = OPTION_BYTES,
     AT(arena_bytes),
     .min = 64 * KIB,
     .max = TIB,
     .initial = "256M",
     .help = "Receive arena, in bytes: chunks land here before they are checked. It bounds what is in flight to this "
             "node. The send arena, in which chunks are encoded before they travel, has half as much."},
    {.name = "chunk-bytes",
     .kind = OPTION_BYTES,
     AT(chunk_bytes),
     .min = 64 * KIB,
     .max = 16 * MIB,
     .initial = "8M",
     .help = "Size of a slot of either arena, in bytes, a multiple of 4K: the largest chunk, and so the largest page."},
    {.name = "pool-bytes",
     .reloads = true,
     .kind = OPTION_BYTES,
     AT(pool_bytes),
     .min = 4 * KIB,
     .max = 1024 * TIB,
     .initial = "64G",
     .help = "Memory in bytes that the pools of one user id may have mapped in this daemon, all together."},
    {.name = "workers",
     .kind = OPTION_COUNT,
     AT(workers),
     .max = 1024,
     .initial = "0",
     .help = "Threads that copy, encode and decode, at least 2; 0: as many as there are processors."},
    {.name = "gpu-multiprocessors",
     .kind = OPTION_COUNT,
     AT(gpu_multiprocessors),
     .max = 1024,
     .initial = "0",
     .help =
         "Multiprocessors of a GPU that encoding and decoding may occupy at a time, each; 0: all. Fewer leave more to "
         "the model that runs there."},

    {.name = "busy-poll",
     .kind = OPTION_COUNT,
     AT(busy_poll_us),
     .max = 10000000,
     .initial = "5000",
     .help =
         "How many microseconds two threads go on polling after the latest step of a transfer of GPU pages, instead "
         "of sleeping: waking up takes longer than many chunks travel. With fewer than 4 processors they sleep. After "
         "the steps of other transfers the daemon polls for up to 100 microseconds, and for at most a tenth of a "
         "processor; 0 switches that off too.",
     .danger = "Two processors are busy for that time."},
    {.name = "gpu-failure",
     .kind = OPTION_ONE_OF,
     AT(gpu_failure),
     TEXT_OF(sizeof(((struct node_options *)0)->gpu_failure)),
     .initial = "stay",
     .choices = "stay,exit",
     .help = "When a GPU has failed, this process cannot use any GPU any more. stay: all requests on GPUs fail, and "
             "pools in host memory go on; GPUs work again when the daemon has been restarted. exit: requests on GPUs "
             "fail, transfers between host pools that are moving have a second to end, and the daemon ends with exit "
             "status 3, for a service manager to restart it; workers reconnect by themselves. In embedded mode it is "
             "always stay.",
     .danger = "exit without a service manager that restarts it leaves the node without a daemon."},
    {.name = "gpu-wires",
     .kind = OPTION_LIST,
     AT(gpu_wires),
     TEXT_OF(sizeof(((struct node_options *)0)->gpu_wires)),
     .initial = "peer",
     .choices = "peer,nccl,ucx,pinned,auto",
     .help =
         "How chunks go between GPUs of two daemons, best first: peer, straight into the other GPU's memory, between "
         "daemons of one host whose GPUs can do that (NVLink, or peer to peer over PCIe), unless NCCL_P2P_DISABLE=1 "
         "is in the environment; nccl, by NCCL, on one host or between hosts, when both daemons name it and have "
         "libstrait-transport-nccl.so.0 and libnccl.so.2; ucx, by UCX, on one host or between hosts, when both name it "
         "and have a UCX that was built with CUDA; pinned, through host memory, which is used when nothing else works. "
         "auto, alone: peer, "
         "else what was measured to be the fastest of the others. nccl or ucx alone force it wherever it is available. "
         "Either takes as much memory of each GPU again as gpu-arena-bytes, and NCCL some of its own.",
     .danger = "NCCL and UCX listen on ports of their own, which have no authentication: keep them on a trusted "
               "network."},
    {.name = "nccl-options",
     .kind = OPTION_TEXT,
     AT(nccl),
     TEXT_OF(OPTION_TEXT_MAX),
     .initial = "",
     .help = "Settings of the nccl transport, name=value separated by blanks: library (path of libnccl.so.2), blocks "
             "(of threads on the GPU, for each direction of a link), timeout_ms; and those of ucx-options, for the "
             "messages that go with the chunks. Without listen= it listens at the same host as ucx without it."},
    {.name = "gpu-arena-bytes",
     .kind = OPTION_BYTES,
     AT(gpu_arena_bytes),
     .max = TIB,
     .initial = "256M",
     .help = "Receive arena in the memory of each GPU in use, in bytes, where chunks from other GPUs land; 0: none, as "
             "with gpu-wires = pinned. It bounds what is in flight between two GPUs."},
    {.section = "Times",
     .name = "peer-timeout",
     .reloads = true,
     .kind = OPTION_DURATION,
     AT(peer_timeout_ms),
     .min = 30,
     .max = DURATION_MAX,
     .initial = "3s",
     .help = "Silence, in ms or s, after which a peer counts as down, and the time for it to be reached and to prove "
             "who it is. Heartbeats are sent three times as often. A notification waits for a connection, or for its "
             "reader, "
             "three times as long.",
     .danger = "Too short, and a stalled but living peer fails every transfer it takes part in."},
    {.name = "unreachable-timeout",
     .reloads = true,
     .kind = OPTION_DURATION,
     AT(unreachable_ms),
     .min = 0,
     .max = DURATION_MAX,
     .initial = "2s",
     .help = "How long, in ms or s, a peer may be away, not reached at its address, until requests that wait for it "
             "fail with PEER_DOWN; 0: they wait until their deadline or the end of their lease.",
     .danger = "Shorter than a restart of the peer's daemon takes, and requests fail that would have waited for it."},
    {.name = "drain-timeout",
     .reloads = true,
     .kind = OPTION_DURATION,
     AT(drain_ms),
     .min = 0,
     .max = DURATION_MAX,
     .initial = "10s",
     .help = "How long, in ms or s, SIGTERM waits for live transfers before they are failed. Keep it below the service "
             "manager's own limit."},

    {.section = "Limits",
     .name = "clients",
     .reloads = true,
     .kind = OPTION_COUNT,
     AT(clients),
     .min = 1,
     .max = 65536,
     .initial = "256",
     .help = "Clients at once."},
    {.name = "clients-per-user",
     .reloads = true,
     .kind = OPTION_COUNT,
     AT(clients_per_user),
     .min = 0,
     .max = 65536,
     .initial = "0",
     .help = "Clients of one user (uid) at once, so that no user takes all places; 0: three quarters of clients."},
    {.section = "Logging",
     .name = "log-level",
     .reloads = true,
     .kind = OPTION_ONE_OF,
     AT(log_level),
     TEXT_OF(sizeof(((struct node_options *)0)->log_level)),
     .initial = "info",
     .choices = "error,warn,info,debug",
     .help = "Least important lines that are written to stderr. Nothing is logged per page or chunk at info."},
};

const size_t option_row_count = sizeof(option_rows) / sizeof(option_rows[0]);

const struct option_command option_commands[] = {
    {"config", "FILE", "read options from a file of \"name = value\" lines first"},
    {"print-config", NULL, "print the options in force as such a file, and end"},
    {"replace", NULL, "take the place of the daemon that runs on this socket, which drains and ends"},
    {"check-config", NULL, "try everything that a start needs, change nothing, and end"},
    {"examine", NULL, "print what strait doctor wants to know of this host, as JSON, and end"},
    {"probe", "ADDRESS", "the same, and of another daemon's control port, host:port; once or more"},
    {"sample-config", NULL, "print a file with every option explained, and end"},
    {"version", NULL, "print the version, and end"},
    {"help", NULL, "print this, and end"},
};
const size_t option_command_count = sizeof(option_commands) / sizeof(option_commands[0]);

static const struct option_gone {
    const char *name, *text;
} gone[] = {
    {"gpu-peer", "is now gpu-wires=peer (pinned: without it)"},
    {"gpu-attention", "is now busy-poll, in microseconds"},
    {"connect-timeout", "is now peer-timeout"},
    {"heartbeat", "is gone: it is a third of peer-timeout"},
    {"send-bytes", "is gone: the send arena is half of arena-bytes"},
    {"chunk-target", "is gone: it is 2M, or chunk-bytes if that is less"},
    {"gpu-chunk-bytes", "is gone: it is 16M"},
    {"grant-timeout", "is gone: it is 100ms"},
    {"transfers", "is gone: it is 4096"},
    {"parked", "is gone: it is 4096"},
};

const char *option_gone(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        if (strlen(gone[i].name) == size && memcmp(gone[i].name, name, size) == 0)
            return gone[i].text;
    return NULL;
}

const struct option_row *option_find(const char *name, size_t size)
{
    for (size_t i = 0; i < option_row_count; i++)
        if (strlen(option_rows[i].name) == size && memcmp(option_rows[i].name, name, size) == 0)
            return &option_rows[i];
    return NULL;
}
