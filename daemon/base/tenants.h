/* Tenants: which clients belong together, and what they may use. A client belongs to the tenant that names its user id,
 * else to the one that names its group id, else to the tenant "default". A file of the option tenants-file has the
 * tenants, in the form of the daemon's options; "tenant" begins one:
 *
 *     others = refuse       clients of no tenant are refused; "accept" (the default): they belong to "default"
 *     tenant = search       up to 32 of a-z, 0-9, '.', '_', '-'
 *     uids = 1001, alice    users, by number or name
 *     gids = 200            groups: a client's own group, not its supplementary ones
 *     pool-bytes = 64G      mapped memory of all its clients
 *     transfers = 1000      live offers and expectations of all its clients
 *     rate = 2G             page bytes a second that land in its pools
 *
 * Limits that a tenant does not name are those of the daemon alone. */
#ifndef STRAIT_DAEMON_BASE_TENANTS_H
#define STRAIT_DAEMON_BASE_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

#include "proto/message.h"

#define TENANTS_MAX     64u /* with "default" */
#define TENANT_NAME_MAX 32u
#define TENANT_IDS_MAX  1024u /* user and group ids of all tenants */

struct option_error;

struct tenant {
    char name[TENANT_NAME_MAX + 1];
    uint64_t pool_bytes; /* limits; 0: none */
    uint32_t transfers;
    uint64_t rate;

    bool removed; /* the file does not have it any more: it takes up nothing new */

    /* In use. */
    uint64_t mapped, live; /* bytes of pools; offers and expectations that are not forgotten */
    uint64_t clients;      /* connections */
    int64_t tokens;        /* page bytes that may be granted now: the rate's bucket */
    uint64_t filled_ms;    /* when tokens were added last */
    /* Counted. */
    uint64_t done, failed, bytes_landed, denied;
};

struct tenant_id {
    uint32_t id;
    bool is_group;
    uint32_t tenant;
};

struct tenants {
    uint32_t count, id_count; /* count: places in `list`; some of them may be empty (tenant_is_there) */
    bool refuse_others;
    struct tenant list[TENANTS_MAX]; /* the first is "default" */
    struct tenant_id ids[TENANT_IDS_MAX];
};

/* Only "default", without limits. */
void tenants_default(struct tenants *tenants);
/* Reads a file; `tenants` changes only on OK. ERR_INVALID with file and line, ERR_IO, ERR_NO_MEMORY. */
enum strait_status tenants_file(struct tenants *tenants, const char *path, struct option_error *error);
/* The same from memory. */
enum strait_status tenants_text(struct tenants *tenants, const char *text, size_t size, const char *where,
                                struct option_error *error);
/* Before `fresh` takes the place of `now`: tenants keep their places there, what they use and their counters, by name;
 * ids, limits and `others` are those of `fresh`. One that `fresh` does not have keeps its limits and is `removed`; its
 * place is empty once nothing is in use. False: what is in use of removed tenants leaves too few places, and nothing
 * has changed. */
bool tenants_follow(struct tenants *fresh, const struct tenants *now);
/* False: it was removed, and nothing of it is in use. */
bool tenant_is_there(const struct tenant *tenant);
static inline bool tenant_is_removed(const struct tenant *tenant) /* NULL: that of a client that is refused */
{
    return tenant != NULL && tenant->removed;
}
/* The tenant of a client; NULL: it is refused. */
struct tenant *tenants_find(struct tenants *tenants, uint32_t uid, uint32_t gid);

/* ---- Rate: a bucket of a tenth of a second ----------------------------------------------------------------------- */

/* Whether page bytes may be granted now; `now_ms` is the loop's clock. */
bool tenant_may_grant(struct tenant *tenant, uint64_t now_ms);
/* Some were granted: more than there were tokens is made up for later. */
void tenant_granted(struct tenant *tenant, uint64_t bytes);

/* A tenant's name as it travels: none for "default". */
struct view tenant_view(const struct tenant *tenant);
bool is_default_tenant(struct view name);

#endif
