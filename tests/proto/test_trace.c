/* What is read as a traceparent, and what is said of the others. */
#include <string.h>
#include <strait/strait.h>

#include "proto/trace.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define TRACE_ID  "0af7651916cd43dd8448eb211c80319c"
#define PARENT_ID "b7ad6b7169203331"
#define ZERO      "0000000000000000"

static const uint8_t ids[] = {0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21,
                              0x1c, 0x80, 0x31, 0x9c, 0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31};

static const struct {
    const char *text;
    uint8_t flags;
} good[] = {
    {"00-" TRACE_ID "-" PARENT_ID "-00", 0},
    {"00-" TRACE_ID "-" PARENT_ID "-01", 1},
    {"00-" TRACE_ID "-" PARENT_ID "-ff", 0xff}, /* flags that are not known yet */
    {"01-" TRACE_ID "-" PARENT_ID "-02", 2},    /* later versions, */
    {"fe-" TRACE_ID "-" PARENT_ID "-01-", 1},   /* with what they add */
    {"cc-" TRACE_ID "-" PARENT_ID "-01-what the future will be like", 1},
};

TEST_LOOP(a_traceparent_is_read, COUNT(good))
{
    uint8_t context[TRACE_BYTES];
    ck_assert_ptr_null(trace_parse(good[_i].text, context));
    ck_assert_ptr_null(strait_trace_check(good[_i].text));
    ck_assert_mem_eq(ids, context, sizeof(ids));
    ck_assert_uint_eq(good[_i].flags, context[TRACE_BYTES - 1]);
    ck_assert(trace_is_sampled(context) == ((good[_i].flags & 1) != 0));
    ck_assert(trace_is_valid(context));
}

static const struct {
    const char *text, *why;
} bad[] = {
    {"0", "the version"},
    {"0x-" TRACE_ID "-" PARENT_ID "-01", "the version"},
    {"-" TRACE_ID "-" PARENT_ID "-01", "the version"},
    {" 00-" TRACE_ID "-" PARENT_ID "-01", "the version"},
    {"ff-" TRACE_ID "-" PARENT_ID "-01", "version ff"},
    {"FF-" TRACE_ID "-" PARENT_ID "-01", "the version"},
    {"00", "a hyphen"},
    {"00_" TRACE_ID "-" PARENT_ID "-01", "a hyphen"},
    {"00-" TRACE_ID PARENT_ID "-01", "a hyphen"},
    {"00-" TRACE_ID "-" PARENT_ID "01", "a hyphen"},
    {"00-" TRACE_ID "-" PARENT_ID, "a hyphen"},
    {"00-", "the trace id is not"},
    {"00-0AF7651916CD43DD8448EB211C80319C-" PARENT_ID "-01", "the trace id is not"},
    {"00-0af7651916cd43dd8448eb211c80319-" PARENT_ID "-01", "the trace id is not"},
    {"00-0af7651916cd43dd8448eb211c80319g-" PARENT_ID "-01", "the trace id is not"},
    {"00-" TRACE_ID "-b7ad6b716920333-01", "the parent id is not"},
    {"00-" TRACE_ID "-B7AD6B7169203331-01", "the parent id is not"},
    {"00-" TRACE_ID "-" PARENT_ID "-", "the flags"},
    {"00-" TRACE_ID "-" PARENT_ID "-1", "the flags"},
    {"00-" TRACE_ID "-" PARENT_ID "-0G", "the flags"},
    {"00-" TRACE_ID "-" PARENT_ID "-01-", "something follows"}, /* not in version 00 */
    {"00-" TRACE_ID "-" PARENT_ID "-01 ", "something follows"},
    {"00-" TRACE_ID "-" PARENT_ID "-011", "something follows"},
    {"01-" TRACE_ID "-" PARENT_ID "-01.", "something follows"},
    {"00-" ZERO ZERO "-" PARENT_ID "-01", "the trace id is zero"},
    {"00-" TRACE_ID "-" ZERO "-01", "the parent id is zero"},
};

/* The text lies at the end of its memory, so that sanitizers see what is read beyond it. */
TEST_LOOP(what_is_no_traceparent_is_refused_with_a_text, COUNT(bad))
{
    uint8_t context[TRACE_BYTES];
    char *text = strdup(bad[_i].text);
    const char *why = trace_parse(text, context);
    ck_assert_ptr_nonnull(why);
    ck_assert_msg(strncmp(why, bad[_i].why, strlen(bad[_i].why)) == 0, "%s: %s", text, why);
    ck_assert_str_eq(why, strait_trace_check(text));
    free(text);
}

TEST(no_beginning_of_a_traceparent_is_one)
{
    uint8_t context[TRACE_BYTES];
    for (size_t size = 0; size < strlen(good[1].text); size++) {
        char *text = strndup(good[1].text, size);
        ck_assert_ptr_nonnull(trace_parse(text, context));
        free(text);
    }
}

TEST(none_is_no_mistake)
{
    ck_assert_ptr_null(strait_trace_check(NULL));
    ck_assert_ptr_null(strait_trace_check(""));
}

int main(void)
{
    return run_tests("trace", NULL, NULL);
}
