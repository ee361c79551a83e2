/* Commits: what ranks have saved becomes a checkpoint, or is refused; older ones go. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/checkpoint/saved.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char folder[256], path[300], text[1024];
static float data[64 * 64];

static void setup(void)
{
    scratch_make(folder, "commit");
    snprintf(path, sizeof(path), "%s/step-1", folder);
    fill_values(1, "F32", data, sizeof(data));
}

static void teardown(void)
{
    scratch_remove(folder);
}

/* Saves one rank's part: these boxes. */
static void save_part(const char *at, uint32_t rank, uint32_t ranks, uint32_t seed, const struct piece_of *pieces,
                      uint32_t count)
{
    const struct strait_checkpoint_save_options options = save_options(rank, ranks, seed);
    struct strait_checkpoint_save *save = NULL;

    require(strait_checkpoint_save_begin(at, &options, &save, text, sizeof(text)) == STRAIT_OK);
    for (uint32_t i = 0; i < count; i++)
        require(add_piece(save, &pieces[i]) == STRAIT_OK);
    require(strait_checkpoint_save_end(save, NULL) == STRAIT_OK);
    strait_checkpoint_save_free(save);
}

static enum strait_status commit(const char *at, uint32_t ranks, uint32_t seed, uint32_t flags, uint32_t keep)
{
    struct strait_checkpoint_commit_options options = commit_options(ranks, seed);

    options.flags = flags;
    options.keep = keep;
    text[0] = 0;
    return strait_checkpoint_commit(at, &options, text, sizeof(text));
}

/* Rows from `from` on of a tensor of 64 rows of 64 values. */
static struct piece_of rows(uint64_t from, uint64_t count)
{
    return (struct piece_of){.name = "t",
                             .dtype = "F32",
                             .dims = 2,
                             .shape = {64, 64},
                             .offsets = {from, 0},
                             .sizes = {count, 64},
                             .data = data + from * 64};
}

static bool there(const char *name)
{
    char full[600];

    snprintf(full, sizeof(full), "%s/%s", folder, name);
    return access(full, F_OK) == 0;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

TEST(eight_ranks_save_as_processes)
{
    enum { RANKS = 8, ROWS = 8, COLUMNS = 100000 };
    float *all = malloc((size_t)RANKS * ROWS * COLUMNS * 4);
    struct strait_checkpoint_reader *reader = NULL;

    fill_values(3, "F32", all, (uint64_t)RANKS * ROWS * COLUMNS * 4);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child > 0)
            continue;
        const struct piece_of pieces[] = {
            {.name = "sharded",
             .dtype = "F32",
             .dims = 2,
             .shape = {RANKS * ROWS, COLUMNS},
             .offsets = {rank * ROWS, 0},
             .sizes = {ROWS, COLUMNS},
             .data = all + (size_t)rank * ROWS * COLUMNS},
            {.name = "replicated", .dtype = "F32", .dims = 1, .shape = {77}, .data = all}};
        save_part(path, rank, RANKS, 9, pieces, COUNT(pieces));
        _exit(0);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int status = 1;
        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_msg(commit(path, RANKS, 9, 0, 0) == STRAIT_OK, "%s", text);
    ck_assert_int_eq(strait_checkpoint_open(path, &reader, text, sizeof(text)), STRAIT_OK);
    struct strait_checkpoint_info info;
    strait_checkpoint_describe(reader, &info);
    ck_assert_uint_eq(info.file_count, RANKS);
    ck_assert_uint_eq(info.tensor_count, 2);
    ck_assert_uint_eq(info.raw_bytes, (uint64_t)RANKS * ROWS * COLUMNS * 4 + 77 * 4);
    float *loaded = malloc((size_t)RANKS * ROWS * COLUMNS * 4);
    struct strait_checkpoint_box box = {.tensor = strait_checkpoint_find(reader, "sharded"), .data = loaded};
    ck_assert_int_eq(strait_checkpoint_load(reader, &box, 1, NULL, text, sizeof(text)), STRAIT_OK);
    ck_assert_mem_eq(loaded, all, (size_t)RANKS * ROWS * COLUMNS * 4);
    strait_checkpoint_close(reader);
    free(loaded);
    free(all);
}
END_TEST

/* A process that is forked in the middle of a save, and frees it, takes nothing from the one that saves. */
TEST(a_fork_in_the_middle_of_a_save)
{
    const struct strait_checkpoint_save_options options = save_options(0, 1, 1);
    const struct piece_of whole = rows(0, 64);
    struct strait_checkpoint_save *save = NULL;
    int status = 1;

    require(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)) == STRAIT_OK);
    require(add_piece(save, &whole) == STRAIT_OK);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        alarm(10);
        strait_checkpoint_save_free(save);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    require(strait_checkpoint_save_end(save, NULL) == STRAIT_OK);
    strait_checkpoint_save_free(save);
    ck_assert_msg(commit(path, 1, 1, 0, 0) == STRAIT_OK, "%s", text);
    require_holds(path, &whole, 1);
}
END_TEST

TEST(parts_that_do_not_fit_together)
{
    struct piece_of a = rows(0, 32), b = rows(33, 31);

    save_part(path, 0, 2, 1, &a, 1);
    ck_assert_int_eq(commit(path, 2, 1, 0, 0), STRAIT_ERR_TRUNCATED);
    ck_assert_ptr_nonnull(strstr(text, "00001.strait: is missing"));
    save_part(path, 1, 2, 1, &b, 1);
    ck_assert_int_eq(commit(path, 2, 1, 0, 0), STRAIT_ERR_INVALID);
    ck_assert_msg(strstr(text, "tensor t: no shard has its value at [32, 0]") != NULL, "%s", text);
    ck_assert(!there("step-1") && !there("latest"));
    ck_assert_int_eq(commit(path, 1, 1, 0, 0), STRAIT_ERR_INVALID);
    ck_assert_msg(strstr(text, "rank 0 was one of 2, not of 1") != NULL, "%s", text);
    b = rows(32, 32);
    b.shape[0] = 65;
    save_part(path, 0, 2, 2, &a, 1);
    save_part(path, 1, 2, 2, &b, 1);
    ck_assert_int_eq(commit(path, 2, 2, 0, 0), STRAIT_ERR_INVALID);
    ck_assert_msg(strstr(text, "tensor t differs in type or shape between files 0 and 1") != NULL, "%s", text);
    ck_assert_int_eq(commit(path, 1, 77, 0, 0), STRAIT_ERR_TRUNCATED);
    ck_assert_msg(strstr(text, "no rank has saved anything") != NULL, "%s", text);
}
END_TEST

/* Any damage of a part that a footer, header or tail shows. */
TEST(parts_that_are_not_whole)
{
    const struct piece_of whole = rows(0, 64);
    char file[600];
    struct stat info;

    save_part(path, 0, 1, 1, &whole, 1);
    snprintf(file, sizeof(file), "%s/.step-1.010000005a5a5a5a5a5a5a5a5a5a5a5a.partial/00000.strait", folder);
    ck_assert_int_eq(stat(file, &info), 0);
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    for (off_t at = info.st_size - 1; at > info.st_size - 100; at--) {
        uint8_t byte, other;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        other = byte ^ 0x10;
        ck_assert_int_eq(pwrite(fd, &other, 1, at), 1);
        ck_assert_int_eq(commit(path, 1, 1, 0, 0), STRAIT_ERR_TRUNCATED);
        ck_assert_ptr_nonnull(strstr(text, "00000.strait: "));
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    for (off_t size = info.st_size - 1; size > 0; size = size > 5000 ? size - 3001 : size / 2) {
        uint8_t kept[8192];
        const size_t cut = (size_t)(info.st_size - size) < sizeof(kept) ? (size_t)(info.st_size - size) : 0;
        if (cut == 0)
            break;
        ck_assert_int_eq(pread(fd, kept, cut, size), (ssize_t)cut);
        ck_assert_int_eq(ftruncate(fd, size), 0);
        ck_assert_int_eq(commit(path, 1, 1, 0, 0), STRAIT_ERR_TRUNCATED);
        ck_assert_int_eq(pwrite(fd, kept, cut, size), (ssize_t)cut);
    }
    close(fd);
    ck_assert(!there("step-1"));
    ck_assert_msg(commit(path, 1, 1, 0, 0) == STRAIT_OK, "%s", text);
    require_holds(path, &whole, 1);
}
END_TEST

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static void require_latest(const char *name)
{
    char link[300], target[300] = "";

    snprintf(link, sizeof(link), "%s/latest", folder);
    ck_assert_int_gt(readlink(link, target, sizeof(target) - 1), 0);
    ck_assert_str_eq(target, name);
}

TEST(a_name_that_is_taken)
{
    const struct piece_of old = rows(0, 64);
    struct piece_of new = rows(0, 64);
    float other[64 * 64];
    char stranger[400];

    fill_values(2, "F32", other, sizeof(other));
    new.data = other;
    save_all(path, &old, 1, 1, 0);
    save_part(path, 0, 1, 2, &new, 1);
    ck_assert_int_eq(commit(path, 1, 2, 0, 0), STRAIT_ERR_INVALID);
    ck_assert_msg(strstr(text, "step-1: is there already") != NULL, "%s", text);
    require_holds(path, &old, 1);
    /* A folder with somebody's file in it is not replaced. */
    snprintf(stranger, sizeof(stranger), "%s/notes.txt", path);
    close(open(stranger, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    ck_assert_int_eq(commit(path, 1, 2, STRAIT_CHECKPOINT_REPLACE, 0), STRAIT_ERR_INVALID);
    ck_assert_msg(strstr(text, "it has notes.txt in it") != NULL, "%s", text);
    ck_assert_int_eq(unlink(stranger), 0);
    ck_assert_msg(commit(path, 1, 2, STRAIT_CHECKPOINT_REPLACE, 0) == STRAIT_OK, "%s", text);
    require_holds(path, &new, 1);
    require_latest("step-1");
    ck_assert(!there(".step-1.020000005a5a5a5a5a5a5a5a5a5a5a5a.partial"));
}
END_TEST

TEST(latest_that_is_no_link)
{
    const struct piece_of whole = rows(0, 64);
    char latest[300];

    snprintf(latest, sizeof(latest), "%s/latest", folder);
    ck_assert_int_eq(mkdir(latest, 0777), 0);
    save_part(path, 0, 1, 1, &whole, 1);
    ck_assert_int_eq(commit(path, 1, 1, 0, 0), STRAIT_ERR_INVALID);
    ck_assert(!there("step-1"));
    ck_assert_msg(commit(path, 1, 1, STRAIT_CHECKPOINT_NO_LATEST, 0) == STRAIT_OK, "%s", text);
    ck_assert(there("step-1"));
}
END_TEST

TEST(attachments_are_kept)
{
    const struct piece_of whole = rows(0, 64);
    uint8_t bytes[300] = {0, 1, 2, 0, 255};
    const struct strait_checkpoint_attachment attachments[] = {
        {"step", "1000", 4}, {"plan/\xC3\xA9", bytes, 300}, {"none", NULL, 0}};
    struct strait_checkpoint_commit_options options = commit_options(1, 1);
    struct strait_checkpoint_attachment found;
    struct strait_checkpoint_reader *reader = NULL;

    save_part(path, 0, 1, 1, &whole, 1);
    options.attachments = attachments;
    options.attachment_count = COUNT(attachments);
    ck_assert_msg(strait_checkpoint_commit(path, &options, text, sizeof(text)) == STRAIT_OK, "%s", text);
    ck_assert_int_eq(strait_checkpoint_open(path, &reader, text, sizeof(text)), STRAIT_OK);
    for (uint32_t i = 0; i < COUNT(attachments); i++) {
        ck_assert(strait_checkpoint_attachment_at(reader, i, &found));
        ck_assert_str_eq(found.name, attachments[i].name);
        ck_assert_uint_eq(found.bytes, attachments[i].bytes);
        ck_assert(found.bytes == 0 || memcmp(found.data, attachments[i].data, found.bytes) == 0);
    }
    strait_checkpoint_close(reader);
}
END_TEST

/* ---- Retention --------------------------------------------------------------------------------------------------- */

static void save_step(uint32_t step, uint32_t flags, uint32_t keep)
{
    const struct piece_of whole = rows(0, 64);
    char at[300];

    snprintf(at, sizeof(at), "%s/step-%u", folder, step);
    save_part(at, 0, 1, step, &whole, 1);
    ck_assert_msg(commit(at, 1, step, flags, keep) == STRAIT_OK, "%s", text);
    ck_assert_str_eq(text, "");
}

TEST(older_ones_go)
{
    char name[300], newest[600];

    for (uint32_t step = 1; step <= 4; step++)
        save_step(step, 0, 0);
    /* Not whole, hence not touched: one lacks its file, one is somebody's. */
    snprintf(name, sizeof(name), "%s/step-1/00000.strait", folder);
    ck_assert_int_eq(unlink(name), 0);
    snprintf(name, sizeof(name), "%s/results", folder);
    ck_assert_int_eq(mkdir(name, 0777), 0);
    save_step(5, 0, 2);
    ck_assert(there("step-1") && !there("step-2") && !there("step-3") && there("step-4") && there("step-5"));
    ck_assert(there("results"));
    require_latest("step-5");
    ck_assert_int_eq(strait_checkpoint_newest(folder, NULL, NULL, newest, sizeof(newest)), STRAIT_OK);
    ck_assert_ptr_nonnull(strstr(newest, "/step-5"));
    /* What the link names stays, too. */
    save_step(6, STRAIT_CHECKPOINT_NO_LATEST, 1);
    ck_assert(!there("step-4") && there("step-5") && there("step-6"));
    save_step(7, 0, 1);
    ck_assert(!there("step-5") && !there("step-6") && there("step-7") && there("step-1"));
}
END_TEST

/* A checkpoint in which somebody has put a file stays whole, and the commit tells so. */
TEST(an_old_one_with_other_files_stays)
{
    const struct piece_of whole = rows(0, 64);
    char name[300];

    save_step(1, 0, 0);
    snprintf(name, sizeof(name), "%s/step-1/notes.txt", folder);
    close(open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    snprintf(name, sizeof(name), "%s/step-2", folder);
    save_part(name, 0, 1, 2, &whole, 1);
    ck_assert_int_eq(commit(name, 1, 2, 0, 1), STRAIT_OK);
    ck_assert_msg(strstr(text, "step-1: an old checkpoint stays: it has notes.txt in it") != NULL, "%s", text);
    ck_assert(there("step-1/notes.txt") && there("step-1/00000.strait"));
    require_holds(path, &whole, 1);
}
END_TEST

/* The link may name a checkpoint by any path. */
TEST(what_latest_leads_to_stays)
{
    char link[300], target[300];

    save_step(1, 0, 0);
    snprintf(link, sizeof(link), "%s/latest", folder);
    snprintf(target, sizeof(target), "../%s/./step-1/", strrchr(folder, '/') + 1);
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(symlink(target, link), 0);
    save_step(2, STRAIT_CHECKPOINT_NO_LATEST, 1);
    ck_assert(there("step-1") && there("step-2"));
    /* A link that leads nowhere is replaced, and names nothing that is to stay. */
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(symlink("step-77", link), 0);
    save_step(3, STRAIT_CHECKPOINT_NO_LATEST, 1);
    ck_assert(!there("step-1") && !there("step-2") && there("step-3"));
    save_step(4, 0, 1);
    require_latest("step-4");
    ck_assert(!there("step-3"));
}
END_TEST

/* An index that is a link to somebody's file is replaced, not written through. */
TEST(an_index_that_is_a_link)
{
    const struct piece_of whole = rows(0, 64);
    char file[300], link[400];
    struct stat info;

    save_part(path, 0, 1, 1, &whole, 1);
    snprintf(file, sizeof(file), "%s/theirs", folder);
    close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    snprintf(link, sizeof(link), "%s/.step-1.010000005a5a5a5a5a5a5a5a5a5a5a5a.partial/strait.index", folder);
    ck_assert_int_eq(symlink("../theirs", link), 0);
    ck_assert_msg(commit(path, 1, 1, 0, 0) == STRAIT_OK, "%s", text);
    ck_assert_int_eq(stat(file, &info), 0);
    ck_assert_int_eq(info.st_size, 0);
    require_holds(path, &whole, 1);
}
END_TEST

TEST(paths_that_name_nothing)
{
    static const char *const paths[] = {"",     "/",   "//",      ".",        "..",         "./",
                                        "a/..", "a/.", ".hidden", "a/latest", "a/latest///"};
    const struct strait_checkpoint_save_options options = save_options(0, 1, 1);
    struct strait_checkpoint_save *save;
    char full[400];

    for (size_t i = 0; i < COUNT(paths); i++) {
        snprintf(full, sizeof(full), "%s", paths[i]);
        ck_assert_int_eq(strait_checkpoint_save_begin(full, &options, &save, text, sizeof(text)), STRAIT_ERR_INVALID);
        ck_assert_ptr_null(save);
        ck_assert_int_eq(commit(full, 1, 1, STRAIT_CHECKPOINT_REPLACE, 1), STRAIT_ERR_INVALID);
        ck_assert_int_eq(strait_checkpoint_abandon(full, options.save_id, text, sizeof(text)), STRAIT_ERR_INVALID);
    }
    /* Slashes at the end are no part of the name. */
    const struct piece_of whole = rows(0, 64);
    snprintf(full, sizeof(full), "%s///", path);
    save_part(full, 0, 1, 1, &whole, 1);
    ck_assert_msg(commit(full, 1, 1, 0, 0) == STRAIT_OK, "%s", text);
    require_holds(path, &whole, 1);
    require_latest("step-1");
}
END_TEST

int main(void)
{
    print_conditions();
    return run_tests("checkpoint_commit", setup, teardown);
}
