/* How the ranks of a communicator find out whether all of them want to join, before any of them asks NCCL for anything.
 * Each rank says its words; what follows for all is one ending per question, set once (board.h). So all ranks decide
 * alike, even one that comes when the others have given up waiting for it, and even if one ends.
 *
 * The key determines the place, so nobody has to be told of it: a process that is asked by TCP (hall.h), or else a page
 * of host memory, whose name is removed when all ranks have come or waiting has ended.
 *
 * Nothing here calls NCCL. A meeting is used by one thread at a time. */
#ifndef STRAIT_COLLECTIVE_MEETING_H
#define STRAIT_COLLECTIVE_MEETING_H

#include "collective/board.h"
#include "collective/key.h"

enum coll_verdict { COLL_VERDICT_OPEN, COLL_VERDICT_GO, COLL_VERDICT_RAW };

struct coll_meeting;

/* NULL: the place cannot be reached within seconds, or refuses; or there is no such memory. */
struct coll_meeting *coll_meeting_come(const struct coll_key *key, int rank, int ranks);
/* At most once for each round, in the order of rounds. Waits for no other rank, at most for the place's answer. */
void coll_meeting_say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word);
/* Tells that so many operations have begun before COLL_ROUND_REACHED: a rank that says it is at an earlier one need not
 * be waited for. */
void coll_meeting_pass(struct coll_meeting *meeting, uint32_t begun);
/* A rank that can no longer ask gets COLL_VERDICT_RAW. To the others it has ended. What it was told before is the same
 * for all; but an answer that was on its way when its connection broke is known only to the others. */
enum coll_verdict coll_meeting_hear(struct coll_meeting *meeting, enum coll_round round);
/* Waits until the verdict is not open, and all ranks have come to read it or had some time to. Meanwhile calls `go_on`
 * with the milliseconds so far; when that returns false, waiting ends for everybody, and what is open becomes raw. */
enum coll_verdict coll_meeting_wait(struct coll_meeting *meeting, enum coll_round round,
                                    bool (*go_on)(struct coll_meeting *meeting, int64_t ms, void *argument),
                                    void *argument);
/* Why the verdict is COLL_VERDICT_RAW. */
void coll_meeting_why(struct coll_meeting *meeting, enum coll_round round, char *text, size_t size);
/* The ranks that have said nothing in a round, as text: "rank 3", "ranks 1, 2 and 5". */
void coll_meeting_absent(struct coll_meeting *meeting, enum coll_round round, char *text, size_t size);
/* Whether any rank has said so, when all have said that they are equally far. */
bool coll_meeting_any_paired(struct coll_meeting *meeting);
/* The others need not wait for this rank in what is still open. NULL is allowed. */
void coll_meeting_leave(struct coll_meeting *meeting);

#endif
