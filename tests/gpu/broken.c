/* GPUs that fail or stall under a daemon: what uses them fails, with a reason and in time, and nothing else does. A
 * plugin in front of the daemon's own does it to them (tests/chaos/plugin.c). */
#include "tests/gpu/scenes.h"

#include <string.h>
#include <unistd.h>

#include "tests/chaos/shared.h"

/* ---- Failing ----------------------------------------------------------------------------------------------------- */

/* A daemon whose first GPU is to fail, and its peer. */
struct sick {
    struct daemon_process daemons[2];
    struct strait_client *clients[2];
    struct gpu_pool *pool, *peers; /* the one on that GPU, and whom it moves pages with */
    struct gpu_pool *host, *hosts;
    struct gpu_pool *near; /* on the last GPU of that daemon; NULL: there is but one */
    bool sinks;            /* it is the sink's */
};

static bool sick_open(struct sick *s, bool sinks)
{
    *s = (struct sick){.sinks = sinks};
    if (!daemon_start_faulty(&s->daemons[0], "a", "shm", "tiered", NULL))
        return false;
    daemon_start(&s->daemons[1], "b", "shm", "tiered", NULL);
    for (int i = 0; i < 2; i++)
        s->clients[i] = client_open(&s->daemons[i]);
    /* The one that fails is the last that it took into use: whatever it keeps for all of them, it keeps there. */
    if (last_device() > 0)
        s->near = pool_make(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_IPC));
    s->pool = pool_make(s->clients[0], on(medium, 0, STRAIT_HANDLE_CUDA_IPC));
    s->peers = pool_make(s->clients[1], on(medium, last_device(), STRAIT_HANDLE_CUDA_IPC));
    s->host = pool_make(s->clients[0], on(small, -1, STRAIT_HANDLE_MEMFD));
    s->hosts = pool_make(s->clients[1], on(small, -1, STRAIT_HANDLE_MEMFD));
    pool_fill(s->pool, 1);
    pool_fill(s->peers, 2);
    pool_fill(s->host, 3);
    return true;
}

struct pair {
    struct flow offer, expect;
    struct flow *own, *others; /* the sick daemon's, and the other */
};

static void pair_begin(struct pair *p, struct sick *s, const char *key)
{
    struct gpu_pool *source = s->sinks ? s->peers : s->pool, *sink = s->sinks ? s->pool : s->peers;
    struct strait_peer *peer = pool_peer(source, sink->client);
    p->own = s->sinks ? &p->expect : &p->offer;
    p->others = s->sinks ? &p->offer : &p->expect;
    flow_offer(&p->offer, source, key, NULL, medium.pages, false);
    flow_expect(&p->expect, sink, key, NULL, medium.pages);
    require(strait_start(p->expect.transfer, peer, NULL) == STRAIT_OK);
    strait_peer_remove(peer);
}

static void require_reason(const struct flow *flow)
{
    if (flow->state != STRAIT_FAILED || flow->reason != STRAIT_REASON_LOCAL ||
        strstr(flow->text, "GPU 0 failed") == NULL)
        fprintf(stderr, "%s, %s: %s\n", strait_state_string(flow->state), strait_reason_string(flow->reason),
                flow->text);
    require(flow->state == STRAIT_FAILED && flow->reason == STRAIT_REASON_LOCAL);
    require(strstr(flow->text, "GPU 0 failed") != NULL);
}

static void pair_fails(struct pair *p, struct sick *s, const char *what)
{
    uint64_t began = now_ns();
    WAIT(s->clients, 2, p->own->decided && p->own->drained && p->others->decided && p->others->drained, 5000);
    printf("  %s: failed after %.1f ms: %s; the other side: %s\n", what,
           (double)(int64_t)(p->own->decided_at - began) * 1e-6, p->own->text, strait_reason_string(p->others->reason));
    require_reason(p->own);
    require(p->others->state == STRAIT_FAILED);
    strait_release(p->offer.transfer);
    strait_release(p->expect.transfer);
}

static void break_device(struct sick *s)
{
    struct chaos_side *faults = s->daemons[0].faults;
    uint32_t before = atomic_load(&faults->broken);
    atomic_store(&faults->breaks, 1);
    WAIT(s->clients, 2, atomic_load(&faults->broken) != before, 5000);
}

/* The second chunk of what follows waits in front of the device: without it, a transfer can be over before a device has
 * been broken, which takes up to half a second. */
static void hold_second_chunk(struct sick *s)
{
    struct chaos_side *faults = s->daemons[0].faults;
    atomic_store(&faults->go, 0);
    atomic_store(&faults->skip, 1);
    atomic_store(&faults->armed, (uint32_t)(s->sinks ? AT_DECODE : AT_ENCODE) + 1);
}

static atomic_bool host_may_end;

static void slow_host(void *arg)
{
    (void)arg;
    for (int ms = 0; ms < 20000 && !atomic_load(&host_may_end); ms++)
        usleep(1000);
}

/* An offer that waits for an event when its device fails. */
static void offer_late(struct sick *s, struct flow *flow)
{
    cudaIpcEventHandle_t handle;
    cudaEvent_t event;
    cudaStream_t stream;
    require_cuda(cudaSetDevice(0));
    require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    require_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    require_cuda(cudaIpcGetEventHandle(&handle, event));
    atomic_store(&host_may_end, false);
    require_cuda(cudaLaunchHostFunc(stream, slow_host, NULL));
    require_cuda(cudaEventRecord(event, stream));
    flow_offer(flow, s->pool, "later", NULL, 8, true);
    struct strait_append_params append = {.size = sizeof(append), .ready = &handle, .last = true};
    require(strait_append(flow->transfer, &append) == STRAIT_OK);
}

static void late_fails(struct sick *s, struct flow *late)
{
    WAIT(s->clients, 2, late->decided, 1000);
    WAIT(s->clients, 2, late->drained, 1000);
    require_reason(late);
    atomic_store(&host_may_end, true);
    strait_release(late->transfer);
}

/* ---- What is left ------------------------------------------------------------------------------------------------ */

/* A number of the statistics: of an object in it. */
static long number_of(const char *json, const char *object, const char *name)
{
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "\"%s\":", object);
    const char *at = strstr(json, wanted);
    snprintf(wanted, sizeof(wanted), "\"%s\":", name);
    at = at != NULL ? strstr(at, wanted) : NULL;
    require(at != NULL);
    return strtol(at + strlen(wanted), NULL, 10);
}

static void tells_of_it(struct sick *s)
{
    const char *json = client_stats(s->clients[0]);
    require(strstr(json, "\"state\":\"failed\"") != NULL && strstr(json, "GPU 0 failed") != NULL);
    require(number_of(json, s->sinks ? "sink_failed" : "source_failed", "local") > 0);
    require(number_of(json, "gauges", "live_offers") == 0 && number_of(json, "gauges", "live_expectations") == 0);
    require(number_of(json, "gauges", "slots_used") == 0 && number_of(json, "gauges", "quarantined_pages") == 0);
    refused(s->clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0, STRAIT_ERR_DEVICE);
}

static void hosts_go_on(struct sick *s)
{
    move_all(s->host, s->hosts, 1, true);
    move_all(s->hosts, s->host, 2, true);
    printf("  its pools of the host go on\n");
}

/* The other GPU: what it does alone, with peers from before and new ones, and after something with the failed one. */
static void other_goes_on(struct sick *s)
{
    struct daemon_process late;
    if (s->near == NULL)
        return;
    pool_fill(s->near, 7);
    move_all(s->near, s->hosts, 3, true);
    move_all(s->near, s->host, 4, true);
    daemon_start(&late, s->sinks ? "late1" : "late0", "shm", "tiered", NULL);
    struct strait_client *client = client_open(&late);
    struct gpu_pool *pool = pool_make(client, on(small, last_device(), STRAIT_HANDLE_CUDA_IPC));
    move_all(s->near, pool, 5, true);
    move_all(pool, s->near, 6, true);
    (void)pool_make(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_VMM));
    strait_client_close(client);
    daemon_stop(&late);
    printf("  its other GPU goes on\n");
}

/* From the other GPU to the failed one, under this daemon: only the failed one is to blame. */
static void copies_fail_alone(struct sick *s)
{
    struct flow offer, expect;
    if (s->near == NULL)
        return;
    struct gpu_pool *pool = pool_try(s->clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0);
    if (pool->status != STRAIT_OK)
        return; /* it is known already */
    struct strait_peer *peer = pool_peer(s->near, s->clients[0]);
    flow_offer(&offer, s->near, "across", NULL, small.pages, false);
    flow_expect(&expect, pool, "across", NULL, small.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(s->clients, 2, offer.decided && expect.decided && expect.drained, 5000);
    require_reason(&expect);
    require(offer.state == STRAIT_FAILED);
    printf("  a copy to it failed: %s; the source: %s\n", expect.text, strait_reason_string(offer.reason));
    strait_release(offer.transfer);
    strait_release(expect.transfer);
}

static void start_again(struct sick *s)
{
    uint64_t began = now_ns();
    s->pool->told = s->host->told = false;
    daemon_stop(&s->daemons[0]);
    printf("  its daemon ended after %.0f ms\n", (double)(now_ns() - began) * 1e-6);
    daemon_restart(&s->daemons[0]);
    WAIT(s->clients, 2, s->pool->told && s->host->told, 15000);
    require(s->pool->status == STRAIT_OK);
    pool_fill(s->pool, 8);
    move_all(s->pool, s->peers, 8, true);
    move_all(s->peers, s->pool, 9, true);
    printf("  and works when it is started again\n");
}

static void sick_close(struct sick *s)
{
    for (int i = 0; i < 2; i++)
        strait_client_close(s->clients[i]);
    for (int i = 0; i < 2; i++)
        daemon_stop(&s->daemons[i]);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

/* In the middle of a transfer. */
static bool fails_while_it_works(bool sinks)
{
    struct sick s;
    struct pair doomed, next;
    struct flow late;
    if (!sick_open(&s, sinks))
        return false;
    move_all(sinks ? s.peers : s.pool, sinks ? s.pool : s.peers, 1, true);
    if (!sinks)
        offer_late(&s, &late);
    hold_second_chunk(&s);
    pair_begin(&doomed, &s, "doomed");
    WAIT(s.clients, 2, atomic_load(&s.daemons[0].faults->held) != 0, 5000);
    break_device(&s);
    require(!doomed.own->decided || doomed.own->state == STRAIT_FAILED);
    atomic_store(&s.daemons[0].faults->go, 1);
    pair_fails(&doomed, &s, sinks ? "the sink's GPU" : "the source's GPU");
    pool_check_gaps(s.pool);
    pool_check_gaps(s.peers);
    if (!sinks)
        late_fails(&s, &late);
    pair_begin(&next, &s, "next");
    pair_fails(&next, &s, "what comes later");
    tells_of_it(&s);
    hosts_go_on(&s);
    other_goes_on(&s);
    start_again(&s);
    sick_close(&s);
    return true;
}

/* While nothing is asked of it: a copy to it is the first to notice, or who waits for an event. */
static void fails_at_rest(bool waits)
{
    struct sick s;
    struct flow late;
    if (!sick_open(&s, false))
        return;
    move_all(s.pool, s.peers, 1, true);
    if (waits)
        offer_late(&s, &late);
    break_device(&s);
    if (waits) {
        late_fails(&s, &late);
        printf("  who waited for its event was told\n");
    } else {
        copies_fail_alone(&s);
    }
    hosts_go_on(&s);
    other_goes_on(&s);
    sick_close(&s);
}

void scene_device_fails(void)
{
    if (!fails_while_it_works(false) || !fails_while_it_works(true))
        return;
    fails_at_rest(false);
    fails_at_rest(true);
}

#define STALL_MS    2500u
#define DEADLINE_MS 700u
#define LATE_MS     200u

static void stall_device(struct sick *s)
{
    struct chaos_side *faults = s->daemons[0].faults;
    atomic_store(&faults->stall_ms, STALL_MS);
    atomic_store(&faults->stalls, 1);
    WAIT(s->clients, 2, atomic_load(&faults->stalled) != 0, 5000);
}

/* Something else keeps the GPU busy: the verdict comes in time, pages are free when the GPU has let go of them, and
 * what does not need it goes on. */
void scene_device_stalls(void)
{
    struct sick s;
    struct flow offer, expect;
    if (!sick_open(&s, true))
        return;
    move_all(s.peers, s.pool, 1, true);
    struct strait_peer *peer = pool_peer(s.peers, s.clients[0]);
    stall_device(&s);
    uint64_t began = now_ns();
    flow_offer(&offer, s.peers, "held up", NULL, medium.pages, false);
    flow_expect_for(&expect, s.pool, "held up", NULL, medium.pages, DEADLINE_MS);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    move_all(s.host, s.hosts, 2, true);
    double host_ms = (double)(now_ns() - began) * 1e-6;
    WAIT(s.clients, 2, expect.decided && expect.drained && offer.decided && offer.drained, 8000);
    pool_overwrite(s.pool);
    printf("  verdict after %.0f ms (%s), drained after %.0f ms; the host's pools meanwhile: %.0f ms\n",
           (double)(expect.decided_at - began) * 1e-6, strait_reason_string(expect.reason),
           (double)(expect.drained_at - began) * 1e-6, host_ms);
    require(expect.state == STRAIT_FAILED && expect.reason == STRAIT_REASON_TIMEOUT);
    require(expect.decided_at - began < (DEADLINE_MS + LATE_MS) * UINT64_C(1000000));
    require(expect.drained_at > expect.decided_at && expect.drained_at - began > UINT64_C(1500000000));
    usleep(100000);
    pool_check(s.pool);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    pool_fill(s.peers, 3);
    move_all(s.peers, s.pool, 3, true);
    sick_close(&s);
}
