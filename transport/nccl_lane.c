/* The thread of one direction: it puts operations on the stream, finds out which have ended, and aborts when it must.
 */
#include "transport/nccl_lane.h"

#include <sched.h>
#include <sys/prctl.h>

#include "transport/clock.h"

#define SPIN_NS    100000u  /* an operation takes some tens of microseconds: a thread polls without pause this long, */
#define PAUSE_NS   20000u   /* then with these pauses, */
#define PATIENT_NS 5000000  /* and after this time */
#define LONG_NS    200000u  /* with longer ones */
#define SETUP_NS   1000000u /* connecting and draining take milliseconds */

static void pause_for(uint32_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static const struct nccl_calls *calls_of(const struct nccl_lane *lane)
{
    return lane->engine->config.calls;
}

static bool is_ending(struct nccl_lane *lane)
{
    pthread_mutex_lock(&lane->engine->lock);
    bool ending = lane->engine->ending;
    pthread_mutex_unlock(&lane->engine->lock);
    return ending;
}

/* False, with the engine failed, when `code` is an error. */
static bool is_well(struct nccl_lane *lane, int code)
{
    if (code < 0)
        nccl_engine_fail(lane->engine, calls_of(lane)->text(code));
    return code >= 0;
}

static bool is_late(const struct nccl_lane *lane)
{
    return nanoseconds() - lane->since > lane->engine->config.timeout_ms * 1000000LL;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static bool set_up(struct nccl_lane *lane)
{
    const struct nccl_calls *calls = calls_of(lane);
    if (!is_well(lane, calls->enter(lane->engine->config.device)) ||
        !is_well(lane, calls->stream_create(&lane->stream)))
        return false;
    for (uint32_t i = 0; i < NCCL_AHEAD; i++)
        if (!is_well(lane, calls->event_create(&lane->events[i])))
            return false;
    return true;
}

static bool make_id(struct nccl_lane *lane)
{
    struct nccl_engine *engine = lane->engine;
    if (!is_well(lane, calls_of(lane)->make_id(engine->ids[NCCL_OUT]))) /* nobody reads it before id_made */
        return false;
    pthread_mutex_lock(&engine->lock);
    engine->id_made = true;
    nccl_engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
    return true;
}

/* False: there is no need to wait any more. */
static bool await_peer(struct nccl_lane *lane)
{
    struct nccl_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->lock);
    while (!engine->joined && !engine->ending)
        pthread_cond_wait(&lane->work, &engine->lock);
    bool go_on = !engine->ending;
    pthread_mutex_unlock(&engine->lock);
    return go_on;
}

/* Waits until the communicator is connected. False: it will not be. */
static bool connect_peer(struct nccl_lane *lane)
{
    struct nccl_engine *engine = lane->engine;
    int code =
        calls_of(lane)->join(&lane->comm, engine->ids[lane->direction], (int)lane->direction, engine->config.blocks);
    lane->since = nanoseconds();
    while (code == NCCL_BUSY && !is_ending(lane)) {
        if (is_late(lane)) {
            nccl_engine_fail(engine, "NCCL did not connect in time");
            return false;
        }
        pause_for(SETUP_NS);
        code = calls_of(lane)->state(lane->comm);
    }
    return is_well(lane, code) && code == NCCL_DONE;
}

static bool come_up(struct nccl_lane *lane)
{
    struct nccl_engine *engine = lane->engine;
    bool up = set_up(lane) && (lane->direction != NCCL_OUT || make_id(lane)) && await_peer(lane) && connect_peer(lane);
    if (!up)
        return false;
    pthread_mutex_lock(&engine->lock);
    lane->ready = true;
    nccl_engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
    return true;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Takes the next operation that is asked for, as the GPU owns it from now on. Returns a copy: the operation itself may
 * vanish at any time, because its owner may abandon the engine. */
static bool take_asked(struct nccl_lane *lane, struct nccl_op *copy)
{
    pthread_mutex_lock(&lane->engine->lock);
    struct nccl_op *op = lane->engine->ending ? NULL : nccl_ops_take(&lane->asked);
    if (op != NULL) {
        *copy = *op;
        nccl_ops_add(&lane->flying, op);
    }
    pthread_mutex_unlock(&lane->engine->lock);
    return op != NULL;
}

/* The operation is on the stream now: records the event that tells when it ends. */
static void mark(struct nccl_lane *lane)
{
    lane->posting = false;
    if (is_well(lane, calls_of(lane)->event_record(lane->events[lane->posted % NCCL_AHEAD], lane->stream)))
        lane->posted++;
}

static void follow_up(struct nccl_lane *lane, int code)
{
    lane->posting = code == NCCL_BUSY;
    if (is_well(lane, code) && code == NCCL_DONE)
        mark(lane);
}

static void post(struct nccl_lane *lane, const struct nccl_op *op)
{
    const struct nccl_calls *calls = calls_of(lane);
    if (lane->posted == lane->over)
        lane->since = nanoseconds();
    follow_up(lane, lane->direction == NCCL_OUT ? calls->send(lane->comm, op->data, op->size, lane->stream)
                                                : calls->receive(lane->comm, op->data, op->size, lane->stream));
}

static bool post_all(struct nccl_lane *lane)
{
    struct nccl_op op;
    bool any = false;
    while (!lane->posting && lane->posted - lane->over < NCCL_AHEAD && take_asked(lane, &op)) {
        post(lane, &op);
        any = true;
    }
    return any;
}

static void finish_oldest(struct nccl_lane *lane)
{
    struct nccl_engine *engine = lane->engine;
    lane->over++;
    lane->since = nanoseconds();
    pthread_mutex_lock(&engine->lock);
    struct nccl_op *op = nccl_ops_take(&lane->flying);
    if (op != NULL) {
        op->done = true;
        nccl_ops_add(&engine->over, op);
        nccl_engine_tell(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

static bool collect(struct nccl_lane *lane)
{
    bool any = false;
    while (lane->over < lane->posted) {
        int code = calls_of(lane)->event_state(lane->events[lane->over % NCCL_AHEAD]);
        if (!is_well(lane, code) || code == NCCL_BUSY)
            break;
        finish_oldest(lane);
        any = true;
    }
    return any;
}

/* Looks for an error that NCCL met meanwhile, and for the end of a posting. */
static bool look_at_comm(struct nccl_lane *lane)
{
    int code = calls_of(lane)->state(lane->comm);
    if (!lane->posting)
        return !is_well(lane, code);
    follow_up(lane, code);
    return !lane->posting;
}

static bool is_busy(const struct nccl_lane *lane)
{
    return lane->posting || lane->over < lane->posted;
}

static bool work(struct nccl_lane *lane)
{
    bool moved = look_at_comm(lane);
    moved |= post_all(lane);
    moved |= collect(lane);
    if (!moved && is_busy(lane) && is_late(lane))
        nccl_engine_fail(lane->engine, "the peer's GPU did not take its part in time");
    return moved;
}

/* False: the lane is to end. */
static bool await_work(struct nccl_lane *lane, int64_t *moved_at)
{
    struct nccl_engine *engine = lane->engine;
    bool slept = false;
    pthread_mutex_lock(&engine->lock);
    while (!engine->ending && !is_busy(lane) && lane->asked.head == NULL) {
        pthread_cond_wait(&lane->work, &engine->lock);
        slept = true;
    }
    bool go_on = !engine->ending;
    pthread_mutex_unlock(&engine->lock);
    if (slept)
        *moved_at = nanoseconds();
    return go_on;
}

static void pause_after(int64_t idle)
{
    if (idle < SPIN_NS)
        sched_yield();
    else
        pause_for(idle < PATIENT_NS ? PAUSE_NS : LONG_NS);
}

static void serve(struct nccl_lane *lane)
{
    int64_t moved_at = nanoseconds();
    while (await_work(lane, &moved_at)) {
        if (work(lane))
            moved_at = nanoseconds();
        else
            pause_after(nanoseconds() - moved_at);
    }
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* A stream that does not drain keeps its link for ever: the GPU may still be accessing the owner's memory. A stream
 * that fails has nothing running, because CUDA ends everything in a context that failed. */
static void quieten(struct nccl_lane *lane)
{
    const struct nccl_calls *calls = calls_of(lane);
    if (lane->comm != NULL)
        calls->abort(lane->comm);
    while (lane->stream != NULL && calls->stream_state(lane->stream) == NCCL_BUSY)
        pause_for(SETUP_NS);
    for (uint32_t i = 0; i < NCCL_AHEAD; i++)
        if (lane->events[i] != NULL)
            calls->event_destroy(lane->events[i]);
    if (lane->stream != NULL)
        calls->stream_destroy(lane->stream);
}

static void give_back(struct nccl_lane *lane, struct nccl_ops *ops)
{
    struct nccl_op *op;
    while ((op = nccl_ops_take(ops)) != NULL)
        nccl_ops_add(&lane->engine->over, op);
}

static void leave(struct nccl_lane *lane)
{
    struct nccl_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->lock);
    give_back(lane, &lane->flying);
    give_back(lane, &lane->asked);
    lane->drained = true;
    bool last = --engine->running == 0 && engine->released;
    nccl_engine_tell(engine);
    pthread_mutex_unlock(&engine->lock);
    if (last)
        nccl_engine_free(engine);
}

void *nccl_lane_run(void *arg)
{
    struct nccl_lane *lane = arg;
    prctl(PR_SET_NAME, lane->direction == NCCL_OUT ? "strait-nccl-out" : "strait-nccl-in");
    prctl(PR_SET_TIMERSLACK, 1000);
    if (come_up(lane))
        serve(lane);
    quieten(lane);
    leave(lane);
    return NULL;
}
