/* strait doctor */
#include "tools/commands.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/doctor.h"
#include "tools/report.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait doctor [--socket PATH] [--config FILE] [--peer HOST:PORT]... [--json]\n"
    "\n"
    "Looks at what straitd needs on this node, and says for each thing that is missing what to change: its\n"
    "configuration, ports, limits, shared memory, kernel, RDMA and UCX, GPUs, and, where it runs, its state and that "
    "of\n"
    "its peers. Nothing is changed. As the daemon's user, or as root, it sees most.\n"
    "\n"
    "  --socket PATH        the daemon's socket (else that of --config, $STRAIT_SOCKET, that of this user's own "
    "daemon\n"
    "                       in $XDG_RUNTIME_DIR, or /run/strait/straitd.sock)\n"
    "  --config FILE        configuration to examine (else the options of the daemon that runs, or\n"
    "                       /etc/strait/straitd.conf)\n"
    "  --peer HOST:PORT     also dial this daemon as straitd would, once or more: is it reached, does it accept the\n"
    "                       secret or the certificate, does its version fit? It logs a connection that came to "
    "nothing\n"
    "  --json               the findings as a JSON document\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 no errors, warnings at most; 1 errors; 2 bad usage.\n";

static bool add_peer(void *options, const char *text)
{
    struct doctor *doctor = options;
    if (doctor->peer_count == DOCTOR_PEERS_MAX) {
        print_error(NULL, "--peer: at most %u", DOCTOR_PEERS_MAX);
        return false;
    }
    doctor->peers[doctor->peer_count++] = text;
    return true;
}

static void look(struct doctor *doctor)
{
    const bool options_first = doctor->socket == NULL && doctor->config != NULL; /* they tell the socket */
    if (options_first)
        doctor_examine(doctor);
    doctor_ask_daemon(doctor);
    if (!options_first)
        doctor_examine(doctor);
    doctor_configuration(doctor);
    doctor_ports(doctor);
    doctor_limits(doctor);
    doctor_memory(doctor);
    doctor_kernel(doctor);
    doctor_codec(doctor);
    doctor_rdma(doctor);
    doctor_gpus(doctor);
    doctor_status(doctor);
    doctor_peers(doctor);
}

/* Texts may quote what peers and files say: control characters are replaced. */
static void print_text(const char *before, const char *text)
{
    fputs(before, stdout);
    for (; *text != '\0'; text++)
        putchar((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
    putchar('\n');
}

static void print_findings(const struct doctor *doctor)
{
    for (unsigned i = 0; i < doctor->count; i++) {
        const struct finding *finding = &doctor->list[i];
        printf("%-8s %-14s ", level_names[finding->level], finding->check);
        print_text("", finding->text);
        if (finding->change[0] != '\0')
            print_text("                        -> ", finding->change);
    }
    printf("errors: %u, warnings: %u\n", doctor_count(doctor, LEVEL_ERROR), doctor_count(doctor, LEVEL_WARNING));
}

static void print_json(const struct doctor *doctor)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "errors", doctor_count(doctor, LEVEL_ERROR));
    cJSON_AddNumberToObject(root, "warnings", doctor_count(doctor, LEVEL_WARNING));
    cJSON *findings = cJSON_AddArrayToObject(root, "findings");
    for (unsigned i = 0; i < doctor->count; i++) {
        const struct finding *finding = &doctor->list[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(findings, item);
        cJSON_AddStringToObject(item, "level", level_names[finding->level]);
        cJSON_AddStringToObject(item, "check", finding->check);
        cJSON_AddStringToObject(item, "text", finding->text);
        cJSON_AddStringToObject(item, "change", finding->change);
    }
    (void)json_print(root, stdout);
}

int cmd_doctor(int argc, char **argv)
{
    static char name[] = "strait doctor";
    static struct doctor doctor;
    bool json = false;
    const struct cli_option list[] = {{"socket", .text = &doctor.socket},
                                      {"config", .text = &doctor.config},
                                      {"peer", .set = add_peer},
                                      {"json", .flag = &json}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &doctor, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 0, "no arguments"))
        return EXIT_CODE_USAGE;
    look(&doctor);
    if (json)
        print_json(&doctor);
    else
        print_findings(&doctor);
    code = doctor_count(&doctor, LEVEL_ERROR) > 0 ? EXIT_CODE_DATA : EXIT_CODE_OK;
    doctor_fini(&doctor);
    return code;
}
