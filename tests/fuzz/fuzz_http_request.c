/* Foreign bytes as HTTP requests: the verdict does not depend on how they arrive. */
#include <string.h>

#include "daemon/base/http.h"
#include "tests/fuzz/fuzz.h"

#define PARTS_MAX 1024u /* larger inputs are not tried in every length: it is quadratic */

static bool is_known(int verdict)
{
    return verdict == HTTP_INCOMPLETE || verdict == HTTP_GOOD || verdict == 400 || verdict == 413 || verdict == 431 ||
           verdict == 505;
}

/* Memory of exactly the size, so that sanitizers see one read too many. */
static int parse_part(const uint8_t *data, size_t size, struct http_request *request)
{
    char *copy = malloc(size > 0 ? size : 1);
    require(copy != NULL);
    memcpy(copy, data, size);
    int verdict = http_request_parse(copy, size, request);
    free(copy);
    return verdict;
}

static void check_request(const struct http_request *request, size_t size)
{
    require(request->size > 0 && request->size <= size && request->size <= HTTP_HEAD_MAX);
    require(memchr(request->path, 0, sizeof(request->path)) != NULL);
    for (const char *at = request->path; *at != 0; at++)
        require((uint8_t)*at > ' ' && *at != '?' && *at != 0x7f);
}

/* The first verdict that is none of "more" stays, whatever follows. */
static void check_parts(const uint8_t *data, size_t size, int whole)
{
    struct http_request request;
    int verdict = HTTP_INCOMPLETE;
    for (size_t part = 0; part <= size && verdict == HTTP_INCOMPLETE; part++)
        verdict = parse_part(data, part, &request);
    require(verdict == whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request request;
    size_t at = 0;
    for (int verdict = HTTP_GOOD; verdict == HTTP_GOOD; at += request.size) {
        memset(&request, 0xA5, sizeof(request));
        verdict = parse_part(data + at, size - at, &request);
        require(is_known(verdict));
        if (verdict == HTTP_GOOD)
            check_request(&request, size - at);
        if (size <= PARTS_MAX)
            check_parts(data + at, size - at, verdict);
        if (verdict != HTTP_GOOD)
            break;
    }
    return 0;
}
