#include "bench/machine.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "tools/util.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static void copy_text(char text[MACHINE_TEXT_BYTES], const char *from)
{
    snprintf(text, MACHINE_TEXT_BYTES, "%.*s", (int)strcspn(from, "\n"), from);
}

static void find_cpu(char text[MACHINE_TEXT_BYTES])
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");

    copy_text(text, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            copy_text(text, colon + 1 + strspn(colon + 1, " "));
            break;
        }
    }
    if (file != NULL)
        fclose(file);
}

/* The first line of a file. */
static void read_line(char text[MACHINE_TEXT_BYTES], const char *path)
{
    char line[MACHINE_TEXT_BYTES];
    FILE *file = fopen(path, "re");

    copy_text(text, file != NULL && fgets(line, sizeof(line), file) != NULL ? line : "unknown");
    if (file != NULL)
        fclose(file);
}

/* Turns "always [madvise] never" into "madvise". */
static void keep_chosen(char text[MACHINE_TEXT_BYTES])
{
    char *begin = strchr(text, '[');
    char *end = begin == NULL ? NULL : strchr(begin, ']');

    if (end == NULL)
        return;
    *end = '\0';
    memmove(text, begin + 1, (size_t)(end - begin));
}

void machine_describe(struct machine *machine)
{
    struct utsname name;

    *machine = (struct machine){
        .compiler = COMPILER,
        .version = STRAIT_BENCH_VERSION,
        .commit = STRAIT_BENCH_COMMIT,
        .processors = cpu_count(),
        .load = -1,
    };
    find_cpu(machine->cpu);
    read_line(machine->cache, "/sys/devices/system/cpu/cpu0/cache/index3/size");
    read_line(machine->huge_pages, "/sys/kernel/mm/transparent_hugepage/enabled");
    keep_chosen(machine->huge_pages);
    copy_text(machine->kernel, "unknown");
    if (uname(&name) == 0)
        snprintf(machine->kernel, sizeof(machine->kernel), "%.32s %.64s", name.sysname, name.release);
    getloadavg(&machine->load, 1);
}
