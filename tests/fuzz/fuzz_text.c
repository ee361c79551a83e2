/* Foreign bytes as text: addresses, options, HTTP requests and headers of safetensors. */
#include <string.h>

#include "daemon/base/address.h"
#include "daemon/base/http.h"
#include "daemon/base/options.h"
#include "daemon/base/tenants.h"
#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tools/input.h"

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

/* What is read as a number is written so that it is read as the same number. */
static void check_number(const char *host, unsigned port)
{
    struct sockaddr_storage address, back;
    char text[ADDRESS_TEXT_MAX], again[ADDRESS_HOST_MAX];
    unsigned read = 0;
    if (address_numeric(host, port, &address) != ADDRESS_NUMERIC)
        return;
    require(address_split(address_text(&address, text), again, &read) && read == port);
    require(address_numeric(again, read, &back) == ADDRESS_NUMERIC && address_equal(&address, &back));
    require(address_is_loopback(&address) == address_is_loopback(&back));
    require(!address_is_loopback(&address) || !address_is_wildcard(&address));
}

/* A list that peers or clients send: each item of a good one can be dialled, and what the daemon would advertise of it
 * is such a list again. */
void fuzz_address(const uint8_t *data, size_t size)
{
    const struct address_list nowhere = {0};
    char *list = malloc(size + 1), item[ADDRESS_TEXT_MAX], host[ADDRESS_HOST_MAX], told[257], why[256];
    unsigned port = 0;
    require(list != NULL);
    memcpy(list, data, size);
    list[size] = 0;
    const bool good = address_list_ok(list);
    for (const char *rest = list; rest != NULL;) {
        rest = address_next(rest, item);
        const bool split = address_split(item, host, &port);
        require(split || !good);
        if (split)
            check_number(host, port);
    }
    require(address_lists_meet(list, list) || !good);
    if (list[0] != 0 && address_advertise(list, &nowhere, told, sizeof(told), why, sizeof(why)) == STRAIT_OK)
        require(good && (told[0] == 0 || address_list_ok(told)));
    free(list);
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

static void check_print(const struct node_options *options)
{
    struct node_options back;
    struct option_error error;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    require(out != NULL);
    options_print(options, out);
    require(fclose(out) == 0);
    options_default(&back);
    require(options_text(&back, text, size, "printed", &error) == STRAIT_OK);
    require(memcmp(options, &back, sizeof(back)) == 0);
    free(text);
}

/* The same bytes as variables or flags, cut at newlines: never worse than an error. */
static void parse_words(const uint8_t *data, size_t size)
{
    char *words[18] = {(char *)"straitd"}, *copy = malloc(size + 1);
    struct node_options options;
    struct option_error error;
    int count = 1;
    require(copy != NULL);
    memcpy(copy, data, size);
    copy[size] = 0;
    for (char *word = strtok(copy, "\n"); word != NULL && count < 17; word = strtok(NULL, "\n"))
        words[count++] = word;
    options_default(&options);
    options_environment(&options, words, &error);
    options_flags(&options, count, words, &error);
    check_print(&options);
    free(copy);
}

/* A file of options: what is read is printed and read again. */
void fuzz_options(const uint8_t *data, size_t size)
{
    struct node_options before, options;
    struct option_error error = {{0}};
    options_default(&before);
    options_default(&options);
    if (options_text(&options, (const char *)data, size, "input", &error) == STRAIT_OK) {
        check_print(&options);
    } else {
        require(strncmp(error.text, "input:", 6) == 0);
        require(memcmp(&before, &options, sizeof(options)) == 0);
    }
    parse_words(data, size);
}

/* Names are there once, and ids belong to tenants. */
static void check_tenants(const struct tenants *tenants)
{
    require(tenants->count >= 1 && tenants->count <= TENANTS_MAX && tenants->id_count <= TENANT_IDS_MAX);
    require(strcmp(tenants->list[0].name, "default") == 0 && !tenants->list[0].removed);
    for (uint32_t i = 0; i < tenants->count; i++) {
        const char *name = tenants->list[i].name;
        require(name[TENANT_NAME_MAX] == 0 && (name[0] != 0 || !tenant_is_there(&tenants->list[i])));
        for (uint32_t other = 0; other < i && name[0] != 0; other++)
            require(strcmp(name, tenants->list[other].name) != 0);
    }
    for (uint32_t i = 0; i < tenants->id_count; i++) {
        const uint32_t tenant = tenants->ids[i].tenant;
        require(tenant > 0 && tenant < tenants->count && !tenants->list[tenant].removed);
    }
}

/* Whether the text is a file of tenants: it is taken whole, or not at all. */
static bool read_tenants(struct tenants *tenants, const uint8_t *data, size_t size)
{
    static struct tenants before;
    struct option_error error = {{0}};
    tenants_default(&before);
    tenants_default(tenants);
    const bool good = tenants_text(tenants, (const char *)data, size, "input", &error) == STRAIT_OK;
    require(good || strncmp(error.text, "input:", 6) == 0);
    require(good || memcmp(&before, tenants, sizeof(before)) == 0);
    check_tenants(tenants);
    return good;
}

/* Nothing in use is lost or moved. */
static void follow_tenants(struct tenants *fresh, const struct tenants *now)
{
    static struct tenants before;
    before = *fresh;
    if (!tenants_follow(fresh, now)) {
        require(memcmp(&before, fresh, sizeof(before)) == 0);
        return;
    }
    check_tenants(fresh);
    for (uint32_t i = 0; i < now->count; i++)
        require(now->list[i].live == 0 ||
                (strcmp(fresh->list[i].name, now->list[i].name) == 0 && fresh->list[i].live == now->list[i].live));
    for (uint32_t i = 0; i < before.id_count; i++)
        require(strcmp(fresh->list[fresh->ids[i].tenant].name, before.list[before.ids[i].tenant].name) == 0);
}

/* Files of tenants, each after a form feed in place of the one before it; every second tenant is in use. */
void fuzz_tenants(const uint8_t *data, size_t size)
{
    static struct tenants now, fresh;
    const uint8_t *end = data + size;
    tenants_default(&now);
    for (;;) {
        const uint8_t *feed = data < end ? memchr(data, '\f', (size_t)(end - data)) : NULL;
        if (read_tenants(&fresh, data, (size_t)((feed != NULL ? feed : end) - data))) {
            for (uint32_t i = 1; i < now.count; i += 2)
                now.list[i].live = now.list[i].name[0] != 0;
            follow_tenants(&fresh, &now);
            now = fresh;
        }
        if (feed == NULL)
            break;
        data = feed + 1;
    }
}

/* ---- HTTP requests --------------------------------------------------------------------------------------------- */

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

/* HTTP requests: the verdict does not depend on how they arrive. */
void fuzz_http_request(const uint8_t *data, size_t size)
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
}

/* ---- Headers of safetensors ------------------------------------------------------------------------------------ */

/* What the header promises: tensors in order, apart, inside the file, after the header. */
static void check_tensors(const struct safetensors *list, uint64_t head_size, uint64_t file_size)
{
    uint64_t end = list->data_begin;
    require(list->data_begin >= 8 && list->data_begin <= head_size && list->data_begin <= file_size);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct safetensor *tensor = &list->tensors[i];
        require(tensor->begin >= end || tensor->begin == tensor->end);
        require(tensor->begin <= tensor->end && tensor->end <= file_size && tensor->begin >= list->data_begin);
        require(tensor->name != NULL && memchr(tensor->dtype, 0, sizeof(tensor->dtype)) != NULL);
        safetensors_element(tensor->dtype);
        end = tensor->end > end ? tensor->end : end;
    }
}

static void parse_tensors(const uint8_t *head, size_t head_size, uint64_t file_size)
{
    struct safetensors list;
    const char *why = NULL;
    safetensors_probe(head, head_size, file_size);
    if (safetensors_init(&list, head, head_size, file_size, &why) != STRAIT_OK) {
        require(why != NULL && why[0] != 0);
        return;
    }
    check_tensors(&list, head_size, file_size);
    safetensors_fini(&list);
}

/* The beginning of a safetensors file. The length of the header comes right when it is left out: the fuzzer then sees
 * to the JSON. */
void fuzz_safetensors(const uint8_t *data, size_t size)
{
    parse_tensors(data, size, size);
    parse_tensors(data, size, size + 65536);
    uint8_t *whole = malloc(size + 8);
    require(whole != NULL);
    store_le64(whole, size);
    memcpy(whole + 8, data, size);
    parse_tensors(whole, size + 8, size + 8 + 65536);
    free(whole);
}
