#include "bench/collective_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_BYTES ((size_t)64 << 10)

/* operation, type, five numbers, and the way, which may have blanks. */
static bool parse_line(const char *line, const char *operation, const char *type, char *way)
{
    char words[2][32], text[256];
    unsigned long long numbers[5];

    if (sscanf(line, "%31s %31s %llu %llu %llu %llu %llu %255[^\n]", words[0], words[1], &numbers[0], &numbers[1],
               &numbers[2], &numbers[3], &numbers[4], text) != 8 ||
        strcmp(words[0], operation) != 0 || strcmp(words[1], type) != 0)
        return false;
    snprintf(way, COLLECTIVE_WIRE_TEXT_BYTES, "%.*s", (int)COLLECTIVE_WIRE_TEXT_BYTES - 1, text);
    return true;
}

void collective_wire_parse(const char *report, enum collective_op op, enum collective_type type,
                           struct collective_wire *wire)
{
    const char *operation = op == COLLECTIVE_SENDRECV ? "send" : collective_op_names[op];
    const char *name = type == COLLECTIVE_FP32_BF16 ? "fp32" : collective_type_names[type];

    *wire = (struct collective_wire){.name = "-"};
    for (const char *line = report; line != NULL; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        if (parse_line(line, operation, name, wire->name))
            return;
    }
}

void collective_wire_read(const struct collective_library *library, coll_comm comm, enum collective_op op,
                          enum collective_type type, struct collective_wire *wire)
{
    char *text = library->report != NULL ? malloc(REPORT_BYTES) : NULL;

    *wire = (struct collective_wire){.name = "-"};
    if (text != NULL && library->report(comm, text, REPORT_BYTES) > 0)
        collective_wire_parse(text, op, type, wire);
    free(text);
}
