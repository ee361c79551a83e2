/* Descriptors as event sources of the libuv loop: watched (struct watch), and listened on (struct acceptor). */
#ifndef STRAIT_DAEMON_BASE_WATCH_H
#define STRAIT_DAEMON_BASE_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/status.h>

#include "daemon/base/log.h"

struct uv_loop_s;
struct sockaddr_storage;

/* Watches a descriptor on the loop. The watch never closes the descriptor; its owner may do so as soon as watch_close
 * was called, even though the handle behind the watch ends later. */

enum watch_events {
    WATCH_READ = 1,
    WATCH_WRITE = 2,
};

struct watch;

/* Receives what the descriptor is ready for; an error or a hang-up counts as both. */
typedef void watch_ready(void *owner, uint32_t events);

/* Counts the watches and acceptors of a kind that have not ended yet; `idle` (may be NULL) is called when the last one
 * has. */
struct watch_count {
    uint32_t count;
    void (*idle)(void *owner);
    void *owner;
};

/* Watches nothing yet. On OK the caller owns *watch. ERR_IO (not a descriptor that can be watched), ERR_NO_MEMORY. */
enum strait_status watch_open(struct uv_loop_s *loop, int fd, watch_ready *ready, void *owner,
                              struct watch_count *count, struct watch **watch);
/* From now on `ready` is called for these events. After an error call this again to get further events. */
void watch_for(struct watch *watch, uint32_t events);
/* `ready` is not called any more. Frees itself later. NULL is allowed. */
void watch_close(struct watch *watch);

/* Accepts connections on a listening socket, a bounded number in each turn of the loop. When the process or the system
 * has no descriptor or memory for another one, it does not accept for 100 ms: the socket stays readable meanwhile, and
 * the loop would spin. */

struct acceptor;

struct acceptor_config {
    struct uv_loop_s *loop;
    struct log *log;
    const char *name;          /* for the log: "clients", "peers", "metrics" */
    uint64_t *rests;           /* counts how often it did not accept for a while */
    struct watch_count *count; /* an acceptor counts as two */
    bool reserves;             /* it keeps a descriptor, which it gives up for one connection when none is left */
    /* Takes over the connection `fd`, which is non-blocking and close-on-exec. May close the acceptor. */
    void (*accepted)(void *owner, int fd, const struct sockaddr_storage *address);
    void *owner;
};

/* Takes over the listening, non-blocking socket `fd` on OK, and accepts from now on. ERR_IO, ERR_NO_MEMORY. */
enum strait_status acceptor_open(int fd, const struct acceptor_config *config, struct acceptor **acceptor);
int acceptor_fd(const struct acceptor *acceptor);
/* Has it the descriptor that it keeps? If it gave that up and there is one again, it takes it. A connection that was
 * accepted without is to end soon: until then no other one may be accepted. */
bool acceptor_reserve(struct acceptor *acceptor);
/* Closes the socket; nothing is accepted any more. Frees itself later. NULL is allowed. */
void acceptor_close(struct acceptor *acceptor);

#endif
