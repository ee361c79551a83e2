/* Lists of files for commands that take several: files and folders in, a folder out. */
#ifndef STRAIT_TOOLS_BATCH_H
#define STRAIT_TOOLS_BATCH_H

#include <stdbool.h>
#include <stddef.h>

#define BATCH_SUFFIX ".strait"

struct batch_file {
    char *input;
    char *output;
};

/* Zero it to begin; batch_fini frees it. */
struct batch {
    struct batch_file *list;
    size_t count, capacity;
};

enum batch_kind {
    BATCH_ADDS,   /* outputs are named like inputs, with the suffix */
    BATCH_REMOVES /* without it; files of a folder that have none are passed over */
};

/* Lists the files that `operands` name, folders with all that is in them, in the order of names, and where each goes in
 * `folder`: by its name, or its path inside the folder that was named. The folder itself, if it lies in another, is
 * left out. Makes folders. False, with the error on stderr: an operand is missing or has no suffix, two files would get
 * the same name, or there are none. */
bool batch_list(struct batch *batch, char *const *operands, int count, const char *folder, enum batch_kind kind);
void batch_fini(struct batch *batch);

#endif
