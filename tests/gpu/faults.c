/* What clients and daemons do wrong, or have done to them, while a GPU works for them: others must not notice. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/chaos/gpu.h"
#include "tests/chaos/inject.h"
#include "tests/gpu/world.h"

struct faulty {
    struct daemon_process daemons[2];
    struct strait_client *clients[2];
    struct gpu_pool *pool, *peers; /* the one on that GPU, and whom it moves pages with */
    struct gpu_pool *host, *hosts;
    struct gpu_pool *near; /* on the last GPU of that daemon; NULL: there is but one */
    bool sinks;            /* it is the sink's */
};

/* A transfer of all pages between that GPU and the peer. */
struct loss {
    struct request r;
    struct flow *own, *others; /* the faulty daemon's, and the other */
};

/* `more`: an option of that daemon, or NULL. False: nothing can be done to GPUs here. */
static bool faulty_open(struct faulty *s, bool sinks, const char *more)
{
    *s = (struct faulty){.sinks = sinks};
    if (!daemon_start_faulty(&s->daemons[0], "a", "shm", "tiered", more))
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
    if (s->near != NULL)
        pool_fill(s->near, 4);
    return true;
}

static void faulty_close(struct faulty *s)
{
    for (int i = 0; i < 2; i++)
        strait_client_close(s->clients[i]);
    for (int i = 0; i < 2; i++)
        daemon_stop(&s->daemons[i]);
}

static void loss_begin(struct loss *l, struct faulty *s, const char *key)
{
    l->r = (struct request){.source = s->sinks ? s->peers : s->pool, .sink = s->sinks ? s->pool : s->peers};
    l->own = s->sinks ? &l->r.expect : &l->r.offer;
    l->others = s->sinks ? &l->r.offer : &l->r.expect;
    request_begin(&l->r, key);
}

/* LOCAL, as the first GPU has failed. */
static void require_reason(const struct flow *flow)
{
    if (flow->state != STRAIT_FAILED || flow->reason != STRAIT_REASON_LOCAL ||
        strstr(flow->text, "GPU 0 failed") == NULL)
        fprintf(stderr, "%s, %s: %s\n", strait_state_string(flow->state), strait_reason_string(flow->reason),
                flow->text);
    require(flow->state == STRAIT_FAILED && flow->reason == STRAIT_REASON_LOCAL);
    require(strstr(flow->text, "GPU 0 failed") != NULL);
}

/* Both sides are told soon, and the faulty daemon's why. */
static void loss_is_told(struct loss *l, struct faulty *s, const char *what)
{
    uint64_t began = now_ns();
    WAIT(s->clients, 2, request_over(&l->r), 5000);
    printf("  %s: failed after %.1f ms: %s; the other side: %s\n", what,
           (double)(int64_t)(l->own->decided_at - began) * 1e-6, l->own->text, strait_reason_string(l->others->reason));
    require_reason(l->own);
    require(l->others->state == STRAIT_FAILED);
    request_end(&l->r);
}

/* Of one that begins when the GPU has failed. */
static void later_is_told(struct loss *l, struct faulty *s)
{
    WAIT(s->clients, 2, l->own->decided && l->own->drained, 5000);
    printf("  what comes later: %s\n", l->own->text);
    require_reason(l->own);
    if (s->sinks) /* an expectation that is refused asks nobody */
        strait_abort(l->r.offer.transfer);
    WAIT(s->clients, 2, l->others->decided && l->others->drained, 5000);
    require(l->others->state == STRAIT_FAILED);
    request_end(&l->r);
}

/* Its first GPU; nobody has been told yet. */
static void faulty_break(struct faulty *s)
{
    struct chaos_side *faults = s->daemons[0].faults;
    uint32_t before = atomic_load(&faults->broken);
    atomic_store(&faults->breaks, 1);
    WAIT(s->clients, 2, atomic_load(&faults->broken) != before, 5000);
}

/* ---- Daemons that are killed ------------------------------------------------------------------------------------- */

/* What is told when a daemon is gone is that its GPU has let go too, not only its processes. */
static void kill_in_the_middle(struct pair *pair, int turn)
{
    struct daemon_process *sinks = &pair->daemons[1];
    struct request r = {.source = pair->source, .sink = pair->sink};
    char key[16];
    snprintf(key, sizeof(key), "lost%d", turn);
    if (turn % 2 == 0)
        move_all(r.source, r.sink, 1, false); /* else kernels are being loaded */
    request_begin(&r, key);
    WAIT(pair->clients, 2, r.expect.moved || r.expect.decided, 5000);
    usleep(700u * (unsigned)turn);
    kill(sinks->pid, SIGKILL);
    WAIT(pair->clients + 1, 1, r.expect.decided && r.expect.drained, 8000);
    pool_overwrite(r.sink);
    uint64_t told = now_ns();
    (void)process_reap(sinks->pid);
    printf("  killed after %u us: %s (%s); its process was gone %.1f ms after the pages had been overwritten\n",
           700u * (unsigned)turn, strait_state_string(r.expect.state), strait_reason_string(r.expect.reason),
           (double)(now_ns() - told) * 1e-6);
    usleep(100000);
    pool_check(r.sink);
    WAIT(pair->clients, 2, r.offer.decided && r.offer.drained, 8000);
    request_end(&r);
}

void scene_silence(void)
{
    struct pair pair;
    pair_start(&pair, "shm", "tiered", NULL);
    pair_connect(&pair);
    pair_pools(&pair, large, STRAIT_HANDLE_CUDA_IPC);
    for (int turn = 0; turn < 8; turn++) {
        kill_in_the_middle(&pair, turn);
        pair_restart(&pair, 1);
    }
    pool_check(pair.source);
    pair_close(&pair);
}

/* ---- Clients that stumble ---------------------------------------------------------------------------------------- */

/* A process that moves pages and looks at them until it is told to end; its exit status is 0 when all was right. */
static pid_t bystander(struct pair *pair, int stop, int ready)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    pair_connect(pair);
    pair_pools(pair, small, STRAIT_HANDLE_CUDA_IPC);
    struct pollfd polled = {.fd = stop, .events = POLLIN};
    uint64_t turns = 0;
    while (poll(&polled, 1, 0) == 0) {
        move_all(pair->source, pair->sink, turns, true);
        if (turns++ == 0)
            require(write(ready, "", 1) == 1);
    }
    printf("  beside it: %u transfers, all as they should be\n", (unsigned)turns);
    fflush(stdout);
    _exit(0);
}

static void ends_well(pid_t pid, const char *who)
{
    int status = process_reap(pid);
    if (status != 0)
        fprintf(stderr, "%s ended with status %x\n", who, (unsigned)status);
    require(status == 0);
}

/* A mistake of a client, before pages move or meanwhile; the verdicts must come all the same. */
struct mistake {
    void (*make)(struct pair *pair, int which);
    int count;
    const char *what[2];
};

static void make_mistake(struct pair *pair, const struct mistake *mistake, int turn)
{
    const bool before = turn % 2 == 0;
    char what[64];
    pair_connect(pair);
    pair_pools(pair, medium, STRAIT_HANDLE_CUDA_IPC);
    move_all(pair->source, pair->sink, 1, true);
    struct request r = {.source = pair->source, .sink = pair->sink, .deadline_ms = 5000};
    snprintf(what, sizeof(what), "%s %s", mistake->what[turn / 2], before ? "before" : "meanwhile");
    if (before)
        mistake->make(pair, turn / 2);
    request_begin(&r, what);
    if (!before) {
        WAIT(pair->clients, 2, r.expect.moved || r.expect.decided, 5000);
        mistake->make(pair, turn / 2);
    }
    WAIT(pair->clients, 2, request_over(&r), 8000);
    request_print(&r, what);
    request_end(&r);
}

/* Each in a child, beside a bystander. Nothing of CUDA may have been begun here before. */
static void run_beside(const struct mistake *mistake)
{
    struct pair pair;
    int stop[2], ready[2];
    char byte;
    pair_start(&pair, "shm", "tiered", NULL);
    require(pipe(stop) == 0 && pipe(ready) == 0);
    fflush(stdout);
    pid_t other = bystander(&pair, stop[0], ready[1]);
    require(read(ready[0], &byte, 1) == 1);
    for (int turn = 0; turn < 2 * mistake->count; turn++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            make_mistake(&pair, mistake, turn);
            fflush(stdout);
            _exit(0);
        }
        ends_well(pid, "the client");
    }
    usleep(100000);
    require(write(stop[1], "", 1) == 1);
    ends_well(other, "the bystander");
    daemon_stop(&pair.daemons[0]);
    daemon_stop(&pair.daemons[1]);
}

static void fail_own_kernel(struct pair *pair, int fault)
{
    (void)pair;
    printf("  the client's own kernel: %s\n", gpu_break(0, (enum gpu_fault)fault));
}

void scene_client_faults(void)
{
    run_beside(&(struct mistake){fail_own_kernel, GPU_FAULTS, {"trap", "bad address"}});
}

static void free_pool(struct pair *pair, int which)
{
    const struct gpu_pool *pool = which == 0 ? pair->source : pair->sink;
    require_cuda(cudaSetDevice(pool->shape.device));
    require_cuda(cudaFree(pool->memory));
    /* and something else has the memory now */
    uint8_t *other;
    require_cuda(cudaMalloc((void **)&other, pool->size));
    require_cuda(cudaMemset(other, 0, pool->size));
    require_cuda(cudaDeviceSynchronize());
}

/* A client must not do this; when one does, it has itself to blame for its bytes, and nobody else notices. */
void scene_freed(void)
{
    run_beside(&(struct mistake){free_pool, 2, {"source freed", "sink freed"}});
}

/* GPUs that fail or stall under a daemon. One that fails takes all of that daemon's with it, as their process is of no
 * use to CUDA any more: what uses them is told, with a reason and in time, and nothing else is touched. One that stalls
 * delays only what needs it. A plugin in front of the daemon's own does it to them (tests/chaos/plugin.c). */

#define AT_ONCE_MS 500u

/* ---- Before it fails --------------------------------------------------------------------------------------------- */

/* The second chunk of what follows waits in front of the device: without it, a transfer can be over before a device has
 * been broken, which takes up to half a second. */
static void hold_second_chunk(struct faulty *s)
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
static void offer_late(struct faulty *s, struct flow *flow)
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

/* Requests of the other GPU, of which nothing is under way: their other side never comes. */
struct waiting {
    struct flow offer, expect;
    struct gpu_pool *second;
};

static void wait_beside(struct faulty *s, struct waiting *w)
{
    if (s->near == NULL)
        return;
    w->second = pool_make(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_VMM));
    flow_offer(&w->offer, s->near, "nobody", NULL, small.pages, false);
    flow_expect(&w->expect, w->second, "nobody else", NULL, small.pages, 0);
    pump(s->clients, 2, 20);
    require(!w->offer.decided && !w->expect.decided);
}

/* ---- What is told ------------------------------------------------------------------------------------------------ */

static void late_fails(struct faulty *s, struct flow *late)
{
    WAIT(s->clients, 2, late->decided, 1000);
    WAIT(s->clients, 2, late->drained, 1000);
    require_reason(late);
    atomic_store(&host_may_end, true);
    strait_release(late->transfer);
}

/* LOCAL, drained, and as another GPU than this one has failed. */
static void require_beside(struct faulty *s, struct flow *flow)
{
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "GPU %d cannot be used since GPU 0 failed", last_device());
    WAIT(s->clients, 2, flow->decided && flow->drained, AT_ONCE_MS);
    require_reason(flow);
    if (strstr(flow->text, wanted) == NULL)
        fprintf(stderr, "%s\n", flow->text);
    require(strstr(flow->text, wanted) != NULL && strstr(flow->text, "must be started again") != NULL);
    strait_release(flow->transfer);
}

/* `since`: when the failure was known to the daemon. */
static void beside_is_told(struct faulty *s, struct waiting *w, uint64_t since)
{
    if (s->near == NULL)
        return;
    require_beside(s, &w->offer);
    require_beside(s, &w->expect);
    printf("  who waited on its other GPU was told after %.1f ms\n",
           (double)(int64_t)(w->offer.decided_at - since) * 1e-6);
}

/* Nothing of it can be used, old or new, and it says so instead of trying. */
static void beside_is_refused(struct faulty *s)
{
    struct flow offer, expect;
    if (s->near == NULL)
        return;
    uint64_t began = now_ns();
    flow_offer(&offer, s->near, "late", NULL, small.pages, false);
    require_beside(s, &offer);
    flow_expect(&expect, s->near, "later", NULL, small.pages, 0);
    require_beside(s, &expect);
    printf("  its other GPU refuses requests after %.1f ms\n", (double)(now_ns() - began) * 0.5e-6);
    refused(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_IPC), 0, 0, STRAIT_ERR_DEVICE);
    refused(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_VMM), 0, 0, STRAIT_ERR_DEVICE);
}

static void tells_of_it(struct faulty *s)
{
    const char *json = client_stats(s->clients[0]);
    require(strstr(json, "\"state\":\"failed\"") != NULL && strstr(json, "GPU 0 failed") != NULL);
    require(strstr(json, "\"state\":\"in use\"") == NULL);
    require(json_number(json, s->sinks ? "sink_failed" : "source_failed", "local") > 0);
    require(json_number(json, "gauges", "gpus_failed") == (s->near != NULL ? 2 : 1));
    require(json_number(json, "gauges", "live_offers") == 0 && json_number(json, "gauges", "live_expectations") == 0);
    require(json_number(json, "gauges", "slots_used") == 0 && json_number(json, "gauges", "quarantined_pages") == 0);
    refused(s->clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0, STRAIT_ERR_DEVICE);
}

/* From the other GPU to the failed one, under this daemon. */
static void copies_fail(struct faulty *s)
{
    if (s->near == NULL)
        return;
    struct request r = {.source = s->near};
    r.sink = pool_try(s->clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0);
    if (r.sink->status != STRAIT_OK) {
        require(r.sink->status == STRAIT_ERR_DEVICE && strstr(r.sink->text, "GPU 0 failed") != NULL);
        return; /* it is known by that */
    }
    request_begin(&r, "across");
    WAIT(s->clients, 2, request_over(&r), 5000);
    require_reason(&r.expect);
    require_reason(&r.offer);
    request_print(&r, "a copy to it failed");
    request_end(&r);
}

/* ---- What goes on ------------------------------------------------------------------------------------------------ */

static void hosts_go_on(struct faulty *s)
{
    move_all(s->host, s->hosts, 1, true);
    move_all(s->hosts, s->host, 2, true);
    printf("  its pools of the host go on\n");
}

/* The other daemon's GPUs, the failed one too: it is of no use to that process alone. */
static void peers_go_on(struct faulty *s)
{
    struct gpu_pool *pool = pool_make(s->clients[1], on(small, 0, STRAIT_HANDLE_CUDA_IPC)),
                    *second = pool_make(s->clients[1], on(small, last_device(), STRAIT_HANDLE_CUDA_IPC));
    pool_fill(pool, 7);
    move_all(pool, second, 3, true);
    move_all(s->host, second, 4, true);
    move_all(second, s->host, 5, true);
    printf("  the GPUs of the other daemon go on\n");
}

/* All of its GPUs, by itself: clients find the new daemon. */
static void works_again(struct faulty *s)
{
    uint64_t began = now_ns();
    s->pool->told = s->host->told = false;
    if (s->near != NULL)
        s->near->told = false;
    daemon_restart(&s->daemons[0]);
    WAIT(s->clients, 2, s->pool->told && s->host->told && (s->near == NULL || s->near->told), 15000);
    printf("  its pools are registered again after %.0f ms\n", (double)(now_ns() - began) * 1e-6);
    require(s->pool->status == STRAIT_OK && s->host->status == STRAIT_OK);
    pool_fill(s->pool, 8);
    move_all(s->pool, s->peers, 8, true);
    move_all(s->peers, s->pool, 9, true);
    move_all(s->host, s->hosts, 10, true);
    if (s->near != NULL) {
        require(s->near->status == STRAIT_OK);
        pool_fill(s->near, 11);
        move_all(s->near, s->hosts, 11, true);
        move_all(s->hosts, s->near, 12, true);
    }
    printf("  and all of it works when it is started again\n");
}

static void start_again(struct faulty *s)
{
    uint64_t began = now_ns();
    daemon_stop(&s->daemons[0]);
    printf("  its daemon ended after %.0f ms\n", (double)(now_ns() - began) * 1e-6);
    works_again(s);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

/* In the middle of a transfer. */
static bool fails_while_it_works(bool sinks)
{
    struct faulty s;
    struct loss lost, next;
    struct flow late;
    struct waiting beside;
    if (!faulty_open(&s, sinks, NULL))
        return false;
    move_all(sinks ? s.peers : s.pool, sinks ? s.pool : s.peers, 1, true);
    if (!sinks)
        offer_late(&s, &late);
    wait_beside(&s, &beside);
    hold_second_chunk(&s);
    loss_begin(&lost, &s, "lost");
    WAIT(s.clients, 2, atomic_load(&s.daemons[0].faults->held) != 0, 5000);
    faulty_break(&s);
    require(!lost.own->decided || lost.own->state == STRAIT_FAILED);
    atomic_store(&s.daemons[0].faults->go, 1);
    loss_is_told(&lost, &s, sinks ? "the sink's GPU" : "the source's GPU");
    beside_is_told(&s, &beside, lost.own->decided_at);
    pool_check_gaps(s.pool);
    pool_check_gaps(s.peers);
    if (!sinks)
        late_fails(&s, &late);
    loss_begin(&next, &s, "next");
    later_is_told(&next, &s);
    beside_is_refused(&s);
    tells_of_it(&s);
    hosts_go_on(&s);
    peers_go_on(&s);
    start_again(&s);
    faulty_close(&s);
    return true;
}

/* While nothing is asked of it: a copy to it is the first to notice, or who waits for an event. */
static void fails_at_rest(bool waits)
{
    struct faulty s;
    struct flow late;
    if (!faulty_open(&s, false, NULL))
        return;
    move_all(s.pool, s.peers, 1, true);
    if (waits)
        offer_late(&s, &late);
    faulty_break(&s);
    if (waits) {
        late_fails(&s, &late);
        printf("  who waited for its event was told\n");
        beside_is_refused(&s);
    } else {
        copies_fail(&s);
    }
    hosts_go_on(&s);
    faulty_close(&s);
}

/* While the other GPU is busy, which nobody interrupts: once its pages are told to be drained, nothing comes there. */
static void fails_beside_work(void)
{
    struct faulty s;
    if (last_device() == 0 || !faulty_open(&s, true, NULL))
        return;
    struct request r = {.source = s.peers};
    r.sink = pool_make(s.clients[0], on(medium, last_device(), STRAIT_HANDLE_CUDA_IPC));
    hold_second_chunk(&s);
    request_begin(&r, "beside");
    WAIT(s.clients, 2, atomic_load(&s.daemons[0].faults->held) != 0, 5000);
    faulty_break(&s);
    atomic_store(&s.daemons[0].faults->go, 1);
    uint64_t began = now_ns();
    WAIT(s.clients, 2, request_over(&r), 5000);
    pool_overwrite(r.sink);
    printf("  work on its other GPU: verdict after %.1f ms, drained after %.1f ms: %s\n",
           (double)(int64_t)(r.expect.decided_at - began) * 1e-6, (double)(int64_t)(r.expect.drained_at - began) * 1e-6,
           r.expect.text);
    require(r.expect.state == STRAIT_FAILED && r.expect.reason == STRAIT_REASON_LOCAL);
    require(strstr(r.expect.text, "failed") != NULL && strstr(r.expect.text, "must be started again") != NULL);
    require(r.offer.state == STRAIT_FAILED);
    usleep(200000);
    pool_check(r.sink);
    hosts_go_on(&s);
    request_end(&r);
    faulty_close(&s);
}

/* A daemon that is to end of it, with nobody who tells it to. */
static void ends_by_itself(void)
{
    struct faulty s;
    struct loss lost;
    struct flow idle;
    if (!faulty_open(&s, false, "--gpu-failure=exit"))
        return;
    move_all(s.pool, s.peers, 1, true);
    flow_offer(&idle, s.host, "idle", NULL, small.pages, false);
    faulty_break(&s);
    loss_begin(&lost, &s, "lost");
    loss_is_told(&lost, &s, "the GPU of a daemon that is to end");
    uint64_t began = now_ns();
    WAIT(s.clients, 2, idle.decided && idle.drained, 3000);
    require(idle.state == STRAIT_FAILED && idle.reason == STRAIT_REASON_LOCAL);
    strait_release(idle.transfer);
    require(daemon_ended(&s.daemons[0], 15000) == 3);
    printf("  its daemon ended by itself, %.0f ms after the verdict\n", (double)(now_ns() - began) * 1e-6);
    works_again(&s);
    faulty_close(&s);
}

void scene_device_fails(void)
{
    if (!fails_while_it_works(false) || !fails_while_it_works(true))
        return;
    fails_at_rest(false);
    fails_at_rest(true);
    fails_beside_work();
    ends_by_itself();
}

#define STALL_MS    2500u
#define DEADLINE_MS 700u
#define LATE_MS     200u

static void stall_device(struct faulty *s)
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
    struct faulty s;
    if (!faulty_open(&s, true, NULL))
        return;
    struct request r = {.source = s.peers, .sink = s.pool, .deadline_ms = DEADLINE_MS};
    move_all(s.peers, s.pool, 1, true);
    stall_device(&s);
    uint64_t began = now_ns();
    request_begin(&r, "held up");
    move_all(s.host, s.hosts, 2, true);
    double host_ms = (double)(now_ns() - began) * 1e-6;
    WAIT(s.clients, 2, request_over(&r), 8000);
    pool_overwrite(s.pool);
    printf("  verdict after %.0f ms (%s), drained after %.0f ms; the host's pools meanwhile: %.0f ms\n",
           (double)(r.expect.decided_at - began) * 1e-6, strait_reason_string(r.expect.reason),
           (double)(r.expect.drained_at - began) * 1e-6, host_ms);
    require(r.expect.state == STRAIT_FAILED && r.expect.reason == STRAIT_REASON_TIMEOUT);
    require(r.expect.decided_at - began < (DEADLINE_MS + LATE_MS) * UINT64_C(1000000));
    require(r.expect.drained_at > r.expect.decided_at && r.expect.drained_at - began > UINT64_C(1500000000));
    usleep(100000);
    pool_check(s.pool);
    request_end(&r);
    pool_fill(s.peers, 3);
    move_all(s.peers, s.pool, 3, true);
    faulty_close(&s);
}
