/* Probe of another daemon's control port: is it reached, does it prove itself, does it speak this protocol? */
#ifndef STRAIT_DAEMON_PROBE_H
#define STRAIT_DAEMON_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/address.h"
#include "daemon/base/hello.h"
#include "daemon/base/options.h"

struct probe {
    bool reached; /* TCP is connected, to `address` */
    bool proved;  /* each has accepted the other's secret or certificate; without any: the hello has come */
    bool fits;    /* protocol versions, and whether pages are encrypted, go together */
    char address[ADDRESS_TEXT_MAX];
    char why[256]; /* what failed, for people; "": nothing */
    uint32_t version, version_min;
    char software[MESSAGE_SOFTWARE_MAX + 1]; /* of hello.h: "" and HELLO_NO_CLOCK: not told */
    int64_t clock_skew_us;
    uint64_t connect_us, hello_us; /* time until reached, and from then until the hello was there */
};

/* Dials the addresses of the list in turn, with the credentials of the options, as a daemon would, exchanges hellos and
 * hangs up. Blocks, for each address up to peer-timeout. The other daemon logs one connection that came to nothing. */
void probe_peer(const struct node_options *options, const char *list, struct probe *probe);

#endif
