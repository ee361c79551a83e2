/* Notifications to clients of other daemons: sent at once, or queued for a while until the peer is up. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"

#define NOTES_MAX 256u   /* queued at most */
#define NOTE_MS   10000u /* how long one is queued */

static bool send_note(struct node *node, const char *address, const struct message *message)
{
    struct peer *peer = peers_get(node->peers, address);
    return peer != NULL && peer->state == PEER_UP && peer_send(peer, message) == STRAIT_OK;
}

void exchange_note(struct node *node, const char *address, const struct message *message)
{
    struct exchange *x = &node->exchange;
    const struct message_note *m = &message->note;
    if (send_note(node, address, message) || x->note_count >= NOTES_MAX)
        return;
    struct note *note = calloc(1, sizeof(*note) + m->key.size + m->data.size);
    if (note == NULL)
        return;
    strcpy(note->address, address);
    note->pool = m->pool;
    note->key_size = m->key.size;
    note->size = m->data.size;
    note->expires = uv_now(node->loop) + NOTE_MS;
    memcpy(note->bytes, m->key.data, m->key.size);
    if (m->data.size != 0)
        memcpy(note->bytes + m->key.size, m->data.data, m->data.size);
    LL_APPEND(x->notes, note);
    x->note_count++;
}

void exchange_send_notes(struct node *node)
{
    struct exchange *x = &node->exchange;
    struct note *note, *next;
    LL_FOREACH_SAFE (x->notes, note, next) {
        struct message message = {.type = MESSAGE_PEER_NOTE};
        message.note = (struct message_note){.pool = note->pool,
                                             .key = view_of(note->bytes, note->key_size),
                                             .data = view_of(note->bytes + note->key_size, note->size)};
        if (!send_note(node, note->address, &message) && uv_now(node->loop) < note->expires)
            continue;
        LL_DELETE(x->notes, note);
        x->note_count--;
        free(note);
    }
}
