/* Files and folders of a checkpoint on the disk. Functions return ERR_IO with a text that names the file, the call and
 * the system's reason, or what they say. All of them go on after signals. */
#ifndef STRAIT_CHECKPOINT_STORAGE_H
#define STRAIT_CHECKPOINT_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/checkpoint.h>

#define STORAGE_NAME_BYTES 256u /* of a name in a folder, with its zero */

/* Where a text for people goes. */
struct storage_text {
    char *text;
    size_t size;
};

/* A checkpoint's place: a folder's name in an open folder, and names beside it that belong to it. */
struct storage_place {
    int parent; /* descriptor of the folder that it is in */
    char *path; /* of the parent, for texts; "." for a name alone */
    char name[STORAGE_NAME_BYTES];
    char partial[STORAGE_NAME_BYTES]; /* .NAME.SAVE-ID.partial, where ranks write */
    char old[STORAGE_NAME_BYTES];     /* .NAME.SAVE-ID.old, what is exchanged where it takes two steps */
};

/* On OK the caller calls storage_place_fini. ERR_INVALID: the path has no name, or one that is too long, begins with a
 * point or is "latest". ERR_IO: the parent cannot be opened. ERR_NO_MEMORY. */
enum strait_status storage_place_init(struct storage_place *place, const char *path,
                                      const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES], struct storage_text told);
void storage_place_fini(struct storage_place *place);

/* Text of a call that failed with `error`: "PATH/NAME: CALL: reason". Returns ERR_IO. */
enum strait_status storage_failed(struct storage_text told, const char *path, const char *name, const char *call,
                                  int error);

/* openat, again after signals; -1 with errno. */
int storage_open(int folder, const char *name, int flags);
/* fsync of a descriptor; 0 or the errno. */
int storage_sync(int fd);
/* Closes; what was written has been synced before. */
void storage_close(int fd);

/* Writes all bytes at an offset; 0 or the errno. Where an open past the page cache turns out not to take this write, it
 * goes through the cache from then on. */
int storage_write(int fd, const void *data, size_t bytes, uint64_t offset);
/* Reads all bytes at an offset; 0, the errno, or ENODATA when the file ends before. */
int storage_read(int fd, void *data, size_t bytes, uint64_t offset);

/* Lets writes to fd go through the page cache; 0 or the errno. */
int storage_use_cache(int fd);

/* Exchanges two names of a folder, or gives `from` the name `to`, which must not exist. 0 or the errno: EINVAL and
 * ENOSYS where the file system cannot exchange. */
int storage_exchange(int folder, const char *from, const char *to);
int storage_rename_new(int folder, const char *from, const char *to);

/* Makes the symbolic link `name` point to `target`, in one step if it is there. */
int storage_link(int folder, const char *name, const char *target, const char *temporary);

/* Whether the name of a file is one that a checkpoint's folder has. */
bool storage_is_ours(const char *name);
/* Looks at the names in a folder: 0, the errno, or ENOTEMPTY with *stranger when one is not a checkpoint's. */
int storage_only_ours(int parent, const char *name, char stranger[STORAGE_NAME_BYTES]);
/* Removes a folder with a checkpoint's files, the index first. One with other files stays, without them. 0 or the
 * errno; a folder that is not there is none to remove. */
int storage_remove(int parent, const char *name);

#endif
