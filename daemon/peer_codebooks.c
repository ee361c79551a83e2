#include "daemon/peer_codebooks.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/memory/codebook_parts.h"
#include "daemon/node.h"

#define FETCHES_MAX    4u     /* at a time, of different sets */
#define FETCH_ATTEMPTS 3u     /* of one set from one connection */
#define CLAIM_REST_MS  60000u /* after the next set was told, chunks that name the one before have arrived */
#define SENDS_MAX      4u     /* how often a peer gets our set by one connection */
#define TIMER_MS       500u

/* A set on its way from a peer, or being read by a worker. */
struct codebook_fetch {
    struct node *node;
    struct peer *peer; /* NULL: it has gone, or has another set by now */
    struct codebook_parts parts;
    uint64_t deadline;      /* loop's clock */
    bool complete, reading; /* waits to be read; a worker reads it */
    enum strait_status status;
    struct strait_codebook *set;
    struct codebook_fetch *prev, *next;
};

static struct peer_codebooks *of(struct peer *peer)
{
    struct peer_use *use = peer->owner;
    return use != NULL && peer->state == PEER_UP ? &use->codebooks : NULL;
}

static bool is_equal(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, CODEBOOK_ID_BYTES) == 0;
}

const char *codebook_id_text(char text[CODEBOOK_ID_TEXT], const uint8_t *id)
{
    for (uint32_t i = 0; i < CODEBOOK_ID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", id[i]);
    return text;
}

/* ---- Claims ------------------------------------------------------------------------------------------------------ */

/* The place of the peer's set among its claims: where it is already, or at the end, where the oldest makes room for it
 * once no chunk that names it can be on the way. PEER_CODEBOOKS: there is no place yet. */
static uint32_t claim_place(const struct node *node, const struct peer *peer, const struct peer_codebooks *p)
{
    for (uint32_t i = 0; i < p->claim_count; i++)
        if (is_equal(p->claims[i].id, peer->codebook_id))
            return i;
    if (p->claim_count < PEER_CODEBOOKS)
        return p->claim_count;
    return uv_now(node->loop) - p->claims[PEER_CODEBOOKS - 2].since >= CLAIM_REST_MS ? PEER_CODEBOOKS - 1
                                                                                     : PEER_CODEBOOKS;
}

/* Claims the peer's set in that place, and tells the peer that it is known. False: it is not known. */
static bool claim(struct node *node, struct peer *peer, struct peer_codebooks *p, uint32_t place)
{
    const bool is_new = place == p->claim_count || !is_equal(p->claims[place].id, peer->codebook_id);
    if (is_new && !codebooks_claim(node->codebooks, peer->codebook_id))
        return false;
    if (is_new && place < p->claim_count)
        codebooks_leave(node->codebooks, p->claims[place].id);
    p->claim_count += place == p->claim_count;
    memmove(&p->claims[1], &p->claims[0], place * sizeof(p->claims[0]));
    memcpy(p->claims[0].id, peer->codebook_id, CODEBOOK_ID_BYTES);
    p->claims[0].since = uv_now(node->loop);
    if (peer->takes_codebooks) {
        const struct message message = {.type = MESSAGE_CODEBOOK_KNOWN,
                                        .codebook_known.id = view_of(peer->codebook_id, CODEBOOK_ID_BYTES)};
        (void)peer_send(peer, &message); /* if the peer is down, `down` follows */
    }
    return true;
}

/* ---- Fetching ---------------------------------------------------------------------------------------------------- */

/* Ends a fetch, which no worker reads. */
static void end(struct codebook_fetch *fetch)
{
    struct codebook_fetches *fetches = &fetch->node->fetches;
    if (fetch->peer != NULL)
        ((struct peer_use *)fetch->peer->owner)->codebooks.fetch = NULL;
    DL_DELETE(fetches->list, fetch);
    fetches->count--;
    codebook_parts_fini(&fetch->parts);
    free(fetch);
}

/* The peer's set is of no use any more, or the peer is not: what is being read is kept all the same if it proves
 * right. */
static void give_up(struct codebook_fetch *fetch)
{
    if (!fetch->reading) {
        end(fetch);
        return;
    }
    ((struct peer_use *)fetch->peer->owner)->codebooks.fetch = NULL;
    fetch->peer = NULL;
}

/* `final`: the peer would send the same again. */
static void fail(struct codebook_fetch *fetch, bool final, const char *why)
{
    struct node *node = fetch->node;
    struct peer *peer = fetch->peer;
    char name[2 * MESSAGE_ADDRESS_MAX], id[CODEBOOK_ID_TEXT];
    node->metrics.codebook_fetches_failed++;
    log_quote(name, sizeof(name), peer != NULL ? peer->address : "", peer != NULL ? strlen(peer->address) : 0);
    log_limited(node->log, LOG_OF_PEERS, LOG_WARN, "msg=\"codebook set not fetched\" peer=%s id=%s error=\"%s\"", name,
                codebook_id_text(id, fetch->parts.id), why);
    if (peer != NULL) {
        struct peer_codebooks *p = &((struct peer_use *)peer->owner)->codebooks;
        p->attempts++;
        p->unsettled &= !final && p->attempts < FETCH_ATTEMPTS;
    }
    end(fetch);
}

static void ask(struct codebook_fetch *fetch)
{
    const struct message message = {
        .type = MESSAGE_CODEBOOK_ASK,
        .codebook_ask = {.id = view_of(fetch->parts.id, CODEBOOK_ID_BYTES), .offset = fetch->parts.got}};
    of(fetch->peer)->asked = true;
    (void)peer_send(fetch->peer, &message); /* if the peer is down, `down` follows */
}

static bool is_fetched(const struct node *node, const uint8_t *id)
{
    const struct codebook_fetch *fetch;
    DL_FOREACH (node->fetches.list, fetch)
        if (is_equal(fetch->parts.id, id))
            return true;
    return false;
}

/* Begins to fetch the peer's set, unless another peer sends the same, or there are too many already. */
static void begin(struct node *node, struct peer *peer, struct peer_codebooks *p)
{
    if (p->asked || p->fetch != NULL || node->fetches.count >= FETCHES_MAX || !codebooks_have_room(node->codebooks) ||
        is_fetched(node, peer->codebook_id))
        return;
    struct codebook_fetch *fetch = calloc(1, sizeof(*fetch));
    if (fetch == NULL)
        return; /* the timer tries again */
    fetch->node = node;
    fetch->peer = peer;
    fetch->deadline = uv_now(node->loop) + node->options.peer_timeout_ms;
    memcpy(fetch->parts.id, peer->codebook_id, CODEBOOK_ID_BYTES);
    DL_APPEND(node->fetches.list, fetch);
    node->fetches.count++;
    p->fetch = fetch;
    ask(fetch);
}

/* ---- Settling ---------------------------------------------------------------------------------------------------- */

struct settling {
    struct node *node;
    bool waits; /* something may be done later that no event tells of */
};

static void settle(void *arg, struct peer *peer)
{
    struct settling *s = arg;
    struct peer_codebooks *p = of(peer);
    if (p == NULL || !p->unsettled)
        return;
    const uint32_t place = claim_place(s->node, peer, p);
    if (place < PEER_CODEBOOKS && claim(s->node, peer, p, place)) {
        p->unsettled = false;
        return;
    }
    if (!peer->takes_codebooks) {
        p->unsettled = false;
        return;
    }
    if (place < PEER_CODEBOOKS)
        begin(s->node, peer, p);
    s->waits |= !p->asked || p->fetch != NULL; /* else only the peer's answer helps */
}

static void on_timer(uv_timer_t *timer);

static void wait_more(struct node *node)
{
    uv_timer_t *timer = &node->fetches.timer;
    if (!uv_is_active((uv_handle_t *)timer))
        uv_timer_start(timer, on_timer, TIMER_MS, TIMER_MS);
}

/* Does for each peer what can be done now. */
static void settle_all(struct node *node)
{
    struct settling s = {.node = node};
    if (node->peers != NULL && !node->stopping)
        peers_each(node->peers, settle, &s);
    if (s.waits)
        wait_more(node);
    else
        uv_timer_stop(&node->fetches.timer);
}

static void on_timer(uv_timer_t *timer)
{
    struct node *node = timer->data;
    struct codebook_fetch *fetch, *next;
    DL_FOREACH_SAFE (node->fetches.list, fetch, next)
        if (!fetch->complete && uv_now(node->loop) >= fetch->deadline)
            fail(fetch, false, "it has not come in time");
    settle_all(node);
}

void peer_codebooks_told(struct node *node, struct peer *peer)
{
    struct peer_codebooks *p = of(peer);
    struct settling s = {.node = node};
    if (p == NULL)
        return;
    if (p->fetch != NULL && !(peer->has_codebook && is_equal(p->fetch->parts.id, peer->codebook_id)))
        give_up(p->fetch);
    p->attempts = 0;
    p->unsettled = peer->has_codebook;
    settle(&s, peer);
    if (s.waits)
        wait_more(node);
}

void peer_codebooks_down(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use == NULL)
        return;
    if (use->codebooks.fetch != NULL)
        give_up(use->codebooks.fetch);
    settle_all(node); /* others may have the set */
}

void peer_codebooks_quiet(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    for (uint32_t i = 0; i < use->codebooks.claim_count; i++)
        codebooks_leave(node->codebooks, use->codebooks.claims[i].id);
    use->codebooks.claim_count = 0;
    settle_all(node); /* there may be room now */
}

/* ---- Reading a set that has come --------------------------------------------------------------------------------- */

static void read_work(void *arg)
{
    struct codebook_fetch *fetch = arg;
    fetch->status = codebook_parts_read(&fetch->parts, &fetch->set);
}

/* Jobs that begin from now on decode by this set, too. */
static enum strait_status keep(struct node *node, struct strait_codebook *set)
{
    struct codebooks *codebooks;
    if (codebooks_have(node->codebooks, strait_codebook_id(set))) {
        strait_codebook_destroy(set);
        return STRAIT_OK;
    }
    const enum strait_status status = codebooks_add(set, node->codebooks, &codebooks);
    if (status != STRAIT_OK) {
        strait_codebook_destroy(set);
        return status;
    }
    jobs_set_codebooks(node->jobs, codebooks);
    codebooks_release(node->codebooks);
    node->codebooks = codebooks;
    return STRAIT_OK;
}

static void log_fetched(const struct codebook_fetch *fetch, uint32_t tables)
{
    char name[2 * MESSAGE_ADDRESS_MAX], id[CODEBOOK_ID_TEXT];
    const char *address = fetch->peer != NULL ? fetch->peer->address : "";
    log_quote(name, sizeof(name), address, strlen(address));
    log_limited(fetch->node->log, LOG_OF_PEERS, LOG_INFO,
                "msg=\"codebook set fetched\" peer=%s id=%s tables=%u bytes=%u", name,
                codebook_id_text(id, fetch->parts.id), tables, fetch->parts.size);
}

static void read_done(void *arg);

/* One set after the other: reading takes many times the memory of the bytes, if they are no set. */
static void read_next(struct node *node)
{
    struct codebook_fetch *fetch, *next;
    DL_FOREACH (node->fetches.list, fetch)
        if (fetch->reading)
            return;
    DL_FOREACH_SAFE (node->fetches.list, fetch, next) {
        if (!fetch->complete)
            continue;
        fetch->reading = job_call(node->jobs, read_work, read_done, fetch) == STRAIT_OK;
        if (fetch->reading)
            return;
        fail(fetch, false, "out of memory");
    }
}

static void read_done(void *arg)
{
    struct codebook_fetch *fetch = arg;
    struct node *node = fetch->node;
    enum strait_status status = fetch->status;
    uint32_t tables = 0;
    fetch->reading = false;
    if (status == STRAIT_OK) {
        tables = strait_codebook_count(fetch->set);
        status = keep(node, fetch->set);
    }
    if (status == STRAIT_OK) {
        node->metrics.codebooks_fetched++;
        log_fetched(fetch, tables);
        end(fetch);
    } else if (status == STRAIT_ERR_NO_MEMORY || status == STRAIT_ERR_NO_SPACE) {
        fail(fetch, false, strait_status_string(status));
    } else {
        fail(fetch, true, status == STRAIT_ERR_CODEBOOK ? "it is another set" : "it is no codebook set");
    }
    read_next(node);
    settle_all(node);
}

bool peer_codebooks_part(struct node *node, struct peer *peer, const struct message_codebook_part *part)
{
    struct peer_codebooks *p = of(peer);
    if (p == NULL)
        return true;
    if (!p->asked)
        return false;
    struct codebook_fetch *fetch = p->fetch;
    p->asked = false;
    if (fetch == NULL) { /* the answer came late, or for a set that the peer had before */
        settle_all(node);
        return true;
    }
    switch (codebook_parts_take(&fetch->parts, part)) {
    case CODEBOOK_PARTS_MORE:
        ask(fetch);
        return true;
    case CODEBOOK_PARTS_ALL:
        fetch->complete = true;
        read_next(node);
        break;
    case CODEBOOK_PARTS_GONE: /* it tells of another one soon */
        p->unsettled = false;
        end(fetch);
        break;
    case CODEBOOK_PARTS_TOO_LARGE:
        fail(fetch, true, "it has more than 1280 KiB");
        break;
    case CODEBOOK_PARTS_WRONG:
        fail(fetch, true, "its parts are not those that were asked for");
        break;
    case CODEBOOK_PARTS_NO_MEMORY:
        fail(fetch, false, "out of memory");
        break;
    }
    settle_all(node);
    return true;
}

/* ---- Our own set ------------------------------------------------------------------------------------------------- */

/* Writes our set in force as it is sent. False: out of memory. */
static bool pack_own(struct node *node)
{
    struct codebook_fetches *fetches = &node->fetches;
    const struct strait_codebook *set = node_codebook(node);
    if (fetches->own_size != 0)
        return true;
    const size_t size = strait_codebook_serialized_size(set);
    if (size <= MESSAGE_SET_BYTES_MAX) {
        fetches->own = malloc(size);
        if (fetches->own == NULL)
            return false;
        (void)strait_codebook_serialize(set, fetches->own, size);
    }
    fetches->own_size = (uint32_t)size; /* 65535 tables have less than 20 MiB */
    return true;
}

static void forget_own(struct node *node)
{
    free(node->fetches.own);
    node->fetches.own = NULL;
    node->fetches.own_size = 0;
}

bool peer_codebooks_ask(struct node *node, struct peer *peer, const struct message_codebook_ask *ask)
{
    const struct strait_codebook *set = node_codebook(node);
    const struct codebook_fetches *fetches = &node->fetches;
    struct peer_codebooks *p = of(peer);
    struct message message = {.type = MESSAGE_CODEBOOK_PART, .codebook_part.id = ask->id};
    struct message_codebook_part *part = &message.codebook_part;
    if (p == NULL)
        return true;
    if (set != NULL && is_equal(ask->id.data, strait_codebook_id(set)) && pack_own(node)) {
        if (ask->offset >= fetches->own_size)
            return false;
        const uint32_t left = fetches->own_size - ask->offset;
        const uint32_t size = left < MESSAGE_SET_PART_MAX ? left : MESSAGE_SET_PART_MAX;
        if (fetches->own == NULL) {
            part->size = fetches->own_size;
        } else if (p->sent + size <= (uint64_t)SENDS_MAX * fetches->own_size) {
            p->sent += size;
            part->size = fetches->own_size;
            part->offset = ask->offset;
            part->bytes = view_of(fetches->own + ask->offset, size);
        }
    }
    (void)peer_send(peer, &message); /* if the peer is down, `down` follows */
    return true;
}

void peer_codebooks_known(struct node *node, struct peer *peer, const struct message_codebook_known *known)
{
    const struct strait_codebook *set = node_codebook(node);
    struct peer_codebooks *p = of(peer);
    if (p == NULL || p->known || set == NULL || !is_equal(known->id.data, strait_codebook_id(set)))
        return;
    p->known = true;
    if (peer->codebook_matches)
        return;
    char name[2 * MESSAGE_ADDRESS_MAX], id[CODEBOOK_ID_TEXT];
    log_quote(name, sizeof(name), peer->address, strlen(peer->address));
    log_limited(node->log, LOG_OF_PEERS, LOG_INFO, "msg=\"the peer knows our codebook set\" peer=%s id=%s", name,
                codebook_id_text(id, known->id.data));
}

static void forget_known(void *arg, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    (void)arg;
    if (use == NULL)
        return;
    use->codebooks.known = false;
    use->codebooks.sent = 0;
}

void peer_codebooks_changed(struct node *node)
{
    forget_own(node);
    peers_each(node->peers, forget_known, NULL);
    settle_all(node); /* a set that a peer told of may be ours now */
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

void peer_codebooks_init(struct node *node)
{
    uv_timer_init(node->loop, &node->fetches.timer);
    node->fetches.timer.data = node;
}

void peer_codebooks_fini(struct node *node)
{
    forget_own(node);
}
