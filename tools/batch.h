/* Lists of files for commands that take several: files and folders in, a folder out. */
#ifndef STRAIT_TOOLS_BATCH_H
#define STRAIT_TOOLS_BATCH_H

#include <stdbool.h>

#include "tools/util.h"

#define BATCH_SUFFIX ".strait"

enum batch_kind {
    BATCH_ADDS,   /* outputs are named like inputs, with the suffix */
    BATCH_REMOVES /* without it; files of a folder that have none are copied */
};

/* Works on one file. */
typedef enum exit_code batch_work(void *arg, const char *input, const char *output);

struct batch_task {
    const char *folder; /* for outputs */
    enum batch_kind kind;
    bool (*has_values)(const char *path); /* whether a file of a folder is worked on, not copied; NULL: all are */
    bool force;                           /* copies replace files */
    bool quiet;                           /* copies are not told */
    batch_work *work;
    void *arg;
};

/* Calls `work` for each file that `operands` name, folders with all that is in them, in the order of names. A file goes
 * to the output folder, by its name, or its path inside the folder that was named; some files of folders are copied
 * there instead. The output folder itself, if it lies in another, is left out. Makes folders. What fails, or cannot be
 * read, keeps nothing else from being worked on; returns the first exit code that is not OK. Without any work
 * EXIT_CODE_DATA, with the error on stderr: two files would get the same name, or there are none. */
enum exit_code batch_run(char *const *operands, int count, const struct batch_task *task);

#endif
