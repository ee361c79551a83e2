#include "bench/transfer_wires.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "tools/util.h"

#define ANSWER_BYTES   (256u * 1024)
#define ANSWER_SECONDS 5

/* ---- The daemon's answer ----------------------------------------------------------------------------------------- */

/* The port that the daemon has chosen, from its log; 0: not logged yet. */
static unsigned find_port(const struct bench_side *side)
{
    char line[512];
    FILE *file = fopen(side->log, "re");
    unsigned port = 0;

    while (file != NULL && port == 0 && fgets(line, sizeof(line), file) != NULL) {
        const char *said = strstr(line, "msg=\"metrics served\" port=");
        if (said != NULL && sscanf(strstr(said, "port="), "port=%u", &port) != 1)
            port = 0;
    }
    if (file != NULL)
        fclose(file);
    return port;
}

static int dial(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval patience = {.tv_sec = ANSWER_SECONDS};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0 ||
                    connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool get(int fd, char *text, size_t size)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    size_t used = 0;
    ssize_t got = 1;

    if (write(fd, request, sizeof(request) - 1) != (ssize_t)sizeof(request) - 1)
        return false;
    while (got > 0 && used + 1 < size) {
        got = read(fd, text + used, size - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    text[used] = '\0';
    return got == 0 && strncmp(text, "HTTP/1.1 200", 12) == 0;
}

bool bench_side_wires(const struct bench_side *side, struct wire_figures *figures)
{
    unsigned port = find_port(side);
    int fd = port == 0 ? -1 : dial(port);
    char *text = malloc(ANSWER_BYTES);
    bool answered = fd >= 0 && text != NULL && get(fd, text, ANSWER_BYTES);

    if (answered)
        wire_figures_read(figures, text);
    else
        print_error(NULL, "the daemon of %s tells no metrics", side->name);
    if (fd >= 0)
        close(fd);
    free(text);
    return answered;
}

/* ---- Figures ----------------------------------------------------------------------------------------------------- */

static uint64_t *find_wire(struct wire_figures *figures, const char *name)
{
    for (unsigned i = 0; i < figures->count; i++)
        if (strcmp(figures->wires[i].name, name) == 0)
            return &figures->wires[i].bytes;
    if (figures->count == WIRES_MAX)
        return NULL;
    snprintf(figures->wires[figures->count].name, WIRE_NAME_BYTES, "%s", name);
    return &figures->wires[figures->count++].bytes;
}

/* Counts only lines like `{wire="peer",direction="sent"} 42`: with landed bytes, all would be counted twice. */
static void read_line(struct wire_figures *figures, const char *line)
{
    char name[WIRE_NAME_BYTES];
    unsigned long long bytes;
    size_t length = strcspn(line, "\n");
    const char *wire = strstr(line, "wire=\""), *close = strchr(line, '}'), *landed = strstr(line, "\"landed\"");
    uint64_t *sum;

    if (wire == NULL || close == NULL || wire > close || close > line + length || (landed != NULL && landed < close) ||
        sscanf(wire, "wire=\"%15[^\"]\"", name) != 1 || sscanf(close, "} %llu", &bytes) != 1)
        return;
    sum = find_wire(figures, name);
    if (sum != NULL)
        *sum += bytes;
}

void wire_figures_read(struct wire_figures *figures, const char *text)
{
    static const char family[] = "\nstrait_wire_bytes_total{";

    *figures = (struct wire_figures){0};
    while ((text = strstr(text, family)) != NULL) {
        text += sizeof(family) - 1;
        read_line(figures, text);
    }
}

void wire_figures_add(struct wire_figures *used, const struct wire_figures *before, const struct wire_figures *now)
{
    struct wire_figures was = *before;

    for (unsigned i = 0; i < now->count; i++) {
        uint64_t *sum = find_wire(used, now->wires[i].name), *old = find_wire(&was, now->wires[i].name);
        if (sum != NULL)
            *sum += now->wires[i].bytes - (old != NULL ? *old : 0);
    }
}

uint64_t wire_figures_of(const struct wire_figures *figures, const char *name)
{
    for (unsigned i = 0; i < figures->count; i++)
        if (strcmp(figures->wires[i].name, name) == 0)
            return figures->wires[i].bytes;
    return 0;
}

void wire_figures_name(const struct wire_figures *used, char text[WIRES_TEXT_BYTES])
{
    size_t at = 0;

    for (unsigned i = 0; i < used->count; i++)
        if (used->wires[i].bytes > 0)
            at += (size_t)snprintf(text + at, WIRES_TEXT_BYTES - at, "%s%s", at > 0 ? "+" : "", used->wires[i].name);
    if (at == 0)
        snprintf(text, WIRES_TEXT_BYTES, "-");
}
