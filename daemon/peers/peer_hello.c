/* The handshake: hellos, versions, proofs. The dialling side proves itself first, so that a stranger who dials sees
 * nothing that was made with the secret. */
#include "daemon/peers/peer_internal.h"

#include <inttypes.h>
#include <string.h>

static struct message_peer_hello own_hello(const struct connection *c)
{
    const struct peers *peers = peers_of(c);
    return (struct message_peer_hello){
        .version = PROTOCOL_VERSION,
        .version_min = PROTOCOL_VERSION_MIN,
        .node = peers->config.node,
        .incarnation = peers->config.incarnation,
        .secret = peers->secret != NULL,
        .nonce = view_of(c->nonce, sizeof(c->nonce)),
        .address = view_of(peers->address, strlen(peers->address)),
        .dialled = c->peer.dialled ? view_of(c->peer.address, strlen(c->peer.address)) : view_of("", 0),
    };
}

void hello_send(struct connection *c)
{
    struct message message = {.type = MESSAGE_PEER_HELLO, .peer_hello = own_hello(c)};
    connection_send(c, &message);
}

static void prove(const struct connection *c, bool dialler, uint8_t mac[MAC_BYTES])
{
    struct message_peer_hello own = own_hello(c);
    const struct message_peer_hello *theirs = &c->hello.peer_hello;
    auth_proof(peers_of(c)->secret, dialler, c->peer.dialled ? &own : theirs, c->peer.dialled ? theirs : &own, mac);
}

static void proof_send(struct connection *c)
{
    uint8_t mac[MAC_BYTES];
    prove(c, c->peer.dialled, mac);
    struct message message = {.type = MESSAGE_PEER_PROOF, .peer_proof.mac = view_of(mac, sizeof(mac))};
    connection_send(c, &message);
}

static void proved(struct connection *c)
{
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    c->peer.node = hello->node;
    c->peer.incarnation = hello->incarnation;
    if (!c->peer.dialled && hello->address.size > 0)
        snprintf(c->peer.address, sizeof(c->peer.address), "%.*s", (int)hello->address.size,
                 (const char *)hello->address.data);
    message_fini(&c->hello);
    memset(&c->hello, 0, sizeof(c->hello));
    c->peer.state = PEER_LINKING;
    channel_set_body_max(c->channel, MESSAGE_BYTES_MAX);
    links_send(c);
}

/* Both sides see both hellos, so both can decide. */
static bool is_acceptable(struct connection *c)
{
    struct peers *peers = peers_of(c);
    const struct message_peer_hello *hello = &c->hello.peer_hello;
    bool demanded = peers->secret != NULL;
    if (hello->version_min > PROTOCOL_VERSION || hello->version < PROTOCOL_VERSION_MIN)
        connection_doom(c, "protocol versions differ: %" PRIu32 " to %" PRIu32 " there, %u to %u here",
                        hello->version_min, hello->version, PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
    else if (memcmp(hello->nonce.data, c->nonce, NONCE_BYTES) == 0)
        connection_doom(c, "the connection leads back to itself");
    else if (hello->secret != demanded)
        connection_doom(c, "%s",
                        demanded ? "a secret is demanded here, but the peer has none (secret-file)"
                                 : "the peer demands a secret, but there is none here (secret-file)");
    peers->config.metrics->auth_failures += c->doomed && hello->secret != demanded;
    return !c->doomed;
}

void hello_take(struct connection *c, struct message *message)
{
    c->hello = *message;
    c->has_hello = true;
    memset(message, 0, sizeof(*message));
    if (!is_acceptable(c))
        return;
    if (peers_of(c)->secret == NULL)
        proved(c);
    else if (c->peer.dialled)
        proof_send(c);
}

void proof_take(struct connection *c, const struct message_peer_proof *proof)
{
    uint8_t expected[MAC_BYTES];
    prove(c, !c->peer.dialled, expected);
    if (!auth_equal(expected, proof->mac.data)) {
        peers_of(c)->config.metrics->auth_failures++;
        connection_doom(c, "the proof is wrong: the secrets differ, or somebody is between");
        return;
    }
    if (!c->peer.dialled)
        proof_send(c);
    proved(c);
}
