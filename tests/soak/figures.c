#include "tests/soak/figures.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT_ROOM (256u * 1024)

/* ---- /metrics ---------------------------------------------------------------------------------------------------- */

static int dial(unsigned port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const struct timeval patience = {.tv_sec = 10};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool receive_all(int fd, char *text)
{
    size_t used = 0;
    ssize_t got;
    while ((got = recv(fd, text + used, TEXT_ROOM - 1 - used, 0)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    return got == 0 && strncmp(text, "HTTP/1.1 200", 12) == 0;
}

char *figures_fetch(const struct soak_daemon *daemon)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char *text = malloc(TEXT_ROOM);
    int fd = dial(daemon->metrics_port);
    bool good =
        text != NULL && fd >= 0 && send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0 && receive_all(fd, text);
    if (fd >= 0)
        close(fd);
    if (good)
        return text;
    free(text);
    return NULL;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL ? end + 1 : NULL;
}

int64_t figure_read(const char *text, const char *name)
{
    size_t size = strlen(name);
    for (const char *line = text; line != NULL; line = next_line(line))
        if (strncmp(line, name, size) == 0 && line[size] == ' ')
            return atoll(line + size);
    return -1;
}

int64_t figure_sum(const char *text, const char *family)
{
    size_t size = strlen(family);
    int64_t sum = 0, found = 0;
    for (const char *line = text; line != NULL; line = next_line(line)) {
        const char *labels_end = strncmp(line, family, size) == 0 && line[size] == '{' ? strchr(line, '}') : NULL;
        if (labels_end == NULL)
            continue;
        sum += atoll(labels_end + 1);
        found++;
    }
    return found != 0 ? sum : -1;
}

struct bucket {
    double bound, below;
};

static bool read_bucket(const char *line, const char *family, struct bucket *bucket)
{
    size_t size = strlen(family);
    char bound[32];
    if (strncmp(line, family, size) != 0 ||
        sscanf(line + size, "_bucket{le=\"%31[^\"]\"} %lf", bound, &bucket->below) != 2)
        return false;
    bucket->bound = strtod(bound, NULL); /* "+Inf" too */
    return true;
}

static double within(const struct bucket *lower, const struct bucket *upper, double rank)
{
    if (isinf(upper->bound))
        return upper->bound;
    return lower->bound + (upper->bound - lower->bound) * (rank - lower->below) / (upper->below - lower->below);
}

double figure_quantile(const char *text, const char *family, double quantile)
{
    char name[128];
    snprintf(name, sizeof(name), "%s_count", family);
    double rank = quantile * (double)figure_read(text, name);
    struct bucket lower = {0, 0}, bucket;
    for (const char *line = text; rank > 0 && line != NULL; line = next_line(line)) {
        if (!read_bucket(line, family, &bucket))
            continue;
        if (bucket.below >= rank)
            return within(&lower, &bucket, rank);
        lower = bucket;
    }
    return -1;
}

/* ---- /proc ------------------------------------------------------------------------------------------------------- */

static bool read_status(pid_t pid, struct process_size *size)
{
    char path[64], line[128];
    unsigned long resident = 0, anonymous = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "VmRSS: %lu", &resident);
        (void)sscanf(line, "RssAnon: %lu", &anonymous);
        (void)sscanf(line, "Threads: %u", &size->threads);
    }
    if (file != NULL)
        fclose(file);
    size->resident = (uint64_t)resident * 1024;
    size->anonymous = (uint64_t)anonymous * 1024;
    return resident != 0;
}

bool process_size_read(pid_t pid, struct process_size *size)
{
    char path[64];
    *size = (struct process_size){0};
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        size->descriptors += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return read_status(pid, size);
}
