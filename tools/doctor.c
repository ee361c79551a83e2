#include "tools/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *const level_names[LEVELS] = {
    [LEVEL_OK] = "ok", [LEVEL_NOTE] = "note", [LEVEL_WARNING] = "warning", [LEVEL_ERROR] = "error"};

static struct finding *add(struct doctor *doctor)
{
    if (doctor->count == doctor->capacity) {
        const unsigned capacity = 2 * doctor->capacity + 16;
        struct finding *grown = realloc(doctor->list, capacity * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        doctor->list = grown;
        doctor->capacity = capacity;
    }
    return &doctor->list[doctor->count++];
}

void doctor_find(struct doctor *doctor, enum level level, const char *check, const char *change, const char *format,
                 ...)
{
    struct finding *finding = add(doctor);
    va_list arguments;
    if (finding == NULL)
        return;
    finding->level = level;
    finding->check = check;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof(finding->text), format, arguments);
    va_end(arguments);
    snprintf(finding->change, sizeof(finding->change), "%s", change != NULL ? change : "");
}

unsigned doctor_count(const struct doctor *doctor, enum level level)
{
    unsigned count = 0;
    for (unsigned i = 0; i < doctor->count; i++)
        count += doctor->list[i].level == level;
    return count;
}

void doctor_fini(struct doctor *doctor)
{
    free(doctor->list);
    cJSON_Delete(doctor->status);
    cJSON_Delete(doctor->examination);
}
