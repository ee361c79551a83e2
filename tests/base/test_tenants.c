/* Tenants: the file's rows and what is wrong with others, who belongs where, and the bucket of a rate. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/options.h"
#include "daemon/base/tenants.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static struct tenants tenants;
static struct option_error error;

static enum strait_status read_text(const char *text)
{
    return tenants_text(&tenants, text, strlen(text), "file", &error);
}

static const char *tenant_of(uint32_t uid, uint32_t gid)
{
    const struct tenant *tenant = tenants_find(&tenants, uid, gid);
    return tenant != NULL ? tenant->name : "refused";
}

TEST(without_a_file_all_belong_together)
{
    tenants_default(&tenants);
    ck_assert_str_eq("default", tenant_of(1, 2));
    ck_assert_uint_eq(0, tenants.list[0].pool_bytes + tenants.list[0].transfers + tenants.list[0].rate);
}

TEST(a_user_counts_before_its_group_and_others_belong_to_default)
{
    ck_assert_int_eq(STRAIT_OK, read_text("# who\n\ntenant = a\n uids = 1001 , 1002\ngids=50\npool-bytes = 2G\n"
                                          "tenant = b.2_x-y\nuids = root\ngids = 60,70\ntransfers = 7\nrate = 5M\n"
                                          "tenant = default\nrate = 1M\n"));
    ck_assert_uint_eq(3, tenants.count);
    ck_assert_str_eq("a", tenant_of(1002, 60));
    ck_assert_str_eq("a", tenant_of(5, 50));
    ck_assert_str_eq("b.2_x-y", tenant_of(0, 50));
    ck_assert_str_eq("b.2_x-y", tenant_of(5, 70));
    ck_assert_str_eq("default", tenant_of(5, 5));
    ck_assert(tenants_find(&tenants, 1001, 0)->pool_bytes == (uint64_t)2 << 30);
    ck_assert_uint_eq(7, tenants_find(&tenants, 0, 0)->transfers);
    ck_assert_uint_eq(5u << 20, tenants_find(&tenants, 0, 0)->rate);
    ck_assert_uint_eq(1u << 20, tenants.list[0].rate);
    ck_assert_int_eq(STRAIT_OK, read_text("others = refuse\ntenant = a\nuids = 1\n"));
    ck_assert_str_eq("refused", tenant_of(2, 2));
    ck_assert_str_eq("a", tenant_of(1, 1));
}

static const struct wrong {
    const char *text, *why;
} wrong[] = {
    {"tenant\n", "file:1: the line is not"},
    {"tenant = \n", "is not a name"},
    {"tenant = A\n", "is not a name"},
    {"tenant = 012345678901234567890123456789012\n", "is not a name"},
    {"tenant = a\ntenant = b\ntenant = a\n", "file:3: tenant: a is there twice"},
    {"tenant = default\ntenant = default\n", "is there twice"},
    {"uids = 1\n", "before the first tenant"},
    {"others = maybe\n", "neither accept nor refuse"},
    {"tenant = default\nuids = 1\n", "cannot belong to default"},
    {"tenant = a\nuids = 1,,2\n", "is not a list"},
    {"tenant = a\nuids =\n", "is not a list"},
    {"tenant = a\nuids = -1\n", "is no user"},
    {"tenant = a\nuids = 4294967295\n", "is no user"},
    {"tenant = a\nuids = 12x\n", "is no user"},
    {"tenant = a\ngids = nobody-of-this-name\n", "is no group"},
    {"tenant = a\nuids = 1\ntenant = b\nuids = 2, 1\n", "file:4: uids: 1 is named twice"},
    {"tenant = a\nrate = 5\n", "from 1M to"},
    {"tenant = a\npool-bytes = much\n", "is not a size"},
    {"tenant = a\npool-byte = 1G\n", "no option of tenants is called"},
};

TEST_LOOP(a_bad_file_is_refused_with_its_line_and_changes_nothing, COUNT(wrong))
{
    ck_assert_int_eq(STRAIT_OK, read_text("tenant = kept\nuids = 9\n"));
    ck_assert_int_eq(STRAIT_ERR_INVALID, read_text(wrong[_i].text));
    ck_assert_msg(strstr(error.text, wrong[_i].why) != NULL, "%s", error.text);
    ck_assert_str_eq("kept", tenant_of(9, 9));
}

TEST(a_name_has_no_nul)
{
    static const char text[] = "tenant = a\0b\n";
    ck_assert_int_eq(STRAIT_ERR_INVALID, tenants_text(&tenants, text, sizeof(text) - 1, "file", &error));
    ck_assert_ptr_nonnull(strstr(error.text, "is not a name"));
}

TEST(as_many_tenants_and_ids_as_fit_and_no_more)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    for (unsigned i = 1; i < TENANTS_MAX; i++)
        fprintf(file, "tenant = t%u\nuids = %u\n", i, i);
    for (unsigned i = TENANTS_MAX; i <= TENANT_IDS_MAX; i++)
        fprintf(file, "uids = %u\n", i);
    fflush(file);
    ck_assert_int_eq(STRAIT_OK, read_text(text));
    ck_assert_str_eq("t63", tenant_of(TENANT_IDS_MAX, 0));
    fprintf(file, "uids = 5000\n");
    fflush(file);
    ck_assert_int_eq(STRAIT_ERR_INVALID, read_text(text));
    fprintf(file, "tenant = one.more\n");
    fclose(file);
    free(text);
}

TEST(a_file_that_is_not_there_is_named)
{
    ck_assert_int_eq(STRAIT_ERR_IO, tenants_file(&tenants, "/none/such", &error));
    ck_assert_ptr_nonnull(strstr(error.text, "/none/such"));
}

/* ---- Reading again ----------------------------------------------------------------------------------------------- */

static bool follow(const char *text)
{
    static struct tenants now;
    now = tenants;
    ck_assert_int_eq(STRAIT_OK, read_text(text));
    const bool follows = tenants_follow(&tenants, &now);
    if (!follows)
        tenants = now;
    return follows;
}

static struct tenant *named(const char *name)
{
    for (uint32_t i = 0; i < tenants.count; i++)
        if (strcmp(tenants.list[i].name, name) == 0)
            return &tenants.list[i];
    return NULL;
}

TEST(tenants_keep_their_places_and_what_they_use_when_a_file_is_read_again)
{
    ck_assert_int_eq(STRAIT_OK, read_text("tenant = a\nuids = 1\nrate = 1M\ntenant = b\nuids = 2\n"));
    struct tenant *a = named("a"), *b = named("b");
    a->mapped = 7;
    a->done = 8;
    b->live = 9;
    ck_assert(follow("others = refuse\ntenant = c\nuids = 2\ntenant = b\nuids = 3\ntransfers = 5\ntenant = a\n"
                     "pool-bytes = 4K\ntenant = default\nrate = 2M\n"));
    ck_assert_ptr_eq(a, named("a"));
    ck_assert_ptr_eq(b, named("b"));
    ck_assert_uint_eq(7, a->mapped);
    ck_assert_uint_eq(8, a->done);
    ck_assert_uint_eq(9, b->live);
    ck_assert_uint_eq(4096, a->pool_bytes);
    ck_assert_uint_eq(0, a->rate);
    ck_assert_uint_eq(5, b->transfers);
    ck_assert_uint_eq(2u << 20, tenants.list[0].rate);
    ck_assert_str_eq("refused", tenant_of(1, 1));
    ck_assert_str_eq("c", tenant_of(2, 2));
    ck_assert_str_eq("b", tenant_of(3, 3));
}

/* What is in use is pools, requests or connections. */
TEST_LOOP(a_removed_tenant_is_there_as_long_as_something_of_it_is_in_use, 3)
{
    ck_assert_int_eq(STRAIT_OK, read_text("tenant = a\nuids = 1\ntransfers = 3\ntenant = b\nuids = 2\n"));
    struct tenant *a = named("a"), *b = named("b");
    *(_i == 0 ? &a->mapped : _i == 1 ? &a->live : &a->clients) = 1;
    ck_assert(follow(""));
    ck_assert_ptr_null(named("b"));
    ck_assert(!tenant_is_there(b));
    ck_assert_ptr_eq(a, named("a"));
    ck_assert(tenant_is_there(a) && tenant_is_removed(a));
    ck_assert_uint_eq(3, a->transfers);
    ck_assert_str_eq("default", tenant_of(1, 1));
    ck_assert(follow("tenant = c\nuids = 1\n"));
    ck_assert_ptr_eq(b, named("c")); /* the empty place */
    ck_assert(follow("tenant = a\nuids = 1\n"));
    ck_assert_ptr_eq(a, tenants_find(&tenants, 1, 1));
    ck_assert(!tenant_is_removed(a));
    ck_assert(follow(""));
    a->mapped = a->live = a->clients = 0;
    ck_assert(!tenant_is_there(a));
    ck_assert(follow(""));
    ck_assert_uint_eq(1, tenants.count);
}

TEST(removed_tenants_in_use_take_up_places)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    for (unsigned i = 1; i < TENANTS_MAX; i++)
        fprintf(file, "tenant = t%u\n", i);
    fclose(file);
    ck_assert_int_eq(STRAIT_OK, read_text("tenant = old\nuids = 4\n"));
    named("old")->live = 1;
    ck_assert(!follow(text));
    ck_assert_str_eq("old", tenant_of(4, 4));
    named("old")->live = 0;
    ck_assert(follow(text));
    ck_assert_uint_eq(TENANTS_MAX, tenants.count);
    free(text);
}

TEST(a_bucket_holds_a_tenth_of_a_second_and_debts_are_paid)
{
    struct tenant tenant = {.rate = 10u << 20};
    uint64_t now = 1000;
    ck_assert(tenant_may_grant(&tenant, now));
    tenant_granted(&tenant, 3u << 20); /* 1 MiB was there */
    ck_assert(!tenant_may_grant(&tenant, now));
    ck_assert(!tenant_may_grant(&tenant, now + 199));
    ck_assert(tenant_may_grant(&tenant, now + 201));
    ck_assert(tenant_may_grant(&tenant, now + 100000)); /* no more than the bucket holds */
    tenant_granted(&tenant, 1u << 20);
    ck_assert(!tenant_may_grant(&tenant, now + 100000));
    tenant.rate = 0;
    tenant_granted(&tenant, UINT64_MAX / 4);
    ck_assert(tenant_may_grant(&tenant, now));
}

int main(void)
{
    return run_tests("tenants", NULL, NULL);
}
