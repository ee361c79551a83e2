#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "transport/core.h"
#include "transport/nccl_internal.h"

/* Finds the plugin that knows NCCL, and remembers what was missing. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct nccl_calls *found;
static char why_not[256];

/* The plugin stays loaded: a driver that has been started cannot be unloaded safely. */
static const struct nccl_calls *load(const char *library)
{
    nccl_calls_get *get = NULL;
    void *plugin = dlopen(NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (plugin != NULL)
        *(void **)&get = dlsym(plugin, NCCL_PLUGIN_SYMBOL);
    if (get == NULL) {
        const char *error = dlerror();
        snprintf(why_not, sizeof(why_not), "no plugin for NCCL: %s", error != NULL ? error : NCCL_PLUGIN);
        return NULL;
    }
    const struct nccl_calls *calls = get(library, why_not, sizeof(why_not));
    if (calls == NULL || calls->version == NCCL_CALLS_VERSION)
        return calls;
    snprintf(why_not, sizeof(why_not), "%s is of another version than this program", NCCL_PLUGIN);
    return NULL;
}

const struct nccl_calls *nccl_load(const char *library)
{
    pthread_mutex_lock(&lock);
    if (found == NULL)
        found = load(library);
    if (found != NULL)
        why_not[0] = '\0';
    const struct nccl_calls *calls = found;
    pthread_mutex_unlock(&lock);
    return calls;
}

void nccl_note_missing(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    vsnprintf(why_not, sizeof(why_not), format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

void nccl_missing(char *dst, size_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(dst, size, "%s", why_not);
    pthread_mutex_unlock(&lock);
}

void nccl_use_calls(const struct nccl_calls *calls)
{
    pthread_mutex_lock(&lock);
    found = calls;
    pthread_mutex_unlock(&lock);
}

#define TIMEOUT_MS  10000u
#define TIMEOUT_MAX 3600000u
#define BLOCKS      8u
#define BLOCKS_MAX  32u

static bool read_number(const char *text, uint32_t max, uint32_t *number)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value == 0 || value > max)
        return false;
    *number = (uint32_t)value;
    return true;
}

/* NCCL rounds up to powers of two; only these are accepted, so that the number asked for is the number used. */
static bool read_blocks(const char *text, uint32_t *blocks)
{
    return read_number(text, BLOCKS_MAX, blocks) && (*blocks & (*blocks - 1)) == 0;
}

static bool read_library(const char *text, char library[OPTION_MAX])
{
    memcpy(library, text, strlen(text) + 1); /* fits, as it was part of an option */
    return library[0] == '/';
}

static bool can_carry(const struct transport_ops *ops)
{
    return !ops->direct && (ops->send_memory & TRANSPORT_HOST) != 0 && (ops->receive_memory & TRANSPORT_HOST) != 0;
}

static enum strait_status choose_carrier(const char *name, const struct transport_ops **carrier)
{
    *carrier = transport_find(name);
    if (*carrier == NULL) {
        nccl_note_missing("no transport %s in this build, to carry what NCCL does not", name);
        return STRAIT_ERR_UNSUPPORTED;
    }
    return can_carry(*carrier) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

static void pass_on(char *rest, const struct option *option)
{
    strcat(rest, option->name); /* `rest` has room for all of the text */
    strcat(rest, "=");
    strcat(rest, option->value);
    strcat(rest, " ");
}

static bool read_one(const struct option *option, struct nccl_options *options, const char **carrier, char *name)
{
    if (strcmp(option->name, "timeout_ms") == 0)
        return read_number(option->value, TIMEOUT_MAX, &options->timeout_ms);
    if (strcmp(option->name, "blocks") == 0)
        return read_blocks(option->value, &options->blocks);
    if (strcmp(option->name, "library") == 0)
        return read_library(option->value, options->library);
    if (strcmp(option->name, "carrier") == 0)
        *carrier = strcpy(name, option->value);
    else
        pass_on(options->rest, option);
    return true;
}

static enum strait_status read_all(const char *text, struct nccl_options *options)
{
    struct option option;
    char name[OPTION_MAX];
    const char *carrier = "ucx";
    do {
        enum strait_status status = option_next(&text, &option);
        if (status != STRAIT_OK)
            return status;
        if (option.name != NULL && !read_one(&option, options, &carrier, name))
            return STRAIT_ERR_INVALID;
    } while (option.name != NULL);
    return choose_carrier(carrier, &options->carrier);
}

enum strait_status nccl_options_read(const char *text, struct nccl_options *options)
{
    *options = (struct nccl_options){.timeout_ms = TIMEOUT_MS, .blocks = BLOCKS};
    options->rest = calloc(1, (text != NULL ? strlen(text) : 0) + 2); /* plus a blank after each option */
    if (options->rest == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = read_all(text, options);
    if (status != STRAIT_OK)
        free(options->rest);
    return status;
}

/* The thread of one direction: it puts operations on the stream, finds out which have ended, and aborts when it must.
 */

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
    nccl_engine_notify(engine);
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
    nccl_engine_notify(engine);
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
        nccl_ops_add(&lane->inflight, op);
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
    struct nccl_op *op = nccl_ops_take(&lane->inflight);
    if (op != NULL) {
        op->done = true;
        nccl_ops_add(&engine->over, op);
        nccl_engine_notify(engine);
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
    give_back(lane, &lane->inflight);
    give_back(lane, &lane->asked);
    lane->drained = true;
    bool last = --engine->running == 0 && engine->released;
    nccl_engine_notify(engine);
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

/* The owner's side of an engine. */

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void ops_init(struct nccl_ops *ops)
{
    ops->head = NULL;
    ops->tail = &ops->head;
}

void nccl_ops_add(struct nccl_ops *ops, struct nccl_op *op)
{
    op->next = NULL;
    *ops->tail = op;
    ops->tail = &op->next;
}

struct nccl_op *nccl_ops_take(struct nccl_ops *ops)
{
    struct nccl_op *op = ops->head;
    if (op == NULL)
        return NULL;
    ops->head = op->next;
    if (ops->head == NULL)
        ops->tail = &ops->head;
    return op;
}

static struct nccl_op *take_all(struct nccl_ops *ops)
{
    struct nccl_op *head = ops->head;
    ops_init(ops);
    return head;
}

static void move_all(struct nccl_ops *to, struct nccl_ops *from)
{
    struct nccl_op *op;
    while ((op = nccl_ops_take(from)) != NULL)
        nccl_ops_add(to, op);
}

/* ---- Start and end ----------------------------------------------------------------------------------------------- */

void nccl_engine_free(struct nccl_engine *engine)
{
    for (int i = 0; i < NCCL_DIRECTIONS; i++)
        pthread_cond_destroy(&engine->lanes[i].work);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static struct nccl_engine *engine_new(const struct nccl_engine_config *config)
{
    struct nccl_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return NULL;
    engine->config = *config;
    pthread_mutex_init(&engine->lock, NULL);
    ops_init(&engine->over);
    for (int i = 0; i < NCCL_DIRECTIONS; i++) {
        struct nccl_lane *lane = &engine->lanes[i];
        lane->engine = engine;
        lane->direction = (enum nccl_direction)i;
        pthread_cond_init(&lane->work, NULL);
        ops_init(&lane->asked);
        ops_init(&lane->inflight);
    }
    return engine;
}

/* Blocks all signals in the threads: they are the owner's. */
static int start_threads(struct nccl_engine *engine)
{
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&engine->lock);
    while (error == 0 && engine->running < NCCL_DIRECTIONS) {
        struct nccl_lane *lane = &engine->lanes[engine->running];
        error = pthread_create(&lane->thread, NULL, nccl_lane_run, lane);
        engine->running += error == 0;
    }
    pthread_mutex_unlock(&engine->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Without the second thread the first one ends too, and frees the engine. */
static void give_up(struct nccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool unused = engine->running == 0;
    if (!unused)
        pthread_detach(engine->lanes[0].thread);
    engine->ending = engine->abandoned = engine->released = true;
    pthread_cond_signal(&engine->lanes[0].work);
    pthread_mutex_unlock(&engine->lock);
    if (unused)
        nccl_engine_free(engine);
}

enum strait_status nccl_engine_start(const struct nccl_engine_config *config, struct nccl_engine **out)
{
    struct nccl_engine *engine = engine_new(config);
    if (engine == NULL)
        return STRAIT_ERR_NO_MEMORY;
    int error = start_threads(engine);
    if (error == 0)
        *out = engine;
    else
        give_up(engine);
    return error == 0 ? STRAIT_OK : error == EAGAIN ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO;
}

static void end_lanes(struct nccl_engine *engine)
{
    engine->ending = true;
    for (int i = 0; i < NCCL_DIRECTIONS; i++)
        pthread_cond_signal(&engine->lanes[i].work);
}

void nccl_engine_end(struct nccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    end_lanes(engine);
    pthread_mutex_unlock(&engine->lock);
}

void nccl_engine_fail(struct nccl_engine *engine, const char *why)
{
    pthread_mutex_lock(&engine->lock);
    if (!engine->ending) {
        engine->failed = why;
        end_lanes(engine);
        nccl_engine_notify(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

struct nccl_op *nccl_engine_abandon(struct nccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->abandoned = true;
    for (int i = 0; i < NCCL_DIRECTIONS; i++) {
        move_all(&engine->over, &engine->lanes[i].inflight);
        move_all(&engine->over, &engine->lanes[i].asked);
    }
    struct nccl_op *ops = take_all(&engine->over);
    pthread_mutex_unlock(&engine->lock);
    return ops;
}

/* A thread that no longer counts as running has nothing left to do but to return. */
void nccl_engine_release(struct nccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool over = engine->running == 0;
    if (!over)
        for (int i = 0; i < NCCL_DIRECTIONS; i++)
            pthread_detach(engine->lanes[i].thread);
    engine->abandoned = engine->released = true;
    pthread_mutex_unlock(&engine->lock);
    if (!over)
        return;
    for (int i = 0; i < NCCL_DIRECTIONS; i++)
        pthread_join(engine->lanes[i].thread, NULL);
    nccl_engine_free(engine);
}

/* ---- Work and news ----------------------------------------------------------------------------------------------- */

void nccl_engine_join(struct nccl_engine *engine, const uint8_t id[NCCL_ID_BYTES])
{
    pthread_mutex_lock(&engine->lock);
    memcpy(engine->ids[NCCL_IN], id, NCCL_ID_BYTES);
    engine->joined = true;
    for (int i = 0; i < NCCL_DIRECTIONS; i++)
        pthread_cond_signal(&engine->lanes[i].work);
    pthread_mutex_unlock(&engine->lock);
}

void nccl_engine_post(struct nccl_engine *engine, enum nccl_direction direction, struct nccl_op *op)
{
    struct nccl_lane *lane = &engine->lanes[direction];
    op->done = false;
    pthread_mutex_lock(&engine->lock);
    nccl_ops_add(lane->drained ? &engine->over : &lane->asked, op);
    if (lane->drained)
        nccl_engine_notify(engine);
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&engine->lock);
}

void nccl_engine_notify(struct nccl_engine *engine)
{
    if (!engine->abandoned)
        eventfd_write(engine->config.wake, 1);
}

void nccl_engine_take(struct nccl_engine *engine, struct nccl_news *news)
{
    const struct nccl_lane *out = &engine->lanes[NCCL_OUT], *in = &engine->lanes[NCCL_IN];
    pthread_mutex_lock(&engine->lock);
    news->id_made = engine->id_made;
    if (engine->id_made)
        memcpy(news->id, engine->ids[NCCL_OUT], NCCL_ID_BYTES);
    news->ready = out->ready && in->ready;
    news->failed = engine->failed;
    news->drained = out->drained && in->drained;
    news->over = take_all(&engine->over);
    pthread_mutex_unlock(&engine->lock);
}
