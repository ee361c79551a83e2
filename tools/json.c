#include "tools/json.h"

#include <cjson/cJSON.h>

#include "tools/util.h"

#define HEX_BYTES_MAX 32u

bool json_print(cJSON *object, FILE *stream)
{
    char *text = cJSON_Print(object);
    bool printed = text != NULL && fprintf(stream, "%s\n", text) > 0 && fflush(stream) == 0;

    if (!printed)
        print_error(NULL, "cannot print the report");
    cJSON_free(text);
    cJSON_Delete(object);
    return printed;
}

void json_add_hex(cJSON *object, const char *name, const uint8_t *bytes, size_t size)
{
    char hex[2 * HEX_BYTES_MAX + 1] = "";

    for (size_t i = 0; i < size && i < HEX_BYTES_MAX; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    cJSON_AddStringToObject(object, name, hex);
}

void json_add_known(cJSON *object, const char *name, double value)
{
    if (value > 0)
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddNullToObject(object, name);
}
