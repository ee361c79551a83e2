#include <strait/collective.h>

#include "collective/load.h"
#include "collective/report.h"
#include "collective/track.h"

const char *strait_coll_version(void)
{
    return STRAIT_VERSION;
}

enum strait_status strait_coll_nccl(const char **path, int *version)
{
    const struct coll_library *library = coll_library();
    if (!library->found)
        return STRAIT_ERR_UNSUPPORTED;
    *path = library->path;
    *version = library->version;
    return STRAIT_OK;
}

enum strait_status strait_coll_pin(struct ncclComm *comm, int choice)
{
    if (choice != STRAIT_COLL_AUTO && choice != STRAIT_COLL_RAW)
        return STRAIT_ERR_INVALID;
    if (comm == NULL)
        coll_track_pin_all(choice == STRAIT_COLL_RAW);
    else if (!coll_track_pin(comm, choice == STRAIT_COLL_RAW))
        return STRAIT_ERR_INVALID;
    return STRAIT_OK;
}

size_t strait_coll_report(struct ncclComm *comm, char *dst, size_t dst_capacity)
{
    return coll_report(comm, dst, dst_capacity);
}
