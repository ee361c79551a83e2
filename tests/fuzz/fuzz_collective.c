/* Foreign bytes as what ranks of other hosts send. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/rendezvous.h"
#include "tests/fuzz/fuzz.h"

enum { CLIENTS = 4, CLIENT = 3, HANG_UP = 4, SECRET = 8, HALF = 16, RECORD = 1 + RDV_FRAME_BYTES };

struct ranks {
    struct rdv_server *rdv_server;
    struct coll_rdv_endpoint server;
    int sockets[CLIENTS]; /* -1: none */
};

static void progress(struct ranks *ranks)
{
    rdv_server_wait(ranks->rdv_server, 0);
    rdv_server_progress(ranks->rdv_server);
}

static void join(struct ranks *ranks, unsigned client)
{
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ranks->sockets[client] = ends[0];
    rdv_server_adopt(ranks->rdv_server, ends[1]);
}

static void leave(struct ranks *ranks, unsigned client)
{
    if (ranks->sockets[client] >= 0)
        close(ranks->sockets[client]);
    ranks->sockets[client] = -1;
    progress(ranks);
}

static void check_answers(struct ranks *ranks, unsigned client)
{
    uint8_t frame[RDV_FRAME_BYTES];
    struct coll_vote_state state;
    ssize_t size;
    while ((size = recv(ranks->sockets[client], frame, sizeof(frame), 0)) > 0) {
        require(size == sizeof(frame) && rdv_state_read(frame, &state));
        require(state.result != COLL_VOTE_GO || state.missing == 0);
    }
    if (size == 0 || errno != EAGAIN)
        leave(ranks, client);
}

static void play(struct ranks *ranks, const uint8_t *record)
{
    const unsigned client = record[0] & CLIENT;
    const size_t size = (record[0] & HALF) != 0 ? RDV_FRAME_BYTES / 2 : RDV_FRAME_BYTES;
    uint8_t frame[RDV_FRAME_BYTES];
    memcpy(frame, record + 1, sizeof(frame));
    if ((record[0] & SECRET) != 0)
        memcpy(frame + RDV_FRAME_BYTES - COLL_SECRET_BYTES, ranks->server.secret, COLL_SECRET_BYTES);
    if (ranks->sockets[client] < 0)
        join(ranks, client);
    (void)send(ranks->sockets[client], frame, size, MSG_NOSIGNAL);
    if ((record[0] & HANG_UP) != 0)
        leave(ranks, client);
    progress(ranks);
    if (ranks->sockets[client] >= 0)
        check_answers(ranks, client);
}

/* What four connections send to a rendezvous server: records of a byte, which says which connection sends and what
 * becomes of it, and a frame. Whatever is requested, answers are possible states, and no connection is left when all
 * have been closed. */
void fuzz_rendezvous(const uint8_t *data, size_t size)
{
    struct ranks ranks = {.sockets = {-1, -1, -1, -1}};
    unsigned connections, entries;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    require((ranks.rdv_server = rdv_server_open(&ranks.server)) != NULL);
    for (size_t at = 0; at + RECORD <= size; at += RECORD)
        play(&ranks, data + at);
    for (unsigned client = 0; client < CLIENTS; client++)
        leave(&ranks, client);
    rdv_server_counts(ranks.rdv_server, &connections, &entries);
    require(connections == 0 && entries <= 256);
    rdv_server_close(ranks.rdv_server);
}
