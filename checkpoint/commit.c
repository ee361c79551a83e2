/* Makes the parts that ranks have saved a checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/crew.h"
#include "checkpoint/folder.h"
#include "checkpoint/format.h"
#include "checkpoint/storage.h"

#define FLAGS                (STRAIT_CHECKPOINT_REPLACE | STRAIT_CHECKPOINT_NO_LATEST)
#define LATEST               "latest"
#define ATTACHMENT_BYTES_MAX (1u << 30)

struct commit {
    const struct strait_checkpoint_commit_options *options;
    struct storage_place place;
    char *path; /* of the partial folder, for texts */
    int folder; /* the partial one */
    struct checkpoint_footer *footers;
    bool *read; /* which of them are there */
    struct checkpoint_index index;
    bool replaces; /* a checkpoint of the name is there */
    struct storage_text told;
};

/* ---- Checks before anything is done ------------------------------------------------------------------------------ */

static bool options_valid(const struct strait_checkpoint_commit_options *options)
{
    if (options == NULL || options->size < sizeof(*options) || options->rank_count == 0 ||
        options->rank_count > STRAIT_CHECKPOINT_RANKS_MAX || (options->flags & ~(uint32_t)FLAGS) != 0 ||
        (options->attachment_count > 0 && options->attachments == NULL))
        return false;
    for (uint32_t i = 0; i < options->attachment_count; i++) {
        const struct strait_checkpoint_attachment *one = &options->attachments[i];
        if (one->name == NULL || !checkpoint_name_valid(one->name) || (one->data == NULL && one->bytes > 0) ||
            one->bytes > ATTACHMENT_BYTES_MAX)
            return false;
    }
    return true;
}

/* What the name and the link stand for now: only a checkpoint is replaced, only a link is changed. */
static enum strait_status check_names(struct commit *commit)
{
    const struct storage_place *place = &commit->place;
    const struct storage_text told = commit->told;
    char stranger[STORAGE_NAME_BYTES];
    struct stat info;

    if (fstatat(place->parent, place->name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        if ((commit->options->flags & STRAIT_CHECKPOINT_REPLACE) == 0)
            return checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID, "%s/%s: is there already", place->path,
                                   place->name);
        const int error = S_ISDIR(info.st_mode) ? storage_only_ours(place->parent, place->name, stranger) : ENOTDIR;
        if (error == ENOTEMPTY)
            return checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID,
                                   "%s/%s: is not replaced: it has %s in it, which is no checkpoint's", place->path,
                                   place->name, stranger);
        if (error == ENOTDIR)
            return checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID, "%s/%s: is not replaced: it is no folder",
                                   place->path, place->name);
        if (error != 0)
            return storage_failed(told, place->path, place->name, "open", error);
        commit->replaces = true;
    } else if (errno != ENOENT) {
        return storage_failed(told, place->path, place->name, "stat", errno);
    }
    if ((commit->options->flags & STRAIT_CHECKPOINT_NO_LATEST) != 0)
        return STRAIT_OK;
    if (fstatat(place->parent, LATEST, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? STRAIT_OK : storage_failed(told, place->path, LATEST, "stat", errno);
    return S_ISLNK(info.st_mode) ? STRAIT_OK
                                 : checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID,
                                                   "%s/" LATEST ": is there, and no link", place->path);
}

/* ---- Index ------------------------------------------------------------------------------------------------------- */

/* Reads the footer of a rank, with others at once: files may be far away. */
static void read_footer(void *context, void *state, uint64_t rank)
{
    struct commit *commit = context;

    (void)state;
    commit->read[rank] = folder_read_footer(commit->folder, commit->path, (uint32_t)rank, commit->options->save_id,
                                            &commit->footers[rank], &commit->index.files[rank],
                                            (struct storage_text){NULL, 0}) == STRAIT_OK;
}

/* Reads all ranks' footers; the number of all shards. */
static enum strait_status read_footers(struct commit *commit, uint64_t *shards)
{
    const struct strait_checkpoint_commit_options *options = commit->options;
    const struct crew_work work = {.run = read_footer, .context = commit};
    const struct storage_text told = commit->told;

    crew_run(&work, options->rank_count, crew_threads(0));
    for (uint32_t i = 0; i < options->rank_count; i++) {
        struct checkpoint_footer *footer = &commit->footers[i];
        enum strait_status status = STRAIT_OK;
        if (!commit->read[i]) /* once more, to tell why */
            status = folder_read_footer(commit->folder, commit->path, i, options->save_id, footer,
                                        &commit->index.files[i], told);
        if (status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_INTEGRITY || status == STRAIT_ERR_UNSUPPORTED)
            return STRAIT_ERR_TRUNCATED; /* it is not complete, whatever is in its place */
        if (status != STRAIT_OK)
            return status;
        if (footer->rank_count != options->rank_count)
            return checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID, "%s: rank %u was one of %u, not of %u",
                                   commit->path, i, footer->rank_count, options->rank_count);
        *shards += footer->shard_count;
    }
    return *shards < UINT32_MAX ? STRAIT_OK
                                : checkpoint_fail(told.text, told.size, STRAIT_ERR_INVALID, "2^32 shards or more");
}

static enum strait_status make_index(struct commit *commit)
{
    const struct strait_checkpoint_commit_options *options = commit->options;
    struct checkpoint_index *index = &commit->index;
    struct timespec now;
    uint64_t shards = 0;

    index->files = calloc(options->rank_count, sizeof(*index->files));
    commit->footers = calloc(options->rank_count, sizeof(*commit->footers));
    commit->read = calloc(options->rank_count, sizeof(*commit->read));
    if (index->files == NULL || commit->footers == NULL || commit->read == NULL)
        return checkpoint_fail(commit->told.text, commit->told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    index->file_count = options->rank_count;
    enum strait_status status = read_footers(commit, &shards);
    if (status != STRAIT_OK)
        return status;
    index->shards = malloc((size_t)shards * sizeof(*index->shards) + 1);
    if (index->shards == NULL)
        return checkpoint_fail(commit->told.text, commit->told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < options->rank_count; i++)
        for (uint32_t k = 0; k < commit->footers[i].shard_count; k++) {
            struct checkpoint_shard *shard = &index->shards[index->shard_count++];
            *shard = commit->footers[i].shards[k];
            shard->file = i;
        }
    status = checkpoint_index_group(index, commit->told.text, commit->told.size);
    if (status == STRAIT_ERR_CORRUPT)
        return STRAIT_ERR_INVALID; /* the ranks' mistake */
    clock_gettime(CLOCK_REALTIME, &now);
    index->committed_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    memcpy(index->save_id, options->save_id, sizeof(index->save_id));
    return status;
}

static enum strait_status write_index(struct commit *commit)
{
    struct checkpoint_index written = commit->index; /* with attachments, which are the caller's */
    uint8_t *file = NULL;
    size_t bytes = 0;
    const char *call = "open";

    written.attachments = (struct strait_checkpoint_attachment *)commit->options->attachments;
    written.attachment_count = commit->options->attachment_count;
    if (checkpoint_index_build(&written, &file, &bytes) != STRAIT_OK)
        return checkpoint_fail(commit->told.text, commit->told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    /* What a commit that failed has left goes first. So nothing is written through a link of that name. */
    int fd = -1, error = unlinkat(commit->folder, CHECKPOINT_INDEX_NAME, 0) == 0 || errno == ENOENT ? 0 : errno;
    if (error == 0) {
        fd = storage_open(commit->folder, CHECKPOINT_INDEX_NAME, O_WRONLY | O_CREAT | O_EXCL);
        error = fd < 0 ? errno : 0;
    }
    if (error == 0) {
        call = "write";
        error = storage_write(fd, file, bytes, 0);
    }
    if (error == 0) {
        call = "fsync";
        error = storage_sync(fd);
    }
    if (error == 0)
        error = storage_sync(commit->folder);
    if (fd >= 0)
        storage_close(fd);
    free(file);
    return error == 0 ? STRAIT_OK : storage_failed(commit->told, commit->path, CHECKPOINT_INDEX_NAME, call, error);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Puts the new one in the old one's place where two folders cannot be exchanged. The old one has a name of its own
 * meanwhile, by which it is found while there is no other. */
static int exchange_in_steps(const struct storage_place *place)
{
    int error = renameat(place->parent, place->name, place->parent, place->old) == 0 ? 0 : errno;

    if (error != 0)
        return error;
    error = renameat(place->parent, place->partial, place->parent, place->name) == 0 ? 0 : errno;
    if (error != 0)
        renameat(place->parent, place->old, place->parent, place->name);
    return error;
}

static enum strait_status take_name(struct commit *commit)
{
    const struct storage_place *place = &commit->place;
    int error;

    if (commit->replaces) {
        error = storage_exchange(place->parent, place->partial, place->name);
        if (error == EINVAL || error == ENOSYS)
            error = exchange_in_steps(place);
    } else {
        error = storage_rename_new(place->parent, place->partial, place->name);
        if (error == EEXIST || error == ENOTEMPTY)
            return checkpoint_fail(commit->told.text, commit->told.size, STRAIT_ERR_INVALID, "%s/%s: is there already",
                                   place->path, place->name);
    }
    return error == 0 ? STRAIT_OK : storage_failed(commit->told, place->path, place->name, "rename", error);
}

/* Makes what has been renamed durable, and the link. The checkpoint is there whatever fails here. */
static enum strait_status settle_names(struct commit *commit)
{
    const struct storage_place *place = &commit->place;
    char text[512];
    const char *call = "fsync", *name = NULL;
    int error = storage_sync(place->parent);

    if (error == 0 && (commit->options->flags & STRAIT_CHECKPOINT_NO_LATEST) == 0) {
        call = "link";
        name = LATEST;
        /* The name of the partial folder is free: the replaced one that may have it is removed later. */
        char temporary[STORAGE_NAME_BYTES];
        snprintf(temporary, sizeof(temporary), ".latest%.*s", (int)STORAGE_NAME_BYTES - 9,
                 place->partial + 1 + strlen(place->name));
        error = storage_link(place->parent, LATEST, place->name, temporary);
        if (error == 0) {
            call = "fsync";
            name = NULL;
            error = storage_sync(place->parent);
        }
    }
    if (error == 0)
        return STRAIT_OK;
    storage_failed((struct storage_text){text, sizeof(text)}, place->path, name, call, error);
    return checkpoint_fail(commit->told.text, commit->told.size, STRAIT_ERR_IO, "%s/%s is committed, but %s",
                           place->path, place->name, text);
}

/* ---- What goes --------------------------------------------------------------------------------------------------- */

static void note(struct commit *commit, const char *name, int error)
{
    if (error != 0)
        storage_failed(commit->told, commit->place.path, name, "an old checkpoint stays: remove", error);
}

/* Removes a checkpoint that verifies. First it gets a name that no checkpoint has, so that none is ever seen without
 * some of its files. */
static int remove_checkpoint(const struct storage_place *place, const struct folder_candidate *one)
{
    struct storage_place old;
    char *path = NULL;

    if (asprintf(&path, "%s/%s", place->path, one->name) < 0)
        return ENOMEM;
    const enum strait_status status = storage_place_init(&old, path, one->save_id, (struct storage_text){NULL, 0});
    free(path);
    if (status != STRAIT_OK) /* one that was set aside: nobody sees it as long as there is another of its name */
        return status == STRAIT_ERR_INVALID ? storage_remove(place->parent, one->name) : EIO;
    int error = storage_rename_new(place->parent, one->name, old.partial);
    if (error == 0)
        error = storage_remove(place->parent, old.partial);
    storage_place_fini(&old);
    return error;
}

/* What is done with a checkpoint that is old enough to go. One in which somebody has put other files stays whole. */
static void retire_one(struct commit *commit, const struct folder_candidate *one)
{
    const struct storage_place *place = &commit->place;
    char stranger[STORAGE_NAME_BYTES];
    int error = storage_only_ours(place->parent, one->name, stranger);

    if (error == ENOTEMPTY) {
        checkpoint_fail(commit->told.text, commit->told.size, STRAIT_OK,
                        "%s/%s: an old checkpoint stays: it has %s in it, which is no checkpoint's", place->path,
                        one->name, stranger);
        return;
    }
    if (error == 0)
        error = remove_checkpoint(place, one);
    note(commit, one->name, error == ENOENT ? 0 : error); /* another commit may have removed it */
}

/* Whether a name is that of the folder that the link leads to, by whatever path. */
static bool is_latest(int parent, const struct stat *latest, const char *name)
{
    struct stat info;

    return latest != NULL && fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && info.st_dev == latest->st_dev &&
           info.st_ino == latest->st_ino;
}

/* Removes whole checkpoints beside the new one that are older and not among the newest, nor what the link names. */
static void retire(struct commit *commit)
{
    const struct storage_place *place = &commit->place;
    struct folder_candidate *list;
    uint32_t count, kept = 1; /* the new one */
    struct stat info;

    if (commit->options->keep == 0 || folder_list(place->parent, place->path, &list, &count, commit->told) != STRAIT_OK)
        return;
    const struct stat *latest = fstatat(place->parent, LATEST, &info, 0) == 0 ? &info : NULL;
    for (uint32_t i = 0; i < count; i++)
        if (list[i].why[0] == 0 && !is_latest(place->parent, latest, list[i].name) &&
            strcmp(list[i].name, place->name) != 0 && kept++ >= commit->options->keep &&
            list[i].committed_ns < commit->index.committed_ns)
            retire_one(commit, &list[i]);
    free(list);
}

/* ---- Commit and abandon ------------------------------------------------------------------------------------------ */

static enum strait_status run(struct commit *commit)
{
    const struct storage_place *place = &commit->place;
    enum strait_status status = check_names(commit);

    if (status != STRAIT_OK)
        return status;
    commit->folder = storage_open(place->parent, place->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (commit->folder < 0 && errno == ENOENT)
        return checkpoint_fail(commit->told.text, commit->told.size, STRAIT_ERR_TRUNCATED,
                               "%s/%s: no rank has saved anything", place->path, place->partial);
    if (commit->folder < 0)
        return storage_failed(commit->told, place->path, place->partial, "open", errno);
    status = make_index(commit);
    if (status == STRAIT_OK)
        status = write_index(commit);
    if (status == STRAIT_OK)
        status = take_name(commit);
    if (status == STRAIT_OK)
        status = settle_names(commit);
    if (status != STRAIT_OK)
        return status;
    if (commit->told.size > 0)
        commit->told.text[0] = 0;
    if (commit->replaces) {
        note(commit, place->partial, storage_remove(place->parent, place->partial));
        note(commit, place->old, storage_remove(place->parent, place->old));
    }
    retire(commit);
    return STRAIT_OK;
}

enum strait_status strait_checkpoint_commit(const char *path, const struct strait_checkpoint_commit_options *options,
                                            char *text, size_t text_size)
{
    struct commit commit = {.options = options, .folder = -1, .told = {text, text_size}};

    if (path == NULL || !options_valid(options))
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "%s",
                               path == NULL ? "path is NULL" : "options: ranks, flags or attachments out of range");
    enum strait_status status = storage_place_init(&commit.place, path, options->save_id, commit.told);
    if (status != STRAIT_OK)
        return status;
    if (asprintf(&commit.path, "%s/%s", commit.place.path, commit.place.partial) < 0)
        commit.path = NULL;
    status =
        commit.path != NULL ? run(&commit) : checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "out of memory");
    if (commit.folder >= 0)
        storage_close(commit.folder);
    for (uint32_t i = 0; commit.footers != NULL && i < options->rank_count; i++)
        checkpoint_footer_free(&commit.footers[i]);
    free(commit.footers);
    free(commit.read);
    checkpoint_index_free(&commit.index);
    free(commit.path);
    storage_place_fini(&commit.place);
    return status;
}

enum strait_status strait_checkpoint_abandon(const char *path, const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES],
                                             char *text, size_t text_size)
{
    const struct storage_text told = {text, text_size};
    struct storage_place place;

    if (path == NULL || save_id == NULL)
        return checkpoint_fail(text, text_size, STRAIT_ERR_INVALID, "path or save id is NULL");
    enum strait_status status = storage_place_init(&place, path, save_id, told);
    if (status != STRAIT_OK)
        return status;
    const int error = storage_remove(place.parent, place.partial);
    if (error != 0)
        status = storage_failed(told, place.path, place.partial, "remove", error);
    storage_place_fini(&place);
    return status;
}
