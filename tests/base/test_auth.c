#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/auth.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char folder[] = "/tmp/strait-test-auth-XXXXXX";
static char path[sizeof(folder) + 8];
static struct secret secret;
static char why[512];

static void setup(void)
{
    memcpy(folder + sizeof(folder) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/file", folder);
}

static void teardown(void)
{
    unlink(path);
    ck_assert_int_eq(0, rmdir(folder));
}

static void write_secret(size_t size, mode_t mode)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < size; i++)
        fputc((int)(i % 251), file);
    ck_assert_int_eq(0, fclose(file));
    ck_assert_int_eq(0, chmod(path, mode));
}

static enum strait_status read_secret(void)
{
    why[0] = 0;
    return auth_secret_read(path, &secret, why, sizeof(why));
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static const struct file_case {
    size_t size;
    mode_t mode;
    bool good;
} files[] = {
    {16, 0600, true},    {4096, 0600, true}, {16, 0400, true},   {15, 0600, false},  {0, 0600, false},
    {4097, 0600, false}, {100, 0640, false}, {100, 0604, false}, {100, 0620, false}, {100, 0601, false},
};

TEST_FIXTURE(file, setup, teardown);

TEST_LOOP(a_secret_file_is_read_whole_or_refused_with_a_reason, COUNT(files))
{
    const struct file_case *test = &files[_i];
    write_secret(test->size, test->mode);
    ck_assert_int_eq(test->good ? STRAIT_OK : STRAIT_ERR_INVALID, read_secret());
    ck_assert_uint_eq(test->good ? test->size : 0, secret.size);
    for (size_t i = 0; i < sizeof(secret.bytes); i++)
        ck_assert_uint_eq(i < secret.size ? i % 251 : 0, secret.bytes[i]);
    ck_assert(test->good || (strstr(why, path) != NULL && strlen(why) > strlen(path) + 5));
}

TEST(what_is_no_regular_file_is_refused_at_once)
{
    ck_assert_int_eq(STRAIT_ERR_IO, read_secret()); /* nothing there */
    ck_assert_int_eq(0, mkfifo(path, 0600));
    ck_assert_int_eq(STRAIT_ERR_INVALID, read_secret());
    ck_assert_int_eq(0, unlink(path));
    ck_assert_int_eq(STRAIT_ERR_INVALID, auth_secret_read(folder, &secret, why, sizeof(why)));
}

TEST(a_file_of_another_user_is_refused)
{
    if (geteuid() != 0)
        return; /* cannot be made */
    write_secret(100, 0600);
    ck_assert_int_eq(0, chown(path, 12345, 0));
    ck_assert_int_eq(STRAIT_ERR_INVALID, read_secret());
}

TEST(a_link_to_a_good_file_will_do)
{
    char target[sizeof(path) + 8];
    write_secret(100, 0600);
    snprintf(target, sizeof(target), "%s-2", path);
    ck_assert_int_eq(0, rename(path, target));
    ck_assert_int_eq(0, symlink(target, path));
    ck_assert_int_eq(STRAIT_OK, read_secret());
    ck_assert_int_eq(0, unlink(target));
}

/* ---- Random bytes ------------------------------------------------------------------------------------------------ */

TEST_FIXTURE(random, NULL, NULL);

TEST(random_bytes_fill_what_they_should_and_differ)
{
    static uint8_t a[1000], b[1000];
    auth_random(a + 1, sizeof(a) - 2);
    auth_random(b, sizeof(b));
    auth_random(b, 0);
    ck_assert(a[0] == 0 && a[sizeof(a) - 1] == 0);
    ck_assert_mem_ne(a + 1, b + 1, 32);
    ck_assert_mem_ne(a + 901, a + 1, 32);
    ck_assert_mem_ne(a + sizeof(a) - 33, (uint8_t[32]){0}, 32);
}

int main(void)
{
    return run_tests("auth", NULL, NULL);
}
