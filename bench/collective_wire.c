#include "bench/collective_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_BYTES ((size_t)64 << 10)
#define LAST         "the last: "
#define NUMBERS_MAX  9u

/* Indexes of the columns of numbers, after operation and type. The way, which may contain blanks, comes last. */
enum { CALLS = 0, COMPRESSED = 5, WIRE_BYTES = 6 };

/* Returns how many numbers there are and advances *text past them. */
static unsigned read_numbers(const char **text, uint64_t numbers[NUMBERS_MAX])
{
    unsigned count = 0;
    char *end;

    while (count < NUMBERS_MAX) {
        numbers[count] = strtoull(*text, &end, 10);
        if (end == *text)
            break;
        *text = end;
        count++;
    }
    return count;
}

static void read_way(const char *text, char name[COLLECTIVE_WIRE_TEXT_BYTES])
{
    text += strspn(text, " ");
    if (strncmp(text, LAST, strlen(LAST)) == 0)
        text += strlen(LAST);
    snprintf(name, COLLECTIVE_WIRE_TEXT_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
}

static bool parse_line(const char *line, const char *operation, const char *type, struct collective_wire *wire)
{
    uint64_t numbers[NUMBERS_MAX] = {0};
    char words[2][32];
    int words_end = 0;

    if (sscanf(line, "%31s %31s%n", words[0], words[1], &words_end) != 2 || strcmp(words[0], operation) != 0 ||
        strcmp(words[1], type) != 0)
        return false;
    line += words_end;
    if (read_numbers(&line, numbers) <= CALLS)
        return false;
    wire->calls = numbers[CALLS];
    wire->compressed = numbers[COMPRESSED];
    wire->bytes = numbers[WIRE_BYTES];
    read_way(line, wire->name);
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
        if (parse_line(line, operation, name, wire))
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

void collective_wire_since(struct collective_wire *wire, const struct collective_wire *before)
{
    wire->calls -= before->calls;
    wire->compressed -= before->compressed;
    wire->bytes -= before->bytes;
}
