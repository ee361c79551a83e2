/* Foreign bytes as what comes to a process that ranks meet at, by four connections: records of a byte, which says whose
 * turn it is and what becomes of it, and a frame. Whatever is asked, answers are views that can be, and when all have
 * gone nobody is left. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/rdv_server.h"
#include "tests/fuzz/fuzz.h"

enum { GUESTS = 4, WHO = 3, HANG_UP = 4, SECRET = 8, HALF = 16, RECORD = 1 + MEET_FRAME_BYTES };

struct world {
    struct rdv_server *rdv_server;
    struct coll_rdv_endpoint place;
    int sockets[GUESTS]; /* -1: none */
};

static void take_turn(struct world *world)
{
    rdv_server_wait(world->rdv_server, 0);
    rdv_server_progress(world->rdv_server);
}

static void come(struct world *world, unsigned who)
{
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    world->sockets[who] = ends[0];
    rdv_server_adopt(world->rdv_server, ends[1]);
}

static void go(struct world *world, unsigned who)
{
    if (world->sockets[who] >= 0)
        close(world->sockets[who]);
    world->sockets[who] = -1;
    take_turn(world);
}

static void check_answers(struct world *world, unsigned who)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct coll_vote_state view;
    ssize_t size;
    while ((size = recv(world->sockets[who], frame, sizeof(frame), 0)) > 0) {
        require(size == sizeof(frame) && meet_view_get(frame, &view));
        require(view.ending != COLL_VOTE_GO || view.absent == 0);
    }
    if (size == 0 || errno != EAGAIN)
        go(world, who);
}

static void play(struct world *world, const uint8_t *record)
{
    const unsigned who = record[0] & WHO;
    const size_t size = (record[0] & HALF) != 0 ? MEET_FRAME_BYTES / 2 : MEET_FRAME_BYTES;
    uint8_t frame[MEET_FRAME_BYTES];
    memcpy(frame, record + 1, sizeof(frame));
    if ((record[0] & SECRET) != 0)
        memcpy(frame + MEET_FRAME_BYTES - COLL_SECRET_BYTES, world->place.secret, COLL_SECRET_BYTES);
    if (world->sockets[who] < 0)
        come(world, who);
    (void)send(world->sockets[who], frame, size, MSG_NOSIGNAL);
    if ((record[0] & HANG_UP) != 0)
        go(world, who);
    take_turn(world);
    if (world->sockets[who] >= 0)
        check_answers(world, who);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world world = {.sockets = {-1, -1, -1, -1}};
    unsigned guests, tables;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    require((world.rdv_server = rdv_server_open(&world.place)) != NULL);
    for (size_t at = 0; at + RECORD <= size; at += RECORD)
        play(&world, data + at);
    for (unsigned who = 0; who < GUESTS; who++)
        go(&world, who);
    rdv_server_counts(world.rdv_server, &guests, &tables);
    require(guests == 0 && tables <= 256);
    rdv_server_close(world.rdv_server);
    return 0;
}
