/* Shared host memory that the ranks of a group map: processes or threads of one host. It has no name in any file
 * system, so nothing is left behind, whenever a process ends. */
#ifndef STRAIT_EP_SHARE_H
#define STRAIT_EP_SHARE_H

#include <stdint.h>

#include <strait/status.h>

/* What another rank needs to map the memory; plain bytes. */
struct ep_share_ticket {
    uint64_t name[2]; /* random */
    uint64_t bytes;
    int64_t process;
    int32_t fd; /* of that process */
    int32_t reserved;
};

/* A number of this host, PID namespace and user: the same for ranks that can map each other's memory. NCCL_HOSTID
 * stands for the host if it is set. */
uint64_t ep_share_host(void);

/* Makes zeroed memory and maps it. *fd is to be closed when all ranks have mapped it. ERR_NO_MEMORY. Any thread. */
enum strait_status ep_share_create(uint64_t bytes, struct ep_share_ticket *ticket, int *fd, void **base);

/* Maps the memory of a ticket, in the process that made it the same mapping again. ERR_UNSUPPORTED: it is not of this
 * host, of another PID namespace or user; ERR_NO_MEMORY. Any thread. */
enum strait_status ep_share_map(const struct ep_share_ticket *ticket, void **base);

/* Gives back what create or map gave. Any thread. */
void ep_share_unmap(void *base);

#endif
