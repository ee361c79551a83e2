/*
 * strait/checkpoint.h - training states in files: saved by many ranks, compressed losslessly, safe against crashes
 *
 * A checkpoint is a folder: one file for each rank that saved (kernels/FORMAT.md, section 8), and the index, which is
 * written last. Tensors are saved as shards: boxes of a tensor's global shape. They are loaded as boxes too, any boxes,
 * by any number of processes, whatever the shards were; only pages that a box touches are read.
 *
 * Saving, on each rank, then once:
 *
 *     strait_checkpoint_save_begin("runs/step-100", &options, &save, text, sizeof(text));
 *     strait_checkpoint_save_add(save, &tensor);                       for each of the rank's shards
 *     strait_checkpoint_save_end(save, &summary);                      the rank's file is durable
 *     strait_checkpoint_commit("runs/step-100", &commit, text, sizeof(text));     by one process, after all ranks' ends
 *
 * Loading:
 *
 *     strait_checkpoint_open("runs/latest", &reader, text, sizeof(text));
 *     strait_checkpoint_load(reader, boxes, count, NULL, text, sizeof(text));
 *
 * Crashes: ranks write into a folder beside the checkpoint, ".NAME.SAVE-ID.partial", which becomes the checkpoint by
 * one rename after all of its files and the index are on the disk. A checkpoint that exists is never changed, and one
 * with the same name is exchanged for the new one in one step. So after a crash at any moment the one before is whole.
 *
 * Threads: calls on different saves and readers may run at once. A reader's calls may run at once on any threads,
 * strait_checkpoint_close excepted. A save's calls may not. Saves and loads use threads of their own, which end with
 * the call that waits for them.
 *
 * Texts of errors are for people and name files, tensors and the system's reason. `text` buffers are cut to their size
 * with a zero at the end and may be NULL with size 0.
 */
#ifndef STRAIT_CHECKPOINT_H
#define STRAIT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/export.h>
#include <strait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRAIT_CHECKPOINT_DIMS_MAX  16u /* dimensions of a tensor */
#define STRAIT_CHECKPOINT_ID_BYTES  16u
#define STRAIT_CHECKPOINT_NAME_MAX  4096u    /* bytes of a tensor's name */
#define STRAIT_CHECKPOINT_RANKS_MAX 1048576u /* files of a checkpoint */

/* Bytes of a value of a type, by its name in safetensors files: BF16, F16, F32, F64, F8_E4M3, F8_E5M2, I8 to I64, U8 to
 * U64, BOOL, C64. "BYTES" is one more: a string of bytes that is no tensor. 0: no such type. */
STRAIT_API uint32_t strait_checkpoint_dtype_bytes(const char *dtype);

/* ---- Saving ---------------------------------------------------------------------------------------------------- */

enum strait_checkpoint_memory {
    STRAIT_CHECKPOINT_HOST = 0,
    STRAIT_CHECKPOINT_CUDA = 1, /* of any device; what it holds is complete there before the call */
};

/* A shard: values of one rank, a box of the tensor, contiguous in memory with the last dimension fastest. Shards of a
 * tensor have one shape and type; together they cover it, and where they overlap, replicas, any may be loaded. */
struct strait_checkpoint_tensor {
    size_t size;             /* sizeof(struct strait_checkpoint_tensor) */
    const char *name;        /* UTF-8, 1 to STRAIT_CHECKPOINT_NAME_MAX bytes */
    const char *dtype;       /* see strait_checkpoint_dtype_bytes */
    const uint64_t *shape;   /* of the whole tensor */
    const uint64_t *offsets; /* of the box; NULL: zeroes */
    const uint64_t *sizes;   /* of the box; NULL: the whole shape */
    const void *data;        /* read until strait_checkpoint_save_end returns; not NULL unless the box is empty */
    uint32_t dims;           /* 0: a scalar */
    enum strait_checkpoint_memory memory;
    /* NULL, or the name of an F32 shard that was added before with the same box: if every value of this BF16 shard is
     * that one's rounding to nearest even, nothing of it is stored. It is compared; where one differs, or the two are
     * in memories of which neither reaches the other, it is stored. */
    const char *rounded_from;
};

enum strait_checkpoint_save_flags {
    STRAIT_CHECKPOINT_CACHED = 1, /* files go through the page cache. Otherwise past it, where the file system can */
    STRAIT_CHECKPOINT_RAW = 2,    /* nothing is compressed: to compare */
};

/* Set unused fields to zero. */
struct strait_checkpoint_save_options {
    size_t size; /* sizeof(struct strait_checkpoint_save_options) */
    uint32_t rank;
    uint32_t rank_count;                         /* equal on all ranks */
    uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES]; /* equal on all ranks, random for each save */
    uint32_t threads;                            /* that encode; 0: one for each processor, at most 16 */
    uint32_t flags;                              /* of enum strait_checkpoint_save_flags */
    uint64_t buffer_bytes;                       /* of chunks on their way to the disk; 0: 256 MiB */
    uint32_t sm_budget;                          /* multiprocessors that encode tensors on GPUs; 0: 16 */
    uint32_t reserved;                           /* 0 */
};

struct strait_checkpoint_summary {
    uint64_t raw_bytes;    /* of all shards */
    uint64_t stored_bytes; /* of the rank's file */
    uint64_t shards;
    uint64_t rounded_shards; /* of which nothing is stored */
    double encode_seconds;   /* processor time of all threads together */
    double write_seconds;    /* while at least one write, or the file's fsync, was under way */
    double seconds;          /* from begin to the end */
};

struct strait_checkpoint_save; /* one rank's part of a save */

/* Begins a rank's part: makes the folder beside `path` if it is not there, and the rank's file in it. The parent of
 * `path` must exist; its last part, the checkpoint's name, has at most 213 bytes, does not begin with a point, and is
 * not "latest". On success the caller owns *save. ERR_INVALID (ranks, threads, flags, the name), ERR_NO_MEMORY, ERR_IO
 * (text says which call failed and why; the rank's file may be there already); *save is NULL then. */
STRAIT_API enum strait_status strait_checkpoint_save_begin(const char *path,
                                                           const struct strait_checkpoint_save_options *options,
                                                           struct strait_checkpoint_save **save, char *text,
                                                           size_t text_size);

/* Adds a shard, whose encoding begins at once; waits while as much is under way as buffers hold. Everything but `data`
 * is copied. ERR_INVALID (type, box outside the shape, a name twice with one box, rounded_from that names none),
 * ERR_UNSUPPORTED (memory of a GPU, without the plugin or a driver), ERR_NO_MEMORY, ERR_IO, ERR_DEVICE:
 * strait_checkpoint_save_text says more. After the last three the save can only be freed. */
STRAIT_API enum strait_status strait_checkpoint_save_add(struct strait_checkpoint_save *save,
                                                         const struct strait_checkpoint_tensor *tensor);

/* Waits until all is encoded and written, and the file is on the disk. summary may be NULL. Afterwards the save can
 * only be freed. */
STRAIT_API enum strait_status strait_checkpoint_save_end(struct strait_checkpoint_save *save,
                                                         struct strait_checkpoint_summary *summary);

/* What the last call that failed met; "" if none did. Borrowed, until the next call. */
STRAIT_API const char *strait_checkpoint_save_text(const struct strait_checkpoint_save *save);

/* Frees a save; NULL is allowed. One that has not ended well takes its file with it. A process that was forked after
 * the save began cannot use it: there this call does nothing. */
STRAIT_API void strait_checkpoint_save_free(struct strait_checkpoint_save *save);

/* Small data of the program's own that goes into the index, by name: step, arguments, planner's metadata. */
struct strait_checkpoint_attachment {
    const char *name;
    const void *data;
    uint64_t bytes;
};

enum strait_checkpoint_commit_flags {
    STRAIT_CHECKPOINT_REPLACE = 1,   /* a checkpoint of that name is exchanged, and removed afterwards */
    STRAIT_CHECKPOINT_NO_LATEST = 2, /* the link "latest" beside it is left alone */
};

struct strait_checkpoint_commit_options {
    size_t size; /* sizeof(struct strait_checkpoint_commit_options) */
    uint32_t rank_count;
    uint32_t flags; /* of enum strait_checkpoint_commit_flags */
    uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES];
    const struct strait_checkpoint_attachment *attachments;
    uint32_t attachment_count;
    /* 0: all stay. Else the new one and the newest others, `keep` in all, by the time of their commits. Also what
     * "latest" leads to, newer ones, and those with other files in them, of which the text tells. */
    uint32_t keep;
};

/* Makes the parts of all ranks a checkpoint: reads their footers, checks that the shards of each tensor cover it,
 * writes the index, renames, and makes the symbolic link "latest" beside it name it. All of it is on the disk when this
 * returns; only then are older ones removed, and those only that verify as checkpoints. ERR_INVALID (a checkpoint of
 * that name without REPLACE, or a folder with other files; shards that contradict one another or leave a gap),
 * ERR_TRUNCATED (a rank's file is missing or not complete), ERR_IO, ERR_NO_MEMORY: then nothing has changed but for the
 * partial folder, unless the text says that the checkpoint is committed and only the link, or the last fsync, failed.
 * OK with a text: an older one could not be removed. */
STRAIT_API enum strait_status strait_checkpoint_commit(const char *path,
                                                       const struct strait_checkpoint_commit_options *options,
                                                       char *text, size_t text_size);

/* Removes what the ranks of a save have written that will not be committed. */
STRAIT_API enum strait_status strait_checkpoint_abandon(const char *path,
                                                        const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES], char *text,
                                                        size_t text_size);

/* ---- Loading --------------------------------------------------------------------------------------------------- */

struct strait_checkpoint_reader;

/* Opens a checkpoint's folder and reads its index. On success the caller owns *reader. ERR_IO, ERR_TRUNCATED,
 * ERR_CORRUPT, ERR_UNSUPPORTED, ERR_INTEGRITY, ERR_NO_MEMORY: text names file and reason. Files may change only by
 * damage while the reader is open: what loads is checked all the same. */
STRAIT_API enum strait_status strait_checkpoint_open(const char *path, struct strait_checkpoint_reader **reader,
                                                     char *text, size_t text_size);
STRAIT_API void strait_checkpoint_close(struct strait_checkpoint_reader *reader);

/* A folder beside others that is no whole checkpoint, or is one. `why` is "" for a whole one, and else begins with the
 * file that it is about, from the folder's own name on. */
struct strait_checkpoint_candidate {
    const char *path;
    const char *why;
    uint64_t committed_ns; /* since 1970; 0: not known */
};

/* Finds the newest whole checkpoint in a folder of checkpoints, by the time of commit: its index verifies and its files
 * have the sizes that the index tells. Others are reported, newest first, and left alone; report may be NULL. Writes
 * its path. ERR_IO, ERR_INVALID (there is none), ERR_NO_SPACE (path_size). */
STRAIT_API enum strait_status strait_checkpoint_newest(const char *folder,
                                                       void (*report)(void *context,
                                                                      const struct strait_checkpoint_candidate *one),
                                                       void *context, char *path, size_t path_size);

/* Borrowed from the reader. */
struct strait_checkpoint_tensor_info {
    const char *name;
    const char *dtype;
    const uint64_t *shape;
    uint32_t dims;
    uint32_t shard_count;
    uint64_t bytes; /* of the whole tensor */
};

struct strait_checkpoint_shard_info {
    const uint64_t *offsets;
    const uint64_t *sizes;
    const char *file;         /* its name in the folder */
    const char *rounded_from; /* NULL, or the tensor that this shard is the rounding of */
    uint64_t bytes;           /* of its values */
    uint64_t stored_bytes;    /* of its pages in the file, headers not counted; UINT64_MAX: that file can't be read */
};

struct strait_checkpoint_info {
    const uint8_t *save_id;
    uint64_t committed_ns; /* since 1970 */
    uint32_t tensor_count; /* in the order of their names' bytes */
    uint32_t file_count;
    uint32_t attachment_count;
    uint32_t reserved;
    uint64_t raw_bytes;    /* of all tensors, replicas not counted */
    uint64_t stored_bytes; /* of all files */
};

STRAIT_API void strait_checkpoint_describe(const struct strait_checkpoint_reader *reader,
                                           struct strait_checkpoint_info *info);
/* False: index out of range. */
STRAIT_API bool strait_checkpoint_tensor_at(const struct strait_checkpoint_reader *reader, uint32_t tensor,
                                            struct strait_checkpoint_tensor_info *info);
STRAIT_API bool strait_checkpoint_shard_at(struct strait_checkpoint_reader *reader, uint32_t tensor, uint32_t shard,
                                           struct strait_checkpoint_shard_info *info);
STRAIT_API bool strait_checkpoint_attachment_at(const struct strait_checkpoint_reader *reader, uint32_t attachment,
                                                struct strait_checkpoint_attachment *found);
/* Index of a tensor; UINT32_MAX: none of that name. */
STRAIT_API uint32_t strait_checkpoint_find(const struct strait_checkpoint_reader *reader, const char *name);

/* A box to load. Overlapping destinations are the caller's mistake. */
struct strait_checkpoint_box {
    uint32_t tensor;
    enum strait_checkpoint_memory memory;
    const uint64_t *offsets; /* NULL: zeroes */
    const uint64_t *sizes;   /* NULL: the whole tensor */
    void *data;
    const uint64_t *strides; /* in bytes, for each dimension; NULL: contiguous. Of the last: a multiple of the value */
    int32_t status;          /* set by the call: enum strait_status of this box */
    uint32_t reserved;
};

/* Bytes that do not verify. Where they were not replaced, values of boxes in them are undefined; all others are right.
 * Reported at the end of a load or a verification, in the order of files and places. */
struct strait_checkpoint_damage {
    const char *tensor;      /* NULL: of a whole file, such as its footer */
    const char *file;        /* its name in the folder */
    const uint64_t *offsets; /* of the shard */
    const uint64_t *sizes;
    uint64_t first_value; /* of the pages, in the shard */
    uint64_t value_count;
    uint64_t file_offset; /* of the pages' chunk; 0: the whole file */
    int32_t status;
    uint32_t replaced; /* 1: replicas were loaded in their place */
};

struct strait_checkpoint_load_options {
    size_t size;      /* sizeof(struct strait_checkpoint_load_options) */
    uint32_t threads; /* 0: one for each processor, at most 16 */
    uint32_t flags;   /* STRAIT_CHECKPOINT_CACHED */
    void (*damage)(void *context, const struct strait_checkpoint_damage *damage); /* NULL; one call at a time */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t all_bytes);     /* NULL; one call at a time */
    void *context;
};

/* Loads all boxes, checked. Where a page is damaged and another rank saved a replica, that is loaded. Returns the first
 * box's error; all others have been loaded all the same. ERR_INVALID (options, a box outside its tensor),
 * ERR_UNSUPPORTED (memory of a GPU, without the plugin or a driver): nothing is loaded then. ERR_IO, ERR_TRUNCATED,
 * ERR_CORRUPT, ERR_INTEGRITY, ERR_DEVICE, ERR_UNSUPPORTED (shards that overlap in too many ways). ERR_NO_MEMORY: what
 * any box holds is not known. text names the first. */
STRAIT_API enum strait_status strait_checkpoint_load(struct strait_checkpoint_reader *reader,
                                                     struct strait_checkpoint_box *boxes, uint32_t count,
                                                     const struct strait_checkpoint_load_options *options, char *text,
                                                     size_t text_size);

/* Reads all files and verifies every page, as a load of everything would, without writing values anywhere. */
STRAIT_API enum strait_status strait_checkpoint_verify(struct strait_checkpoint_reader *reader,
                                                       const struct strait_checkpoint_load_options *options, char *text,
                                                       size_t text_size);

#ifdef __cplusplus
}
#endif
#endif
