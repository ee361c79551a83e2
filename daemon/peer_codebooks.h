/* Codebook sets between this daemon and its peers. A daemon encodes by its own set in force, and a chunk names its set:
 * so a peer with another set can decode once it has fetched this one, and says so (CODEBOOK_KNOWN).
 *
 *   PEER_LINKS, CODEBOOK  a peer tells of its set. It is known here, or asked for part by part (CODEBOOK_ASK), read by
 *                         a worker, and kept only if the id of its tables is the one that was told
 *   CODEBOOK_KNOWN        then the peer is told, and from then on sends coded chunks
 *
 * Whatever a peer does, memory and work are limited: the sets that are kept (codebooks.h), those that are fetched at a
 * time and their bytes, the attempts, and what is sent of the own set. Without a set, chunks are raw. */
#ifndef STRAIT_DAEMON_PEER_CODEBOOKS_H
#define STRAIT_DAEMON_PEER_CODEBOOKS_H

#include <uv.h>

#include "proto/message.h"

struct codebook_fetch;
struct node;
struct peer;

#define PEER_CODEBOOKS 3u /* sets of a peer that are kept: the latest, and two that chunks on the way may name */

/* What is known of a peer's set, and of what it knows (peer_use). */
struct peer_codebooks {
    struct {
        uint8_t id[CODEBOOK_ID_BYTES];
        uint64_t since;       /* when the peer told of it; loop's clock */
    } claims[PEER_CODEBOOKS]; /* latest first */
    uint32_t claim_count;
    bool unsettled;    /* the latest set that the peer has told of is not claimed, and may be yet */
    bool asked;        /* an answer is due */
    uint32_t attempts; /* to fetch it */
    struct codebook_fetch *fetch;
    bool known;    /* the peer decodes by our set in force, in host memory */
    uint64_t sent; /* bytes of our set in force */
};

/* The node's. */
struct codebook_fetches {
    struct codebook_fetch *list; /* utlist */
    uint32_t count;
    uv_timer_t timer; /* runs while something is waited for */
    uint8_t *own;     /* our set in force as it is sent; NULL: nobody has asked for it, or it is too large */
    uint32_t own_size;
};

/* The id of a set as hexadecimal digits. Returns `text`. */
#define CODEBOOK_ID_TEXT (2 * CODEBOOK_ID_BYTES + 1)
const char *codebook_id_text(char text[CODEBOOK_ID_TEXT], const uint8_t *id);

void peer_codebooks_init(struct node *node);
void peer_codebooks_fini(struct node *node); /* no job runs any more; the timer is closed by the caller */

/* The peer is up, or has told of another set. */
void peer_codebooks_told(struct node *node, struct peer *peer);
void peer_codebooks_down(struct node *node, struct peer *peer);
/* No chunk of the peer can come any more. */
void peer_codebooks_quiet(struct node *node, struct peer *peer);
/* Another set of ours is in force, and node->codebooks has it. */
void peer_codebooks_changed(struct node *node);

/* Messages. False: the peer broke the protocol. */
bool peer_codebooks_ask(struct node *node, struct peer *peer, const struct message_codebook_ask *ask);
bool peer_codebooks_part(struct node *node, struct peer *peer, const struct message_codebook_part *part);
void peer_codebooks_known(struct node *node, struct peer *peer, const struct message_codebook_known *known);

#endif
