/* Watches a descriptor on the loop. The watch never closes the descriptor; its owner may do so as soon as watch_close
 * was called, even though the handle behind the watch ends later. */
#ifndef STRAIT_DAEMON_PEERS_WATCH_H
#define STRAIT_DAEMON_PEERS_WATCH_H

#include <stdint.h>

#include <strait/status.h>

enum watch_events {
    WATCH_READ = 1,
    WATCH_WRITE = 2,
};

struct uv_loop_s;
struct watch;

/* Receives what the descriptor is ready for; an error or a hang-up counts as both. */
typedef void watch_ready(void *owner, uint32_t events);

/* Counts the watches of a kind that have not ended yet; `idle` (may be NULL) is called when the last one has. */
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

#endif
