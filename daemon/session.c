#include "daemon/session.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/base/fault.h"
#include "daemon/gpu_path.h"
#include "daemon/node.h"
#include "daemon/request.h"
#include "internal/memfd.h"

void session_send(struct session *session, const struct message *message)
{
    if (session == NULL || session->channel == NULL || session->ending || session->doomed != NULL)
        return;
    (void)fault_at(FAULT_TELL, session, message);
    if (channel_send(session->channel, message, NULL, 0) != STRAIT_OK)
        session->doomed = "client does not read its events";
    session->dirty = true;
    (void)fault_at(FAULT_TOLD, session, message);
}

#define FAILED_KEPT 64u /* a client starts its requests soon, or never */

void session_keep_failed(struct session *session, const struct failed_request *failed)
{
    if (session->failed == NULL)
        session->failed = calloc(FAILED_KEPT, sizeof(*session->failed));
    if (session->failed != NULL)
        session->failed[session->failed_count++ % FAILED_KEPT] = *failed;
}

const struct failed_request *session_find_failed(const struct session *session, uint64_t transfer)
{
    for (uint32_t i = 0; session->failed != NULL && i < FAILED_KEPT; i++)
        if (session->failed[i].transfer == transfer && session->failed[i].reason != STRAIT_REASON_NONE)
            return &session->failed[i];
    return NULL;
}

void session_forget(struct session *session, struct request *request)
{
    if (request->state == STRAIT_FAILED)
        session_keep_failed(
            session, &(struct failed_request){request->transfer, request->name, request->is_offer, request->reason});
    HASH_DELETE(by_transfer, session->requests, request);
    session->charged -= request->charged;
}

void session_drained(struct session *session)
{
    if (session == NULL)
        return;
    session->undrained--;
    session->node->sessions_ended |= session->ending || tenant_is_removed(session->tenant);
}

/* one of session->jobs */
static void session_job_ended(struct session *session)
{
    session->jobs--;
    session->node->sessions_ended |= session->ending || tenant_is_removed(session->tenant);
}

#define CHARGED_MAX (512ull * 1024 * 1024) /* by all live requests of one client */

bool session_charge(struct session *session, uint64_t bytes)
{
    if (session == NULL)
        return true; /* the client is gone and cannot ask for more */
    if (bytes > CHARGED_MAX - session->charged)
        return false;
    session->charged += bytes;
    return true;
}

/* ---- Tenants ----------------------------------------------------------------------------------------------------- */

_Static_assert(TENANT_NAME_MAX == MESSAGE_TENANT_MAX, "a tenant's name travels whole");

const char session_no_tenant[] = "the client's tenant is no longer in tenants-file";

void session_find_tenant(struct session *session, uint32_t gid)
{
    struct tenants *tenants = &session->node->tenants;
    session->admin = session->uid == 0 || session->uid == geteuid();
    session->tenant = tenants_find(tenants, session->uid, gid);
    if (session->tenant == NULL && session->admin)
        session->tenant = &tenants->list[0];
    if (session->tenant != NULL)
        session->tenant->clients++;
}

bool session_lost_tenant(const struct session *session)
{
    return tenant_is_removed(session->tenant) && session->channel != NULL && session->undrained == 0 &&
           session->jobs == 0 && !session->successor && !session->dirty && channel_queued(session->channel) == 0;
}

const struct tenant *tenant_named(struct node *node, struct view name)
{
    for (uint32_t i = 0; i < node->tenants.count; i++) {
        struct view own = tenant_view(&node->tenants.list[i]);
        if (is_default_tenant(name) ? own.size == 0
                                    : own.size == name.size && memcmp(own.data, name.data, name.size) == 0)
            return &node->tenants.list[i];
    }
    return NULL;
}

/* A pool of that id which belongs to none but other tenants; NULL: there is no such pool. */
static struct pool_ref *pool_of_others(struct node *node, const struct pool_id *id, struct view name)
{
    const struct tenant *own = tenant_named(node, name);
    struct pool_ref *found = NULL;
    if (own != NULL && pool_find(node, own, id) != NULL)
        return NULL;
    for (uint32_t i = 0; i < node->tenants.count && found == NULL; i++)
        found = pool_find(node, &node->tenants.list[i], id);
    return found;
}

bool tenant_denied(struct node *node, const struct pool_id *pool, struct view tenant, const char *what)
{
    struct pool_ref *ref = pool_of_others(node, pool, tenant);
    if (ref == NULL)
        return false;
    char quoted[4 * TENANT_NAME_MAX];
    struct view shown = is_default_tenant(tenant) ? view_of("default", 7) : tenant;
    node->metrics.denied++;
    ref->tenant->denied++;
    log_limited(node->log, LOG_OF_CLIENTS, LOG_WARN, "msg=denied what=%s tenant=%s owner=%s", what,
                log_quote(quoted, sizeof(quoted), shown.data, shown.size), ref->tenant->name);
    return true;
}

/* ---- The words --------------------------------------------------------------------------------------------------- */

/* Can the file be mapped safely: at least `size` bytes of ordinary pages, which exist as long as the file, as it cannot
 * shrink? */
static bool is_usable(int fd, size_t size)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size >= 0 && (size_t)info.st_size >= size && !memfd_is_hugetlb(fd);
}

bool session_words(struct session *session, const struct message_words *message, const int *fds, uint32_t fd_count)
{
    size_t size = message->count * sizeof(session->words[0]);
    if (session->words != NULL || fd_count != 1 || !is_usable(fds[0], size))
        return false;
    void *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (words == MAP_FAILED)
        return false;
    session->words = words;
    session->word_count = message->count;
    return true;
}

void session_words_fini(struct session *session)
{
    if (session->words != NULL)
        munmap(session->words, session->word_count * sizeof(session->words[0]));
    session->words = NULL;
}

void session_raise(struct session *session, uint32_t word, uint32_t value)
{
    if (session == NULL)
        return;
    uint32_t *at = &session->words[word], old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while ((int32_t)(value - old) > 0)
        if (__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

struct mapping {
    struct session *session;
    struct message message; /* owns the memory that the registration points into */
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    uint64_t bytes_max;
    struct pool *pool;
    enum strait_status status;
    char why[256];
    struct mapping *next;
};

static void pool_status(struct session *session, const struct pool_id *id, enum strait_status status, bool removed,
                        const char *why)
{
    struct message message = {.type = MESSAGE_POOL_STATUS};
    message.pool_status = (struct message_pool_status){
        .pool = *id, .status = (int32_t)status, .removed = removed, .text = view_of(why, strlen(why))};
    session_send(session, &message);
}

struct pool_ref *pool_find(struct node *node, const struct tenant *tenant, const struct pool_id *id)
{
    const struct pool_key key = {tenant, *id};
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &key, sizeof(key), pool);
    return pool;
}

struct pool_ref *session_pool(struct session *session, const struct pool_id *id)
{
    struct pool_ref *pool = pool_find(session->node, session->tenant, id);
    return pool != NULL && pool->session == session && !pool->removing ? pool : NULL;
}

/* Bytes that this user's clients have mapped. */
static uint64_t bytes_of_user(struct node *node, uint32_t uid)
{
    uint64_t bytes = 0;
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        if (pool->uid == uid)
            bytes += pool->pool->bytes;
    return bytes;
}

/* ---- Mapping ----------------------------------------------------------------------------------------------------- */

static void map_work(void *arg)
{
    struct mapping *mapping = arg;
    struct node *node = mapping->session->node;
    const struct pool_context context = {
        .embedded = mapping->session->embedded, .bytes_max = mapping->bytes_max, .devices = node->devices};
    mapping->status = pool_map(&mapping->message.pool_register, mapping->fds, &context, &mapping->pool, mapping->why,
                               sizeof(mapping->why));
}

static void mapping_free(struct mapping *mapping)
{
    for (uint32_t i = 0; i < mapping->fd_count; i++)
        close(mapping->fds[i]);
    message_fini(&mapping->message);
    free(mapping);
}

static bool keep_pool(struct mapping *mapping)
{
    struct session *session = mapping->session;
    struct pool_ref *ref = calloc(1, sizeof(*ref));
    if (ref == NULL)
        return false;
    ref->node = session->node;
    ref->pool = mapping->pool;
    pool_choose_tables(ref->pool, node_codebook(session->node));
    ref->session = session;
    ref->uid = session->uid;
    ref->tenant = session->tenant;
    ref->tenant->mapped += mapping->pool->bytes;
    ref->key = (struct pool_key){ref->tenant, mapping->pool->id};
    HASH_ADD(hh, session->node->exchange.pools, key, sizeof(ref->key), ref);
    gpu_path_pool(session->node, ref);
    return true;
}

static void start_next(struct node *node);

static void map_done(void *arg)
{
    struct mapping *mapping = arg;
    struct session *session = mapping->session;
    struct node *node = session->node;
    LL_DELETE(node->mappings, mapping);
    session->mapping = false;
    if (mapping->status == STRAIT_OK && !keep_pool(mapping)) {
        pool_unmap(mapping->pool);
        mapping->status = STRAIT_ERR_NO_MEMORY;
    }
    if (mapping->status != STRAIT_OK)
        log_limited(node->log, LOG_OF_CLIENT_ERRORS, LOG_WARN, "msg=\"pool refused\" pid=%u error=\"%s\" why=\"%s\"",
                    session->pid, strait_status_string(mapping->status), mapping->why);
    else
        log_limited(node->log, LOG_OF_CLIENTS, LOG_INFO,
                    "msg=\"pool registered\" pid=%u bytes=%llu device_bytes=%llu groups=%u", session->pid,
                    (unsigned long long)mapping->pool->bytes, (unsigned long long)mapping->pool->device_bytes,
                    mapping->pool->group_count);
    pool_status(session, &mapping->message.pool_register.pool, mapping->status, false, mapping->why);
    mapping_free(mapping);
    session_job_ended(session);
    session->backlog = node->backlog = true; /* handles the messages that waited */
    start_next(node);
}

static uint64_t left_of(uint64_t limit, uint64_t used)
{
    return limit > used ? limit - used : 0;
}

/* Maps one pool at a time, so that quotas and ids are checked against what is mapped, and workers are left for
 * pages. */
static void start_next(struct node *node)
{
    struct mapping *mapping = node->mappings;
    if (mapping == NULL)
        return;
    const struct tenant *tenant = mapping->session->tenant;
    mapping->bytes_max = left_of(node->options.pool_bytes, bytes_of_user(node, mapping->session->uid));
    if (tenant->pool_bytes != 0 && left_of(tenant->pool_bytes, tenant->mapped) < mapping->bytes_max)
        mapping->bytes_max = left_of(tenant->pool_bytes, tenant->mapped);
    const bool removed = tenant_is_removed(tenant);
    mapping->status = removed ? STRAIT_ERR_INVALID : STRAIT_ERR_AGAIN;
    snprintf(mapping->why, sizeof(mapping->why), "%s", removed ? session_no_tenant : "the pool's id is still in use");
    /* Another pool of that id whose client has gone but which is not drained is forgotten by name; one of a live client
     * is in the way. */
    if (removed || pool_find(node, tenant, &mapping->message.pool_register.pool) != NULL) {
        map_done(mapping);
    } else if (job_call(node->jobs, map_work, map_done, mapping) != STRAIT_OK) {
        mapping->status = STRAIT_ERR_NO_MEMORY;
        map_done(mapping);
    }
}

bool session_pool_register(struct session *session, struct message *message, const int *fds, uint32_t fd_count)
{
    struct node *node = session->node;
    const struct message_pool_register *registration = &message->pool_register;
    if (registration->fd_count != fd_count)
        return false;
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    if (mapping == NULL) {
        pool_status(session, &registration->pool, STRAIT_ERR_NO_MEMORY, false, "");
        return true;
    }
    mapping->session = session;
    for (uint32_t i = 0; i < fd_count; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            break;
        mapping->fds[mapping->fd_count++] = fd;
    }
    if (mapping->fd_count != fd_count) {
        mapping_free(mapping);
        pool_status(session, &registration->pool, STRAIT_ERR_NO_MEMORY, false, "out of memory or descriptors");
        return true;
    }
    mapping->message = *message;
    message->owner = NULL; /* owned by the mapping now */
    session->mapping = true;
    session->jobs++;
    bool idle = node->mappings == NULL;
    LL_APPEND(node->mappings, mapping);
    if (idle)
        start_next(node);
    return true;
}

/* ---- Unmapping --------------------------------------------------------------------------------------------------- */

static void unmap_work(void *arg)
{
    struct pool_ref *ref = arg;
    pool_unmap(ref->pool);
}

static void unmap_done(void *arg)
{
    struct pool_ref *ref = arg;
    if (ref->session != NULL) {
        pool_status(ref->session, &ref->key.id, STRAIT_OK, true, "");
        session_job_ended(ref->session);
    }
    free(ref);
}

void session_pool_gone(struct pool_ref *ref)
{
    struct node *node = ref->node;
    gpu_path_pool_gone(node, ref);
    ref->tenant->mapped -= ref->pool->bytes;
    HASH_DELETE(hh, node->exchange.pools, ref);
    if (ref->session != NULL)
        ref->session->jobs++;
    if (job_call(node->jobs, unmap_work, unmap_done, ref) != STRAIT_OK) {
        unmap_work(ref); /* slow, but nothing leaks */
        unmap_done(ref);
    }
}

void session_pool_remove(struct pool_ref *ref)
{
    ref->removing = true;
    if (ref->uses == 0)
        session_pool_gone(ref);
}

void session_pool_removed(struct session *session, const struct pool_id *id)
{
    pool_status(session, id, STRAIT_OK, true, "");
}

void session_pools_end(struct session *session)
{
    struct pool_ref *ref, *next;
    HASH_ITER (hh, session->node->exchange.pools, ref, next) {
        if (ref->session != session || ref->removing)
            continue;
        ref->session = NULL;
        session_pool_remove(ref);
    }
}
