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

#define NOTES_QUEUED_MAX (1024u * 1024)

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

void session_send_note(struct session *session, const struct message *message)
{
    if (session != NULL && session->channel != NULL && channel_queued(session->channel) < NOTES_QUEUED_MAX)
        session_send(session, message);
}

void session_forget(struct session *session, struct request *request)
{
    HASH_DELETE(by_transfer, session->requests, request);
    session->charged -= request->charged;
}

void session_drained(struct session *session)
{
    if (session == NULL)
        return;
    session->undrained--;
    session->node->sessions_ended |= session->ending;
}

/* one of session->jobs */
static void session_job_ended(struct session *session)
{
    session->jobs--;
    session->node->sessions_ended |= session->ending;
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

struct pool_ref *session_pool(struct session *session, const struct pool_id *id)
{
    struct pool_ref *pool;
    HASH_FIND(hh, session->node->exchange.pools, id, sizeof(*id), pool);
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
    const struct pool_context context = {.embedded = mapping->session->embedded,
                                         .bytes_max = mapping->bytes_max,
                                         .codebook = node->codebook,
                                         .devices = node->devices};
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
    ref->session = session;
    ref->uid = session->uid;
    ref->id = mapping->pool->id;
    HASH_ADD(hh, session->node->exchange.pools, id, sizeof(ref->id), ref);
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
        log_write(node->log, LOG_WARN, "msg=\"pool refused\" pid=%u error=\"%s\" why=\"%s\"", session->pid,
                  strait_status_string(mapping->status), mapping->why);
    else
        log_write(node->log, LOG_INFO, "msg=\"pool registered\" pid=%u bytes=%llu device_bytes=%llu groups=%u",
                  session->pid, (unsigned long long)mapping->pool->bytes,
                  (unsigned long long)mapping->pool->device_bytes, mapping->pool->group_count);
    pool_status(session, &mapping->message.pool_register.pool, mapping->status, false, mapping->why);
    mapping_free(mapping);
    session_job_ended(session);
    session->backlog = node->backlog = true; /* handles the messages that waited */
    start_next(node);
}

/* Maps one pool at a time, so that quotas and ids are checked against what is mapped, and workers are left for
 * pages. */
static void start_next(struct node *node)
{
    struct mapping *mapping = node->mappings;
    if (mapping == NULL)
        return;
    uint64_t used = bytes_of_user(node, mapping->session->uid);
    mapping->bytes_max = node->options.pool_bytes > used ? node->options.pool_bytes - used : 0;
    mapping->status = STRAIT_ERR_AGAIN;
    snprintf(mapping->why, sizeof(mapping->why), "the pool's id is still in use");
    /* Another pool of that id whose client has gone but which is not drained is forgotten by name; one of a live client
     * is in the way. */
    struct pool_ref *other;
    HASH_FIND(hh, node->exchange.pools, &mapping->message.pool_register.pool,
              sizeof(mapping->message.pool_register.pool), other);
    if (other != NULL) {
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
        pool_status(ref->session, &ref->id, STRAIT_OK, true, "");
        session_job_ended(ref->session);
    }
    free(ref);
}

void session_pool_gone(struct pool_ref *ref)
{
    struct node *node = ref->node;
    gpu_path_pool_gone(node, ref);
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
