/* Events. One that was recorded while its stream was captured is a point of that graph, and brings the stream that
 * waits for it into the graph. */
#include <pthread.h>

#include "tests/coll_fake/stream.h"

/* Recordings on several streams are reached in any order: `over` is the last one before which all are, and those beyond
 * it are in `ahead`, each at its number's place. */
enum { AHEAD = 4096 };

struct CUevent_st {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, over, ahead[AHEAD];
    unsigned references;
    double clock, clocks[AHEAD]; /* of the latest record, and of those in `ahead` */
    coll_stream origin;          /* that was captured, by that number, when it was recorded */
    uint64_t graph;              /* 0: none */
};

struct mark {
    struct CUevent_st *event;
    uint64_t number;
};

struct CUevent_st *fake_event_make(void)
{
    struct CUevent_st *event = calloc(1, sizeof(*event));
    demand(event != NULL);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    event->references = 1;
    return event;
}

void fake_event_end(struct CUevent_st *event)
{
    pthread_mutex_lock(&event->lock);
    const bool last = --event->references == 0;
    pthread_mutex_unlock(&event->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->changed);
    free(event);
}

static void end_mark(void *argument)
{
    fake_event_end(((struct mark *)argument)->event);
}

static void reach(coll_stream stream, void *argument)
{
    const struct mark *mark = argument;
    struct CUevent_st *event = mark->event;
    pthread_mutex_lock(&event->lock);
    demand(mark->number > event->over && mark->number - event->over < AHEAD);
    event->ahead[mark->number % AHEAD] = mark->number;
    while (event->ahead[(event->over + 1) % AHEAD] == event->over + 1)
        event->over++;
    event->clock = event->clocks[mark->number % AHEAD] = fake_stream_clock(stream);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static bool is_reached(const struct CUevent_st *event, uint64_t number)
{
    return event->over >= number || event->ahead[number % AHEAD] == number;
}

static void await(coll_stream stream, void *argument)
{
    const struct mark *mark = argument;
    struct CUevent_st *event = mark->event;
    pthread_mutex_lock(&event->lock);
    while (!is_reached(event, mark->number))
        pthread_cond_wait(&event->changed, &event->lock);
    const bool latest = event->ahead[mark->number % AHEAD] != mark->number;
    const double clock = latest ? event->clock : event->clocks[mark->number % AHEAD];
    const double behind = clock - fake_stream_clock(stream);
    pthread_mutex_unlock(&event->lock);
    if (behind > 0)
        fake_pass_time(stream, behind);
}

static void queue_mark(struct CUevent_st *event, coll_stream stream, bool record)
{
    pthread_mutex_lock(&event->lock);
    event->references++;
    event->recorded += record;
    const struct mark mark = {event, event->recorded};
    pthread_mutex_unlock(&event->lock);
    fake_queue(stream, record ? reach : await, end_mark, &mark, sizeof(mark));
}

void fake_event_record(struct CUevent_st *event, coll_stream stream)
{
    event->graph = fake_capture(stream);
    event->origin = stream;
    if (event->graph == 0)
        queue_mark(event, stream, true);
}

/* CUDA refuses that a graph waits for what is outside of it, and that what is outside waits for it. */
void fake_event_follow(coll_stream stream, struct CUevent_st *event)
{
    const uint64_t graph = fake_capture(stream);
    if (event->graph == 0) {
        demand(graph == 0);
        queue_mark(event, stream, false);
        return;
    }
    demand(fake_capture(event->origin) == event->graph); /* it has not ended */
    if (graph == 0)
        fake_capture_join(stream, event->origin);
    else
        demand(graph == event->graph);
}

/* ---- Outside of graphs ------------------------------------------------------------------------------------------- */

struct crossing {
    struct CUevent_st *event;
    bool record;
};

static void end_crossing(void *argument)
{
    fake_event_end(((struct crossing *)argument)->event);
}

static void cross_at_launch(coll_stream stream, const void *argument)
{
    const struct crossing *crossing = argument;
    queue_mark(crossing->event, stream, crossing->record);
}

static void cross(struct CUevent_st *event, coll_stream stream, bool record)
{
    const struct crossing crossing = {event, record};
    demand(event->graph == 0);
    pthread_mutex_lock(&event->lock);
    event->references++;
    pthread_mutex_unlock(&event->lock);
    fake_queue_launch(stream, cross_at_launch, end_crossing, &crossing, sizeof(crossing));
}

void fake_event_record_outside(struct CUevent_st *event, coll_stream stream)
{
    cross(event, stream, true);
}

void fake_event_follow_outside(coll_stream stream, struct CUevent_st *event)
{
    cross(event, stream, false);
}

/* ---- What is known of one ---------------------------------------------------------------------------------------- */

bool fake_event_over(struct CUevent_st *event)
{
    pthread_mutex_lock(&event->lock);
    demand(event->graph == 0);
    const bool over = event->over == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return over;
}

double fake_event_seconds(struct CUevent_st *from, struct CUevent_st *to)
{
    demand(fake_event_over(from) && fake_event_over(to));
    pthread_mutex_lock(&from->lock);
    const double began = from->clock;
    pthread_mutex_unlock(&from->lock);
    pthread_mutex_lock(&to->lock);
    const double ended = to->clock;
    pthread_mutex_unlock(&to->lock);
    return ended - began;
}
