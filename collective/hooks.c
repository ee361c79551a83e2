#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <strait/collective.h>
#include <string.h>

#include "collective/api.h"
#include "collective/comm.h"
#include "collective/group.h"
#include "collective/join.h"
#include "collective/nccl.h"
#include "collective/rendezvous.h"
#include "collective/report.h"
#include "collective/report_file.h"

_Static_assert(offsetof(struct coll_config_head, magic) == COLL_CONFIG_MAGIC_AT &&
                   offsetof(coll_call_config, extensions) == COLL_CONFIG_EXTENSIONS_AT &&
                   offsetof(coll_call_config, selection) == COLL_CONFIG_SELECTION_AT &&
                   offsetof(coll_call_config, policy) == COLL_CONFIG_POLICY_AT &&
                   offsetof(coll_call_config, launched) == COLL_CONFIG_LAUNCHED_AT &&
                   offsetof(coll_encryption, mode) == COLL_ENCRYPTION_MODE_AT,
               "check_header.c has NCCL's");

/* ---- Functions of strait/collective.h ---------------------------------------------------------------------------- */

size_t strait_coll_report(struct ncclComm *comm, char *dst, size_t dst_capacity)
{
    return coll_report(comm, dst, dst_capacity);
}

const char *strait_coll_version(void)
{
    return STRAIT_VERSION;
}

enum strait_status strait_coll_nccl(const char **path, int *version)
{
    const struct coll_library *library = coll_library();
    if (!library->found)
        return STRAIT_ERR_UNSUPPORTED;
    *path = library->path;
    *version = library->version;
    return STRAIT_OK;
}

enum strait_status strait_coll_pin(struct ncclComm *comm, int choice)
{
    if (choice != STRAIT_COLL_AUTO && choice != STRAIT_COLL_RAW)
        return STRAIT_ERR_INVALID;
    if (comm == NULL)
        coll_comm_pin_all(choice == STRAIT_COLL_RAW);
    else if (!coll_comm_pin(comm, choice == STRAIT_COLL_RAW))
        return STRAIT_ERR_INVALID;
    return STRAIT_OK;
}

/* ---- Fork and exit ----------------------------------------------------------------------------------------------- */

/* A child that has not called NCCL itself has nothing to report. */
static bool is_child;

static void before_fork(void)
{
    coll_library_lock();
    coll_report_lock();
    coll_nccl_query_lock();
    coll_comm_lock();
    coll_unique_id_lock();
}

static void in_parent(void)
{
    coll_unique_id_unlock();
    coll_comm_unlock();
    coll_nccl_query_unlock();
    coll_report_unlock();
    coll_library_unlock();
}

static void in_child(void)
{
    coll_comm_clear_counts();
    coll_unique_id_clear();
    is_child = true;
    coll_unique_id_unlock();
    coll_comm_unlock();
    coll_nccl_query_unlock();
    coll_report_unlock_in_child();
    coll_library_unlock_in_child();
}

/* The library is linked with -z nodelete, so these stay until the process ends. */
__attribute__((constructor)) static void at_start(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

__attribute__((destructor)) static void at_end(void)
{
    if (!is_child || coll_comm_any_counts())
        coll_report_print(NULL);
}

/* ---- Communicators that a group makes ---------------------------------------------------------------------------- */

/* A communicator that will be at *slot when the outermost group ends. */
struct coll_pending {
    coll_comm *slot;
    int rank, ranks; /* -1: NCCL knows */
    struct coll_key key;
    coll_comm parent; /* of a split or shrink, which tells when the child is there; else NULL */
};

static _Thread_local struct {
    struct coll_pending *items;
    unsigned count, capacity;
} pending;

/* Without memory the communicator will not be in the registry. */
static void pending_add(struct coll_pending added)
{
    struct coll_pending *items = coll_grown(pending.items, pending.count, &pending.capacity, sizeof(*items));
    if (items == NULL)
        return;
    pending.items = items;
    items[pending.count++] = added;
}

static bool is_good(coll_result result)
{
    return result == COLL_SUCCESS || result == COLL_IN_PROGRESS;
}

/* ---- Making communicators ---------------------------------------------------------------------------------------- */

/* False: there is nothing to join, or the communicator is not ready and joins lazily. */
static bool register_comm(struct coll_pending made, coll_result result, struct coll_join_args *args)
{
    coll_comm comm = *made.slot;
    if (comm == NULL) { /* not made yet, or a rank that a split or shrink leaves out */
        if (made.parent != NULL && !coll_library()->settings.raw)
            coll_comm_await_child(made.parent, made.slot, &made.key);
        return false;
    }
    if (made.ranks < 0 && result == COLL_SUCCESS)
        coll_query_ranks(comm, &made.rank, &made.ranks);
    coll_comm_insert(comm, made.rank, made.ranks);
    coll_comm_set_key(comm, &made.key);
    if (result == COLL_IN_PROGRESS)
        coll_lazy_join_begin(comm, &made.key);
    *args = (struct coll_join_args){.comm = comm, .rank = made.rank, .ranks = made.ranks};
    return result == COLL_SUCCESS && made.ranks > 1;
}

/* Communicators made in one group, or by one call, join together. */
static void register_pending(coll_result result)
{
    struct coll_pending *const made = pending.items;
    const unsigned most = pending.count;
    if (most == 0) /* most groups make none */
        return;
    memset(&pending, 0, sizeof(pending));
    struct coll_join_args *joins = calloc(most, sizeof(*joins));
    struct coll_key *keys = calloc(most, sizeof(*keys));
    unsigned count = 0;
    for (unsigned i = most; i-- > 0 && is_good(result) && joins != NULL && keys != NULL;)
        if (register_comm(made[i], result, &joins[count]))
            keys[count++] = made[i].key;
    if (is_good(result))
        coll_report_begin();
    if (joins != NULL && keys != NULL)
        coll_join(joins, keys, count);
    free(joins);
    free(keys);
    free(made);
}

/* In a group, NCCL makes the communicator only when the group ends. */
static coll_result note_child(coll_result result, coll_comm parent, coll_comm *slot, int rank, int ranks,
                              struct coll_key key)
{
    if (!is_good(result) || slot == NULL)
        return result;
    coll_capture_prepare();
    pending_add((struct coll_pending){slot, rank, ranks, key, parent});
    if (coll_thread.depth == 0)
        register_pending(result);
    return result;
}

static coll_result note_created(coll_result result, coll_comm *slot, int rank, int ranks, struct coll_key key)
{
    return note_child(result, NULL, slot, rank, ranks, key);
}

/* ---- By a unique id ---------------------------------------------------------------------------------------------- */

static bool uses_tcp(void)
{
    const struct coll_settings *settings = &coll_library()->settings;
    return !settings->raw && !settings->shm_only && !coll_is_encrypted();
}

coll_result coll_hook_GetUniqueId(coll_id *id)
{
    const coll_result result = COLL_NCCL(GetUniqueId(id));
    if (result == COLL_SUCCESS && id != NULL && uses_tcp())
        coll_unique_id_put(id);
    return result;
}

/* Of several ids, the first one names the rendezvous server. */
static struct coll_key key_of(const coll_id *ids, size_t count)
{
    struct coll_key key = coll_key_of(ids, count * sizeof(*ids));
    if (count > 0 && uses_tcp())
        coll_unique_id_read(ids, &key.server);
    return key;
}

coll_result coll_hook_CommInitRank(coll_comm *made, int ranks, coll_id id, int rank)
{
    return note_created(COLL_NCCL(CommInitRank(made, ranks, id, rank)), made, rank, ranks, key_of(&id, 1));
}

coll_result coll_hook_CommInitRankConfig(coll_comm *made, int ranks, coll_id id, int rank, coll_config *config)
{
    return note_created(COLL_NCCL(CommInitRankConfig(made, ranks, id, rank, config)), made, rank, ranks,
                        key_of(&id, 1));
}

coll_result coll_hook_CommInitRankScalable(coll_comm *made, int ranks, int rank, int id_count, coll_id *ids,
                                           coll_config *config)
{
    const coll_result result = COLL_NCCL(CommInitRankScalable(made, ranks, rank, id_count, ids, config));
    return note_created(result, made, rank, ranks, key_of(ids, ids != NULL && id_count > 0 ? (size_t)id_count : 0));
}

coll_result coll_hook_CommInitAll(coll_comm *made, int count, const int *devices)
{
    coll_result result = COLL_NCCL(CommInitAll(made, count, devices));
    if (!is_good(result) || made == NULL)
        return result;
    coll_capture_prepare();
    const struct coll_key key = coll_key_random();
    for (int i = 0; i < count; i++)
        pending_add((struct coll_pending){&made[i], i, count, key, NULL});
    if (coll_thread.depth == 0)
        register_pending(result);
    return result;
}

coll_result coll_hook_CommSplit(coll_comm comm, int color, int key, coll_comm *made, coll_config *config)
{
    const struct coll_key child = coll_comm_child_key(comm, COLL_BY_SPLIT, color);
    const coll_comm parent = color >= 0 ? comm : NULL; /* else this rank is left out */
    return note_child(COLL_NCCL(CommSplit(comm, color, key, made, config)), parent, made, -1, -1, child);
}

/* NCCL ends the work under way on the communicator, so kernels of the engine must not go on waiting for it. */
static void abort_engine(coll_comm comm)
{
    struct coll_comm_info info;
    coll_comm_set_ending(comm);
    (void)coll_comm_get(comm, &info);
    coll_thread.in_nccl++;
    if (info.ccomm != NULL)
        coll_engine()->abort(info.ccomm);
    coll_thread.in_nccl--;
    coll_release(info.held);
}

coll_result coll_hook_CommShrink(coll_comm comm, int *excluded, int excluded_count, coll_comm *made,
                                 coll_config *config, int flags)
{
    if ((flags & COLL_SHRINK_ABORT) != 0)
        abort_engine(comm);
    const struct coll_key child = coll_comm_child_key(comm, COLL_BY_SHRINK, 0);
    return note_child(COLL_NCCL(CommShrink(comm, excluded, excluded_count, made, config, flags)), comm, made, -1, -1,
                      child);
}

/* ---- By growing a communicator ----------------------------------------------------------------------------------- */

/* NCCL uses the first bytes of the id; what is behind them need not be zero before. */
coll_result coll_hook_CommGetUniqueId(coll_comm comm, coll_id *id)
{
    if (id != NULL)
        memset(id, 0, sizeof(*id));
    const coll_result result = COLL_NCCL(CommGetUniqueId(comm, id));
    if (result == COLL_SUCCESS && id != NULL && !coll_library()->settings.raw) {
        const struct coll_key child = coll_comm_next_key(comm, COLL_BY_GROW, 0);
        coll_grow_id_put(id, &child);
    }
    return result;
}

/* Ranks of the parent have no number yet: NCCL knows. New ranks have no parent. */
coll_result coll_hook_CommGrow(coll_comm comm, int ranks, const coll_id *id, int rank, coll_comm *made,
                               coll_config *config)
{
    struct coll_key child = {0};
    if (comm != NULL)
        child = coll_comm_child_key(comm, COLL_BY_GROW, 0);
    else if (id != NULL)
        child = coll_grow_id_read(id);
    const coll_result result = COLL_NCCL(CommGrow(comm, ranks, id, rank, made, config));
    return note_created(result, made, comm == NULL ? rank : -1, comm == NULL ? ranks : -1, child);
}

/* A program that polls learns here that its communicator is ready. */
coll_result coll_hook_CommGetAsyncError(coll_comm comm, coll_result *error)
{
    struct coll_comm_info info;
    coll_comm made[COLL_CHILDREN_MAX];
    unsigned count = 0;
    coll_nccl_query_lock();
    coll_result result = COLL_NCCL(CommGetAsyncError(comm, error));
    if (result == COLL_SUCCESS && error != NULL && *error == COLL_SUCCESS)
        count = coll_comm_note_ready(comm, made, COLL_CHILDREN_MAX);
    coll_nccl_query_unlock();
    for (unsigned i = 0; i < count; i++)
        coll_lazy_join_ready(made[i]);
    if (result != COLL_SUCCESS || error == NULL || *error != COLL_SUCCESS || !coll_comm_get(comm, &info))
        return result;
    if (info.ranks < 0) {
        coll_query_ranks(comm, &info.rank, &info.ranks);
        coll_comm_set_ranks(comm, info.rank, info.ranks);
    }
    if (info.lazy_join != NULL)
        coll_lazy_join_ready(comm);
    if (info.ccomm != NULL && !info.ending)
        *error = coll_engine()->error(info.ccomm);
    coll_release(info.held);
    return result;
}

/* ---- Suspending communicators ------------------------------------------------------------------------------------ */

static void call_engine(coll_comm comm, void (*what)(struct coll_ccomm *ccomm))
{
    struct coll_comm_info info;
    (void)coll_comm_get(comm, &info);
    coll_thread.in_nccl++;
    if (info.ccomm != NULL)
        what(info.ccomm);
    coll_thread.in_nccl--;
    coll_release(info.held);
}

/* NCCL waits for the GPU and for all ranks before. */
coll_result coll_hook_CommSuspend(coll_comm comm, int flags)
{
    const coll_result result = COLL_NCCL(CommSuspend(comm, flags));
    if (is_good(result) && (flags & COLL_SUSPEND_MEMORY) != 0 && coll_engine() != NULL)
        call_engine(comm, coll_engine()->suspend);
    return result;
}

coll_result coll_hook_CommResume(coll_comm comm)
{
    const coll_result result = COLL_NCCL(CommResume(comm));
    if (is_good(result) && coll_engine() != NULL)
        call_engine(comm, coll_engine()->resume);
    return result;
}

coll_result coll_hook_CommMemStats(coll_comm comm, coll_statistic statistic, uint64_t *value)
{
    struct coll_comm_info info;
    const coll_result result = COLL_NCCL(CommMemStats(comm, statistic, value));
    if (result != COLL_SUCCESS || value == NULL || !coll_comm_get(comm, &info))
        return result;
    const struct coll_memory own = info.ccomm != NULL ? coll_engine()->memory(info.ccomm) : (struct coll_memory){0};
    if (statistic == COLL_MEMORY_SUSPENDABLE || statistic == COLL_MEMORY_TOTAL)
        *value += own.suspendable;
    if (statistic == COLL_MEMORY_PERSISTENT || statistic == COLL_MEMORY_TOTAL)
        *value += own.persistent;
    coll_release(info.held);
    return result;
}

/* ---- Encryption -------------------------------------------------------------------------------------------------- */

/* What NCCL accepts and this library does not understand is taken as encryption. */
coll_result coll_hook_SetEncryption(const coll_encryption *encryption)
{
    const coll_result result = COLL_NCCL(SetEncryption(encryption));
    if (result != COLL_SUCCESS || encryption == NULL)
        return result;
    const bool plain = COLL_CONFIG_HAS(encryption, mode) && encryption->mode == COLL_ENCRYPTION_NONE;
    const bool before = coll_is_encrypted();
    coll_set_encrypted(!plain);
    if (!plain && !before && !coll_library()->settings.raw)
        coll_log("%s", coll_encrypted_text);
    return result;
}

/* ---- Ending communicators ---------------------------------------------------------------------------------------- */

/* Removes a communicator before NCCL ends it, as another may then be made at its address. Other threads may have calls
 * under way on it, the last of which makes the communicator leave. Taking the lock waits for a thread that is asking
 * NCCL for the outcome of such a call. */
static struct coll_comm_entry *remove_comm(coll_comm comm)
{
    if (comm != NULL)
        coll_report_print(comm);
    struct coll_comm_entry *removed = coll_report_detach(comm);
    coll_nccl_query_lock();
    coll_nccl_query_unlock();
    return removed;
}

coll_result coll_hook_CommDestroy(coll_comm comm)
{
    coll_release_after_group(remove_comm(comm));
    return COLL_NCCL(CommDestroy(comm));
}

coll_result coll_hook_CommAbort(coll_comm comm)
{
    struct coll_comm_entry *removed = remove_comm(comm);
    struct coll_ccomm *ccomm = coll_comm_ccomm(removed);
    if (ccomm != NULL) {
        coll_thread.in_nccl++;
        coll_engine()->abort(ccomm);
        coll_thread.in_nccl--;
    }
    coll_result result = COLL_NCCL(CommAbort(comm));
    coll_release_after_group(removed);
    return result;
}

coll_result coll_hook_CommFinalize(coll_comm comm)
{
    struct coll_comm_info info;
    coll_comm_set_ending(comm);
    coll_result result = COLL_NCCL(CommFinalize(comm));
    (void)coll_comm_get(comm, &info);
    if (is_good(result) && info.ccomm != NULL)
        coll_engine()->finish(info.ccomm);
    coll_release(info.held);
    return result;
}

coll_result coll_hook_CommRevoke(coll_comm comm, int flags)
{
    abort_engine(comm);
    return COLL_NCCL(CommRevoke(comm, flags));
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

coll_result coll_hook_GroupStart(void)
{
    coll_result result = COLL_NCCL(GroupStart());
    if (result == COLL_SUCCESS)
        coll_thread.depth++;
    return result;
}

/* NCCL counts down whether or not the group's calls succeed, and refuses an end without a start. */
static coll_result note_ended(coll_result result)
{
    if (coll_thread.depth > 0 && --coll_thread.depth > 0)
        return result;
    coll_release_all();
    register_pending(result);
    return result;
}

coll_result coll_hook_GroupEnd(void)
{
    if (coll_thread.depth != 1)
        return note_ended(COLL_NCCL(GroupEnd()));
    coll_result begun = coll_group_before_end(), ended = COLL_NCCL(GroupEnd());
    ended = coll_group_after_end(begun == COLL_SUCCESS ? ended : begun);
    return note_ended(ended);
}

coll_result coll_hook_GroupSimulateEnd(coll_simulation *simulation)
{
    const coll_result begun = coll_thread.depth == 1 ? coll_group_before_simulation() : COLL_SUCCESS;
    const coll_result ended = COLL_NCCL(GroupSimulateEnd(simulation));
    return note_ended(begun == COLL_SUCCESS ? ended : begun);
}

/* ---- Registering memory ------------------------------------------------------------------------------------------ */

static coll_result note_memory(coll_result result, coll_comm comm, int change)
{
    if (is_good(result))
        coll_comm_add_memory(comm, change);
    return result;
}

coll_result coll_hook_CommRegister(const coll_comm comm, void *buffer, size_t size, void **handle)
{
    return note_memory(COLL_NCCL(CommRegister(comm, buffer, size, handle)), comm, 1);
}

coll_result coll_hook_CommDeregister(const coll_comm comm, void *handle)
{
    return note_memory(COLL_NCCL(CommDeregister(comm, handle)), comm, -1);
}

coll_result coll_hook_CommWindowRegister(coll_comm comm, void *buffer, size_t size, coll_window *window, int flags)
{
    return note_memory(COLL_NCCL(CommWindowRegister(comm, buffer, size, window, flags)), comm, 1);
}

coll_result coll_hook_CommWindowDeregister(coll_comm comm, coll_window window)
{
    return note_memory(COLL_NCCL(CommWindowDeregister(comm, window)), comm, -1);
}

/* ---- Operations: collectives, send and recv ---------------------------------------------------------------------- */

/* Decides about a call and does what follows: an op to be run holds its communicator until it is over, one that only
 * counts until its group is, and all others no longer than this function. */
static struct coll_decision begin(struct coll_call *call, struct coll_op *op)
{
    struct coll_comm_info info;
    call->grouped = coll_thread.depth > 0;
    call->captured = coll_is_captured(call->stream);
    call->registered = coll_comm_any_memory();
    (void)coll_comm_get(call->comm, &info);
    if (info.lazy_join != NULL && !coll_lazy_join_call(call, &info))
        return (struct coll_decision){.route = COLL_ROUTE_REJECT, .reason = "aborted"};
    const struct coll_decision decision = coll_decide(&info, call, op);
    const bool runs = decision.route == COLL_ROUTE_COMPRESS || decision.route == COLL_ROUTE_TIMED;
    if (!runs && !coll_group_counts(op))
        coll_release(info.held);
    if (call->grouped && info.ccomm != NULL && !info.pinned)
        coll_group_note(call);
    return decision;
}

static coll_result end(const struct coll_call *call, const struct coll_decision *decision, coll_result result)
{
    if (call->grouped && result != COLL_SUCCESS && result != COLL_IN_PROGRESS)
        coll_group_fail(result);
    coll_comm_count(call, decision, result);
    return result;
}

/* The one way into an operation. `invocation` is the same call of NCCL. */
#define RUN(call, invocation)                                         \
    do {                                                              \
        struct coll_op op;                                            \
        const struct coll_decision decision = begin(&(call), &op);    \
        switch (decision.route) {                                     \
        case COLL_ROUTE_COMPRESS:                                     \
        case COLL_ROUTE_TIMED:                                        \
            return end(&(call), &decision, coll_op_run(&op));         \
        case COLL_ROUTE_DEFER:                                        \
            return end(&(call), &decision, coll_group_keep(&(call))); \
        case COLL_ROUTE_REJECT:                                       \
            return end(&(call), &decision, COLL_INVALID_USAGE);       \
        default:                                                      \
            return end(&(call), &decision, COLL_NCCL(invocation));    \
        }                                                             \
    } while (0)

#define DESCRIBE(operation_, send_, receive_, reduction_, peer_)                                          \
    {                                                                                                     \
        .operation = COLL_##operation_, .send = send_, .receive = receive_, .count = count, .type = type, \
        .reduction = reduction_, .peer = peer_, .comm = comm, .stream = stream                            \
    }

#define DEFINE(returns, name, parameters, arguments, way, ...) \
    coll_result coll_hook_##name parameters                    \
    {                                                          \
        struct coll_call call = DESCRIBE(__VA_ARGS__);         \
        RUN(call, name arguments);                             \
    }
COLL_API_OPERATIONS(DEFINE)
#undef DEFINE

#define DEFINE(returns, name, parameters, arguments, way, ...) \
    coll_result coll_hook_##name parameters                    \
    {                                                          \
        struct coll_call call = DESCRIBE(__VA_ARGS__);         \
        call.config = config;                                  \
        RUN(call, name arguments);                             \
    }
COLL_API_CONFIGURED(DEFINE)
#undef DEFINE
