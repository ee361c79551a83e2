/* Every option of the daemon, in one table that drives the parsers of file, environment and flags, --help,
 * --print-config and the sample file. Defaults < file < environment (STRAITD_NAME_WITH_UNDERSCORES) < flags. */
#ifndef STRAIT_DAEMON_BASE_OPTIONS_H
#define STRAIT_DAEMON_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/status.h>

#include "daemon/base/credentials.h"

#define OPTION_TEXT_MAX 256u

struct node_options {
    char socket[OPTION_TEXT_MAX];      /* "socket": path of the unix socket; "" (embedded): none */
    char listen[OPTION_TEXT_MAX];      /* "listen": list of host:port for other daemons; port 0: any; "": none */
    char advertise[OPTION_TEXT_MAX];   /* "advertise": list of host:port told to peers; "": the listening ones */
    char metrics[OPTION_TEXT_MAX];     /* "metrics": list of host:port of /metrics and /health; "": none */
    char secret_file[OPTION_TEXT_MAX]; /* "secret-file" */
    bool insecure_no_auth;             /* "insecure-no-auth" */

    char tls_certificate[OPTION_TEXT_MAX]; /* "tls-certificate" */
    char tls_key[OPTION_TEXT_MAX];         /* "tls-key" */
    char tls_ca[OPTION_TEXT_MAX];          /* "tls-ca" */
    char tls_name[OPTION_TEXT_MAX];        /* "tls-name": DNS name in every peer's certificate */
    bool encrypt_pages;                    /* "encrypt-pages" */
    char tenants_file[OPTION_TEXT_MAX];    /* "tenants-file"; "": all clients belong together */

    char codebook[OPTION_TEXT_MAX];   /* "codebook": file of a codebook set; "": none */
    char coding[16];                  /* "coding": auto, raw, top16, tiered */
    char transports[OPTION_TEXT_MAX]; /* "transports": in order of preference, "shm,ucx" */
    bool require_rdma;                /* "require-rdma" */
    uint32_t tcp_connections;         /* "tcp-connections" */
    char ucx[OPTION_TEXT_MAX];        /* "ucx-options": passed to the ucx transport */
    char log_level[16];               /* "log-level" */
    uint64_t arena_bytes;             /* "arena-bytes": receive arena */
    uint64_t chunk_bytes;             /* "chunk-bytes": a slot of either */
    uint32_t workers;                 /* "workers": threads for copying and coding; 0: number of cores */
    uint32_t gpu_multiprocessors;     /* "gpu-multiprocessors": that coding may occupy; 0: all */
    uint32_t busy_poll_us;            /* "busy-poll": after a transfer's latest step, without sleep */
    char gpu_failure[8];              /* "gpu-failure": stay, exit */
    char gpu_wires[32];               /* "gpu-wires": how chunks go between GPUs, in order of preference */
    char nccl[OPTION_TEXT_MAX];       /* "nccl-options": passed to the nccl transport */
    uint64_t gpu_arena_bytes;         /* "gpu-arena-bytes": receive arena in each GPU's memory; 0: none */
    uint32_t peer_timeout_ms;         /* "peer-timeout": silence after which a peer is down */
    uint32_t unreachable_ms;          /* "unreachable-timeout": absence after which nobody waits for it; 0: none */
    uint32_t drain_ms;                /* "drain-timeout": how long SIGTERM waits for transfers */
    uint64_t pool_bytes;              /* "pool-bytes": mapped memory per user id */
    uint32_t clients;                 /* "clients": at once */
    uint32_t clients_per_user;        /* "clients-per-user": of one uid; 0: three quarters of clients */

    /* No options: 0 stands for the usual value, which options_complete sets. Tests set others. */
    uint64_t send_bytes;        /* send arena: half of arena_bytes, a slot at least */
    uint64_t chunk_target;      /* chunks of pages in host memory are cut to this: 2M, a slot at most */
    uint64_t gpu_chunk_bytes;   /* a slot of gpu_arena_bytes: 16M */
    uint32_t heartbeat_ms;      /* a third of peer_timeout_ms */
    uint32_t connect_ms;        /* for a peer to be reached: peer_timeout_ms */
    uint32_t grant_ms;          /* an unused grant is asked back when others wait: 100 */
    uint32_t transfers, parked; /* live ones per client; requests waiting for their other side, per peer: 4096 */
};

struct option_error {
    char text[512]; /* which option, where, what is wrong */
};

/* Functions that set options set all of them or, when they fail, none. When an option is given twice, the later one
 * counts. */

void options_default(struct node_options *options);

/* `path` as a file of "name = value" lines ('#' comments, blank lines). An unknown name or bad value is ERR_INVALID
 * with file and line; ERR_IO. */
enum strait_status options_file(struct node_options *options, const char *path, struct option_error *error);
/* The same from memory (embedded mode); `where` names it in errors. */
enum strait_status options_text(struct node_options *options, const char *text, size_t size, const char *where,
                                struct option_error *error);
enum strait_status options_environment(struct node_options *options, char *const *environment,
                                       struct option_error *error);
/* --name value, --name=value, for switches --name or --name=no, from argv[1] on. Anything that is not an option is
 * ERR_INVALID. */
enum strait_status options_flags(struct node_options *options, int argc, char *const *argv, struct option_error *error);
/* Checks what concerns more than one option: sizes that do not fit together, an address that is not loopback without
 * secret-file, tls-certificate or insecure-no-auth; reads the secret or the certificates. */
enum strait_status options_check(const struct node_options *options, struct option_error *error);

/* Reads the secret or the certificates that the options name, as credentials_read does. */
enum strait_status options_credentials(const struct node_options *options, struct credentials **credentials, char *why,
                                       size_t why_size);

/* Sets what is no option and not set yet. */
void options_complete(struct node_options *options);

/* Names, separated by ", ", of the options that differ, of those that a reload changes or of the others; returns how
 * many. */
size_t options_differ(const struct node_options *a, const struct node_options *b, bool reloads, char *names,
                      size_t names_size);
/* Takes from `fresh` the options that a reload changes, with what follows from them. */
void options_reload(struct node_options *options, const struct node_options *fresh);

void options_help(FILE *out);                                      /* prints the rows of --help */
void options_print(const struct node_options *options, FILE *out); /* prints a file that gives the same options */
void options_sample(FILE *out); /* prints the annotated sample file, deploy/straitd.conf: a test compares them */

#endif
