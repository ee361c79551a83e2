#include "tools/ask.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <strait/strait.h>

#include "tools/util.h"

#define PROBE_MS 500u /* a running daemon has answered by then; otherwise find out why not */
#define MS_NS    UINT64_C(1000000)

static void tell(struct asked *daemon, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(struct asked *daemon, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(daemon->why, sizeof(daemon->why), format, arguments);
    va_end(arguments);
}

/* ---- The socket -------------------------------------------------------------------------------------------------- */

/* Checks the socket's file only. Returns 0 or errno. */
static int look_at_socket(const char *path)
{
    if (strlen(path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
        return ENAMETOOLONG;
    return access(path, W_OK) == 0 ? 0 : errno;
}

/* Tries once to connect, as the library does repeatedly. Returns 0, and the socket, or errno. */
static int try_socket(const char *path, int *fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return errno;
    int error = connect(*fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
    if (error != 0)
        close(*fd);
    return error;
}

static bool is_reachable(struct asked *daemon, int error)
{
    switch (error) {
    case 0:
        return true;
    case ENOENT:
        tell(daemon, "no such socket: straitd does not run here, or on another socket (--socket)");
        break;
    case ECONNREFUSED:
        tell(daemon, "nobody listens there: straitd was killed and left its socket, or this is no socket");
        break;
    case EACCES:
    case EPERM:
        tell(daemon, "no permission: users of the socket's group may connect");
        break;
    case EAGAIN:
        tell(daemon, "straitd does not accept connections: it hangs, or is stopped");
        break;
    default:
        tell(daemon, "%s", strerror(error));
    }
    return false;
}

int daemon_connect(struct asked *daemon)
{
    int fd = -1, error = look_at_socket(daemon->path);
    if (error == 0)
        error = try_socket(daemon->path, &fd);
    return is_reachable(daemon, error) ? fd : -1;
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* Handles what the library reports about the connection. */
static bool take_events(struct asked *daemon, int patience_ms, char **answer)
{
    struct strait_event events[8];
    uint32_t count = strait_wait(daemon->client, events, 8, patience_ms);
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].type == STRAIT_EVENT_STATS && *answer == NULL)
            *answer = strndup(events[i].data, events[i].data_size);
        if (events[i].type != STRAIT_EVENT_CONNECTION || events[i].connected)
            continue;
        /* No sign of life yet, or nobody there: what comes behind says more. */
        if (events[i].status == STRAIT_ERR_AGAIN || events[i].status == STRAIT_ERR_IO)
            continue;
        tell(daemon, "%s",
             events[i].text != NULL && events[i].text[0] != '\0' ? events[i].text : "the connection was lost");
        return false;
    }
    return true;
}

static int patience_until(uint64_t now, uint64_t end)
{
    return end > now ? (int)((end - now) / MS_NS) + 1 : 0;
}

/* The daemon notices every connection, so the socket is tried separately only if the library gets no connection. */
static bool await_answer(struct asked *daemon, unsigned patience_ms, char **answer)
{
    uint64_t now = clock_ns(), end = now + patience_ms * MS_NS, probe = now + PROBE_MS * MS_NS;
    bool asked = false, probed = false;
    for (; *answer == NULL && now < end; now = clock_ns()) {
        if (!asked && strait_client_connected(daemon->client))
            asked = strait_stats(daemon->client) == STRAIT_OK;
        if (!asked && !probed && now >= probe) {
            const int fd = daemon_connect(daemon);
            if (fd < 0)
                return false;
            close(fd);
            probed = true;
        }
        if (!take_events(daemon, patience_until(now, asked || probed ? end : probe), answer))
            return false;
    }
    if (*answer == NULL)
        tell(daemon, "no answer within %g seconds: straitd hangs, is stopped, or it is another program's socket",
             patience_ms / 1000.0);
    return *answer != NULL;
}

static bool open_client(struct asked *daemon)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = daemon->path};
    if (!is_reachable(daemon, look_at_socket(daemon->path)))
        return false;
    enum strait_status status = strait_client_open(&config, &daemon->client);
    if (status != STRAIT_OK) {
        tell(daemon, "%s", strait_status_string(status));
        daemon->client = NULL;
    }
    return status == STRAIT_OK;
}

char *daemon_ask(struct asked *daemon, unsigned patience_ms)
{
    char *answer = NULL;
    if (daemon->client == NULL && !open_client(daemon))
        return NULL;
    if (!await_answer(daemon, patience_ms, &answer))
        daemon_leave(daemon);
    return answer;
}

void daemon_leave(struct asked *daemon)
{
    if (daemon->client != NULL)
        strait_client_close(daemon->client);
    daemon->client = NULL;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

double number_of(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

const char *text_of(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text != NULL ? text : "";
}

bool is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}
