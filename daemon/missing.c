/* Reports what did not land, in one pass that stops when enough is reported: the loop does nothing else meanwhile. */
#include "daemon/missing.h"

#include "daemon/session.h"

enum { TOLD_LISTS = 1024 }; /* lists in one message */

_Static_assert(TOLD_LISTS <= MESSAGE_LIST_MAX && STRAIT_FAILED_PAGES_MAX <= MESSAGE_IDS_MAX, "a message takes them");

/* Collects failed pages for the client, until a message is full. */
struct failed_lists {
    const struct request *request;
    uint32_t named; /* pages named so far */
    bool more;      /* there are more pages */
    uint32_t count;
    struct wire_page_list lists[TOLD_LISTS];
};

static void tell_lists(struct failed_lists *failed)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state = (struct message_state){.transfer = failed->request->transfer,
                                           .state = STRAIT_FAILED,
                                           .reason = (uint32_t)failed->request->reason,
                                           .more = true,
                                           .failed_count = failed->count,
                                           .failed = failed->lists};
    if (failed->count != 0)
        session_send(failed->request->session, &message);
    failed->count = 0;
}

static bool ids_are_a_range(const struct wire_page_list *list)
{
    for (uint32_t i = 1; i < list->count; i++)
        if (list->ids[i] != list->ids[0] + i)
            return false;
    return true;
}

/* Consecutive ids need not be sent one by one. */
static void add_list(struct failed_lists *failed, struct wire_page_list list)
{
    if (failed->count == TOLD_LISTS)
        tell_lists(failed);
    failed->named += list.count;
    if (ids_are_a_range(&list)) {
        list.first_id = list.ids[0];
        list.ids = NULL;
    }
    failed->lists[failed->count++] = list;
}

static bool add_range(void *owner, const struct wire_page_list *range)
{
    struct failed_lists *failed = owner;
    struct wire_page_list list = *range;
    uint32_t room = STRAIT_FAILED_PAGES_MAX - failed->named;
    failed->more = list.count > room;
    if (failed->more)
        list.count = room;
    if (list.count != 0)
        add_list(failed, list);
    return !failed->more;
}

bool missing_tell(struct expectation *e)
{
    struct failed_lists failed = {.request = &e->request};
    if (e->coverage == NULL) /* not begun: all its pages are free, none was touched */
        return true;
    coverage_missing(e->coverage, add_range, &failed);
    tell_lists(&failed);
    return !failed.more;
}
