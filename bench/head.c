#include "bench/head.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "tools/util.h"

bool command_line_init(struct command_line *line, int argc, char **argv)
{
    size_t size = ((size_t)argc + 1) * sizeof(argv[0]);

    *line = (struct command_line){argc, malloc(size)};
    if (line->argv == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    memcpy(line->argv, argv, size);
    return true;
}

void command_line_fini(struct command_line *line)
{
    free(line->argv);
}

void head_print(const struct machine *machine, const struct command_line *line, FILE *stream)
{
    fprintf(stream, "program   strait %s, commit %s, %s\n", machine->version, machine->commit, machine->compiler);
    fprintf(stream, "machine   %s, %u processor%s, L3 %s, %s, transparent huge pages: %s, load %.2f\n", machine->cpu,
            machine->processors, machine->processors == 1 ? "" : "s", machine->cache, machine->kernel,
            machine->huge_pages, machine->load);
    if (line == NULL)
        return;
    fprintf(stream, "command  ");
    for (int i = 0; i < line->argc; i++)
        fprintf(stream, " %s", line->argv[i]);
    fputc('\n', stream);
}

/* "transfer" of "strait bench transfer" */
static const char *bench_name(const char *command)
{
    const char *blank = strrchr(command, ' ');

    return blank != NULL ? blank + 1 : command;
}

void head_json(cJSON *root, const struct machine *machine, const struct command_line *line)
{
    cJSON *object = cJSON_AddObjectToObject(root, "machine"), *command;

    cJSON_AddStringToObject(root, "version", machine->version);
    cJSON_AddStringToObject(root, "commit", machine->commit);
    cJSON_AddStringToObject(root, "compiler", machine->compiler);
    cJSON_AddStringToObject(object, "cpu", machine->cpu);
    cJSON_AddNumberToObject(object, "processors", machine->processors);
    cJSON_AddStringToObject(object, "l3", machine->cache);
    cJSON_AddStringToObject(object, "kernel", machine->kernel);
    cJSON_AddStringToObject(object, "transparent_huge_pages", machine->huge_pages);
    cJSON_AddNumberToObject(object, "load", machine->load);
    if (line == NULL)
        return;
    command = cJSON_AddArrayToObject(root, "command");
    for (int i = 0; i < line->argc; i++)
        cJSON_AddItemToArray(command, cJSON_CreateString(i == 0 ? bench_name(line->argv[0]) : line->argv[i]));
}
