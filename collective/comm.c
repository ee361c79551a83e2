#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/comm.h"

enum { BUCKETS = 64 };

struct child {
    struct child *next;
    coll_comm *slot;
    struct coll_key key;
};

struct coll_comm_entry {
    struct coll_comm_entry *next;
    coll_comm comm;
    unsigned holders;
    atomic_bool removed; /* not found by its address any more */
    struct coll_lazy_join *lazy_join;
    struct coll_key key;
    uint64_t children[COLL_ORIGINS];
    struct child *awaited;
    struct coll_comm_info info;
    struct coll_counts counts;
    uint64_t number;
    bool inherited; /* by a forked child, which may not use it */
    char told[COLL_TOLD_MAX];
};

/* Threads that drive one GPU each call at the same time; a sleeping one would wake too late for a call of
 * microseconds. */
static pthread_mutex_t lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static struct coll_comm_entry *buckets[BUCKETS];
static struct coll_counts process;
static bool pin_all;
static uint64_t inserted;      /* communicators so far */
static atomic_bool registered; /* memory, with any communicator; never cleared */
static atomic_bool encrypted;

/* ---- Under the lock ---------------------------------------------------------------------------------------------- */

static struct coll_comm_entry **slot_of(coll_comm comm)
{
    uint64_t mixed = (uint64_t)(uintptr_t)comm * UINT64_C(0x9E3779B97F4A7C15);
    struct coll_comm_entry **at = &buckets[mixed >> 58];
    while (*at != NULL && (*at)->comm != comm)
        at = &(*at)->next;
    return at;
}

static void add_raw(struct coll_count *count, const char *reason, uint64_t bytes)
{
    struct coll_raw_count *raw = count->raw, *const last = &count->raw[COLL_REASONS_MAX - 1];
    while (raw < last && raw->reason != NULL && raw->reason != reason)
        raw++;
    raw->reason = raw < last ? reason : COLL_OTHER_REASONS;
    raw->calls++;
    raw->bytes += bytes;
}

static void add(struct coll_counts *counts, const struct coll_call *call, const struct coll_decision *decision,
                coll_result result)
{
    struct coll_count *count = &counts->of[call->operation][coll_type_row(call->type)];
    count->reason = decision->reason;
    if (result != COLL_SUCCESS && result != COLL_IN_PROGRESS) {
        count->failed++;
        return;
    }
    count->calls++;
    count->bytes += coll_call_bytes(call);
    count->grouped += call->grouped;
    count->captured += call->captured;
    if (decision->route != COLL_ROUTE_COMPRESS) {
        add_raw(count, decision->reason, coll_call_bytes(call));
        return;
    }
    count->compressed++;
    count->values += decision->values;
    count->wire += decision->wire;
    count->probes += decision->probe;
    count->cost.plain += decision->cost.plain;
    count->cost.coded += decision->cost.coded;
    count->cost.repair += decision->cost.repair;
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

void coll_comm_lock(void)
{
    pthread_mutex_lock(&lock);
}

void coll_comm_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

struct coll_comm_entry *coll_comm_detach(coll_comm comm)
{
    coll_comm_lock();
    struct coll_comm_entry **at = slot_of(comm), *removed = *at;
    if (removed != NULL) {
        *at = removed->next;
        removed->holders++;
        removed->removed = true;
    }
    coll_comm_unlock();
    return removed;
}

/* STRAIT_COLL=raw pins all communicators. */
static bool is_pinned(void)
{
    const struct coll_library *library = coll_library_if_loaded();
    return pin_all || (library != NULL && library->settings.raw);
}

static struct coll_comm_info info_of(const struct coll_comm_entry *entry)
{
    return entry != NULL ? entry->info : (struct coll_comm_info){.rank = -1, .ranks = -1, .pinned = is_pinned()};
}

bool coll_comm_lookup(coll_comm comm, struct coll_comm_info *info)
{
    coll_comm_lock();
    const struct coll_comm_entry *entry = *slot_of(comm);
    *info = info_of(entry);
    coll_comm_unlock();
    return entry != NULL;
}

bool coll_comm_get(coll_comm comm, struct coll_comm_info *info)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    *info = info_of(entry);
    if (info->ccomm != NULL || info->lazy_join != NULL) {
        info->held = entry;
        entry->holders++;
    }
    coll_comm_unlock();
    return entry != NULL;
}

static void lazy_join_free(struct coll_lazy_join *lazy)
{
    if (lazy == NULL)
        return;
    coll_rdv_leave(lazy->rdv);
    pthread_mutex_destroy(&lazy->lock);
    free(lazy);
}

static void children_free(struct child *child)
{
    while (child != NULL) {
        struct child *next = child->next;
        free(child);
        child = next;
    }
}

struct coll_ccomm *coll_comm_put(struct coll_comm_entry *held)
{
    if (held == NULL)
        return NULL;
    coll_comm_lock();
    const bool last = --held->holders == 0 && held->removed;
    coll_comm_unlock();
    if (!last)
        return NULL;
    struct coll_ccomm *ccomm = held->info.ccomm;
    lazy_join_free(held->lazy_join);
    children_free(held->awaited);
    free(held);
    return ccomm;
}

void coll_comm_remove(coll_comm comm)
{
    (void)coll_comm_put(coll_comm_detach(comm));
}

/* An entry of the same address is of a communicator that ended without a call of the program, and its ccomm with it.
 */
void coll_comm_insert(coll_comm comm, int rank, int ranks)
{
    coll_comm_remove(comm);
    coll_comm_lock();
    /* Without memory the communicator has no entry, and its calls count for the process only. */
    struct coll_comm_entry **at = slot_of(comm);
    if (*at == NULL && (*at = calloc(1, sizeof(**at))) != NULL)
        (*at)->comm = comm;
    struct coll_comm_entry *entry = *at;
    if (entry != NULL) {
        entry->info = (struct coll_comm_info){.rank = rank, .ranks = ranks, .pinned = is_pinned()};
        entry->number = ++inserted;
    }
    coll_comm_unlock();
}

struct coll_ccomm *coll_comm_ccomm(const struct coll_comm_entry *held)
{
    coll_comm_lock();
    struct coll_ccomm *ccomm = held != NULL ? held->info.ccomm : NULL;
    coll_comm_unlock();
    return ccomm;
}

bool coll_comm_is_closing(const struct coll_comm_entry *held)
{
    coll_comm_lock();
    const bool over = held->removed || held->info.ending;
    coll_comm_unlock();
    return over;
}

bool coll_comm_is_removed(const struct coll_comm_entry *held)
{
    return held->removed;
}

void coll_comm_set_ranks(coll_comm comm, int rank, int ranks)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL) {
        entry->info.rank = rank;
        entry->info.ranks = ranks;
    }
    coll_comm_unlock();
}

void coll_comm_set_ending(coll_comm comm)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL)
        entry->info.ending = true;
    coll_comm_unlock();
}

void coll_comm_add_memory(coll_comm comm, int change)
{
    if (change > 0)
        atomic_store(&registered, true);
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL)
        entry->info.memory += change;
    coll_comm_unlock();
}

bool coll_comm_any_memory(void)
{
    return atomic_load(&registered);
}

void coll_comm_set_ccomm(coll_comm comm, struct coll_ccomm *ccomm, const char *why)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL) {
        entry->info.ccomm = ccomm;
        entry->info.why = why;
    }
    coll_comm_unlock();
}

void coll_comm_end_lazy_join(struct coll_comm_entry *held, struct coll_ccomm *ccomm, const char *why)
{
    coll_comm_lock();
    held->info.ccomm = ccomm;
    held->info.why = why;
    held->info.lazy_join = NULL;
    coll_comm_unlock();
}

void coll_comm_begin_lazy_join(coll_comm comm, const struct coll_key *key, const char *why)
{
    struct coll_lazy_join *lazy = calloc(1, sizeof(*lazy));
    if (lazy != NULL) {
        pthread_mutex_init(&lazy->lock, NULL);
        lazy->key = *key;
    }
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL) {
        entry->lazy_join = entry->info.lazy_join = lazy;
        entry->info.why = why;
    }
    coll_comm_unlock();
    if (entry == NULL)
        lazy_join_free(lazy);
}

void coll_comm_await_child(coll_comm parent, coll_comm *slot, const struct coll_key *key)
{
    struct child *child = calloc(1, sizeof(*child));
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(parent);
    if (child != NULL && entry != NULL) {
        *child = (struct child){.next = entry->awaited, .slot = slot, .key = *key};
        entry->awaited = child;
        child = NULL;
    }
    coll_comm_unlock();
    free(child);
}

static struct child *take_awaited(coll_comm comm)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    struct child *child = entry != NULL ? entry->awaited : NULL;
    if (entry != NULL)
        entry->awaited = NULL;
    coll_comm_unlock();
    return child;
}

unsigned coll_comm_note_ready(coll_comm comm, coll_comm *made, unsigned most)
{
    struct child *const awaited = take_awaited(comm);
    unsigned count = 0;
    for (struct child *child = awaited; child != NULL && count < most; child = child->next) {
        coll_comm const at = *child->slot;
        if (at == NULL)
            continue;
        coll_comm_insert(at, -1, -1);
        coll_comm_set_key(at, &child->key);
        coll_comm_begin_lazy_join(at, &child->key, COLL_NOT_JOINED);
        made[count++] = at;
    }
    children_free(awaited);
    return count;
}

void coll_comm_set_key(coll_comm comm, const struct coll_key *key)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL) {
        entry->key = *key;
        memset(entry->children, 0, sizeof(entry->children));
    }
    coll_comm_unlock();
}

static struct coll_key child_key(coll_comm comm, enum coll_comm_origin origin, int64_t color, unsigned step)
{
    struct coll_key key = {0};
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL) {
        key = coll_key_child(&entry->key, 1 + (uint64_t)origin, entry->children[origin], color);
        entry->children[origin] += step;
    }
    coll_comm_unlock();
    return key;
}

struct coll_key coll_comm_child_key(coll_comm comm, enum coll_comm_origin origin, int64_t color)
{
    return child_key(comm, origin, color, 1);
}

struct coll_key coll_comm_next_key(coll_comm comm, enum coll_comm_origin origin, int64_t color)
{
    return child_key(comm, origin, color, 0);
}

void coll_set_encrypted(bool asked)
{
    atomic_store(&encrypted, asked);
}

bool coll_is_encrypted(void)
{
    return atomic_load(&encrypted);
}

bool coll_comm_pin(coll_comm comm, bool raw)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL)
        entry->info.pinned = raw;
    coll_comm_unlock();
    return entry != NULL;
}

void coll_comm_pin_all(bool raw)
{
    coll_comm_lock();
    pin_all = raw;
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct coll_comm_entry *entry = buckets[i]; entry != NULL; entry = entry->next)
            entry->info.pinned = raw;
    coll_comm_unlock();
}

/* ---- Counts ------------------------------------------------------------------------------------------------------ */

void coll_comm_count(const struct coll_call *call, const struct coll_decision *decision, coll_result result)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(call->comm);
    if (entry != NULL)
        add(&entry->counts, call, decision, result);
    add(&process, call, decision, result);
    coll_comm_unlock();
}

bool coll_comm_counts(coll_comm comm, struct coll_comm_info *info, struct coll_counts *counts)
{
    coll_comm_lock();
    const struct coll_comm_entry *entry = comm != NULL ? *slot_of(comm) : NULL;
    *info = info_of(entry);
    if (entry != NULL)
        *counts = entry->counts;
    else if (comm == NULL)
        *counts = process;
    coll_comm_unlock();
    return entry != NULL || comm == NULL;
}

bool coll_comm_any_counts(void)
{
    bool any = false;
    coll_comm_lock();
    for (unsigned i = 0; i < COLL_OPERATIONS * COLL_TYPES; i++)
        any |= process.of[i / COLL_TYPES][i % COLL_TYPES].reason != NULL;
    coll_comm_unlock();
    return any;
}

void coll_comm_clear_counts(void)
{
    memset(&process, 0, sizeof(process));
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct coll_comm_entry *entry = buckets[i]; entry != NULL; entry = entry->next) {
            memset(&entry->counts, 0, sizeof(entry->counts));
            entry->inherited = true;
        }
}

/* ---- For reports ------------------------------------------------------------------------------------------------- */

void coll_comm_set_told(coll_comm comm, const char *told)
{
    coll_comm_lock();
    struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL)
        snprintf(entry->told, sizeof(entry->told), "%s", told);
    coll_comm_unlock();
}

unsigned coll_comm_list(coll_comm *list, unsigned most)
{
    unsigned count = 0;
    coll_comm_lock();
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct coll_comm_entry *entry = buckets[i]; entry != NULL; entry = entry->next) {
            if (entry->inherited)
                continue;
            if (count < most)
                list[count] = entry->comm;
            count++;
        }
    coll_comm_unlock();
    return count;
}

/* A few bits of both words: the whole key lets a process join. */
static uint64_t id_of(const struct coll_key *key)
{
    const uint64_t mixed = (key->words[0] ^ (key->words[1] << 32 | key->words[1] >> 32)) * UINT64_C(0x9E3779B97F4A7C15);
    return mixed >> 16;
}

bool coll_comm_copy(coll_comm comm, struct coll_comm_copy *copy)
{
    coll_comm_lock();
    const struct coll_comm_entry *entry = *slot_of(comm);
    if (entry != NULL) {
        copy->info = entry->info;
        copy->counts = entry->counts;
        copy->number = entry->number;
        copy->id = id_of(&entry->key);
        memcpy(copy->told, entry->told, sizeof(copy->told));
    }
    coll_comm_unlock();
    return entry != NULL;
}

/* Of the calling thread: its group depth, and the communicators in the group. */
static _Thread_local struct {
    unsigned depth, count, capacity;
    coll_comm *comms;
} open_group;

static const struct coll_table *nccl(void)
{
    return &coll_library()->pnccl;
}

static pthread_mutex_t query_mutex = PTHREAD_MUTEX_INITIALIZER;

void coll_nccl_query_lock(void)
{
    pthread_mutex_lock(&query_mutex);
}

void coll_nccl_query_unlock(void)
{
    pthread_mutex_unlock(&query_mutex);
}

static bool is_known(coll_comm comm)
{
    struct coll_comm_info info;
    return coll_comm_lookup(comm, &info);
}

/* Under the lock, since a thread that has removed the communicator and then had the lock may end it. */
static coll_result query(coll_comm comm, coll_result *result)
{
    coll_nccl_query_lock();
    const coll_result queried = is_known(comm) ? nccl()->CommGetAsyncError(comm, result) : COLL_INVALID_USAGE;
    coll_comm made[COLL_CHILDREN_MAX];
    if (queried == COLL_SUCCESS && *result == COLL_SUCCESS)
        (void)coll_comm_note_ready(comm, made, COLL_CHILDREN_MAX);
    coll_nccl_query_unlock();
    return queried;
}

coll_result coll_nccl_wait(coll_comm comm, coll_result result)
{
    while (result == COLL_IN_PROGRESS) {
        const coll_result queried = query(comm, &result);
        if (queried != COLL_SUCCESS)
            return queried;
        if (result == COLL_IN_PROGRESS)
            nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
    }
    return result;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static bool is_in_group(coll_comm comm)
{
    for (unsigned i = 0; i < open_group.count; i++)
        if (open_group.comms[i] == comm)
            return true;
    return false;
}

static bool note_comm(coll_comm comm)
{
    if (is_in_group(comm))
        return true;
    coll_comm *comms = coll_grown(open_group.comms, open_group.count, &open_group.capacity, sizeof(coll_comm));
    if (comms == NULL)
        return false;
    open_group.comms = comms;
    open_group.comms[open_group.count++] = comm;
    return true;
}

static coll_result group_start(void)
{
    const coll_result result = nccl()->GroupStart();
    open_group.depth += result == COLL_SUCCESS;
    return result;
}

static coll_result group_end(void)
{
    coll_result result = nccl()->GroupEnd();
    if (open_group.depth > 0 && --open_group.depth > 0)
        return result;
    const coll_result ended = result;
    for (unsigned i = 0; i < open_group.count; i++) {
        const coll_result outcome = coll_nccl_wait(open_group.comms[i], ended);
        result = result == COLL_IN_PROGRESS || result == COLL_SUCCESS ? outcome : result;
    }
    free(open_group.comms);
    open_group.comms = NULL;
    open_group.count = open_group.capacity = 0;
    return result;
}

/* ---- Calls in groups --------------------------------------------------------------------------------------------- */

/* In a group of the program's own (depth 0 here) waiting is up to the program or to group.c. NCCL is not asked about a
 * communicator that another thread has ended meanwhile. */
static coll_result complete_call(coll_comm comm, coll_result result)
{
    if (result != COLL_IN_PROGRESS && result != COLL_SUCCESS)
        return result;
    if (open_group.depth > 0)
        return note_comm(comm) ? COLL_SUCCESS : COLL_SYSTEM_ERROR;
    return result == COLL_IN_PROGRESS ? COLL_SUCCESS : result;
}

#define CALL(comm, invocation) (is_known(comm) ? complete_call(comm, nccl()->invocation) : COLL_INVALID_USAGE)

static coll_result all_gather(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                              coll_stream stream)
{
    return CALL(comm, AllGather(send, receive, count, type, comm, stream));
}

static coll_result all_to_all(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                              coll_stream stream)
{
    return CALL(comm, AlltoAll(send, receive, count, type, comm, stream));
}

static coll_result all_to_all_config(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                                     coll_stream stream, const coll_call_config *config)
{
    return CALL(comm, AlltoAllConfig(send, receive, count, type, comm, stream, config));
}

static coll_result gather_config(const void *send, void *receive, size_t count, coll_type type, int root,
                                 coll_comm comm, coll_stream stream, const coll_call_config *config)
{
    return CALL(comm, GatherConfig(send, receive, count, type, root, comm, stream, config));
}

static coll_result scatter_config(const void *send, void *receive, size_t count, coll_type type, int root,
                                  coll_comm comm, coll_stream stream, const coll_call_config *config)
{
    return CALL(comm, ScatterConfig(send, receive, count, type, root, comm, stream, config));
}

static coll_result broadcast(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                             coll_stream stream)
{
    return CALL(comm, Broadcast(send, receive, count, type, root, comm, stream));
}

static coll_result gather(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                          coll_stream stream)
{
    return CALL(comm, Gather(send, receive, count, type, root, comm, stream));
}

static coll_result scatter(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                           coll_stream stream)
{
    return CALL(comm, Scatter(send, receive, count, type, root, comm, stream));
}

static coll_result reduce_scatter(const void *send, void *receive, size_t count, coll_type type,
                                  coll_reduction reduction, coll_comm comm, coll_stream stream)
{
    return CALL(comm, ReduceScatter(send, receive, count, type, reduction, comm, stream));
}

static coll_result send(const void *values, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    return CALL(comm, Send(values, count, type, peer, comm, stream));
}

static coll_result receive(void *values, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream)
{
    return CALL(comm, Recv(values, count, type, peer, comm, stream));
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static struct coll_table table;

static void fill(void)
{
    table = *nccl();
    table.GroupStart = group_start;
    table.GroupEnd = group_end;
    table.AllGather = all_gather;
    table.AlltoAll = all_to_all;
    table.AlltoAllConfig = all_to_all_config;
    table.GatherConfig = gather_config;
    table.ScatterConfig = scatter_config;
    table.Broadcast = broadcast;
    table.Gather = gather;
    table.Scatter = scatter;
    table.ReduceScatter = reduce_scatter;
    table.Send = send;
    table.Recv = receive;
}

const struct coll_table *coll_nccl_blocking(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    return &table;
}
