/* Transfers from the driver's view, with both sides: orders to the clients, and their news. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <strait/strait.h>

#include "tests/chaos/totals.h"
#include "tests/chaos/world.h"
#include "tests/support.h"

/* ---- Beginning ------------------------------------------------------------------------------------------------ */

static bool pick(struct world *w, struct pages *pages, uint32_t count, uint32_t *ids)
{
    uint32_t vacant[POOL_PAGES], vacant_count = 0;
    for (uint32_t i = 0; i < POOL_PAGES; i++)
        if (!pages->taken[i])
            vacant[vacant_count++] = i;
    if (vacant_count < count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = i + draw(w, vacant_count - i), id = vacant[j];
        vacant[j] = vacant[i];
        ids[i] = id;
    }
    return true;
}

static struct transfer *vacant_transfer(struct world *w)
{
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id == 0)
            return &w->transfers[i];
    return NULL;
}

struct transfer *pair_make(struct world *w, uint32_t count)
{
    struct transfer *t = vacant_transfer(w);
    if (t == NULL)
        return NULL;
    memset(t, 0, sizeof(*t));
    if (!pick(w, &w->sides[SOURCE].pages, count, t->halves[SOURCE].pages) ||
        !pick(w, &w->sides[SINK].pages, count, t->halves[SINK].pages))
        return NULL;
    t->id = ++w->next_id;
    t->count = count;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < count; i++)
            w->sides[side].pages.taken[t->halves[side].pages[i]] = 1;
    for (uint32_t i = 0; i < count; i++)
        t->tags[i] = w->sides[SOURCE].pages.tags[t->halves[SOURCE].pages[i]];
    atomic_fetch_add(&w->totals->transfers, 1);
    return t;
}

static void begin(struct world *w, struct transfer *t, int side, uint32_t type, uint32_t time_ms, bool start)
{
    struct half *half = &t->halves[side];
    struct order order = {.type = type, .id = t->id, .time_ms = time_ms, .start = start, .count = t->count};
    memcpy(order.pages, half->pages, t->count * sizeof(order.pages[0]));
    half->begun = true;
    half->time_ms = time_ms;
    half->late_ns = machine_late_ns();
    half->began_ns = now_ns();
    half->due_ns = half->began_ns + (uint64_t)time_ms * MS;
    send_order(w, side, &order);
}

/* A leg renews the lease, and the loss of the consumer's daemon is noticed only after the peer timeout, so an offer is
 * due after both times. */
void pair_offer(struct world *w, struct transfer *t, uint32_t lease_ms, bool start)
{
    begin(w, t, SOURCE, ORDER_OFFER, lease_ms, start);
    t->halves[SOURCE].due_ns += PEER_TIMEOUT_MS * (uint64_t)MS;
    uint64_t sink = t->halves[SINK].due_ns + PEER_TIMEOUT_MS * (uint64_t)MS;
    if (t->halves[SINK].begun && sink > t->halves[SOURCE].due_ns)
        t->halves[SOURCE].due_ns = sink;
}

void pair_expect(struct world *w, struct transfer *t, uint32_t deadline_ms, bool start)
{
    struct pages *pages = &w->sides[SINK].pages;
    for (uint32_t i = 0; i < t->count; i++)
        pages->uses[t->halves[SINK].pages[i]] = PAGE_OPEN;
    begin(w, t, SINK, ORDER_EXPECT, deadline_ms, start);
    uint64_t source = t->halves[SINK].due_ns + PEER_TIMEOUT_MS * (uint64_t)MS;
    if (t->halves[SOURCE].begun && source > t->halves[SOURCE].due_ns)
        t->halves[SOURCE].due_ns = source;
}

void pair_abort(struct world *w, struct transfer *t, int side)
{
    struct order order = {.type = ORDER_ABORT, .id = t->id};
    send_order(w, side, &order);
}

static bool half_over(const struct half *half)
{
    return !half->begun || half->lost || half->drained;
}

bool pair_over(const struct transfer *t)
{
    return half_over(&t->halves[SOURCE]) && half_over(&t->halves[SINK]);
}

bool pair_done(const struct transfer *t)
{
    return t->halves[SINK].decided && t->halves[SINK].state == STRAIT_DONE;
}

void transfers_forget(struct world *w)
{
    memset(w->transfers, 0, sizeof(w->transfers));
    for (int side = 0; side < 2; side++)
        memset(w->sides[side].pages.taken, 0, sizeof(w->sides[side].pages.taken));
}

/* ---- News ----------------------------------------------------------------------------------------------------- */

static struct transfer *find_transfer(struct world *w, uint32_t id)
{
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (id != 0 && w->transfers[i].id == id)
            return &w->transfers[i];
    return NULL;
}

/* The pages are the client's again: from here on nobody else may touch them. Those of a source are overwritten at once;
 * those of a sink must be right, or get new content that must stay. */
static void on_free(struct world *w, struct transfer *t, int side)
{
    struct pages *pages = &w->sides[side].pages;
    struct half *half = &t->halves[side];
    half->drained = true;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t page = half->pages[i];
        pages->taken[page] = 0;
        if (side == SINK && half->state == STRAIT_DONE) {
            pages->uses[page] = PAGE_KNOWN;
            pages->tags[page] = t->tags[i];
            if (!pages_hold(pages, page, t->tags[i])) {
                violation(w, "transfer %u is DONE, but page %u of the sink has other bytes", t->id, page);
                pages_fill(pages, page, w->next_tag++);
            }
        } else {
            pages_fill(pages, page, w->next_tag++);
        }
    }
}

static void on_verdict(struct world *w, struct transfer *t, int side, const struct news *news)
{
    struct half *half = &t->halves[side];
    if (half->decided) {
        violation(w, "transfer %u has a second verdict at side %d", t->id, side);
        return;
    }
    half->decided = true;
    half->state = news->state;
    half->reason = news->reason;
    int64_t late = (int64_t)(news->at_ns - half->due_ns);
    totals_max(&w->totals->late_ns[side], late);
    half->kept_ns = machine_late_ns() - half->late_ns;
    if (late > (int64_t)(TOLERANCE_MS * MS + half->kept_ns))
        violation(w, "the verdict of transfer %u at side %d came %lld ms late, %lld ms after its beginning: %s", t->id,
                  side, (long long)(late / (int64_t)MS), (long long)((news->at_ns - half->began_ns) / MS),
                  strait_reason_string((int)half->reason));
    atomic_fetch_add(half->state == STRAIT_DONE ? &w->totals->done : &w->totals->failed, 1);
    if (half->state == STRAIT_DONE && !news->drained)
        violation(w, "transfer %u is DONE and not drained at side %d", t->id, side);
    if (side == SOURCE && half->state == STRAIT_DONE && t->halves[SINK].decided &&
        t->halves[SINK].state != STRAIT_DONE && t->halves[SINK].reason != STRAIT_REASON_LOCAL &&
        t->halves[SINK].reason != STRAIT_REASON_TIMEOUT)
        violation(w, "transfer %u is DONE at the source and failed at the sink: %s", t->id,
                  strait_reason_string((int)t->halves[SINK].reason));
}

static void on_pool(struct world *w, int side, const struct news *news)
{
    struct side *s = &w->sides[side];
    bool same = s->blob_size == news->blob_size && memcmp(s->blob, news->blob, news->blob_size) == 0;
    s->registered = true;
    s->blob_size = news->blob_size;
    memcpy(s->blob, news->blob, news->blob_size);
    if (!same)
        w->sides[1 - side].imported = false;
}

static void on_news(struct world *w, int side, const struct news *news)
{
    struct transfer *t = find_transfer(w, news->id);
    if (news->type == NEWS_POOL)
        on_pool(w, side, news);
    else if (news->type == NEWS_REFUSED)
        violation(w, "the library refused an order at side %d: %s", side, strait_status_string((int)news->reason));
    else if (t == NULL || !t->halves[side].begun)
        violation(w, "news of transfer %u, which is over, at side %d", news->id, side);
    else if (news->type == NEWS_DRAINED) {
        if (!t->halves[side].decided || t->halves[side].drained)
            violation(w, "transfer %u drained before its verdict, or twice, at side %d", t->id, side);
        on_free(w, t, side);
    } else if (news->state == STRAIT_DONE || news->state == STRAIT_FAILED) {
        on_verdict(w, t, side, news);
        if (news->drained && !t->halves[side].drained)
            on_free(w, t, side);
    }
}

static bool take_news(struct world *w, int side)
{
    struct news news;
    struct side *s = &w->sides[side];
    bool any = false;
    while (s->client != 0 && recv(s->channel, &news, sizeof(news), MSG_DONTWAIT) == sizeof(news)) {
        on_news(w, side, &news);
        any = true;
    }
    return any;
}

bool world_pump(struct world *w, uint32_t ms, bool (*until)(struct world *w, void *arg), void *arg)
{
    uint64_t (*clock)(void) = until != NULL ? fair_ns : now_ns;
    uint64_t end = clock() + (uint64_t)ms * MS;
    for (;;) {
        bool any = take_news(w, SOURCE);
        any |= take_news(w, SINK);
        if (until != NULL && until(w, arg))
            return true;
        if (clock() >= end)
            return false;
        if (any)
            continue;
        struct pollfd fds[2];
        nfds_t count = 0;
        for (int side = 0; side < 2; side++)
            if (w->sides[side].client != 0)
                fds[count++] = (struct pollfd){.fd = w->sides[side].channel, .events = POLLIN};
        (void)poll(fds, count, ms == 0 ? 0 : 1); /* conditions are checked every millisecond */
        for (nfds_t i = 0; i < count; i++)
            if (fds[i].revents & POLLHUP)
                rest_ms(1);
    }
}
