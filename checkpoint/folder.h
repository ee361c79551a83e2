/* Folders that hold checkpoints: which of them are whole. */
#ifndef STRAIT_CHECKPOINT_FOLDER_H
#define STRAIT_CHECKPOINT_FOLDER_H

#include "checkpoint/format.h"
#include "checkpoint/storage.h"

/* Reads and checks the index of the checkpoint in an open folder; the text names the file. On OK the caller frees it.
 * path: of the folder, for texts. */
enum strait_status folder_read_index(int folder, const char *path, struct checkpoint_index *index,
                                     struct storage_text told);

/* The same, and whether its files are there with the sizes that the index tells. */
enum strait_status folder_check(int folder, const char *path, struct checkpoint_index *index, struct storage_text told);

/* Reads the header, tail and footer of a rank's file; the text names the file. On OK the caller frees the footer, which
 * is that of save_id and rank. */
enum strait_status folder_read_footer(int folder, const char *path, uint32_t rank,
                                      const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES],
                                      struct checkpoint_footer *footer, struct checkpoint_entry *entry,
                                      struct storage_text told);

struct folder_candidate {
    char name[STORAGE_NAME_BYTES];
    char why[512]; /* "" for a whole checkpoint; names files as NAME/FILE */
    uint64_t committed_ns;
    uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES];
};

/* Lists the folders in an open folder that are checkpoints or may have been, newest first, those of unknown time last.
 * Names with a point in front are passed over, but for one that was set aside in an exchange that did not end. On OK
 * the caller frees *list. ERR_IO, ERR_NO_MEMORY. */
enum strait_status folder_list(int parent, const char *path, struct folder_candidate **list, uint32_t *count,
                               struct storage_text told);

#endif
