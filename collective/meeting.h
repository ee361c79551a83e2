/* Where the ranks of a communicator find out whether all of them want to join, before any of them asks NCCL for
 * anything. Each says what it has to say; what follows for all is one word for each question, set once (board.h). So
 * all decide alike: also for a rank that comes when the others have given up waiting for it, and for one that ends.
 *
 * The place is where the key says, and nobody has to be told of it: a process that is asked by TCP (hall.h), else a
 * page of the host's memory, whose name goes when all have come, or waiting has ended.
 *
 * Nothing here calls NCCL. A meeting is used by one thread at a time. */
#ifndef STRAIT_COLLECTIVE_MEETING_H
#define STRAIT_COLLECTIVE_MEETING_H

#include "collective/board.h"
#include "collective/key.h"

enum coll_verdict { COLL_VERDICT_OPEN, COLL_VERDICT_GO, COLL_VERDICT_RAW };

struct coll_meeting;

/* NULL: the place is not reached within seconds, or does not take it; or there is no such memory to be had. */
struct coll_meeting *coll_meeting_come(const struct coll_key *key, int rank, int ranks);
/* At most once for each round, in their order. Waits for no other rank: for the place's answer at most. */
void coll_meeting_say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word);
/* So many operations have begun without COLL_ROUND_REACHED: who says that it is at an earlier one waits for nobody. */
void coll_meeting_pass(struct coll_meeting *meeting, uint32_t begun);
/* Of a rank that cannot ask any more: COLL_VERDICT_RAW. To the others it has ended; what they have been told before is
 * the same for all, but an answer that was on its way to a rank when its connection broke is known to the others
 * alone. */
enum coll_verdict coll_meeting_hear(struct coll_meeting *meeting, enum coll_round round);
/* Until it is not open, and all have come to find out, or had some time to; as long as that lasts, `go_on` is asked
 * with the milliseconds so far. When that says no, nobody has to wait any more: what is open then becomes raw. */
enum coll_verdict coll_meeting_wait(struct coll_meeting *meeting, enum coll_round round,
                                    bool (*go_on)(struct coll_meeting *meeting, int64_t ms, void *argument),
                                    void *argument);
/* When it is COLL_VERDICT_RAW: why. */
void coll_meeting_why(struct coll_meeting *meeting, enum coll_round round, char *text, size_t size);
/* Those that have said nothing in a round, as text: "rank 3", "ranks 1, 2 and 5". */
void coll_meeting_absent(struct coll_meeting *meeting, enum coll_round round, char *text, size_t size);
/* Of what all have said, equally far. */
bool coll_meeting_any_paired(struct coll_meeting *meeting);
/* What is still open others need not wait for. NULL is allowed. */
void coll_meeting_leave(struct coll_meeting *meeting);

#endif
