/* The newest checkpoint of a folder of them. */
#include <fcntl.h>
#include <stdlib.h>

#include "checkpoint/folder.h"

/* Reports a folder; true: it is a whole checkpoint. */
static bool report_one(const char *path, const struct folder_candidate *candidate,
                       void (*report)(void *context, const struct strait_checkpoint_candidate *one), void *context)
{
    const struct strait_checkpoint_candidate told = {path, candidate->why, candidate->committed_ns};
    if (report != NULL)
        report(context, &told);
    return candidate->why[0] == '\0';
}

enum strait_status strait_checkpoint_newest(const char *folder,
                                            void (*report)(void *context,
                                                           const struct strait_checkpoint_candidate *one),
                                            void *context, char *path, size_t path_size)
{
    struct folder_candidate *list = NULL;
    uint32_t count = 0;
    bool found = false;
    if (folder == NULL || path == NULL || path_size == 0)
        return STRAIT_ERR_INVALID;
    const int parent = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0)
        return STRAIT_ERR_IO;
    enum strait_status status = folder_list(parent, folder, &list, &count, (struct storage_text){NULL, 0});
    for (uint32_t i = 0; status == STRAIT_OK && i < count; i++) {
        char *one;
        if (asprintf(&one, "%s/%s", folder, list[i].name) < 0) {
            status = STRAIT_ERR_NO_MEMORY;
        } else {
            if (report_one(one, &list[i], report, context) && !found) {
                found = true;
                if ((size_t)snprintf(path, path_size, "%s", one) >= path_size)
                    status = STRAIT_ERR_NO_SPACE;
            }
            free(one);
        }
    }
    storage_close(parent);
    free(list);
    return status == STRAIT_OK && !found ? STRAIT_ERR_INVALID : status;
}
