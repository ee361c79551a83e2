/* Findings of `strait doctor`: what each check saw, and what is to be changed. */
#ifndef STRAIT_TOOLS_DOCTOR_H
#define STRAIT_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#define DOCTOR_PEERS_MAX 64u

enum level {
    LEVEL_OK,
    LEVEL_NOTE,    /* nothing to change, but worth knowing */
    LEVEL_WARNING, /* it works, more slowly or not for long */
    LEVEL_ERROR,   /* it does not work */
    LEVELS,
};
extern const char *const level_names[LEVELS];

struct finding {
    enum level level;
    const char *check; /* static: "descriptors" */
    char text[512];    /* what was seen */
    char change[512];  /* what to change; "": nothing */
};

struct doctor {
    const char *socket; /* of the daemon; NULL: that of its options */
    const char *config; /* NULL: that of the daemon that runs, else the usual one */
    const char *peers[DOCTOR_PEERS_MAX];
    unsigned peer_count;
    struct finding *list;
    unsigned count, capacity;
    /* What is known, for later checks. */
    cJSON *status;      /* of the daemon that runs; NULL: none answers */
    int pid;            /* of that daemon, as this process sees it; 0: not known */
    cJSON *examination; /* what straitd --examine said; NULL: nothing */
};

/* Adds a finding; `change` NULL: nothing is to be changed. Without memory it is left out. */
void doctor_find(struct doctor *doctor, enum level level, const char *check, const char *change, const char *format,
                 ...) __attribute__((format(printf, 5, 6)));
unsigned doctor_count(const struct doctor *doctor, enum level level);
void doctor_fini(struct doctor *doctor);

/* ---- Checks, in this order: later ones use what earlier ones know ------------------------------------------------ */

/* doctor_daemon.c: asks the daemon that runs, and straitd what its options meet on this host. */
void doctor_ask_daemon(struct doctor *doctor);
void doctor_examine(struct doctor *doctor);
/* The same two, judged: configuration, ports, state of the daemon and of its peers, peers that were named. */
void doctor_configuration(struct doctor *doctor);
void doctor_ports(struct doctor *doctor);
void doctor_status(struct doctor *doctor);
void doctor_peers(struct doctor *doctor);

/* doctor_host.c */
void doctor_limits(struct doctor *doctor);
void doctor_memory(struct doctor *doctor);
void doctor_kernel(struct doctor *doctor);
void doctor_codec(struct doctor *doctor);
void doctor_rdma(struct doctor *doctor);
void doctor_gpus(struct doctor *doctor);

#endif
