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

/* ---- Proofs ------------------------------------------------------------------------------------------------------ */

static const uint8_t nonces[2][NONCE_BYTES] = {{1, 2, 3}, {4, 5, 6}};

static struct message_peer_hello hello(int side)
{
    return (struct message_peer_hello){
        .version = 1,
        .version_min = 1,
        .node = 100 + (uint64_t)side,
        .incarnation = 200 + (uint64_t)side,
        .secret = true,
        .nonce = view_of(nonces[side], NONCE_BYTES),
        .address = view_of(side == 0 ? "a:1" : "bb:2", side == 0 ? 3 : 4),
        .dialled = view_of("bb:2", side == 0 ? 4 : 0),
    };
}

enum { CHANGES = 12 };

static void change(struct message_peer_hello *h, int field)
{
    static const uint8_t other_nonce[NONCE_BYTES] = {1, 2, 3, [NONCE_BYTES - 1] = 1};
    struct message_peer_hello changed[CHANGES];
    for (int i = 0; i < CHANGES; i++)
        changed[i] = *h;
    changed[0].version++;
    changed[1].version_min++;
    changed[2].node ^= (uint64_t)1 << 63;
    changed[3].incarnation ^= (uint64_t)1 << 32;
    changed[4].secret = false;
    changed[5].nonce.data = other_nonce;
    changed[6].nonce.size--;
    changed[7].address.data = (const uint8_t *)"c:33";
    changed[8].address.size--;
    changed[9].dialled = view_of("cc:2", 4);
    changed[10].dialled = view_of("bb:", 3);
    changed[11].dialled = h->address; /* the texts' bytes in another place */
    changed[11].address = view_of(NULL, 0);
    *h = changed[field];
}

static const struct secret key = {.size = 16, .bytes = "0123456789abcdef"};

TEST_FIXTURE(proof, NULL, NULL);

TEST_LOOP(every_field_of_either_hello_changes_the_proof, 2 * CHANGES)
{
    struct message_peer_hello hellos[2] = {hello(0), hello(1)};
    uint8_t before[MAC_BYTES], after[MAC_BYTES];
    auth_proof(&key, true, &hellos[0], &hellos[1], before);
    change(&hellos[_i / CHANGES], _i % CHANGES);
    auth_proof(&key, true, &hellos[0], &hellos[1], after);
    ck_assert(!auth_equal(before, after));
}

TEST(the_role_the_order_and_the_secret_change_the_proof)
{
    struct message_peer_hello dialler = hello(0), acceptor = hello(1);
    struct secret other = key, longer = key;
    uint8_t macs[5][MAC_BYTES];
    other.bytes[15] ^= 1;
    longer.size = 17;
    auth_proof(&key, true, &dialler, &acceptor, macs[0]);
    auth_proof(&key, false, &dialler, &acceptor, macs[1]);
    auth_proof(&key, true, &acceptor, &dialler, macs[2]);
    auth_proof(&other, true, &dialler, &acceptor, macs[3]);
    longer.bytes[16] = 1; /* a zero would be HMAC's own padding */
    auth_proof(&longer, true, &dialler, &acceptor, macs[4]);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            ck_assert(!auth_equal(macs[i], macs[j]));
}

/* Computed with Python's hmac from the text in auth.c: what peers of other releases send. */
TEST(the_proof_is_the_one_that_is_written_down)
{
    static const uint8_t expected[MAC_BYTES] = {
        0xaf, 0x70, 0x63, 0xc9, 0x50, 0xe6, 0x9c, 0x30, 0x87, 0x85, 0x8a, 0x00, 0x70, 0xce, 0xb7, 0xd4,
        0xbc, 0xc5, 0x34, 0xd4, 0xf8, 0x8b, 0x84, 0x9e, 0x3e, 0x80, 0x69, 0xed, 0xef, 0xbf, 0x56, 0x6f,
    };
    struct message_peer_hello dialler = hello(0), acceptor = hello(1);
    uint8_t mac[MAC_BYTES];
    auth_proof(&key, true, &dialler, &acceptor, mac);
    ck_assert_mem_eq(expected, mac, MAC_BYTES);
}

TEST(equal_means_every_bit)
{
    uint8_t a[MAC_BYTES] = {0}, b[MAC_BYTES] = {0};
    ck_assert(auth_equal(a, b));
    for (unsigned bit = 0; bit < 8 * MAC_BYTES; bit++) {
        b[bit / 8] = (uint8_t)(1u << bit % 8);
        ck_assert(!auth_equal(a, b));
        b[bit / 8] = 0;
    }
}

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
