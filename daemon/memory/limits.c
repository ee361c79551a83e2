#include "daemon/memory/limits.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* The first number of a file. False: there is none, as in "max". */
static bool read_number(const char *path, uint64_t *value)
{
    FILE *file = fopen(path, "re");
    const bool found = file != NULL && fscanf(file, "%" SCNu64, value) == 1;
    if (file != NULL)
        fclose(file);
    return found;
}

/* The number behind a name in a file with a name and a number in each line; 0: there is none. */
static uint64_t read_named(const char *path, const char *name)
{
    char key[64];
    uint64_t value = 0, found = 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && found == 0 && fscanf(file, "%63s %" SCNu64, key, &value) == 2)
        found = strcmp(key, name) == 0 ? value : 0;
    if (file != NULL)
        fclose(file);
    return found;
}

/* ---- Control groups ---------------------------------------------------------------------------------------------- */

/* Names of its files, and of what memory.stat calls the memory of files that nobody has used for a while. */
static const struct version {
    const char *type, *limit, *used, *inactive;
} versions[] = {
    {"cgroup2", "memory.max", "memory.current", "inactive_file"},
    {"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};
#define UNLIMITED ((uint64_t)1 << 60) /* version 1 tells the largest number of whole pages */

/* Takes the group's limit if it leaves less than the one so far. */
static void take_group(const struct version *version, const char *folder, struct memory_limit *limit)
{
    char path[3 * PATH_MAX];
    uint64_t bytes, used;
    snprintf(path, sizeof(path), "%s/%s", folder, version->used);
    if (!read_number(path, &used))
        return;
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    const uint64_t inactive = read_named(path, version->inactive);
    used -= inactive < used ? inactive : used;
    snprintf(path, sizeof(path), "%s/%s", folder, version->limit);
    if (!read_number(path, &bytes) || bytes >= UNLIMITED)
        return;
    const uint64_t left = bytes > used ? bytes - used : 0;
    if (limit->bytes != UINT64_MAX && left >= (limit->bytes > limit->used ? limit->bytes - limit->used : 0))
        return;
    limit->bytes = bytes;
    limit->used = used;
    snprintf(limit->file, sizeof(limit->file), "%.255s", path);
}

/* Finds where the group of this process is: in a line of /proc/self/cgroup, "0::/path" or "4:memory:/path". */
static bool group_path(const char *root, bool second, char path[PATH_MAX])
{
    char line[PATH_MAX + 64];
    bool found = false;
    snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':'), *at = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (at == NULL)
            continue;
        *at++ = 0;
        at[strcspn(at, "\n")] = 0;
        for (char *rest = controllers + 1, *name; !found && (name = strsep(&rest, ",")) != NULL;)
            found = strcmp(name, second ? "" : "memory") == 0;
        if (found)
            snprintf(path, PATH_MAX, "%s", at);
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* The groups from that of this process up to the one that is mounted; in a container that is often its own. */
static void take_groups(const char *root, const struct version *version, const char *mounted, const char *mount_point,
                        struct memory_limit *limit)
{
    char path[PATH_MAX], folder[2 * PATH_MAX + 64];
    if (!group_path(root, version == &versions[0], path))
        return;
    const size_t size = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    const bool inside = strncmp(path, mounted, size) == 0 && (path[size] == '/' || path[size] == 0);
    snprintf(folder, sizeof(folder), "%s%s%s", root, mount_point, inside ? path + size : "");
    const size_t top = strlen(root) + strlen(mount_point);
    while (strlen(folder) >= top) {
        take_group(version, folder, limit);
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) == top)
            return;
        *slash = 0;
    }
}

void memory_limit_read(const char *root, struct memory_limit *limit)
{
    char line[4 * PATH_MAX], mounted[PATH_MAX], mount_point[PATH_MAX], type[32], options[PATH_MAX];
    *limit = (struct memory_limit){.bytes = UINT64_MAX};
    snprintf(line, sizeof(line), "%s/proc/self/mountinfo", root);
    FILE *file = fopen(line, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *rest = strstr(line, " - ");
        if (rest == NULL || sscanf(line, "%*s %*s %*s %4095s %4095s", mounted, mount_point) != 2 ||
            sscanf(rest, " - %31s %*s %4095s", type, options) != 2)
            continue;
        for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
            if (strcmp(type, versions[i].type) == 0 && (i == 0 || strstr(options, "memory") != NULL))
                take_groups(root, &versions[i], mounted, mount_point, limit);
    }
    if (file != NULL)
        fclose(file);
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

bool memory_fits(uint64_t bytes, const struct memory_limit *limit, char *why, size_t why_size)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t there = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    const uint64_t left = limit->bytes > limit->used ? limit->bytes - limit->used : 0;
    if (bytes > there)
        snprintf(why, why_size, "%" PRIu64 " MiB, where this machine has %" PRIu64, bytes >> 20, there >> 20);
    else if (limit->bytes != UINT64_MAX && bytes > left)
        snprintf(why, why_size, "%" PRIu64 " MiB, where %s allows %" PRIu64 " MiB, of which %" PRIu64 " are in use",
                 bytes >> 20, limit->file, limit->bytes >> 20, limit->used >> 20);
    else
        return true;
    return false;
}

void memory_rlimits_text(char *text, size_t size)
{
    static const struct {
        int resource;
        const char *name;
    } limits[] = {{RLIMIT_AS, "RLIMIT_AS"}, {RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK"}};
    struct rlimit limit;
    text[0] = 0;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        const size_t used = strlen(text);
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
            snprintf(text + used, size - used, "%s%s is %" PRIu64 " MiB", used > 0 ? ", " : "", limits[i].name,
                     (uint64_t)limit.rlim_cur >> 20);
    }
}
