#include "daemon/equipment/http_request.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#define BAD      400
#define BODY     413
#define TOO_LONG 431
#define VERSION  505

struct span {
    const char *data;
    size_t size;
};

/* What the header fields say. */
struct fields {
    unsigned hosts;
    bool close, body;
};

static bool is_token(struct span text)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == 0 || strchr(others, c) == NULL))
            return false;
    }
    return text.size > 0;
}

static bool is_text(struct span text, uint8_t least)
{
    for (size_t i = 0; i < text.size; i++)
        if (((uint8_t)text.data[i] < least && text.data[i] != '\t') || text.data[i] == 0x7f)
            return false;
    return true;
}

static bool equals(struct span text, const char *word)
{
    return text.size == strlen(word) && strncasecmp(text.data, word, text.size) == 0;
}

/* Splits off the text up to `stop`; all of it when there is none. */
static struct span cut(struct span *rest, char stop)
{
    const char *found = rest->size > 0 ? memchr(rest->data, stop, rest->size) : NULL;
    size_t size = found != NULL ? (size_t)(found - rest->data) : rest->size;
    struct span head = {rest->data, size};
    size += found != NULL;
    rest->data += size;
    rest->size -= size;
    return head;
}

static struct span trim(struct span text)
{
    while (text.size > 0 && (text.data[0] == ' ' || text.data[0] == '\t')) {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == '\t'))
        text.size--;
    return text;
}

/* ---- The request line -------------------------------------------------------------------------------------------- */

/* "/path?query", or with "http://host" in front, as to a proxy. */
static bool parse_target(struct span target, char path[HTTP_PATH_MAX])
{
    if (!is_text(target, 0x21) || memchr(target.data, '\t', target.size) != NULL)
        return false;
    if (target.size >= 7 && strncasecmp(target.data, "http://", 7) == 0) {
        const char *slash = memchr(target.data + 7, '/', target.size - 7);
        size_t before = slash != NULL ? (size_t)(slash - target.data) : target.size;
        target = (struct span){target.data + before, target.size - before};
    }
    struct span name = cut(&target, '?');
    size_t size = name.size < HTTP_PATH_MAX ? name.size : HTTP_PATH_MAX - 1;
    memcpy(path, name.data, size);
    path[size] = 0;
    return true;
}

/* HTTP/1.0 and any HTTP/1.x. */
static int parse_version(struct span version, bool *old)
{
    bool shaped = version.size == 8 && memcmp(version.data, "HTTP/", 5) == 0 && version.data[6] == '.' &&
                  version.data[5] >= '0' && version.data[5] <= '9' && version.data[7] >= '0' && version.data[7] <= '9';
    if (!shaped)
        return BAD;
    *old = version.data[7] == '0';
    return version.data[5] == '1' ? HTTP_GOOD : VERSION;
}

static int parse_first_line(struct span line, struct http_request *request, bool *old)
{
    struct span method = cut(&line, ' '), target = cut(&line, ' ');
    if (!is_token(method) || target.size == 0 || !parse_target(target, request->path))
        return BAD;
    request->method = method.size == 3 && memcmp(method.data, "GET", 3) == 0    ? HTTP_GET
                      : method.size == 4 && memcmp(method.data, "HEAD", 4) == 0 ? HTTP_HEAD
                                                                                : HTTP_OTHER;
    return parse_version(line, old);
}

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

static bool is_zero(struct span number)
{
    for (size_t i = 0; i < number.size; i++)
        if (number.data[i] != '0')
            return false;
    return number.size > 0;
}

static bool is_number(struct span number)
{
    for (size_t i = 0; i < number.size; i++)
        if (number.data[i] < '0' || number.data[i] > '9')
            return false;
    return number.size > 0;
}

static void note_connection(struct span value, struct fields *fields)
{
    while (value.size > 0)
        if (equals(trim(cut(&value, ',')), "close"))
            fields->close = true;
}

static int parse_field(struct span line, struct fields *fields)
{
    if (memchr(line.data, ':', line.size) == NULL)
        return BAD;
    struct span name = cut(&line, ':'), value = trim(line);
    if (!is_token(name) || !is_text(value, 0x20))
        return BAD;
    if (equals(name, "host"))
        fields->hosts++;
    else if (equals(name, "connection"))
        note_connection(value, fields);
    else if (equals(name, "transfer-encoding"))
        fields->body = true;
    else if (equals(name, "content-length") && !is_number(value))
        return BAD;
    else if (equals(name, "content-length") && !is_zero(value))
        fields->body = true;
    return HTTP_GOOD;
}

static int parse_fields(struct span rest, struct fields *fields)
{
    while (rest.size > 0) {
        struct span line = cut(&rest, '\n');
        line.size--; /* its CR, see find_head */
        int verdict = parse_field(line, fields);
        if (verdict != HTTP_GOOD)
            return verdict;
    }
    return HTTP_GOOD;
}

/* ---- The whole head ---------------------------------------------------------------------------------------------- */

/* Empty lines before a request are allowed. */
static size_t skip_empty_lines(const char *data, size_t size)
{
    size_t at = 0;
    while (size - at >= 2 && data[at] == '\r' && data[at + 1] == '\n')
        at += 2;
    return at;
}

/* Finds the empty line that ends the head and makes sure that every line ends with CR LF. *end: the position behind
 * it. */
static int find_head(const char *data, size_t size, size_t begin, size_t *end)
{
    size_t line = begin;
    for (size_t i = begin; i < size && i < HTTP_HEAD_MAX; i++) {
        if (data[i] != '\n')
            continue;
        if (i == line || data[i - 1] != '\r')
            return BAD;
        *end = i + 1;
        if (i == line + 1)
            return HTTP_GOOD;
        line = i + 1;
    }
    return size >= HTTP_HEAD_MAX ? TOO_LONG : HTTP_INCOMPLETE;
}

static int parse_head(struct span head, struct http_request *request)
{
    struct fields fields = {0};
    bool old = false;
    struct span line = cut(&head, '\n');
    line.size--;
    int verdict = parse_first_line(line, request, &old);
    if (verdict == HTTP_GOOD)
        verdict = parse_fields(head, &fields);
    if (verdict != HTTP_GOOD)
        return verdict;
    if (fields.hosts > 1 || (fields.hosts == 0 && !old))
        return BAD;
    request->close = old || fields.close;
    return fields.body ? BODY : HTTP_GOOD;
}

int http_request_parse(const char *data, size_t size, struct http_request *request)
{
    struct http_request parsed = {0};
    size_t begin = skip_empty_lines(data, size), end = 0;
    int verdict = find_head(data, size, begin, &end);
    if (verdict != HTTP_GOOD)
        return verdict;
    verdict = parse_head((struct span){data + begin, end - begin - 2}, &parsed);
    parsed.size = end;
    if (verdict == HTTP_GOOD)
        *request = parsed;
    return verdict;
}
