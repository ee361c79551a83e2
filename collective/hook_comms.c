/* Hooks for communicators: making and ending them, and registering memory. */
#include <stdlib.h>

#include "collective/capture.h"
#include "collective/card.h"
#include "collective/group.h"
#include "collective/hooks.h"
#include "collective/join.h"
#include "collective/late.h"
#include "collective/patient.h"
#include "collective/report.h"
#include "collective/run.h"
#include "collective/thread.h"
#include "collective/track.h"

static bool is_good(coll_result result)
{
    return result == COLL_SUCCESS || result == COLL_IN_PROGRESS;
}

/* ---- Making communicators ------------------------------------------------------------------------------------------
 */

/* False: there is nothing to join, or it is not ready yet and joins later. */
static bool settle(struct coll_pending made, coll_result result, struct coll_joining *joining)
{
    coll_comm comm = *made.slot;
    if (comm == NULL) /* a rank that a split or shrink leaves out */
        return false;
    if (made.ranks < 0 && result == COLL_SUCCESS)
        coll_ask_ranks(comm, &made.rank, &made.ranks);
    coll_track_made(comm, made.rank, made.ranks);
    coll_track_key(comm, &made.key);
    if (result == COLL_IN_PROGRESS)
        coll_late_begin(comm, &made.key);
    *joining = (struct coll_joining){.comm = comm, .rank = made.rank, .ranks = made.ranks};
    return result == COLL_SUCCESS && made.ranks > 1;
}

/* Communicators made in one group, or by one call, join together. */
static void settle_all(coll_result result)
{
    struct coll_pending made;
    const size_t most = coll_pending_count();
    if (most == 0) /* true of most groups */
        return;
    struct coll_joining *joinings = calloc(most, sizeof(*joinings));
    struct coll_key *keys = calloc(most, sizeof(*keys));
    unsigned count = 0;
    while (coll_pending_take(&made)) {
        if (!is_good(result) || joinings == NULL || keys == NULL || !settle(made, result, &joinings[count]))
            continue;
        keys[count++] = made.key;
    }
    if (joinings != NULL && keys != NULL)
        coll_join(joinings, keys, count);
    free(joinings);
    free(keys);
}

/* Inside a group, the communicator is there only when the group has ended. */
static coll_result note_made(coll_result result, coll_comm *slot, int rank, int ranks, struct coll_key key)
{
    if (!is_good(result) || slot == NULL)
        return result;
    coll_capture_prepare();
    coll_pending_add((struct coll_pending){slot, rank, ranks, key});
    if (coll_thread.depth == 0)
        settle_all(result);
    return result;
}

/* ---- By a unique id ------------------------------------------------------------------------------------------------
 */

static bool uses_cards(void)
{
    const struct coll_settings *settings = &coll_library()->settings;
    return !settings->raw && settings->meet == COLL_MEET_AUTO;
}

coll_result coll_hook_GetUniqueId(coll_id *id)
{
    const coll_result result = COLL_NCCL(GetUniqueId(id));
    if (result == COLL_SUCCESS && id != NULL && uses_cards())
        coll_card_put(id);
    return result;
}

/* If there are several ids, the first one's card counts. */
static struct coll_key key_of(const coll_id *ids, size_t count)
{
    struct coll_key key = coll_key_of(ids, count * sizeof(*ids));
    if (count > 0 && uses_cards())
        coll_card_read(ids, &key.place);
    return key;
}

coll_result coll_hook_CommInitRank(coll_comm *made, int ranks, coll_id id, int rank)
{
    return note_made(COLL_NCCL(CommInitRank(made, ranks, id, rank)), made, rank, ranks, key_of(&id, 1));
}

coll_result coll_hook_CommInitRankConfig(coll_comm *made, int ranks, coll_id id, int rank, coll_config *config)
{
    return note_made(COLL_NCCL(CommInitRankConfig(made, ranks, id, rank, config)), made, rank, ranks, key_of(&id, 1));
}

coll_result coll_hook_CommInitRankScalable(coll_comm *made, int ranks, int rank, int id_count, coll_id *ids,
                                           coll_config *config)
{
    const coll_result result = COLL_NCCL(CommInitRankScalable(made, ranks, rank, id_count, ids, config));
    return note_made(result, made, rank, ranks, key_of(ids, ids != NULL && id_count > 0 ? (size_t)id_count : 0));
}

coll_result coll_hook_CommInitAll(coll_comm *made, int count, const int *devices)
{
    coll_result result = COLL_NCCL(CommInitAll(made, count, devices));
    if (!is_good(result) || made == NULL)
        return result;
    coll_capture_prepare();
    const struct coll_key key = coll_key_draw();
    for (int i = 0; i < count; i++)
        coll_pending_add((struct coll_pending){&made[i], i, count, key});
    if (coll_thread.depth == 0)
        settle_all(result);
    return result;
}

coll_result coll_hook_CommSplit(coll_comm comm, int color, int key, coll_comm *made, coll_config *config)
{
    const struct coll_key child = coll_track_child(comm, COLL_BY_SPLIT, color);
    return note_made(COLL_NCCL(CommSplit(comm, color, key, made, config)), made, -1, -1, child);
}

/* Ends what is under way on it; nothing of ours may go on waiting behind that. */
static void give_up(coll_comm comm)
{
    struct coll_standing standing;
    coll_track_ending(comm);
    (void)coll_track_hold(comm, &standing);
    coll_thread.inside++;
    if (standing.member != NULL)
        coll_engine()->abort(standing.member);
    coll_thread.inside--;
    coll_run_release(standing.held);
}

coll_result coll_hook_CommShrink(coll_comm comm, int *excluded, int excluded_count, coll_comm *made,
                                 coll_config *config, int flags)
{
    if ((flags & COLL_SHRINK_ABORT) != 0)
        give_up(comm);
    const struct coll_key child = coll_track_child(comm, COLL_BY_SHRINK, 0);
    return note_made(COLL_NCCL(CommShrink(comm, excluded, excluded_count, made, config, flags)), made, -1, -1, child);
}

/* Where a program learns that a communicator that does not block is ready. */
coll_result coll_hook_CommGetAsyncError(coll_comm comm, coll_result *error)
{
    struct coll_standing standing;
    coll_patient_lock();
    coll_result result = COLL_NCCL(CommGetAsyncError(comm, error));
    coll_patient_unlock();
    if (result != COLL_SUCCESS || error == NULL || *error != COLL_SUCCESS || !coll_track_hold(comm, &standing))
        return result;
    if (standing.ranks < 0) {
        coll_ask_ranks(comm, &standing.rank, &standing.ranks);
        coll_track_ranks(comm, standing.rank, standing.ranks);
    }
    if (standing.late != NULL)
        coll_late_ready(comm);
    if (standing.member != NULL && !standing.ending)
        *error = coll_engine()->error(standing.member);
    coll_run_release(standing.held);
    return result;
}

/* ---- Ending communicators ------------------------------------------------------------------------------------------
 */

/* Before NCCL ends the communicator, because afterwards another may be made at its address. Other threads may have
 * calls under way on it; the last one out makes the member leave. The lock waits for a thread that is asking NCCL for
 * the outcome of such a call. */
static struct coll_tracked *note_gone(coll_comm comm)
{
    coll_report_ended(comm);
    struct coll_tracked *gone = coll_track_end(comm);
    coll_patient_lock();
    coll_patient_unlock();
    return gone;
}

coll_result coll_hook_CommDestroy(coll_comm comm)
{
    coll_run_release_ended(note_gone(comm));
    return COLL_NCCL(CommDestroy(comm));
}

coll_result coll_hook_CommAbort(coll_comm comm)
{
    struct coll_tracked *gone = note_gone(comm);
    struct coll_member *member = coll_track_member_of(gone);
    if (member != NULL) {
        coll_thread.inside++;
        coll_engine()->abort(member);
        coll_thread.inside--;
    }
    coll_result result = COLL_NCCL(CommAbort(comm));
    coll_run_release_ended(gone);
    return result;
}

coll_result coll_hook_CommFinalize(coll_comm comm)
{
    struct coll_standing standing;
    coll_track_ending(comm);
    coll_result result = COLL_NCCL(CommFinalize(comm));
    (void)coll_track_hold(comm, &standing);
    if (is_good(result) && standing.member != NULL)
        coll_engine()->finish(standing.member);
    coll_run_release(standing.held);
    return result;
}

coll_result coll_hook_CommRevoke(coll_comm comm, int flags)
{
    give_up(comm);
    return COLL_NCCL(CommRevoke(comm, flags));
}

/* ---- Groups --------------------------------------------------------------------------------------------------------
 */

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
    coll_run_release_all();
    settle_all(result);
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

/* ---- Registering memory --------------------------------------------------------------------------------------------
 */

static coll_result note_memory(coll_result result, coll_comm comm, int change)
{
    if (is_good(result))
        coll_track_memory(comm, change);
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
