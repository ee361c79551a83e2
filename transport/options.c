#include "transport/options.h"

#include <string.h>

enum strait_status option_next(const char **options, struct option *option)
{
    option->name = NULL;
    if (*options == NULL)
        return STRAIT_OK;
    const char *start = *options + strspn(*options, " ");
    size_t size = strcspn(start, " ");
    *options = start + size;
    if (size == 0)
        return STRAIT_OK;
    if (size >= sizeof(option->text))
        return STRAIT_ERR_INVALID;
    memcpy(option->text, start, size);
    option->text[size] = '\0';
    char *equals = strchr(option->text, '=');
    if (equals == NULL || equals == option->text)
        return STRAIT_ERR_INVALID;
    *equals = '\0';
    option->name = option->text;
    option->value = equals + 1;
    return STRAIT_OK;
}

enum strait_status options_none(const char *options)
{
    struct option option;
    enum strait_status status = option_next(&options, &option);
    return status == STRAIT_OK && option.name != NULL ? STRAIT_ERR_INVALID : status;
}
