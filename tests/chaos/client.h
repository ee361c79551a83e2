/* A worker of either side: a separate process, so that it can be killed, that uses libstrait as the driver orders. */
#ifndef TESTS_CHAOS_CLIENT_H
#define TESTS_CHAOS_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/chaos/pages.h"

#define CLIENT_BLOB_MAX 1024u

enum order_type {
    ORDER_IMPORT = 1, /* blob */
    ORDER_OFFER,
    ORDER_EXPECT,
    ORDER_ABORT,
    ORDER_CLOSE, /* strait_client_close, and end */
};

struct order {
    uint32_t type;
    uint32_t id;      /* of the transfer */
    uint32_t time_ms; /* lease or deadline */
    uint32_t start;   /* 1: pairs it with the peer's pool at once */
    uint32_t count;
    uint32_t pages[POOL_PAGES];
    uint32_t blob_size;
    uint8_t blob[CLIENT_BLOB_MAX];
};

enum news_type {
    NEWS_POOL = 1, /* registered; blob */
    NEWS_STATE,
    NEWS_DRAINED,
    NEWS_REFUSED, /* a call of the library failed: `reason` is its status */
};

struct news {
    uint32_t type;
    uint32_t id;
    uint32_t state, reason, drained;
    uint64_t at_ns; /* CLOCK_MONOTONIC */
    uint32_t blob_size;
    uint8_t blob[CLIENT_BLOB_MAX];
};

/* Forks a worker whose pool is `pages`, at the daemon of `socket`. Returns its pid, or -1; *channel takes orders and
 * gives news, one to a packet, without blocking. */
pid_t client_start(const char *socket, const struct pages *pages, int *channel);

#endif
