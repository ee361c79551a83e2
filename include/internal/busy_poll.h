/* Busy polling with a budget: a loop goes on polling instead of sleeping where the next step of a transfer is likely to
 * come sooner than a sleeping process wakes up. Calls no clock and no system call. */
#ifndef STRAIT_INTERNAL_BUSY_POLL_H
#define STRAIT_INTERNAL_BUSY_POLL_H

#include <stdbool.h>
#include <stdint.h>

#define BUSY_POLL_NS         100000u /* how long it polls after a step */
#define BUSY_POLL_WAKE_NS    20000u  /* what sleeping and waking up costs: so much of a poll that a step ends is free */
#define BUSY_POLL_SHARE      10u     /* of a processor at most: one tenth, */
#define BUSY_POLL_SAVED_NS   10000000 /* of which so much can be saved up */
#define BUSY_POLL_SCORE      16u      /* at most */
#define BUSY_POLL_TRIAL      16u      /* where polling does not pay, it is tried after every so many steps */
#define BUSY_POLL_PROCESSORS 4u       /* with fewer, a loop that polls yields its processor each time */
#define BUSY_POLL_CROWD_NS   8000u    /* a yield that takes so long has let somebody else run */

/* Zero-initialised: no step has been made. */
struct busy_poll {
    bool started;        /* a step has been made: the rest is valid */
    uint64_t until;      /* it polls until then; 0: it does not poll */
    uint64_t turned;     /* when the latest turn ended, which is up to when the budget has grown */
    int64_t saved;       /* what is left of the budget; negative: overdrawn */
    uint64_t in_vain;    /* of the current poll */
    uint32_t score;      /* high if steps came in the latest polls */
    uint32_t left_out;   /* steps after which it did not poll */
    uint64_t paid, lost; /* polls that a step has ended, and others */
};

/* The budget grows with time, and turns that polled in vain use it up. */
static inline void busy_poll_settle(struct busy_poll *poll, uint64_t passed, bool stepped)
{
    const uint64_t grown = passed / BUSY_POLL_SHARE;
    poll->saved += grown < BUSY_POLL_SAVED_NS ? (int64_t)grown : BUSY_POLL_SAVED_NS;
    if (poll->until != 0 && !stepped) {
        poll->saved -= passed < INT32_MAX ? (int64_t)passed : INT32_MAX;
        poll->in_vain += passed;
    }
    if (poll->saved > BUSY_POLL_SAVED_NS)
        poll->saved = BUSY_POLL_SAVED_NS;
}

static inline void busy_poll_end(struct busy_poll *poll, bool paid)
{
    if (paid) {
        poll->paid++;
        poll->score = poll->score + 2 < BUSY_POLL_SCORE ? poll->score + 2 : BUSY_POLL_SCORE;
        poll->saved += poll->in_vain < BUSY_POLL_WAKE_NS ? (int64_t)poll->in_vain : BUSY_POLL_WAKE_NS;
    } else {
        poll->lost++;
        poll->score -= poll->score > 0;
    }
    poll->until = poll->in_vain = 0;
}

static inline bool busy_poll_pays(struct busy_poll *poll)
{
    if (poll->saved <= 0 || (poll->score == 0 && ++poll->left_out < BUSY_POLL_TRIAL))
        return false;
    poll->left_out = 0;
    return true;
}

/* Called when a yield of a loop that polls took so long. Where others want the processor, sleeping is quicker: a
 * process that is woken takes the processor from one that computes, but one that has yielded waits until the other's
 * time is over. So the poll ends, and polling is tried again only now and then. */
static inline void busy_poll_yielded(struct busy_poll *poll, uint64_t took)
{
    if (poll->until == 0 || took < BUSY_POLL_CROWD_NS)
        return;
    busy_poll_end(poll, false);
    poll->score = 0;
}

/* Called at the end of each turn of a loop, at `now` of a monotonic clock in nanoseconds. `stepped`: the turn has
 * brought a step of a transfer; `live`: more are to come. True: the next turn should begin without sleeping. */
static inline bool busy_poll_turn(struct busy_poll *poll, uint64_t now, bool stepped, bool live)
{
    if (!poll->started && !stepped)
        return false;
    if (!poll->started)
        *poll = (struct busy_poll){
            .started = true, .turned = now, .saved = BUSY_POLL_SAVED_NS, .score = BUSY_POLL_SCORE / 2};
    busy_poll_settle(poll, now - poll->turned, stepped);
    poll->turned = now;
    if (poll->until != 0 && (stepped || now >= poll->until || poll->saved <= 0))
        busy_poll_end(poll, stepped);
    if (stepped && live && busy_poll_pays(poll))
        poll->until = now + BUSY_POLL_NS;
    return poll->until != 0;
}

#endif
