/* Notes between clients (strait_notify). A note goes from its sender's session to the inbox of the session that
 * registered the pool, directly or by way of the peer that has that session; whoever holds it answers for it, and the
 * answer goes back the way the note came.
 *
 *   client --NOTIFY--> session            inbox --NOTE--> client        one daemon
 *   client --NOTIFY--> session  route --PEER_NOTE--> peer: inbox --NOTE--> client
 *          <--NOTED----           <---PEER_NOTED----
 *
 * Notes of one sender to one pool stay in order: a route and an inbox are queues, and nothing goes past one. A note is
 * delivered when its last byte has been written to the receiver's socket. One that waits in a route or an inbox for
 * three times peer-timeout, or whose receiver, peer or daemon goes, has failed, and its sender is told so with a text.
 * Answers of a turn of the loop go out together.
 *
 * Memory is bounded by what each client may have unanswered (MESSAGE_NOTES_MAX), and by the size of an inbox. */
#ifndef STRAIT_DAEMON_NOTES_H
#define STRAIT_DAEMON_NOTES_H

#include "proto/message.h"

struct node;
struct note;
struct note_route;
struct peer;
struct session;

#define NOTE_ANSWERS_MAX    128u
#define NOTE_TEXT_BYTES_MAX 192u

/* Answers to one sender that have not been sent yet; all of them say the same. */
struct note_answers {
    uint32_t count;
    char text[NOTE_TEXT_BYTES_MAX]; /* why the notes could not be delivered; "": they were */
    uint32_t notes[NOTE_ANSWERS_MAX];
};

/* The node's. */
struct notes {
    struct note_route *routes; /* hash, by address: notes that wait for a connection */
    struct note *sent;         /* hash, by number: those that a peer has yet to answer */
    uint32_t number;           /* of the latest one that was sent to a peer */
    uint32_t waiting;          /* in routes, and in inboxes whose client does not read: they expire */
    size_t orphan_bytes;       /* in routes, of clients that are gone */
    bool answering;            /* some peers are to be answered at the end of the turn */
};

/* A session's. */
struct session_notes {
    struct note *inbox; /* oldest first; the first ones may be in the channel */
    struct note *next;  /* the first that is not */
    size_t inbox_bytes;
    struct note *unanswered; /* sent by this client */
    uint32_t unanswered_count;
    size_t unanswered_bytes;
    struct note_answers answers; /* for this client */
};

/* Takes a note of a client. False: the client has more unanswered than it may. */
bool notes_post(struct session *from, const struct message_notify *message);
/* Takes a note from a peer. */
void notes_receive(struct node *node, struct peer *peer, const struct message_note *message);
/* Takes a peer's answer to notes that were sent to it. */
void notes_answered(struct node *node, struct peer *peer, const struct message_noted *message);

/* Queues notes of the inbox, and answers, in the session's channel: before that is flushed. */
void notes_fill(struct session *session);
/* Answers the notes that the last flush has written. True: more of the inbox can be queued. */
bool notes_written(struct session *session);
void notes_send(struct node *node);                       /* those whose peers are up */
void notes_tick(struct node *node);                       /* sends, and ends those that have waited too long */
void notes_turn(struct node *node);                       /* answers peers */
void notes_on_down(struct node *node, struct peer *peer); /* nothing comes from or goes to the peer any more */
void notes_session_end(struct session *session);          /* nothing goes to the client any more */
void notes_fail_all(struct node *node);                   /* the daemon stops */

#endif
