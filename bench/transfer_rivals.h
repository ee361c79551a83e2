/* What transfers are compared with: a copy by one core, and other tools, run as child processes. Functions that return
 * bool put the reason in `why` when there is no figure. */
#ifndef STRAIT_BENCH_TRANSFER_RIVALS_H
#define STRAIT_BENCH_TRANSFER_RIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/transfer_data.h"
#include "bench/transfer_link.h"

/* Copies every page from source to sink in one thread, page by page, in the order of the lists. */
uint64_t rival_copy(const struct shape *shape, const struct transfer_data *data);

#define RIVAL_MESSAGE_BYTES (4u * 1024 * 1024) /* message size of the bandwidth test: that of a chunk */

/* ucx_perftest -t ucp_am_bw -s 4m over loopback: nanoseconds for `messages` messages. */
bool rival_ucx_bandwidth(uint32_t messages, uint64_t *ns, char *why, size_t why_size);

/* ucx_perftest -t ucp_am_lat over loopback: one way, half a round trip. Median and 99th percentile are from two runs.
 */
bool rival_ucx_latency(uint64_t bytes, uint64_t *p50_ns, uint64_t *p99_ns, char *why, size_t why_size);

/* iperf3 over the link for a second: bytes received, and nanoseconds. */
bool rival_iperf(const struct bench_link *link, uint64_t *bytes, uint64_t *ns, char *why, size_t why_size);

#endif
