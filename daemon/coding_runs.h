/* Rates of whole legs by mode: runs of chunks that all have one mode, and what they carried from the first encoder to
 * the verdict. Encoders, link, the kernel's network and the sink's decoders may all need the same processors, so that
 * no stage alone tells which mode carries most. Pure: clocks are arguments, in nanoseconds. */
#ifndef STRAIT_DAEMON_CODING_RUNS_H
#define STRAIT_DAEMON_CODING_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#define POLICY_MODES (STRAIT_MODE_PARTS + 1)       /* enum strait_mode is the index; AUTO's place is unused */
#define POLICY_TYPES (STRAIT_ELEMENT_FP8_E5M2 + 1) /* enum strait_element is the index */

#define CODING_RUN_BYTES    (16ull << 20) /* raw bytes of a run, */
#define CODING_RUN_NS       10000000u     /* which takes at least this long, */
#define CODING_RUN_MAX      500000000u    /* or ends after this */
#define CODING_LEG_BYTES    (4ull << 20)  /* smaller legs are not timed: messages take much of their time */
#define CODING_EARLY        64u           /* of the first so many runs */
#define CODING_TRIALS_EARLY 8u            /* one in so many has another mode than the best, */
#define CODING_TRIALS       16u           /* and one in so many later, */
#define CODING_RARELY       8u            /* of which so many times fewer one that is known to be far slower, */
#define CODING_FAR          0.8           /* that is below this of the best */
#define CODING_SAMPLES      2u            /* runs until a rate counts */
#define CODING_LATEST       5u            /* runs whose median is the rate */

struct coding_rate {
    double latest[CODING_LATEST]; /* raw bytes a second, in turn */
    uint32_t samples;
};

/* Zeroed: nothing is known. */
struct coding_runs {
    struct coding_rate rates[POLICY_TYPES][POLICY_MODES];
    uint32_t ended[POLICY_TYPES]; /* runs */
    bool open, warm;              /* a run is open; one has ended before it */
    enum strait_element element;  /* of the open run */
    enum strait_mode mode;
    uint64_t raw, busy, busy_since; /* its bytes, and the time in which legs were under way */
    uint32_t legs;                  /* under way */
};

/* A mode that a chunk may have, and what it is expected to carry while it has not been measured. */
struct coding_candidate {
    enum strait_mode mode;
    double expected; /* raw bytes a second */
    bool tried;      /* in runs, where another one is the best */
};

/* A leg has chunks under way, or has none any more. */
void coding_leg_began(struct coding_runs *runs, uint64_t now);
void coding_leg_ended(struct coding_runs *runs, uint64_t now);

/* The mode of the next chunk of such a leg: that of the open run, which ends here when it is long enough. `least_gain`:
 * of two modes that carry as much the earlier is taken. */
enum strait_mode coding_mode(struct coding_runs *runs, enum strait_element element,
                             const struct coding_candidate *candidates, uint32_t count, double least_gain,
                             uint64_t now);
/* A chunk has been carried. */
void coding_carried(struct coding_runs *runs, enum strait_element element, enum strait_mode mode, uint64_t raw_bytes);

/* What a mode carries, measured; 0: not known. */
double coding_rate(const struct coding_runs *runs, enum strait_element element, enum strait_mode mode);

#endif
