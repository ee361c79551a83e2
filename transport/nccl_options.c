#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/nccl_internal.h"

#define TIMEOUT_MS  10000u
#define TIMEOUT_MAX 3600000u
#define BLOCKS      8u
#define BLOCKS_MAX  32u

static bool read_number(const char *text, uint32_t max, uint32_t *number)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value == 0 || value > max)
        return false;
    *number = (uint32_t)value;
    return true;
}

/* NCCL rounds up to powers of two; only these are accepted, so that the number asked for is the number used. */
static bool read_blocks(const char *text, uint32_t *blocks)
{
    return read_number(text, BLOCKS_MAX, blocks) && (*blocks & (*blocks - 1)) == 0;
}

static bool read_library(const char *text, char library[OPTION_MAX])
{
    memcpy(library, text, strlen(text) + 1); /* fits, as it was part of an option */
    return library[0] == '/';
}

static bool can_carry(const struct transport_ops *ops)
{
    return !ops->direct && (ops->send_memory & TRANSPORT_HOST) != 0 && (ops->receive_memory & TRANSPORT_HOST) != 0;
}

static enum strait_status choose_carrier(const char *name, const struct transport_ops **carrier)
{
    *carrier = transport_find(name);
    if (*carrier == NULL) {
        nccl_lacks("no transport %s in this build, to carry what NCCL does not", name);
        return STRAIT_ERR_UNSUPPORTED;
    }
    return can_carry(*carrier) ? STRAIT_OK : STRAIT_ERR_INVALID;
}

static void pass_on(char *rest, const struct option *option)
{
    strcat(rest, option->name); /* `rest` has room for all of the text */
    strcat(rest, "=");
    strcat(rest, option->value);
    strcat(rest, " ");
}

static bool read_one(const struct option *option, struct nccl_options *options, const char **carrier, char *name)
{
    if (strcmp(option->name, "timeout_ms") == 0)
        return read_number(option->value, TIMEOUT_MAX, &options->timeout_ms);
    if (strcmp(option->name, "blocks") == 0)
        return read_blocks(option->value, &options->blocks);
    if (strcmp(option->name, "library") == 0)
        return read_library(option->value, options->library);
    if (strcmp(option->name, "carrier") == 0)
        *carrier = strcpy(name, option->value);
    else
        pass_on(options->rest, option);
    return true;
}

static enum strait_status read_all(const char *text, struct nccl_options *options)
{
    struct option option;
    char name[OPTION_MAX];
    const char *carrier = "ucx";
    do {
        enum strait_status status = option_next(&text, &option);
        if (status != STRAIT_OK)
            return status;
        if (option.name != NULL && !read_one(&option, options, &carrier, name))
            return STRAIT_ERR_INVALID;
    } while (option.name != NULL);
    return choose_carrier(carrier, &options->carrier);
}

enum strait_status nccl_options_read(const char *text, struct nccl_options *options)
{
    *options = (struct nccl_options){.timeout_ms = TIMEOUT_MS, .blocks = BLOCKS};
    options->rest = calloc(1, (text != NULL ? strlen(text) : 0) + 2); /* plus a blank after each option */
    if (options->rest == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = read_all(text, options);
    if (status != STRAIT_OK)
        free(options->rest);
    return status;
}
