/* The owner's side of an engine. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "transport/nccl_lane.h"

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
        ops_init(&lane->flying);
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
        nccl_engine_tell(engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

struct nccl_op *nccl_engine_abandon(struct nccl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->abandoned = true;
    for (int i = 0; i < NCCL_DIRECTIONS; i++) {
        move_all(&engine->over, &engine->lanes[i].flying);
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
        nccl_engine_tell(engine);
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&engine->lock);
}

void nccl_engine_tell(struct nccl_engine *engine)
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
