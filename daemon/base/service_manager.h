/* What a service manager (systemd, or another with the same protocols) is told and passes on: datagrams to
 * $NOTIFY_SOCKET, the watchdog's interval, and listening sockets that it has opened for the daemon. */
#ifndef STRAIT_DAEMON_BASE_SERVICE_MANAGER_H
#define STRAIT_DAEMON_BASE_SERVICE_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

/* Sends one datagram of "NAME=value" lines to $NOTIFY_SOCKET, a path or, after '@', an abstract name. Without that
 * variable nothing is sent. Never blocks; false: it was not taken. */
bool service_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* In the units of CLOCK_MONOTONIC that RELOADING=1 must be sent with. */
uint64_t service_monotonic_us(void);

/* Microseconds within which WATCHDOG=1 is expected from this process again and again; 0: it is not. */
uint64_t service_watchdog_us(void);

#endif
