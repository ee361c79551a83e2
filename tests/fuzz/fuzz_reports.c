/* Foreign bytes as files that processes leave for `strait collectives report`. */
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/coll_report.h"

static void check_row(const struct coll_row *row)
{
    require(row->operation[0] != '\0' && strlen(row->operation) < 32 && strlen(row->type) < 32);
    require(row->raw_count <= COLL_RAW_MAX && row->calls >= 0 && row->wire_bytes >= 0);
    require(row->calls_least <= row->calls_most);
    for (unsigned i = 0; i < row->raw_count; i++)
        require(row->raw[i].why != NULL && row->raw[i].calls >= 0 && row->raw[i].bytes >= 0);
}

static void check_process(const struct coll_process *process)
{
    require(process->count <= COLL_COMMS_MAX && strlen(process->host) <= COLL_STRING_MAX);
    for (unsigned i = 0; i < process->count; i++) {
        const struct coll_communicator *of = &process->communicators[i];
        require((of->rank == -1 && of->ranks == -1) || (of->rank >= 0 && of->rank < of->ranks));
        require(of->ranks <= COLL_FILE_RANKS_MAX && of->row_count <= COLL_ROWS_MAX);
        for (unsigned row = 0; row < of->row_count; row++)
            check_row(&of->rows[row]);
    }
}

/* Each communicator is in one group, or is the older report of a rank. */
static void check_groups(const struct coll_groups *groups, unsigned all)
{
    unsigned members = 0;
    for (unsigned i = 0; i < groups->count; i++) {
        const struct coll_group *group = &groups->list[i];
        require(group->count > 0);
        members += group->count;
        for (unsigned k = 1; k < group->count; k++)
            require(group->members[k]->rank > group->members[k - 1]->rank || group->members[k]->rank < 0);
        for (unsigned row = 0; row < group->row_count; row++)
            check_row(&group->rows[row]);
    }
    require(members <= all && (members > 0 || all == 0));
}

/* Files behind each other, with a zero byte between them. */
void fuzz_coll_report(const uint8_t *data, size_t size)
{
    enum { FILES_MAX = 8 };
    struct coll_process processes[FILES_MAX];
    struct coll_groups groups;
    unsigned count = 0, all = 0;
    const char *at = (const char *)data, *const end = at + size;
    while (at < end && count < FILES_MAX) {
        const char *zero = memchr(at, '\0', (size_t)(end - at)), *const until = zero != NULL ? zero : end;
        char why[64] = "";
        if (coll_process_parse(&processes[count], at, (size_t)(until - at), why, sizeof(why))) {
            check_process(&processes[count]);
            all += processes[count++].count;
        } else {
            require(why[0] != '\0');
        }
        at = until + 1;
    }
    require(coll_merge(&groups, processes, count));
    check_groups(&groups, all);
    coll_groups_free(&groups);
    for (unsigned i = 0; i < count; i++)
        coll_process_free(&processes[i]);
}
