/* What clients and daemons do wrong, or have done to them, while a GPU works for them: others must not notice. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/chaos/gpu.h"
#include "tests/chaos/inject.h"
#include "tests/gpu/scenes.h"

struct sick {
    struct daemon_process daemons[2];
    struct strait_client *clients[2];
    struct gpu_pool *pool, *peers; /* the one on that GPU, and whom it moves pages with */
    struct gpu_pool *host, *hosts;
    struct gpu_pool *near; /* on the last GPU of that daemon; NULL: there is but one */
    bool sinks;            /* it is the sink's */
};

/* `more`: an option of that daemon, or NULL. False: nothing can be done to GPUs here. */
bool sick_open(struct sick *sick, bool sinks, const char *more);
void sick_close(struct sick *sick);
void sick_break(struct sick *sick); /* its first GPU; nobody has been told yet */

/* A transfer of all pages between that GPU and the peer. */
struct pair {
    struct flow offer, expect;
    struct flow *own, *others; /* the sick daemon's, and the other */
};
void pair_begin(struct pair *pair, struct sick *sick, const char *key);
/* Both sides are told soon, and the sick daemon's why. */
void pair_fails(struct pair *pair, struct sick *sick, const char *what);
/* Of a pair that begins when the GPU has failed. */
void later_fails(struct pair *p, struct sick *s);
/* LOCAL, as the first GPU has failed. */
void require_reason(const struct flow *flow);

bool sick_open(struct sick *s, bool sinks, const char *more)
{
    *s = (struct sick){.sinks = sinks};
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

void sick_close(struct sick *s)
{
    for (int i = 0; i < 2; i++)
        strait_client_close(s->clients[i]);
    for (int i = 0; i < 2; i++)
        daemon_stop(&s->daemons[i]);
}

void pair_begin(struct pair *p, struct sick *s, const char *key)
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

void require_reason(const struct flow *flow)
{
    if (flow->state != STRAIT_FAILED || flow->reason != STRAIT_REASON_LOCAL ||
        strstr(flow->text, "GPU 0 failed") == NULL)
        fprintf(stderr, "%s, %s: %s\n", strait_state_string(flow->state), strait_reason_string(flow->reason),
                flow->text);
    require(flow->state == STRAIT_FAILED && flow->reason == STRAIT_REASON_LOCAL);
    require(strstr(flow->text, "GPU 0 failed") != NULL);
}

void pair_fails(struct pair *p, struct sick *s, const char *what)
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

void later_fails(struct pair *p, struct sick *s)
{
    WAIT(s->clients, 2, p->own->decided && p->own->drained, 5000);
    printf("  what comes later: %s\n", p->own->text);
    require_reason(p->own);
    if (s->sinks) /* an expectation that is refused asks nobody */
        strait_abort(p->offer.transfer);
    WAIT(s->clients, 2, p->others->decided && p->others->drained, 5000);
    require(p->others->state == STRAIT_FAILED);
    strait_release(p->offer.transfer);
    strait_release(p->expect.transfer);
}

void sick_break(struct sick *s)
{
    struct chaos_side *faults = s->daemons[0].faults;
    uint32_t before = atomic_load(&faults->broken);
    atomic_store(&faults->breaks, 1);
    WAIT(s->clients, 2, atomic_load(&faults->broken) != before, 5000);
}

/* ---- Daemons that are killed ------------------------------------------------------------------------------------- */

/* What is told when a daemon is gone is that its GPU has let go too, not only its processes. */
static void kill_in_the_middle(struct daemon_process *sinks, struct strait_client **clients, struct gpu_pool *source,
                               struct gpu_pool *sink, int turn)
{
    struct strait_peer *peer = pool_peer(source, clients[1]);
    struct flow offer, expect;
    char key[16];
    snprintf(key, sizeof(key), "doomed%d", turn);
    if (turn % 2 == 0)
        move_all(source, sink, 1, false); /* else kernels are being loaded */
    flow_offer(&offer, source, key, NULL, large.pages, false);
    flow_expect(&expect, sink, key, NULL, large.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(clients, 2, expect.moved || expect.decided, 5000);
    usleep(700u * (unsigned)turn);
    kill(sinks->pid, SIGKILL);
    WAIT(clients + 1, 1, expect.decided && expect.drained, 8000);
    pool_overwrite(sink);
    uint64_t told = now_ns();
    require(waitpid(sinks->pid, NULL, 0) == sinks->pid);
    printf("  killed after %u us: %s (%s); its process was gone %.1f ms after the pages had been overwritten\n",
           700u * (unsigned)turn, strait_state_string(expect.state), strait_reason_string(expect.reason),
           (double)(now_ns() - told) * 1e-6);
    usleep(100000);
    pool_check(sink);
    WAIT(clients, 2, offer.decided && offer.drained, 8000);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    strait_peer_remove(peer);
}

void scene_silence(void)
{
    struct daemon_process daemons[2];
    daemon_start(&daemons[0], "a", "shm", "tiered", NULL);
    daemon_start(&daemons[1], "b", "shm", "tiered", NULL);
    struct strait_client *clients[] = {client_open(&daemons[0]), client_open(&daemons[1])};
    struct gpu_pool *source = pool_make(clients[0], on(large, 0, STRAIT_HANDLE_CUDA_IPC));
    struct gpu_pool *sink = pool_make(clients[1], on(large, last_device(), STRAIT_HANDLE_CUDA_IPC));
    pool_fill(source, 1);
    for (int turn = 0; turn < 8; turn++) {
        kill_in_the_middle(&daemons[1], clients, source, sink, turn);
        sink->told = false;
        daemon_restart(&daemons[1]);
        WAIT(clients, 2, sink->told, 15000);
        require(sink->status == STRAIT_OK);
    }
    pool_check(source);
    strait_client_close(clients[0]);
    strait_client_close(clients[1]);
    daemon_stop(&daemons[0]);
    daemon_stop(&daemons[1]);
}

/* ---- Clients that stumble ---------------------------------------------------------------------------------------- */

struct clients {
    struct strait_client *both[2];
    struct gpu_pool *source, *sink;
    struct strait_peer *peer;
};

static struct clients clients_open(const struct daemon_process *daemons, struct pool_shape shape)
{
    struct clients c = {.both = {client_open(&daemons[0]), client_open(&daemons[1])}};
    c.source = pool_make(c.both[0], on(shape, 0, STRAIT_HANDLE_CUDA_IPC));
    c.sink = pool_make(c.both[1], on(shape, last_device(), STRAIT_HANDLE_CUDA_IPC));
    c.peer = pool_peer(c.source, c.both[1]);
    pool_fill(c.source, 1);
    return c;
}

/* A process that moves pages and looks at them until it is told to end; its exit status is 0 when all was right. */
static pid_t bystander(const struct daemon_process *daemons, int stop, int ready)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct clients c = clients_open(daemons, small);
    struct pollfd polled = {.fd = stop, .events = POLLIN};
    uint64_t turns = 0;
    while (poll(&polled, 1, 0) == 0) {
        move_all(c.source, c.sink, turns, true);
        if (turns++ == 0)
            require(write(ready, "", 1) == 1);
    }
    printf("  beside it: %u transfers, all as they should be\n", (unsigned)turns);
    fflush(stdout);
    _exit(0);
}

static void ends_well(pid_t pid, const char *who)
{
    int status;
    require(waitpid(pid, &status, 0) == pid);
    if (status != 0)
        fprintf(stderr, "%s ended with status %x\n", who, (unsigned)status);
    require(status == 0);
}

static void tell_verdicts(const char *what, const struct flow *offer, const struct flow *expect)
{
    printf("  %s: source %s (%s%s%s), sink %s (%s%s%s)\n", what, strait_state_string(offer->state),
           strait_reason_string(offer->reason), offer->text[0] != 0 ? ": " : "", offer->text,
           strait_state_string(expect->state), strait_reason_string(expect->reason), expect->text[0] != 0 ? ": " : "",
           expect->text);
}

/* Lets `stumble` happen while pages move, or before they do; the verdicts must come all the same. */
static void move_and_stumble(struct clients *c, const char *what, bool before,
                             void (*stumble)(struct clients *c, int arg), int arg)
{
    struct flow offer, expect;
    if (before)
        stumble(c, arg);
    flow_offer(&offer, c->source, what, NULL, c->source->shape.pages, false);
    flow_expect_for(&expect, c->sink, what, NULL, c->sink->shape.pages, 5000);
    require(strait_start(expect.transfer, c->peer, NULL) == STRAIT_OK);
    if (!before) {
        WAIT(c->both, 2, expect.moved || expect.decided, 5000);
        stumble(c, arg);
    }
    WAIT(c->both, 2, offer.decided && expect.decided && offer.drained && expect.drained, 8000);
    tell_verdicts(what, &offer, &expect);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
}

/* Runs `body` in a child beside a bystander. Nothing of CUDA may have been begun here before. */
static void run_beside(void (*body)(const struct daemon_process *daemons, int arg), int count)
{
    struct daemon_process daemons[2];
    int stop[2], ready[2];
    char byte;
    daemon_start(&daemons[0], "a", "shm", "tiered", NULL);
    daemon_start(&daemons[1], "b", "shm", "tiered", NULL);
    require(pipe(stop) == 0 && pipe(ready) == 0);
    fflush(stdout);
    pid_t other = bystander(daemons, stop[0], ready[1]);
    require(read(ready[0], &byte, 1) == 1);
    for (int arg = 0; arg < count; arg++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            body(daemons, arg);
            fflush(stdout);
            _exit(0);
        }
        ends_well(pid, "the client");
    }
    usleep(100000);
    require(write(stop[1], "", 1) == 1);
    ends_well(other, "the bystander");
    daemon_stop(&daemons[0]);
    daemon_stop(&daemons[1]);
}

static void trap(struct clients *c, int fault)
{
    (void)c;
    printf("  the client's own kernel: %s\n", gpu_break(0, (enum gpu_fault)fault));
}

static void stumble_in_own_kernel(const struct daemon_process *daemons, int arg)
{
    struct clients c = clients_open(daemons, medium);
    move_all(c.source, c.sink, 1, true);
    move_and_stumble(&c, arg % 2 == 0 ? "before" : "meanwhile", arg % 2 == 0, trap, arg / 2);
}

void scene_client_faults(void)
{
    run_beside(stumble_in_own_kernel, 2 * GPU_FAULTS);
}

/* ---- Memory that is gone ----------------------------------------------------------------------------------------- */

static void free_one(struct clients *c, int which)
{
    const struct gpu_pool *pool = which == 0 ? c->source : c->sink;
    require_cuda(cudaSetDevice(pool->shape.device));
    require_cuda(cudaFree(pool->memory));
    /* and something else has the memory now */
    uint8_t *other;
    require_cuda(cudaMalloc((void **)&other, pool->size));
    require_cuda(cudaMemset(other, 0, pool->size));
    require_cuda(cudaDeviceSynchronize());
}

static void free_a_pool(const struct daemon_process *daemons, int arg)
{
    static const char *const what[] = {"source freed before", "source freed meanwhile", "sink freed before",
                                       "sink freed meanwhile"};
    struct clients c = clients_open(daemons, medium);
    move_all(c.source, c.sink, 1, true);
    move_and_stumble(&c, what[arg], arg % 2 == 0, free_one, arg / 2);
}

/* A client must not do this; when one does, it has itself to blame for its bytes, and nobody else notices. */
void scene_freed(void)
{
    run_beside(free_a_pool, 4);
}

/* GPUs that fail or stall under a daemon. One that fails takes all of that daemon's with it, as their process is of no
 * use to CUDA any more: what uses them is told, with a reason and in time, and nothing else is touched. One that stalls
 * delays only what needs it. A plugin in front of the daemon's own does it to them (tests/chaos/plugin.c). */

#define AT_ONCE_MS 500u

/* ---- Before it fails --------------------------------------------------------------------------------------------- */

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

/* Requests of the other GPU, of which nothing is under way: their other side never comes. */
struct waiting {
    struct flow offer, expect;
    struct gpu_pool *second;
};

static void wait_beside(struct sick *s, struct waiting *w)
{
    if (s->near == NULL)
        return;
    w->second = pool_make(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_VMM));
    flow_offer(&w->offer, s->near, "nobody", NULL, small.pages, false);
    flow_expect(&w->expect, w->second, "nobody else", NULL, small.pages);
    pump(s->clients, 2, 20);
    require(!w->offer.decided && !w->expect.decided);
}

/* ---- What is told ------------------------------------------------------------------------------------------------ */

static void late_fails(struct sick *s, struct flow *late)
{
    WAIT(s->clients, 2, late->decided, 1000);
    WAIT(s->clients, 2, late->drained, 1000);
    require_reason(late);
    atomic_store(&host_may_end, true);
    strait_release(late->transfer);
}

/* LOCAL, drained, and as another GPU than this one has failed. */
static void require_beside(struct sick *s, struct flow *flow)
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
static void beside_is_told(struct sick *s, struct waiting *w, uint64_t since)
{
    if (s->near == NULL)
        return;
    require_beside(s, &w->offer);
    require_beside(s, &w->expect);
    printf("  who waited on its other GPU was told after %.1f ms\n",
           (double)(int64_t)(w->offer.decided_at - since) * 1e-6);
}

/* Nothing of it can be used, old or new, and it says so instead of trying. */
static void beside_is_refused(struct sick *s)
{
    struct flow offer, expect;
    if (s->near == NULL)
        return;
    uint64_t began = now_ns();
    flow_offer(&offer, s->near, "late", NULL, small.pages, false);
    require_beside(s, &offer);
    flow_expect(&expect, s->near, "later", NULL, small.pages);
    require_beside(s, &expect);
    printf("  its other GPU refuses requests after %.1f ms\n", (double)(now_ns() - began) * 0.5e-6);
    refused(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_IPC), 0, 0, STRAIT_ERR_DEVICE);
    refused(s->clients[0], on(small, last_device(), STRAIT_HANDLE_CUDA_VMM), 0, 0, STRAIT_ERR_DEVICE);
}

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
    require(strstr(json, "\"state\":\"in use\"") == NULL);
    require(number_of(json, s->sinks ? "sink_failed" : "source_failed", "local") > 0);
    require(number_of(json, "gauges", "gpus_failed") == (s->near != NULL ? 2 : 1));
    require(number_of(json, "gauges", "live_offers") == 0 && number_of(json, "gauges", "live_expectations") == 0);
    require(number_of(json, "gauges", "slots_used") == 0 && number_of(json, "gauges", "quarantined_pages") == 0);
    refused(s->clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0, STRAIT_ERR_DEVICE);
}

/* From the other GPU to the failed one, under this daemon. */
static void copies_fail(struct sick *s)
{
    struct flow offer, expect;
    if (s->near == NULL)
        return;
    struct gpu_pool *pool = pool_try(s->clients[0], on(small, 0, STRAIT_HANDLE_CUDA_IPC), 0, 0);
    if (pool->status != STRAIT_OK) {
        require(pool->status == STRAIT_ERR_DEVICE && strstr(pool->text, "GPU 0 failed") != NULL);
        return; /* it is known by that */
    }
    struct strait_peer *peer = pool_peer(s->near, s->clients[0]);
    flow_offer(&offer, s->near, "across", NULL, small.pages, false);
    flow_expect(&expect, pool, "across", NULL, small.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(s->clients, 2, offer.decided && offer.drained && expect.decided && expect.drained, 5000);
    require_reason(&expect);
    require_reason(&offer);
    printf("  a copy to it failed: %s; the source: %s\n", expect.text, offer.text);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
}

/* ---- What goes on ------------------------------------------------------------------------------------------------ */

static void hosts_go_on(struct sick *s)
{
    move_all(s->host, s->hosts, 1, true);
    move_all(s->hosts, s->host, 2, true);
    printf("  its pools of the host go on\n");
}

/* The other daemon's GPUs, the failed one too: it is of no use to that process alone. */
static void peers_go_on(struct sick *s)
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
static void works_again(struct sick *s)
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

static void start_again(struct sick *s)
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
    struct sick s;
    struct pair doomed, next;
    struct flow late;
    struct waiting beside;
    if (!sick_open(&s, sinks, NULL))
        return false;
    move_all(sinks ? s.peers : s.pool, sinks ? s.pool : s.peers, 1, true);
    if (!sinks)
        offer_late(&s, &late);
    wait_beside(&s, &beside);
    hold_second_chunk(&s);
    pair_begin(&doomed, &s, "doomed");
    WAIT(s.clients, 2, atomic_load(&s.daemons[0].faults->held) != 0, 5000);
    sick_break(&s);
    require(!doomed.own->decided || doomed.own->state == STRAIT_FAILED);
    atomic_store(&s.daemons[0].faults->go, 1);
    pair_fails(&doomed, &s, sinks ? "the sink's GPU" : "the source's GPU");
    beside_is_told(&s, &beside, doomed.own->decided_at);
    pool_check_gaps(s.pool);
    pool_check_gaps(s.peers);
    if (!sinks)
        late_fails(&s, &late);
    pair_begin(&next, &s, "next");
    later_fails(&next, &s);
    beside_is_refused(&s);
    tells_of_it(&s);
    hosts_go_on(&s);
    peers_go_on(&s);
    start_again(&s);
    sick_close(&s);
    return true;
}

/* While nothing is asked of it: a copy to it is the first to notice, or who waits for an event. */
static void fails_at_rest(bool waits)
{
    struct sick s;
    struct flow late;
    if (!sick_open(&s, false, NULL))
        return;
    move_all(s.pool, s.peers, 1, true);
    if (waits)
        offer_late(&s, &late);
    sick_break(&s);
    if (waits) {
        late_fails(&s, &late);
        printf("  who waited for its event was told\n");
        beside_is_refused(&s);
    } else {
        copies_fail(&s);
    }
    hosts_go_on(&s);
    sick_close(&s);
}

/* While the other GPU is busy, which nobody interrupts: once its pages are told to be drained, nothing comes there. */
static void fails_beside_work(void)
{
    struct sick s;
    struct flow offer, expect;
    if (last_device() == 0 || !sick_open(&s, true, NULL))
        return;
    struct gpu_pool *sink = pool_make(s.clients[0], on(medium, last_device(), STRAIT_HANDLE_CUDA_IPC));
    struct strait_peer *peer = pool_peer(s.peers, s.clients[0]);
    hold_second_chunk(&s);
    flow_offer(&offer, s.peers, "beside", NULL, medium.pages, false);
    flow_expect(&expect, sink, "beside", NULL, medium.pages);
    require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    WAIT(s.clients, 2, atomic_load(&s.daemons[0].faults->held) != 0, 5000);
    sick_break(&s);
    atomic_store(&s.daemons[0].faults->go, 1);
    uint64_t began = now_ns();
    WAIT(s.clients, 2, offer.decided && offer.drained && expect.decided && expect.drained, 5000);
    pool_overwrite(sink);
    printf("  work on its other GPU: verdict after %.1f ms, drained after %.1f ms: %s\n",
           (double)(int64_t)(expect.decided_at - began) * 1e-6, (double)(int64_t)(expect.drained_at - began) * 1e-6,
           expect.text);
    require(expect.state == STRAIT_FAILED && expect.reason == STRAIT_REASON_LOCAL);
    require(strstr(expect.text, "failed") != NULL && strstr(expect.text, "must be started again") != NULL);
    require(offer.state == STRAIT_FAILED);
    usleep(200000);
    pool_check(sink);
    hosts_go_on(&s);
    strait_release(offer.transfer);
    strait_release(expect.transfer);
    sick_close(&s);
}

/* A daemon that is to end of it, with nobody who tells it to. */
static void ends_by_itself(void)
{
    struct sick s;
    struct pair doomed;
    struct flow idle;
    if (!sick_open(&s, false, "--gpu-failure=exit"))
        return;
    move_all(s.pool, s.peers, 1, true);
    flow_offer(&idle, s.host, "idle", NULL, small.pages, false);
    sick_break(&s);
    pair_begin(&doomed, &s, "doomed");
    pair_fails(&doomed, &s, "the GPU of a daemon that is to end");
    uint64_t began = now_ns();
    WAIT(s.clients, 2, idle.decided && idle.drained, 3000);
    require(idle.state == STRAIT_FAILED && idle.reason == STRAIT_REASON_LOCAL);
    strait_release(idle.transfer);
    require(daemon_ended(&s.daemons[0], 15000) == 3);
    printf("  its daemon ended by itself, %.0f ms after the verdict\n", (double)(now_ns() - began) * 1e-6);
    works_again(&s);
    sick_close(&s);
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
    if (!sick_open(&s, true, NULL))
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
