#include "collective/card.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "collective/hall.h"
#include "internal/bytes.h"

/* magic, family, port, scope, address, secret, zeros: "STRCARD1" */
#define MAGIC UINT64_C(0x3144524143525453)
enum { CARD_AT = 64, CARD_BYTES = COLL_ID_BYTES - CARD_AT };

/* ---- In bytes ---------------------------------------------------------------------------------------------------- */

static void store(uint8_t *card, const struct coll_place *place)
{
    store_le64(card, MAGIC);
    store_le16(card + 8, place->address.family);
    store_le16(card + 10, place->address.port);
    store_le32(card + 12, place->address.scope);
    memcpy(card + 16, place->address.bytes, sizeof(place->address.bytes));
    memcpy(card + 32, place->secret, COLL_SECRET_BYTES);
}

void coll_card_read(const coll_id *id, struct coll_place *place)
{
    const uint8_t *card = (const uint8_t *)id->bytes + CARD_AT;
    memset(place, 0, sizeof(*place));
    if (load_le64(card) != MAGIC)
        return;
    place->address =
        (struct address){.family = load_le16(card + 8), .port = load_le16(card + 10), .scope = load_le32(card + 12)};
    memcpy(place->address.bytes, card + 16, sizeof(place->address.bytes));
    memcpy(place->secret, card + 32, COLL_SECRET_BYTES);
}

/* ---- The process's place ----------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    struct hall *hall; /* NULL: it has not been opened */
    struct coll_place place;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

void coll_card_lock(void)
{
    pthread_mutex_lock(&own.lock);
}

void coll_card_unlock(void)
{
    pthread_mutex_unlock(&own.lock);
}

void coll_card_clear(void)
{
    if (own.hall != NULL)
        hall_close(own.hall);
    own.hall = NULL;
}

/* Runs for as long as the process does: children of a communicator may be made at any time. */
static void *run(void *argument)
{
    struct hall *hall = argument;
    for (;;) {
        hall_await(hall, -1);
        coll_card_lock();
        hall_serve(hall);
        coll_card_unlock();
    }
    return NULL;
}

/* All signals are blocked: they are for the program's threads. */
static bool start(struct hall *hall)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, run, hall) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

static bool open_own(void)
{
    struct hall *opened = own.hall == NULL ? hall_open(&own.place) : NULL;
    if (opened != NULL && start(opened))
        own.hall = opened;
    else if (opened != NULL)
        hall_close(opened);
    return own.hall != NULL;
}

/* An id named by NCCL_COMM_ID is the same in all processes, and each of them may have asked for it. */
void coll_card_put(coll_id *id)
{
    static const uint8_t nothing[CARD_BYTES];
    uint8_t *card = (uint8_t *)id->bytes + CARD_AT;
    const char *named = getenv("NCCL_COMM_ID");
    if ((named != NULL && *named != '\0') || memcmp(card, nothing, CARD_BYTES) != 0)
        return;
    coll_card_lock();
    if (open_own())
        store(card, &own.place);
    coll_card_unlock();
}
