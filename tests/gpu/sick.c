#include "tests/gpu/sick.h"

#include <string.h>

#include "tests/chaos/shared.h"

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
