#include "collective/meeting.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "collective/clock.h"
#include "collective/meeting_kind.h"

struct coll_meeting *coll_meeting_come(const struct coll_key *key, int rank, int ranks)
{
    if (coll_key_is_none(key) || rank < 0 || rank >= ranks)
        return NULL;
    return coll_key_has_place(key) ? coll_meeting_come_there(key, rank, ranks)
                                   : coll_meeting_come_here(key, rank, ranks);
}

void coll_meeting_say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word)
{
    meeting->kind->say(meeting, round, word);
}

void coll_meeting_leave(struct coll_meeting *meeting)
{
    if (meeting != NULL)
        meeting->kind->leave(meeting);
}

void coll_meeting_pass(struct coll_meeting *meeting, uint32_t begun)
{
    meeting->kind->pass(meeting, begun);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static enum coll_verdict verdict_of(const struct coll_view *view)
{
    if (view->ending == COLL_ENDING_OPEN)
        return COLL_VERDICT_OPEN;
    return view->ending == COLL_ENDING_GO ? COLL_VERDICT_GO : COLL_VERDICT_RAW;
}

enum coll_verdict coll_meeting_hear(struct coll_meeting *meeting, enum coll_round round)
{
    const struct coll_view view = meeting->kind->look(meeting, round);
    return verdict_of(&view);
}

/* At first ranks come within a moment of each other; later, a sixteenth of the time so far is soon enough. */
static void nap(const struct coll_meeting_kind *kind, int64_t ms)
{
    const int64_t part = ms * 1000000 / 16, most = part < kind->most_ns ? part : kind->most_ns;
    nanosleep(&(struct timespec){.tv_nsec = most > kind->least_ns ? most : kind->least_ns}, NULL);
}

/* Ranks that have still to come are close behind; any later ones wait in vain. */
static bool is_over(struct coll_meeting *meeting, enum coll_round round, int64_t ms, int64_t *decided_ms)
{
    const struct coll_view view = meeting->kind->look(meeting, round);
    if (view.ending == COLL_ENDING_OPEN)
        return false;
    if (*decided_ms < 0)
        *decided_ms = ms;
    return view.all || ms - *decided_ms >= meeting->kind->linger_ms;
}

enum coll_verdict coll_meeting_wait(struct coll_meeting *meeting, enum coll_round round,
                                    bool (*go_on)(struct coll_meeting *meeting, int64_t ms, void *argument),
                                    void *argument)
{
    const int64_t begin = now_ms();
    int64_t ms = 0, decided_ms = -1;
    while (!is_over(meeting, round, ms, &decided_ms) && go_on(meeting, ms, argument)) {
        nap(meeting->kind, ms);
        ms = now_ms() - begin;
    }
    meeting->kind->give_up(meeting, round);
    return coll_meeting_hear(meeting, round);
}

bool coll_meeting_any_paired(struct coll_meeting *meeting)
{
    return meeting->kind->look(meeting, COLL_ROUND_REACHED).paired;
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void put(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    const size_t used = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

static void put_absent(const struct coll_view *view, char *text, size_t size)
{
    const int named = view->absent < COLL_NAMED_MAX ? view->absent : COLL_NAMED_MAX;
    snprintf(text, size, view->absent == 1 ? "rank" : "ranks");
    for (int i = 0; i < named; i++)
        put(text, size, "%s %d", i == 0 ? "" : ",", view->named[i]);
    if (view->absent > named)
        put(text, size, " and %d more", view->absent - named);
}

void coll_meeting_absent(struct coll_meeting *meeting, enum coll_round round, char *text, size_t size)
{
    const struct coll_view view = meeting->kind->look(meeting, round);
    put_absent(&view, text, size);
}

/* If all absent ranks have come since, they came too late. */
static void put_why_absent(const struct coll_meeting *meeting, const struct coll_view *view, char *text, size_t size)
{
    char absent[96];
    put_absent(view, absent, sizeof(absent));
    if (view->absent == 0)
        snprintf(text, size, "some of its ranks came too late");
    else
        snprintf(text, size, "%s did not come in time: other values of STRAIT_COLL there, no libstrait-coll%s", absent,
                 meeting->kind->linger_ms > 0 ? ", or another host" : "");
}

void coll_meeting_why(struct coll_meeting *meeting, enum coll_round round, char *text, size_t size)
{
    static const char *const texts[COLL_ENDINGS] = {
        [COLL_ENDING_ENDED] = "rank %d has ended",
        [COLL_ENDING_UNABLE] = "rank %d is not able to, and has said why",
        [COLL_ENDING_DIFFERS] = "rank %d blocks where others do not, or has begun other operations",
        [COLL_ENDING_ONE_THREAD] =
            "rank %d is called by a thread that has another rank of it, and nothing of it may block",
        [COLL_ENDING_LEFT] = "rank %d has left",
        [COLL_ENDING_LOST] = "the process that made the unique id is not reached any more"};
    const struct coll_view view = meeting->kind->look(meeting, round);
    if (view.ending == COLL_ENDING_ABSENT)
        put_why_absent(meeting, &view, text, size);
    else if (view.ending < COLL_ENDINGS && texts[view.ending] != NULL)
        snprintf(text, size, texts[view.ending], view.about);
}
