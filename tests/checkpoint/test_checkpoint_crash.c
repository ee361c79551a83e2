/* What is left on the disk when a save is killed, or a call fails, at any of its system calls. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "checkpoint/folder.h"
#include "tests/checkpoint/saved.h"
#include "tests/checkpoint/shim.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char folder[256], first[300], second[300];

static void setup(void)
{
    /* A folder in memory: only processes end here, not machines, and there are many folders to make. */
    if (access("/dev/shm", W_OK) == 0)
        setenv("STRAIT_TEST_FOLDER", "/dev/shm", 1);
    scratch_make(folder, "crash");
    snprintf(first, sizeof(first), "%s/step-1", folder);
    snprintf(second, sizeof(second), "%s/step-2", folder);
}

static void teardown(void)
{
    scratch_remove(folder);
}

/* ---- Two states -------------------------------------------------------------------------------------------------- */

enum { PIECES = 6, WIDE = 20000 };
static struct piece_of states[2][PIECES]; /* the old one, the new one */

static void make_states(void)
{
    static const char *const names[PIECES] = {"master", "model", "ids", "step", "scale", "bias"};

    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < PIECES; i++) {
            static const char *const dtypes[PIECES] = {"F32", "BF16", "I64", "F32", "F8_E4M3", "BF16"};
            const uint64_t count = i == 0 ? WIDE : i == 3 ? 1 : 7000 * i;
            const uint64_t bytes = count * strait_checkpoint_dtype_bytes(dtypes[i]);
            void *data = malloc(bytes);
            fill_values(s * 100 + i, dtypes[i], data, bytes);
            states[s][i] =
                (struct piece_of){.name = names[i], .dtype = dtypes[i], .dims = 1, .shape = {count}, .data = data};
        }
}

static void free_states(void)
{
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < PIECES; i++)
            free((void *)states[s][i].data);
}

/* How the new state comes beside the old one, or in its place. */
struct way {
    bool replace, no_exchange, no_ring;
};

static const struct way ways[] = {
    {false, false, false}, {false, false, true}, {true, false, false}, {true, true, false}};

static const char *new_path(const struct way *way)
{
    return way->replace ? first : second;
}

/* Saves and commits the new state. Where it does not succeed, text tells. */
static enum strait_status save_new(const struct way *way, char text[1024])
{
    struct strait_checkpoint_save_options options = save_options(0, 1, 2);
    struct strait_checkpoint_commit_options commit = commit_options(1, 2);
    struct strait_checkpoint_save *save = NULL;

    commit.flags = way->replace ? STRAIT_CHECKPOINT_REPLACE : 0;
    commit.keep = 1;
    enum strait_status status = strait_checkpoint_save_begin(new_path(way), &options, &save, text, 1024);
    for (int i = 0; i < PIECES && status == STRAIT_OK; i++)
        status = add_piece(save, &states[1][i]);
    if (status == STRAIT_OK)
        status = strait_checkpoint_save_end(save, NULL);
    if (status != STRAIT_OK && save != NULL)
        snprintf(text, 1024, "%s", strait_checkpoint_save_text(save));
    strait_checkpoint_save_free(save);
    return status == STRAIT_OK ? strait_checkpoint_commit(new_path(way), &commit, text, 1024) : status;
}

/* The newest whole checkpoint: 0, the old state, or 1, the new one. Fails the test unless there is one, and all of it
 * is right. */
static int newest_state(const struct way *way)
{
    char path[600], text[512] = "";
    struct folder_candidate *list;
    struct saved_file file;
    uint32_t count = 0;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    ck_assert_int_eq(folder_list(fd, folder, &list, &count, (struct storage_text){text, sizeof(text)}), STRAIT_OK);
    close(fd);
    ck_assert_msg(count > 0 && list[0].why[0] == 0, "there is no whole checkpoint: %s", count > 0 ? list[0].why : "");
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(list[i].why[0] == 0, "%s: %s", list[i].name, list[i].why); /* nor a broken one */
    snprintf(path, sizeof(path), "%s/%s", folder, list[0].name);
    free(list);
    saved_open(&file, path, 0);
    const int state = file.footer.save_id[0] == 2;
    saved_close(&file);
    require_holds(path, states[state], PIECES);
    if (!way->replace || !way->no_exchange) { /* which takes two steps */
        snprintf(path, sizeof(path), "%s/latest/" CHECKPOINT_INDEX_NAME, folder);
        ck_assert_msg(access(path, F_OK) == 0, "latest names nothing");
    }
    return state;
}

static bool has_partial(uint32_t seed, const struct way *way)
{
    const struct strait_checkpoint_save_options options = save_options(0, 1, seed);
    struct storage_place place;
    struct stat info;

    ck_assert_int_eq(storage_place_init(&place, new_path(way), options.save_id, (struct storage_text){NULL, 0}),
                     STRAIT_OK);
    const bool there = fstatat(place.parent, place.partial, &info, 0) == 0;
    storage_place_fini(&place);
    return there;
}

/* Only the old state is there, and nothing has been left by another save. */
static void start_over(const struct way *way)
{
    struct stat info;

    if (stat(first, &info) == 0 && stat(second, &info) != 0 && newest_state(way) == 0 && !has_partial(2, way))
        return;
    scratch_remove(folder);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    save_all(first, states[0], PIECES, 1, 0);
}

/* ---- Killed ------------------------------------------------------------------------------------------------------ */

TEST_LOOP(killed_at_every_call, COUNT(ways))
{
    const struct way *way = &ways[_i];
    bool ended = false;
    int killed = 0, new_ones = 0;

    make_states();
    for (int at = 1; !ended; at += STRIDE) {
        char text[1024] = "";
        int status = 0;
        start_over(way);
        const pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            shim_start(
                (struct shim){.action = SHIM_KILL, .at = at, .no_ring = way->no_ring, .no_exchange = way->no_exchange});
            _exit(save_new(way, text) == STRAIT_OK ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ended = WIFEXITED(status);
        ck_assert(!ended || WEXITSTATUS(status) == 0);
        ck_assert(ended || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        killed += !ended;
        const int state = newest_state(way);
        ck_assert(!ended || state == 1);
        new_ones += state == 1 && !ended;
        /* What a crash left is in nobody's way, and goes when it is told to. */
        const struct strait_checkpoint_save_options options = save_options(0, 1, 2);
        ck_assert_int_eq(strait_checkpoint_abandon(new_path(way), options.save_id, text, sizeof(text)), STRAIT_OK);
        ck_assert(!has_partial(2, way));
        if (access(new_path(way), F_OK) != 0 || way->replace)
            ck_assert_msg(save_new(way, text) == STRAIT_OK, "%s", text);
        ck_assert_int_eq(newest_state(way), 1);
    }
    ck_assert_int_gt(killed, SANITIZED ? 3 : 20);
    ck_assert_int_gt(new_ones, SANITIZED ? -1 : 1); /* some kills come after the rename */
    printf("killed at %d calls, at %d of them after the commit\n", killed, new_ones);
    free_states();
}
END_TEST

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static const int errors[] = {EIO, ENOSPC};

/* Call `at` fails, alone or with all after it. Returns whether there was such a call. */
static bool fail_at(const struct way *way, enum shim_action action, int at, int error)
{
    char text[1024] = "", expected[128];

    start_over(way);
    shim_start((struct shim){
        .action = action, .at = at, .error = error, .no_ring = way->no_ring, .no_exchange = way->no_exchange});
    const enum strait_status status = save_new(way, text);
    const bool came = shim_calls >= at;
    const char *last = shim_last;
    shim_stop();
    const int state = newest_state(way);
    if (status == STRAIT_OK) {
        /* Nothing needed the call: an old one could not be removed, or it was tidying up. */
        ck_assert_int_eq(state, 1);
        return came;
    }
    snprintf(expected, sizeof(expected), "%s", strerror(error));
    ck_assert_int_eq(status, STRAIT_ERR_IO);
    ck_assert_msg(strstr(text, expected) != NULL, "%s at call %d: %s", last, at, text);
    ck_assert_msg(state == (strstr(text, "is committed, but") != NULL), "%s at call %d: %s", last, at, text);
    if (action == SHIM_STAY)
        return came;
    /* A save that failed leaves nothing; a commit that failed leaves the ranks' files, and can be tried again. */
    if (has_partial(2, way) && state == 0) {
        struct strait_checkpoint_commit_options commit = commit_options(1, 2);
        commit.flags = way->replace ? STRAIT_CHECKPOINT_REPLACE : 0;
        ck_assert_msg(strait_checkpoint_commit(new_path(way), &commit, text, sizeof(text)) == STRAIT_OK,
                      "%s at call %d: %s", last, at, text);
        ck_assert_int_eq(newest_state(way), 1);
    }
    return came;
}

TEST_LOOP(every_call_fails, COUNT(ways) * COUNT(errors))
{
    const struct way *way = &ways[_i / COUNT(errors)];
    int at = 1;

    make_states();
    while (fail_at(way, SHIM_FAIL, at, errors[_i % COUNT(errors)]))
        at += STRIDE;
    ck_assert_int_gt(at, 20);
    for (at = 1; fail_at(way, SHIM_STAY, at, errors[_i % COUNT(errors)]);)
        at += STRIDE;
    free_states();
}
END_TEST

/* ---- File systems that can less ---------------------------------------------------------------------------------- */

TEST_LOOP(a_save_gets_by, 10)
{
    static const struct shim shims[] = {
        {.action = SHIM_SHORT},
        {.action = SHIM_SHORT, .no_ring = true},
        {.action = SHIM_SHORT, .no_ring = true, .no_direct = true},
        {.action = SHIM_SHORT, .no_direct = true},
        {.no_ring = true},
        {.no_direct = true},
        {.no_ring = true, .direct_lies = true},
        {.direct_lies = true},
        {.interrupts = true},
        {.interrupts = true, .no_ring = true, .no_exchange = true},
    };
    char text[1024] = "";

    make_states();
    for (int w = 0; w < COUNT(ways); w++) {
        start_over(&ways[w]);
        shim_start(shims[_i]);
        const enum strait_status status = save_new(&ways[w], text);
        shim_stop();
        ck_assert_msg(status == STRAIT_OK, "%s", text);
        ck_assert_int_eq(newest_state(&ways[w]), 1);
        ck_assert(!has_partial(2, &ways[w]));
    }
    free_states();
}
END_TEST

/* ---- A slow disk ------------------------------------------------------------------------------------------------- */

static uint64_t peak_memory(void)
{
    struct rusage usage;

    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* Chunks wait for the disk in as much memory as the save may have, and tensors wait for chunks. */
TEST(memory_is_bounded)
{
    enum { TENSORS = 40, BYTES = 4 << 20, BUFFERS = 20 << 20 };
    struct strait_checkpoint_save_options options = save_options(0, 1, 2);
    struct strait_checkpoint_save *save = NULL;
    uint8_t *data = malloc(BYTES);
    char name[20], text[512] = "";

    fill_values(1, "U8", data, BYTES); /* nothing gets smaller */
    options.buffer_bytes = BUFFERS;
    const uint64_t before = peak_memory();
    shim_start((struct shim){.no_ring = true, .slow = true});
    ck_assert_msg(strait_checkpoint_save_begin(first, &options, &save, text, sizeof(text)) == STRAIT_OK, "%s", text);
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        const struct piece_of piece = {.name = name, .dtype = "U8", .dims = 1, .shape = {BYTES}, .data = data};
        ck_assert_int_eq(add_piece(save, &piece), STRAIT_OK);
    }
    ck_assert_int_eq(strait_checkpoint_save_end(save, NULL), STRAIT_OK);
    shim_stop();
    strait_checkpoint_save_free(save);
    ck_assert_uint_lt(peak_memory() - before, SANITIZED ? UINT64_MAX : BUFFERS + (8 << 20));
    free(data);
}
END_TEST

/* ---- One rank of several fails ----------------------------------------------------------------------------------- */

TEST(the_others_can_be_abandoned)
{
    struct strait_checkpoint_save *saves[3] = {0};
    struct strait_checkpoint_commit_options commit = commit_options(3, 2);
    char text[1024] = "";

    make_states();
    start_over(&ways[0]);
    for (uint32_t r = 0; r < 3; r++) {
        const struct strait_checkpoint_save_options options = save_options(r, 3, 2);
        ck_assert_int_eq(strait_checkpoint_save_begin(second, &options, &saves[r], text, sizeof(text)), STRAIT_OK);
        ck_assert_int_eq(add_piece(saves[r], &states[1][r]), STRAIT_OK);
    }
    for (uint32_t r = 0; r < 3; r++) {
        if (r != 1)
            ck_assert_int_eq(strait_checkpoint_save_end(saves[r], NULL), STRAIT_OK);
        strait_checkpoint_save_free(saves[r]);
    }
    ck_assert_int_eq(strait_checkpoint_commit(second, &commit, text, sizeof(text)), STRAIT_ERR_TRUNCATED);
    ck_assert_msg(strstr(text, "00001.strait: is missing") != NULL, "%s", text);
    ck_assert(has_partial(2, &ways[0]));
    ck_assert_int_eq(strait_checkpoint_abandon(second, commit.save_id, text, sizeof(text)), STRAIT_OK);
    ck_assert(!has_partial(2, &ways[0]));
    ck_assert_int_eq(strait_checkpoint_abandon(second, commit.save_id, text, sizeof(text)), STRAIT_OK); /* again */
    ck_assert_int_eq(newest_state(&ways[0]), 0);
    free_states();
}
END_TEST

int main(void)
{
    print_conditions();
    return run_tests("checkpoint_crash", setup, teardown);
}
