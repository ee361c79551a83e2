/* The faults. */
#include <signal.h>
#include <string.h>

#include "tests/chaos/attack.h"
#include "tests/chaos/scene.h"

static void strike_daemon(struct world *w, struct scene *s, int side)
{
    bool lets_go = side != daemon_of(w, s->place->side);
    kill(w->sides[side].daemon, SIGKILL);
    if (w->setting->devices == 0)
        daemon_reap(w, side);
    if (lets_go)
        let_go(w, s);
    if (w->setting->devices > 0)
        daemon_reap(w, side); /* its contexts end with it, and that takes longer than peers wait */
    if (draw(w, 3) == 0)
        (void)world_pump(w, draw(w, 80), NULL, NULL);
}

static void stop_daemon(struct world *w, struct scene *s, int side)
{
    static const uint32_t times[] = {60, 120, 120, 200, 420, 420, 600, 1300};
    kill(w->sides[side].daemon, SIGSTOP);
    let_go(w, s);
    (void)world_pump(w, times[draw(w, 8)], NULL, NULL);
    kill(w->sides[side].daemon, SIGCONT);
    if (side == SOURCE)
        excuse_offers(w);
}

static void stop_client(struct world *w, struct scene *s, int side)
{
    kill(w->sides[side].client, SIGSTOP);
    let_go(w, s);
    (void)world_pump(w, 20 + draw(w, 180), NULL, NULL);
    kill(w->sides[side].client, SIGCONT);
    excuse(w, side, 0);
}

static void cut_connection(struct world *w, struct scene *s)
{
    struct chaos_side *held = injector(w, s->place->side);
    atomic_store(&held->cut, strcmp(w->transport, "ucx") == 0 ? 1 + draw(w, 2) : 1);
    let_go(w, s);
    for (uint32_t i = 0; i < 200 && atomic_load(&held->cuts) == 0; i++)
        (void)world_pump(w, 1, NULL, NULL);
    s->struck = atomic_load(&held->cuts) > 0;
}

/* For longer than the peer timeout. TCP loses nothing inside of a connection that lives on: if one has, it is cut. */
static void darken(struct world *w, struct scene *s)
{
    for (int side = 0; side < 2; side++)
        atomic_store(&injector(w, side)->dark, 1);
    let_go(w, s);
    (void)world_pump(w, PEER_TIMEOUT_MS + 80 + draw(w, 250), NULL, NULL);
    for (int side = 0; side < 2; side++) {
        s->struck |= atomic_load(&injector(w, side)->darkened) > 0;
        atomic_store(&injector(w, side)->cut, 1);
        atomic_store(&injector(w, side)->dark, 0);
    }
}

static void fill_arena(struct world *w, struct scene *s)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct transfer *t = pair_make(w, 3 + draw(w, 3));
        if (t != NULL)
            begin_transfer(w, t, s);
    }
    (void)world_pump(w, 3, NULL, NULL);
    let_go(w, s);
}

static void send_old(struct world *w, struct scene *s)
{
    for (int side = 0; side < 2; side++)
        atomic_store(&injector(w, side)->replay, 1);
    if (!in_job(s->place))
        let_go(w, s);
    for (uint32_t i = 0; i < 160; i++) { /* the next heartbeats at the latest */
        (void)world_pump(w, 1, NULL, NULL);
        if (atomic_load(&injector(w, SOURCE)->replayed) > 0 && atomic_load(&injector(w, SINK)->replayed) > 0)
            break;
    }
    (void)world_pump(w, 5, NULL, NULL);
    s->struck = atomic_load(&injector(w, SOURCE)->replayed) > 0;
    let_go(w, s);
}

static void attack(struct world *w, struct scene *s, bool ucx)
{
    int side = (int)draw(w, 2);
    w->sides[side].attacked |= ucx;
    s->struck = (ucx ? attack_ucx(w, side) : attack_ports(w, side)) > 0;
    (void)world_pump(w, 3, NULL, NULL);
    let_go(w, s);
    (void)world_pump(w, 20, NULL, NULL);
}

/* Transfers of all its daemon's devices fail, and what is on the host goes on, until the operator has started the
 * daemon again. */
static void break_device(struct world *w, struct scene *s, int side)
{
    struct chaos_side *broken = injector(w, side);
    int32_t device = w->sides[side].pages.device;
    bool before = draw(w, 2) == 0;
    s->struck = device >= 0; /* this pool may be the host's */
    if (!before)
        let_go(w, s);
    if (s->struck)
        atomic_store(&broken->breaks, 1u << device);
    for (uint32_t i = 0; s->struck && i < 500 && atomic_load(&broken->broken) == 0; i++)
        (void)world_pump(w, 1, NULL, NULL);
    if (before)
        let_go(w, s);
    (void)world_pump(w, 20 + draw(w, 150), NULL, NULL);
    if (!s->struck)
        return;
    bool gently = draw(w, 3) != 0;
    kill(w->sides[daemon_of(w, side)].daemon, gently ? SIGTERM : SIGKILL);
    if (gently)
        daemon_terminated(w, daemon_of(w, side));
    else
        daemon_reap(w, daemon_of(w, side));
}

static void both(struct world *w, struct scene *s, size_t counter, uint32_t count)
{
    for (int side = 0; side < 2; side++)
        atomic_store((_Atomic uint32_t *)(void *)((char *)injector(w, side) + counter), count);
    let_go(w, s);
}

void strike(struct world *w, struct scene *s)
{
    s->struck = s->fault != F_DARK && s->fault != F_CUT;
    switch (s->fault) {
    case F_KILL_SOURCE_DAEMON:
    case F_KILL_SINK_DAEMON:
        strike_daemon(w, s, s->fault == F_KILL_SINK_DAEMON);
        break;
    case F_CODEBOOK:
        w->sides[SINK].codebook ^= 1;
        strike_daemon(w, s, SINK);
        break;
    case F_KILL_SOURCE_CLIENT:
    case F_KILL_SINK_CLIENT:
        worker_kill(w, s->fault == F_KILL_SINK_CLIENT);
        let_go(w, s);
        break;
    case F_STOP_SOURCE_DAEMON:
    case F_STOP_SINK_DAEMON:
        stop_daemon(w, s, s->fault == F_STOP_SINK_DAEMON);
        break;
    case F_STOP_SOURCE_CLIENT:
    case F_STOP_SINK_CLIENT:
        stop_client(w, s, s->fault == F_STOP_SINK_CLIENT);
        break;
    case F_RESTART_SOURCE_DAEMON:
    case F_RESTART_SINK_DAEMON:
        kill(w->sides[s->fault == F_RESTART_SINK_DAEMON].daemon, SIGTERM);
        let_go(w, s);
        daemon_terminated(w, s->fault == F_RESTART_SINK_DAEMON);
        break;
    case F_RESTART_SOURCE_CLIENT:
    case F_RESTART_SINK_CLIENT:
        worker_close(w, s->fault == F_RESTART_SINK_CLIENT);
        let_go(w, s);
        break;
    case F_CUT:
        cut_connection(w, s);
        break;
    case F_DARK:
        darken(w, s);
        break;
    case F_ABORT_SOURCE:
    case F_ABORT_SINK:
        pair_abort(w, s->target, s->fault == F_ABORT_SINK);
        (void)world_pump(w, 3, NULL, NULL);
        let_go(w, s);
        break;
    case F_LEASE:
    case F_DEADLINE:
        (void)world_pump(w, s->fault == F_LEASE ? 220 : 200, NULL, NULL);
        let_go(w, s);
        break;
    case F_FULL:
        fill_arena(w, s);
        break;
    case F_DOUBLE:
        both(w, s, offsetof(struct chaos_side, doubles), 3);
        break;
    case F_REORDER:
        both(w, s, offsetof(struct chaos_side, reorders), 2);
        break;
    case F_REPLAY:
        send_old(w, s);
        break;
    case F_SOURCE_DEVICE:
    case F_SINK_DEVICE:
        break_device(w, s, s->fault == F_SINK_DEVICE);
        break;
    default:
        attack(w, s, s->fault == F_UCX_PORT);
    }
}
