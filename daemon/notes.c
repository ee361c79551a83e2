#include "daemon/notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/exchange.h"
#include "daemon/node.h"
#include "daemon/session.h"

#define PEER_TIMEOUTS    3u /* a note waits for a connection, or for its reader, as long as this many of them */
#define INBOX_BYTES_MAX  (16u * 1024 * 1024) /* for a client that does not read: then notes to it fail at once */
#define IN_CHANNEL_MAX   (64u * 1024)        /* queued before a client that does not read: what is queued is kept */
#define IN_PEER_MAX      (1024u * 1024)      /* the same before a peer */
#define ORPHAN_BYTES_MAX (16u * 1024 * 1024) /* of notes whose clients went before a connection came up */

enum place { IN_ROUTE, AT_PEER, IN_INBOX };

struct note {
    struct note *prev, *next;           /* in its route or inbox */
    struct note *from_prev, *from_next; /* in from->notes.unanswered */
    struct session *from;               /* its sender; NULL: a peer's, or nobody's any more */
    struct peer *came_by;               /* the peer that sent it; NULL: none that could be answered */
    uint32_t number;                    /* its sender's number */
    enum place place;
    struct note_route *route; /* IN_ROUTE */
    struct peer *peer;        /* AT_PEER */
    uint32_t sent_number;     /* AT_PEER: ours */
    struct session *to;       /* IN_INBOX */
    uint64_t end;             /* IN_INBOX: the byte of the channel that the note ends with; 0: it is not queued yet */
    uint64_t expires;
    char tenant[TENANT_NAME_MAX + 1]; /* its sender's, for a peer */
    struct pool_id pool;
    size_t key_size, size;
    uint8_t *bytes; /* key, then data; NULL: handed on */
    UT_hash_handle hh;
};

struct note_route {
    struct note *waiting; /* oldest first */
    uint32_t uid;         /* who wrote the first one */
    UT_hash_handle hh;
    char address[];
};

static struct notes *notes_of(struct node *node)
{
    return &node->exchange.notes;
}

static uint32_t note_ms(const struct node *node)
{
    return PEER_TIMEOUTS * node->options.peer_timeout_ms;
}

static size_t cost(const struct note *note)
{
    return sizeof(*note) + note->key_size + note->size;
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/* One of session and peer is NULL. */
static void answers_send(struct session *session, struct peer *peer, struct note_answers *answers)
{
    if (answers->count == 0)
        return;
    struct message message = {.type = peer != NULL ? MESSAGE_PEER_NOTED : MESSAGE_NOTED};
    message.noted = (struct message_noted){.failed = answers->text[0] != '\0',
                                           .text = view_of(answers->text, strlen(answers->text)),
                                           .note_count = answers->count,
                                           .notes = answers->notes};
    if (peer != NULL)
        (void)peer_send(peer, &message); /* a peer that is down is told by its end */
    else
        session_send(session, &message);
    answers->count = 0;
}

static void answer(struct session *session, struct peer *peer, struct note_answers *answers, uint32_t number,
                   const char *why)
{
    if (answers->count == NOTE_ANSWERS_MAX || (answers->count > 0 && strcmp(answers->text, why) != 0))
        answers_send(session, peer, answers);
    if (answers->count == 0)
        snprintf(answers->text, sizeof(answers->text), "%s", why);
    answers->notes[answers->count++] = number;
}

static void answer_client(struct session *session, uint32_t number, const char *why)
{
    answer(session, NULL, &session->notes.answers, number, why);
    session->dirty = true;
}

static void answer_peer(struct node *node, struct peer *peer, uint32_t number, const char *why)
{
    struct peer_use *use = peer->owner;
    if (use == NULL)
        return; /* it goes down */
    answer(NULL, peer, &use->note_answers, number, why);
    notes_of(node)->answering = true;
}

static void answer_one(void *arg, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    (void)arg;
    if (use != NULL)
        answers_send(NULL, peer, &use->note_answers);
}

void notes_turn(struct node *node)
{
    if (!notes_of(node)->answering)
        return;
    notes_of(node)->answering = false;
    peers_each(node->peers, answer_one, NULL);
}

/* ---- One note ---------------------------------------------------------------------------------------------------- */

static struct note *note_create(const struct pool_id *pool, uint32_t number, struct view key, struct view data)
{
    struct note *note = calloc(1, sizeof(*note));
    uint8_t *bytes = malloc(key.size + data.size + 1);
    if (note == NULL || bytes == NULL) {
        free(note);
        free(bytes);
        return NULL;
    }
    note->pool = *pool;
    note->number = number;
    note->key_size = key.size;
    note->size = data.size;
    note->bytes = bytes;
    if (key.size > 0)
        memcpy(bytes, key.data, key.size);
    if (data.size > 0)
        memcpy(bytes + key.size, data.data, data.size);
    return note;
}

static struct message note_message(const struct note *note, enum message_type type, uint32_t number)
{
    struct message message = {.type = type};
    message.note = (struct message_note){.note = number,
                                         .tenant = view_of(note->tenant, strlen(note->tenant)),
                                         .pool = note->pool,
                                         .key = view_of(note->bytes, note->key_size),
                                         .data = view_of(note->bytes + note->key_size, note->size)};
    return message;
}

/* What follows needs no payload. */
static void note_drop_bytes(struct note *note)
{
    free(note->bytes);
    note->bytes = NULL;
}

static bool is_orphan(const struct note *note)
{
    return note->from == NULL && note->came_by == NULL;
}

/* Ends a note that is in no queue. `why`: it could not be delivered; "": it was. */
static void note_end(struct node *node, struct note *note, const char *why)
{
    if (note->from != NULL) {
        *(why[0] == '\0' ? &node->metrics.notes_delivered : &node->metrics.notes_failed) += 1;
        struct session_notes *of = &note->from->notes;
        DL_DELETE2(of->unanswered, note, from_prev, from_next);
        of->unanswered_count--;
        of->unanswered_bytes -= note->key_size + note->size;
        answer_client(note->from, note->number, why);
    } else if (note->came_by != NULL) {
        answer_peer(node, note->came_by, note->number, why);
    }
    note_drop_bytes(note);
    free(note);
}

/* ---- Inboxes ----------------------------------------------------------------------------------------------------- */

static void inbox_remove(struct note *note)
{
    struct session *to = note->to;
    to->node->exchange.notes.waiting -= note->end == 0;
    if (to->notes.next == note)
        to->notes.next = note->next;
    DL_DELETE(to->notes.inbox, note);
    to->notes.inbox_bytes -= cost(note);
}

static bool is_reachable(const struct session *session)
{
    return session != NULL && session->channel != NULL && !session->ending && session->doomed == NULL;
}

static void inbox_fill(struct session *session)
{
    struct session_notes *notes = &session->notes;
    while (notes->next != NULL && is_reachable(session) && channel_queued(session->channel) < IN_CHANNEL_MAX) {
        struct note *note = notes->next;
        struct message message = note_message(note, MESSAGE_NOTE, 0);
        session_send(session, &message);
        note->end = channel_written(session->channel) + channel_queued(session->channel);
        note_drop_bytes(note);
        notes->next = note->next;
        session->node->exchange.notes.waiting--;
    }
}

static void deliver(struct node *node, struct session *to, struct note *note)
{
    if (!is_reachable(to)) {
        note_end(node, note, "the receiver has gone");
        return;
    }
    if (to->notes.inbox_bytes + cost(note) > INBOX_BYTES_MAX) {
        note_end(node, note, "the receiver does not read its notes, and too many wait for it");
        return;
    }
    note->place = IN_INBOX;
    note->to = to;
    note->expires = uv_now(node->loop) + note_ms(node);
    DL_APPEND(to->notes.inbox, note);
    to->notes.inbox_bytes += cost(note);
    if (to->notes.next == NULL)
        to->notes.next = note;
    notes_of(node)->waiting++;
    inbox_fill(to); /* at once: what the daemon tells this client later comes later */
    to->dirty = true;
}

void notes_fill(struct session *session)
{
    inbox_fill(session);
    answers_send(session, NULL, &session->notes.answers);
}

bool notes_written(struct session *session)
{
    struct note *note;
    while ((note = session->notes.inbox) != NULL && note->end != 0 && note->end <= channel_written(session->channel)) {
        inbox_remove(note);
        note_end(session->node, note, "");
    }
    return session->notes.next != NULL && channel_queued(session->channel) == 0;
}

/* ---- Routes: notes that wait for the connection to a peer -------------------------------------------------------- */

static void route_remove(struct node *node, struct note *note)
{
    struct notes *notes = notes_of(node);
    struct note_route *route = note->route;
    DL_DELETE(route->waiting, note);
    notes->waiting--;
    if (is_orphan(note))
        notes->orphan_bytes -= cost(note);
    if (route->waiting != NULL)
        return;
    HASH_DEL(notes->routes, route);
    free(route);
}

/* A number for which the peer has no other note of ours to answer. */
static uint32_t next_number(struct notes *notes)
{
    struct note *same;
    do {
        notes->number++;
        HASH_FIND(hh, notes->sent, &notes->number, sizeof(notes->number), same);
    } while (same != NULL);
    return notes->number;
}

static bool has_room(const struct peer *peer)
{
    return peer != NULL && peer->state == PEER_UP && peer_queued(peer) <= IN_PEER_MAX;
}

/* Sends a note, which then must leave its queue for the notes that the peer has to answer. False: not now. */
static bool send_to(struct node *node, struct peer *peer, struct note *note)
{
    note->sent_number = next_number(notes_of(node));
    struct message message = note_message(note, MESSAGE_PEER_NOTE, note->sent_number);
    return has_room(peer) && peer_send(peer, &message) == STRAIT_OK;
}

static void await_answer(struct node *node, struct peer *peer, struct note *note)
{
    note_drop_bytes(note);
    if (is_orphan(note)) { /* nobody waits for it */
        note_end(node, note, "");
        return;
    }
    note->place = AT_PEER;
    note->peer = peer;
    HASH_ADD(hh, notes_of(node)->sent, sent_number, sizeof(note->sent_number), note);
}

static struct note_route *route_make(struct notes *notes, const char *address, uint32_t uid)
{
    const size_t size = strlen(address);
    struct note_route *route = calloc(1, sizeof(*route) + size + 1);
    if (route == NULL)
        return NULL;
    memcpy(route->address, address, size);
    route->uid = uid;
    HASH_ADD_KEYPTR(hh, notes->routes, route->address, size, route);
    return route;
}

/* Never past one that waits. */
static void forward(struct node *node, const char *address, struct note *note)
{
    struct notes *notes = notes_of(node);
    struct note_route *route;
    HASH_FIND(hh, notes->routes, address, strlen(address), route);
    const uint32_t uid = note->from->uid;
    struct peer *peer = peers_get(node->peers, address, uid);
    if (route == NULL && send_to(node, peer, note)) {
        await_answer(node, peer, note);
        return;
    }
    if (route == NULL)
        route = route_make(notes, address, uid);
    if (route == NULL) {
        note_end(node, note, "out of memory");
        return;
    }
    note->place = IN_ROUTE;
    note->route = route;
    note->expires = uv_now(node->loop) + note_ms(node);
    DL_APPEND(route->waiting, note);
    notes->waiting++;
}

static void route_send(struct node *node, struct note_route *route)
{
    struct peer *peer = peers_get(node->peers, route->address, route->uid);
    bool more = true;
    while (more && send_to(node, peer, route->waiting)) {
        struct note *note = route->waiting;
        more = note->next != NULL;
        route_remove(node, note); /* the last one takes the route with it */
        await_answer(node, peer, note);
    }
}

/* Ends the notes of a route that have waited until `now`. */
static void route_expire(struct node *node, struct note_route *route, uint64_t now, const char *why)
{
    bool more = true;
    while (more && now >= route->waiting->expires) {
        struct note *note = route->waiting;
        more = note->next != NULL;
        route_remove(node, note);
        note_end(node, note, why);
    }
}

static void route_give_up(struct node *node, struct note_route *route, uint64_t now)
{
    char why[NOTE_TEXT_BYTES_MAX];
    const struct peer *peer = peers_get(node->peers, route->address, route->uid);
    const char *state = peer == NULL           ? "not dialled: too many addresses of this user's are"
                        : peer->why[0] != '\0' ? peer->why
                                               : peer_state_name(peer->state);
    snprintf(why, sizeof(why), "%s: %s", route->address, state);
    route_expire(node, route, now, why);
}

void notes_send(struct node *node)
{
    struct note_route *route, *next;
    HASH_ITER (hh, notes_of(node)->routes, route, next)
        route_send(node, route);
}

/* ---- Notes of clients, notes of peers, answers of peers ---------------------------------------------------------- */

static const char denied[] = "the pool belongs to another tenant";

bool notes_post(struct session *from, const struct message_notify *message)
{
    struct node *node = from->node;
    const size_t size = message->key.size + message->data.size;
    if (from->notes.unanswered_count >= MESSAGE_NOTES_MAX ||
        from->notes.unanswered_bytes + size > MESSAGE_NOTES_BYTES_MAX)
        return false;
    struct note *note = note_create(&message->peer_pool, message->note, message->key, message->data);
    if (note == NULL) {
        answer_client(from, message->note, "out of memory");
        return true;
    }
    note->from = from;
    memcpy(note->tenant, tenant_view(from->tenant).data, tenant_view(from->tenant).size);
    DL_APPEND2(from->notes.unanswered, note, from_prev, from_next);
    from->notes.unanswered_count++;
    from->notes.unanswered_bytes += size;
    char address[MESSAGE_ADDRESS_MAX + 1] = "";
    if (message->peer_address.size != 0)
        memcpy(address, message->peer_address.data, message->peer_address.size);
    const struct pool_ref *pool = pool_find(node, from->tenant, &message->peer_pool);
    if (tenant_denied(node, &message->peer_pool, tenant_view(from->tenant), "notify"))
        note_end(node, note, denied);
    else if (pool != NULL)
        deliver(node, pool->session, note);
    else if (address[0] == '\0' || strcmp(address, peers_address(node->peers)) == 0)
        note_end(node, note, "no client of this daemon has the pool");
    else if (!peers_address_ok(address))
        note_end(node, note, "the pool's address is malformed");
    else
        forward(node, address, note);
    return true;
}

void notes_receive(struct node *node, struct peer *peer, const struct message_note *message)
{
    const struct peer_use *use = peer->owner;
    if (use->superseded) { /* later ones may have come by that connection already */
        answer_peer(node, peer, message->note, "the peer's daemon has made another connection since");
        return;
    }
    const struct tenant *tenant = tenant_named(node, message->tenant);
    const struct pool_ref *pool = tenant != NULL ? pool_find(node, tenant, &message->pool) : NULL;
    if (pool == NULL) {
        answer_peer(node, peer, message->note,
                    tenant_denied(node, &message->pool, message->tenant, "note")
                        ? denied
                        : "no client of the peer's daemon has the pool");
        return;
    }
    struct note *note = note_create(&message->pool, message->note, message->key, message->data);
    if (note == NULL) {
        answer_peer(node, peer, message->note, "out of memory at the peer");
        return;
    }
    note->came_by = peer;
    deliver(node, pool->session, note);
}

void notes_answered(struct node *node, struct peer *peer, const struct message_noted *message)
{
    char why[NOTE_TEXT_BYTES_MAX] = "";
    if (message->failed)
        snprintf(why, sizeof(why), "%.*s", (int)message->text.size, (const char *)message->text.data);
    if (message->failed && why[0] == '\0')
        snprintf(why, sizeof(why), "the peer could not deliver it");
    for (uint32_t i = 0; i < message->note_count; i++) {
        struct note *note;
        HASH_FIND(hh, notes_of(node)->sent, &message->notes[i], sizeof(message->notes[i]), note);
        if (note == NULL || note->peer != peer)
            continue;
        HASH_DEL(notes_of(node)->sent, note);
        note_end(node, note, why);
    }
}

/* ---- Time, and ends ---------------------------------------------------------------------------------------------- */

static void inbox_expire(struct session *session, uint64_t now)
{
    struct note *note;
    char why[NOTE_TEXT_BYTES_MAX];
    while ((note = session->notes.next) != NULL && now >= note->expires) {
        snprintf(why, sizeof(why), "the receiver has not read its notes for %u ms", note_ms(session->node));
        inbox_remove(note);
        note_end(session->node, note, why);
    }
}

void notes_tick(struct node *node)
{
    struct notes *notes = notes_of(node);
    const uint64_t now = uv_now(node->loop);
    if (notes->waiting == 0)
        return;
    struct note_route *route, *next;
    notes_send(node);
    HASH_ITER (hh, notes->routes, route, next)
        if (now >= route->waiting->expires)
            route_give_up(node, route, now);
    struct session *session;
    DL_FOREACH (node->sessions, session)
        inbox_expire(session, now);
}

void notes_on_down(struct node *node, struct peer *peer)
{
    struct note *note, *next;
    HASH_ITER (hh, notes_of(node)->sent, note, next) {
        if (note->peer != peer)
            continue;
        HASH_DEL(notes_of(node)->sent, note);
        note_end(node, note, "the connection to the peer ended before it had confirmed the note");
    }
    struct session *session;
    DL_FOREACH (node->sessions, session)
        DL_FOREACH (session->notes.inbox, note)
            if (note->came_by == peer)
                note->came_by = NULL;
}

/* Notes that only wait for an answer have nobody left who would hear it. */
static void orphan(struct node *node, struct note *note)
{
    struct notes *notes = notes_of(node);
    note->from = NULL;
    if (note->place == AT_PEER) {
        HASH_DEL(notes->sent, note);
        note_end(node, note, "");
    } else if (note->place == IN_ROUTE) {
        notes->orphan_bytes += cost(note);
        if (notes->orphan_bytes <= ORPHAN_BYTES_MAX)
            return;
        route_remove(node, note);
        note_end(node, note, "");
    }
}

void notes_session_end(struct session *session)
{
    struct note *note, *next;
    DL_FOREACH_SAFE (session->notes.inbox, note, next) {
        inbox_remove(note);
        note_end(session->node, note, "the receiver has gone");
    }
    for (note = session->notes.unanswered; note != NULL; note = next) {
        next = note->from_next;
        orphan(session->node, note);
    }
    session->notes.unanswered = NULL;
    session->notes.answers.count = 0;
}

void notes_fail_all(struct node *node)
{
    static const char why[] = "the daemon is stopping";
    struct note_route *route, *next_route;
    HASH_ITER (hh, notes_of(node)->routes, route, next_route)
        route_expire(node, route, UINT64_MAX, why);
    struct note *note, *next;
    HASH_ITER (hh, notes_of(node)->sent, note, next) {
        HASH_DEL(notes_of(node)->sent, note);
        note_end(node, note, why);
    }
    struct session *session;
    DL_FOREACH (node->sessions, session)
        while ((note = session->notes.next) != NULL) {
            inbox_remove(note);
            note_end(node, note, why);
        }
}
