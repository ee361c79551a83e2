#include "collective/engine/pieces.h"

#include "collective/engine/launch.h"
#include "collective/engine/order.h"
#include "collective/engine/plain.h"
#include "collective/engine/steps.h"

/*  the step's stream   encode 0 | encode 1 | decode 0, encode 2 | decode 1, encode 3 | ...
 *  beside it                    | move 0   | move 1             | move 2             | ... */

/* Two events suffice: when a piece has been moved, the one before it is being decoded. */
static gpu_event arrival_of(const struct coll_step *piece)
{
    return piece->piece % 2 == 0 ? piece->staging->join : piece->staging->turn;
}

static bool encode(const struct coll_step *piece)
{
    const struct gpu_ops *gpu = piece->member->gpu;
    const struct coll_staging *staging = piece->staging;
    return launch_encode(piece) && gpu->event_record(staging->fork, piece->call.stream) &&
           gpu->event_follow(staging->side, staging->fork);
}

static coll_result move(const struct coll_step *piece)
{
    const struct coll_table *nccl = piece->member->host.nccl;
    const struct coll_staging *staging = piece->staging;
    coll_result result = nccl->GroupStart();
    if (result != COLL_SUCCESS)
        return result;
    result = launch_move(piece, staging->side);
    const coll_result ended = nccl->GroupEnd();
    result = result == COLL_SUCCESS ? ended : result;
    if (result == COLL_SUCCESS && !piece->member->gpu->event_record(arrival_of(piece), staging->side))
        return launch_failed(piece, "a piece could not be followed");
    return result;
}

static bool decode(const struct coll_step *piece)
{
    return piece->member->gpu->event_follow(piece->call.stream, arrival_of(piece)) && launch_check(piece) &&
           launch_decode(piece);
}

static coll_result pass_all(const struct coll_step *pieces, unsigned count)
{
    coll_result result = COLL_SUCCESS;
    for (unsigned i = 0; i < count && result == COLL_SUCCESS; i++) {
        if (!encode(&pieces[i]))
            return launch_failed(&pieces[i], "encoding could not be launched");
        result = move(&pieces[i]);
        if (result == COLL_SUCCESS && i > 0 && !decode(&pieces[i - 1]))
            return launch_failed(&pieces[i], "decoding could not be launched");
    }
    return result;
}

/* Overflow of any piece comes when all pieces have been checked; sums can be made after that. */
static bool finish_all(const struct coll_step *pieces, unsigned count)
{
    const struct coll_step *last = &pieces[count - 1];
    bool good = decode(last) && plain_behind(last, false) && launch_own(last);
    for (unsigned i = 0; i < count && good; i++)
        good = launch_sums(&pieces[i]);
    return good && order_end(last->member, last->staging, last->call.stream);
}

static coll_result run_all(const struct coll_step *pieces, unsigned count)
{
    struct coll_staging *staging = pieces->staging;
    if (!steps_grow(pieces))
        return launch_failed(pieces, "no memory for messages");
    if (!order_follow(pieces->member, staging, pieces->call.stream))
        return launch_failed(pieces, "encoding could not be launched");
    const coll_result result = pass_all(pieces, count);
    if (result != COLL_SUCCESS)
        return result;
    return finish_all(pieces, count) ? COLL_SUCCESS : launch_failed(pieces, "decoding could not be launched");
}

coll_result pieces_run(struct coll_step *steps, unsigned count)
{
    struct coll_step pieces[COLL_PIECES_MAX];
    const struct gpu_ops *gpu = steps->member->gpu;
    int before;
    (void)count;
    for (unsigned i = 0; i < steps->pieces; i++) {
        pieces[i] = *steps;
        pieces[i].piece = i;
    }
    coll_result result = steps_reserve(pieces, steps->pieces);
    if (result != COLL_SUCCESS)
        return result;
    if (!gpu->enter(steps->member->device, &before))
        return launch_failed(steps, "no GPU");
    result = run_all(pieces, steps->pieces);
    gpu->leave(before);
    return result;
}
