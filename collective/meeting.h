/* Where the ranks of a communicator find out whether all of them want to join, before any of them asks NCCL for
 * anything: a page of the host's memory, under a name that follows from how the communicator was made, so that nobody
 * has to be told of it. Each rank writes what it has to say into a place of its own; what follows for all is one word,
 * which whoever can tell sets, once. So all decide alike: also for a rank that comes when the others have given up
 * waiting for it, and for one that ends.
 *
 * Nothing here calls NCCL. The name goes when all have come, or waiting has ended. */
#ifndef STRAIT_COLLECTIVE_MEETING_H
#define STRAIT_COLLECTIVE_MEETING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The same on all ranks of a communicator, and of no other one's that is made meanwhile; all zero: none. */
struct coll_key {
    uint64_t words[2];
};

struct coll_key coll_key_of(const void *bytes, size_t size);
struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color);
struct coll_key coll_key_draw(void); /* for ranks of one call */
bool coll_key_is_none(const struct coll_key *key);

/* Questions, one after the other: whether a rank is there, equally far (of what does not block), and able. */
enum coll_round { COLL_ROUND_PRESENT, COLL_ROUND_REACHED, COLL_ROUND_ABLE, COLL_ROUNDS };

/* What a rank says. */
struct coll_word {
    uint32_t able;
    uint32_t blocks; /* its communicator does; the same on all */
    uint32_t index;  /* of the operation that is next; the same on all */
    uint32_t paired; /* it has sent or received before */
    uint64_t thread; /* that speaks; no other rank's, unless the communicator blocks */
};

enum coll_verdict { COLL_VERDICT_OPEN, COLL_VERDICT_GO, COLL_VERDICT_RAW };

struct coll_meeting;

/* NULL: there is no such memory to be had. */
struct coll_meeting *coll_meeting_come(const struct coll_key *key, int rank, int ranks);
/* At most once for each round, in their order. Waits for nobody. */
void coll_meeting_say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word);
/* So many operations have begun without COLL_ROUND_REACHED: who says that it is at an earlier one waits for nobody. */
void coll_meeting_pass(struct coll_meeting *meeting, uint32_t begun);
enum coll_verdict coll_meeting_hear(struct coll_meeting *meeting, enum coll_round round);
/* Until it is not open, and all have come to find out, or had some time to; as long as that lasts, `go_on` is asked
 * with the milliseconds so far. When that says no, nobody has to wait any more: what is open then becomes raw. */
enum coll_verdict coll_meeting_wait(struct coll_meeting *meeting, enum coll_round round,
                                    bool (*go_on)(struct coll_meeting *meeting, int64_t ms, void *argument),
                                    void *argument);
/* When it is COLL_VERDICT_RAW: why. */
void coll_meeting_why(const struct coll_meeting *meeting, enum coll_round round, char *text, size_t size);
/* Those that have said nothing in a round, as text: "rank 3", "ranks 1, 2 and 5". */
void coll_meeting_absent(const struct coll_meeting *meeting, enum coll_round round, char *text, size_t size);
/* Of what all have said, equally far. */
bool coll_meeting_any_paired(const struct coll_meeting *meeting);
/* What is still open others need not wait for. NULL is allowed. */
void coll_meeting_leave(struct coll_meeting *meeting);

#endif
