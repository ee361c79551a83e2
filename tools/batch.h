/* Lists of files for commands that take several: files and folders in, a folder out. */
#ifndef STRAIT_TOOLS_BATCH_H
#define STRAIT_TOOLS_BATCH_H

#include "tools/util.h"

#define BATCH_SUFFIX ".strait"

enum batch_kind {
    BATCH_ADDS,   /* outputs are named like inputs, with the suffix */
    BATCH_REMOVES /* without it; files of a folder that have none are passed over */
};

/* Works on one file. */
typedef enum exit_code batch_work(void *arg, const char *input, const char *output);

/* Calls `work` for each file that `operands` name, folders with all that is in them, in the order of names, also for
 * those behind one that fails: returns the first exit code that is not OK. A file goes to `folder`, by its name, or its
 * path inside the folder that was named. The folder itself, if it lies in another, is left out. Makes folders. Without
 * any work EXIT_CODE_DATA, with the error on stderr: an operand is missing or has no suffix, two files would get the
 * same name, or there are none. */
enum exit_code batch_run(char *const *operands, int count, const char *folder, enum batch_kind kind, batch_work *work,
                         void *arg);

#endif
