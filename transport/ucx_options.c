#include <arpa/inet.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "transport/options.h"
#include "transport/ucx_internal.h"

#define DEFAULT_LISTEN "127.0.0.1"
#define EAGER_TCP      262144u
#define EAGER_RDMA     32768u
#define EAGER_MAX      (16ul * 1024 * 1024)

/* Our names for UCX's settings. */
static const struct setting {
    const char *name, *ucx;
} settings[] = {
    {"tls", "TLS"},
    {"devices", "NET_DEVICES"},
    {"keepalive", "KEEPALIVE_INTERVAL"},
};

struct reading {
    struct ucx_options *options;
    uint16_t port;
    bool devices_chosen, tcp_only;
};

/* ---- Where to listen ------------------------------------------------------------------------------------------- */

static bool read_ip(const char *text, struct ucx_options *options)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    memset(&options->listen, 0, sizeof(options->listen));
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1 && v4.sin_addr.s_addr != htonl(INADDR_ANY)) {
        memcpy(&options->listen, &v4, sizeof(v4));
        options->listen_size = sizeof(v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
        memcpy(&options->listen, &v6, sizeof(v6));
        options->listen_size = sizeof(v6);
        return true;
    }
    return false;
}

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
}

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)address)->sin_port = htons(port);
}

static bool read_port(const char *text, uint16_t *port)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > UINT16_MAX)
        return false;
    *port = (uint16_t)value;
    return true;
}

static bool read_eager(const char *text, size_t *bytes)
{
    char *end;
    *bytes = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && *bytes > 0 && *bytes <= EAGER_MAX;
}

/* ---- Names ----------------------------------------------------------------------------------------------------- */

static bool set_ucx(struct reading *reading, const struct option *option)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        if (strcmp(settings[i].name, option->name) == 0) {
            reading->devices_chosen |= strcmp(option->name, "devices") == 0;
            reading->tcp_only |= strcmp(option->name, "tls") == 0 && strcmp(option->value, "tcp") == 0;
            return *option->value != '\0' &&
                   ucp_config_modify(reading->options->config, settings[i].ucx, option->value) == UCS_OK;
        }
    return false;
}

static bool set_one(struct reading *reading, const struct option *option)
{
    if (strcmp(option->name, "listen") == 0)
        return read_ip(option->value, reading->options);
    if (strcmp(option->name, "port") == 0)
        return read_port(option->value, &reading->port);
    if (strcmp(option->name, "eager") == 0)
        return read_eager(option->value, &reading->options->eager_bytes);
    return set_ucx(reading, option);
}

static enum strait_status set_all(struct reading *reading, const char *text)
{
    struct option option;
    do {
        enum strait_status status = option_next(&text, &option);
        if (status != STRAIT_OK)
            return status;
        if (option.name != NULL && !set_one(reading, &option))
            return STRAIT_ERR_INVALID;
    } while (option.name != NULL);
    return STRAIT_OK;
}

static bool has_rdma(void)
{
    DIR *devices = opendir("/sys/class/infiniband");
    if (devices == NULL)
        return false;
    const struct dirent *entry;
    bool found = false;
    while (!found && (entry = readdir(devices)) != NULL)
        found = entry->d_name[0] != '.';
    closedir(devices);
    return found;
}

/* Restricts tcp to the loopback device when only loopback is listened on; otherwise its data port would be open on
 * every device. */
static bool set_defaults(struct reading *reading)
{
    ucp_config_t *config = reading->options->config;
    bool lo = !reading->devices_chosen && is_loopback(&reading->options->listen);
    set_port(&reading->options->listen, reading->port);
    if (reading->options->eager_bytes == 0)
        reading->options->eager_bytes = lo || reading->tcp_only || !has_rdma() ? EAGER_TCP : EAGER_RDMA;
    return !lo || ucp_config_modify(config, "NET_DEVICES", "lo") == UCS_OK;
}

enum strait_status ucx_options_read(const char *text, struct ucx_options *options)
{
    struct reading reading = {.options = options};
    options->eager_bytes = 0;
    enum strait_status status = ucx_environment();
    if (status != STRAIT_OK)
        return status;
    if (ucp_config_read(NULL, NULL, &options->config) != UCS_OK)
        return STRAIT_ERR_IO;
    read_ip(DEFAULT_LISTEN, options);
    status = set_all(&reading, text);
    if (status == STRAIT_OK && !set_defaults(&reading))
        status = STRAIT_ERR_IO;
    if (status != STRAIT_OK)
        ucp_config_release(options->config);
    return status;
}
