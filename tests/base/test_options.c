#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/option_table.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define SAMPLE "deploy/straitd.conf" /* tests run in the project's root */

static struct node_options options;
static struct option_error error;

static void setup(void)
{
    ck_assert_int_eq(0, unsetenv("XDG_RUNTIME_DIR"));
    options_default(&options);
    memset(&error, 0, sizeof(error));
}

static enum strait_status set_text(const char *text)
{
    return options_text(&options, text, strlen(text), "here", &error);
}

/* What a function prints. The caller frees it. */
static char *printed(void (*print)(FILE *out))
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    print(out);
    ck_assert_int_eq(0, fclose(out));
    return text;
}

static void print_current(FILE *out)
{
    options_print(&options, out);
}

/* ---- Defaults ---------------------------------------------------------------------------------------------------- */

TEST(defaults_are_the_documented_ones)
{
    ck_assert_str_eq("/run/strait/straitd.sock", options.socket);
    ck_assert_str_eq("127.0.0.1:7350", options.listen);
    ck_assert_str_eq("", options.advertise);
    ck_assert_str_eq("127.0.0.1:7351", options.metrics);
    ck_assert_str_eq("", options.secret_file);
    ck_assert(!options.insecure_no_auth);
    ck_assert_str_eq("", options.codebook);
    ck_assert_str_eq("auto", options.coding);
    ck_assert_str_eq("auto", options.transports);
    ck_assert_str_eq("", options.ucx);
    ck_assert_str_eq("info", options.log_level);
    ck_assert_uint_eq((uint64_t)256 << 20, options.arena_bytes);
    ck_assert_uint_eq((uint64_t)8 << 20, options.chunk_bytes);
    ck_assert_uint_eq((uint64_t)64 << 30, options.pool_bytes);
    ck_assert_uint_eq(0, options.workers);
    ck_assert_uint_eq(3000, options.peer_timeout_ms);
    ck_assert_uint_eq(10000, options.drain_ms);
    ck_assert_uint_eq(256, options.clients);
    ck_assert_int_eq(STRAIT_OK, options_check(&options, &error));
}

TEST(what_is_no_option_follows_from_the_options)
{
    options_complete(&options);
    ck_assert_uint_eq((uint64_t)128 << 20, options.send_bytes);
    ck_assert_uint_eq((uint64_t)2 << 20, options.chunk_target);
    ck_assert_uint_eq((uint64_t)16 << 20, options.gpu_chunk_bytes);
    ck_assert_uint_eq(1000, options.heartbeat_ms);
    ck_assert_uint_eq(3000, options.connect_ms);
    ck_assert_uint_eq(100, options.grant_ms);
    ck_assert_uint_eq(4096, options.transfers);
    ck_assert_uint_eq(4096, options.parked);

    options_default(&options);
    ck_assert_int_eq(STRAIT_OK, set_text("arena-bytes = 1M\nchunk-bytes = 1M\npeer-timeout = 300ms"));
    options.grant_ms = 7;
    options_complete(&options);
    ck_assert_uint_eq((uint64_t)1 << 20, options.send_bytes); /* a slot at least */
    ck_assert_uint_eq((uint64_t)1 << 20, options.chunk_target);
    ck_assert_uint_eq(100, options.heartbeat_ms);
    ck_assert_uint_eq(300, options.connect_ms);
    ck_assert_uint_eq(7, options.grant_ms);
}

TEST(only_users_other_than_root_have_their_socket_in_their_own_folder)
{
    ck_assert_int_eq(0, setenv("XDG_RUNTIME_DIR", "/run/user/7", 1));
    options_default(&options);
    ck_assert_str_eq(geteuid() == 0 ? "/run/strait/straitd.sock" : "/run/user/7/strait/straitd.sock", options.socket);
    if (geteuid() == 0) { /* the case runs in a process of its own */
        ck_assert_int_eq(0, seteuid(12345));
        options_default(&options);
        ck_assert_int_eq(0, seteuid(0));
        ck_assert_str_eq("/run/user/7/strait/straitd.sock", options.socket);
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static const struct value_case {
    const char *text;
    bool good;
} values[] = {
    {"chunk-bytes = 64K", true},
    {"chunk-bytes = 65536", true},
    {"chunk-bytes = 65535", false},
    {"chunk-bytes = 16M", true},
    {"chunk-bytes = 16777217", false},
    {"chunk-bytes = 1m", false},
    {"chunk-bytes = 1MB", false},
    {"chunk-bytes = 1 M", false},
    {"chunk-bytes = -1", false},
    {"chunk-bytes = +1M", false},
    {"chunk-bytes = 1.5M", false},
    {"chunk-bytes = M", false},
    {"chunk-bytes =", false},
    {"chunk-bytes = 18446744073709551616", false},
    {"chunk-bytes = 18446744073709617152", false}, /* 2^64 + 65536 */
    {"chunk-bytes = 18014398509481984K", false},   /* 2^64 */
    {"chunk-bytes = 18014398509482048K", false},   /* 2^64 + 65536 */
    {"arena-bytes = 1T", true},
    {"pool-bytes = 2G", true},
    {"peer-timeout = 30ms", true},
    {"peer-timeout = 29ms", false},
    {"peer-timeout = 1s", true},
    {"peer-timeout = 1000", false},
    {"peer-timeout = 1m", false},
    {"peer-timeout = 86400s", true},
    {"peer-timeout = 86401s", false},
    {"peer-timeout = 4294968296ms", false}, /* 2^32 + 1000 */
    {"drain-timeout = 0s", true},
    {"drain-timeout = 0", false},
    {"workers = 0", true},
    {"workers = 1024", true},
    {"workers = 1025", false},
    {"workers = 4K", false},
    {"gpu-multiprocessors = 8", true},
    {"gpu-multiprocessors = 1025", false},
    {"busy-poll = 0", true},
    {"busy-poll = 10000001", false},
    {"busy-poll = 5ms", false},
    {"gpu-failure = stay", true},
    {"gpu-failure = exit", true},
    {"gpu-failure = end", false},
    {"gpu-wires = nccl", true},
    {"gpu-wires = nccl,peer,pinned", true},
    {"gpu-wires = ucx", true},
    {"gpu-wires = peer,ucx,nccl,pinned", true},
    {"gpu-wires = peer,peer", false},
    {"gpu-wires = shm", false},
    {"gpu-wires =", false},
    {"gpu-arena-bytes = 0", true},
    {"workers = 4294967297", false},
    {"clients = 0", false},
    {"insecure-no-auth = yes", true},
    {"insecure-no-auth = 0", true},
    {"insecure-no-auth = maybe", false},
    {"insecure-no-auth =", false},
    {"listen =", true},
    {"listen = 0.0.0.0:0", true},
    {"listen = [::]:65535", true},
    {"listen = [::1]:7350", true},
    {"listen = ::1:7350", false},
    {"listen = [127.0.0.1]:7350", false},
    {"listen = localhost:7350", true},
    {"listen = eth0:7350", true},
    {"listen = *:7350", true},
    {"listen = 127.0.0.1:7350,[::1]:7350", true},
    {"listen = 127.0.0.1:7350, [::1]:7350", false},
    {"listen = 127.0.0.1:7350,", false},
    {"listen = a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9", false},
    {"metrics = localhost:7351,eth0:7351", true},
    {"listen = 127.0.0.1", false},
    {"listen = 127.0.0.1:", false},
    {"listen = 127.0.0.1:65536", false},
    {"listen = 127.0.0.1:-1", false},
    {"listen = 127.0.0.1:7350x", false},
    {"listen = :7350", false},
    {"listen = [::1:7350", false},
    {"listen = []:7350", false},
    {"listen = [:1", false},
    {"advertise = node7.rack2:7350", true},
    {"advertise = [2001:db8::7]:1", true},
    {"advertise = node7.rack2:7350,10.0.0.7:7350", true},
    {"advertise = *:7350", false},
    {"advertise = [::]:7350", false},
    {"advertise = node7:0", false},
    {"advertise = node 7:7350", false},
    {"advertise = http://node7:7350", false},
    {"coding = tiered", true},
    {"coding = Tiered", false},
    {"coding = tier", false},
    {"coding = auto,raw", false},
    {"coding =", false},
    {"transports = ucx", true},
    {"transports = ucx,shm,tcp", true},
    {"transports = auto", true},
    {"tcp-connections = 16", true},
    {"tcp-connections = 0", false},
    {"tcp-connections = 17", false},
    {"transports = shm,shm", false},
    {"transports = shm,", false},
    {"transports = shm, ucx", false},
    {"transports =", false},
    {"log-level = debug", true},
    {"log-level = trace", false},
    {"codebook = /etc/strait/a set #1.pb", true},
    {"codebook = a\x1b[0m", false},
    {"socket =", true},
    {"unknown = 1", false},
    {"= 1", false},
    {"listen", false},
    {"listen 127.0.0.1:1", false},
    {"Listen = 127.0.0.1:1", false},
};

TEST_LOOP(a_value_is_taken_or_refused_with_its_place_and_nothing_changed, COUNT(values))
{
    const struct node_options before = options;
    enum strait_status status = set_text(values[_i].text);
    ck_assert_msg(status == (values[_i].good ? STRAIT_OK : STRAIT_ERR_INVALID), "%s: %s", values[_i].text, error.text);
    if (values[_i].good)
        return;
    ck_assert_mem_eq(&before, &options, sizeof(options));
    ck_assert_msg(strncmp(error.text, "here:1: ", 8) == 0, "%s", error.text);
}

TEST(units_mean_what_they_say)
{
    ck_assert_int_eq(STRAIT_OK,
                     set_text("arena-bytes = 3G\nchunk-bytes=128K\ndrain-timeout = 2s\npeer-timeout = 5000ms\n"));
    ck_assert_uint_eq((uint64_t)3 << 30, options.arena_bytes);
    ck_assert_uint_eq(131072, options.chunk_bytes);
    ck_assert_uint_eq(2000, options.drain_ms);
    ck_assert_uint_eq(5000, options.peer_timeout_ms);
}

TEST(texts_have_limits)
{
    char text[512] = "codebook = ", path[512] = "socket = ";
    memset(text + strlen(text), 'a', OPTION_TEXT_MAX - 1);
    ck_assert_int_eq(STRAIT_OK, set_text(text));
    ck_assert_uint_eq(OPTION_TEXT_MAX - 1, strlen(options.codebook));
    strcat(text, "a");
    ck_assert_int_eq(STRAIT_ERR_INVALID, set_text(text));
    ck_assert_int_eq(STRAIT_OK, set_text("codebook = b"));
    ck_assert_str_eq("b", options.codebook);
    memset(path + strlen(path), 'a', 103);
    ck_assert_int_eq(STRAIT_OK, set_text(path));
    strcat(path, "a");
    ck_assert_int_eq(STRAIT_ERR_INVALID, set_text(path));
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

TEST(a_file_has_comments_blank_lines_and_blanks)
{
    ck_assert_int_eq(STRAIT_OK, set_text("# one\n\n  #two\n\t \n  clients =  7 \r\ncodebook=/a b#c\nworkers = 9"));
    ck_assert_uint_eq(7, options.clients);
    ck_assert_str_eq("/a b#c", options.codebook);
    ck_assert_uint_eq(9, options.workers);
}

TEST(the_error_names_the_line_and_no_line_is_taken)
{
    ck_assert_int_eq(STRAIT_ERR_INVALID, set_text("clients = 7\n\nclinets = 8\n"));
    ck_assert_str_eq("here:3: no option is called clinets", error.text);
    ck_assert_uint_eq(256, options.clients);
    ck_assert_int_eq(STRAIT_ERR_INVALID, set_text("clients = 7\nworkers = \xff\n"));
    ck_assert_str_eq("here:2: workers: \"\\xff\" is not a number from 0 to 1024", error.text);
}

TEST(a_zero_byte_does_not_hide_the_rest)
{
    static const char text[] = "codebook = a\0b";
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_text(&options, text, sizeof(text) - 1, "here", &error));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_text(&options, "clients\0= 1", 11, "here", &error));
    ck_assert_str_eq("", options.codebook);
}

TEST(of_an_option_given_twice_the_later_one_counts)
{
    ck_assert_int_eq(STRAIT_OK, set_text("clients = 7\nclients = 8\n"));
    ck_assert_uint_eq(8, options.clients);
}

TEST(what_is_printed_gives_the_same_options)
{
    struct node_options back;
    ck_assert_int_eq(STRAIT_OK, set_text("socket =\nlisten = [::]:1\nadvertise = n:2\nsecret-file = /s s\n"
                                         "insecure-no-auth = on\nchunk-bytes = 69632\narena-bytes = 1T\n"
                                         "peer-timeout = 1500ms\ndrain-timeout = 0ms\nucx-options = a=b c=d\n"
                                         "coding = raw\ntransports = ucx\nworkers = 3\nlog-level = error\n"));
    char *text = printed(print_current);
    options_default(&back);
    ck_assert_int_eq(STRAIT_OK, options_text(&back, text, strlen(text), "printed", &error));
    ck_assert_mem_eq(&options, &back, sizeof(options));
    free(text);
}

TEST(files_are_read_or_say_why_not)
{
    char path[] = "/tmp/strait-test-options-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(12, write(fd, "clients = 7\n", 12));
    ck_assert_int_eq(STRAIT_OK, options_file(&options, path, &error));
    ck_assert_uint_eq(7, options.clients);
    ck_assert_int_eq(0, ftruncate(fd, (1 << 20) + 1));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_file(&options, path, &error));
    ck_assert_int_eq(0, close(fd));
    ck_assert_int_eq(0, unlink(path));
    ck_assert_int_eq(STRAIT_ERR_IO, options_file(&options, path, &error));
    ck_assert_ptr_nonnull(strstr(error.text, strerror(ENOENT)));
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_int_eq(STRAIT_ERR_IO, options_file(&options, "/tmp", &error));
    ck_assert_uint_eq(7, options.clients);
}

/* ---- Environment and flags --------------------------------------------------------------------------------------- */

TEST(variables_set_options)
{
    char *good[] = {"HOME=/", "STRAITD_CHUNK_BYTES=1M", "STRAITD_INSECURE_NO_AUTH=yes", "STRAITD_LISTEN=", NULL};
    ck_assert_int_eq(STRAIT_OK, options_environment(&options, good, &error));
    ck_assert_uint_eq(1 << 20, options.chunk_bytes);
    ck_assert(options.insecure_no_auth);
    ck_assert_str_eq("", options.listen);
}

TEST(an_unknown_or_bad_variable_is_named)
{
    char *unknown[] = {"STRAITD_CLIENTS=7", "STRAITD_CLINETS=8", NULL};
    char *lower[] = {"STRAITD_clients=7", NULL}, *dash[] = {"STRAITD_CHUNK-BYTES=1M", NULL};
    char *bad[] = {"STRAITD_CLIENTS=many", NULL};
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_environment(&options, unknown, &error));
    ck_assert_ptr_nonnull(strstr(error.text, "STRAITD_CLINETS"));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_environment(&options, lower, &error));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_environment(&options, dash, &error));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_environment(&options, bad, &error));
    ck_assert_str_eq("STRAITD_CLIENTS: clients: many is not a number from 1 to 65536", error.text);
    ck_assert_uint_eq(256, options.clients);
}

TEST(variables_of_the_program_and_of_a_service_called_straitd_are_not_options)
{
    char *links[] = {
        "STRAITD_CONFIG=/etc/x",         "STRAITD_SERVICE_HOST=10.0.0.1",       "STRAITD_SERVICE_PORT_PEERS=7350",
        "STRAITD_PORT=tcp://10.0.0.1:1", "STRAITD_PORT_7350_TCP_ADDR=10.0.0.1", NULL};
    ck_assert_int_eq(STRAIT_OK, options_environment(&options, links, &error));
}

TEST(flags_set_options)
{
    char *flags[] = {"straitd",  "--clients", "7",         "--chunk-bytes=1M", "--insecure-no-auth",
                     "--listen", "",          "--workers", "--workers=3"};
    ck_assert_int_eq(STRAIT_OK, options_flags(&options, 7, flags, &error));
    ck_assert_uint_eq(7, options.clients);
    ck_assert_uint_eq(1 << 20, options.chunk_bytes);
    ck_assert(options.insecure_no_auth);
    ck_assert_str_eq("", options.listen);
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_flags(&options, 8, flags, &error)); /* no value */
    ck_assert_ptr_nonnull(strstr(error.text, "--workers"));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_flags(&options, 9, flags, &error)); /* the value is taken as it is */
    ck_assert_uint_eq(0, options.workers);
}

TEST(a_switch_takes_a_value_only_behind_an_equals_sign)
{
    char *off[] = {"straitd", "--insecure-no-auth", "--insecure-no-auth=no"};
    char *apart[] = {"straitd", "--insecure-no-auth", "no"};
    ck_assert_int_eq(STRAIT_OK, options_flags(&options, 3, off, &error));
    ck_assert(!options.insecure_no_auth);
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_flags(&options, 3, apart, &error));
    ck_assert_str_eq("no: is not an option; write --insecure-no-auth=no", error.text);
    ck_assert(!options.insecure_no_auth);
}

static const char *const not_flags[] = {"clients", "-c", "--", "--clinets", "--=1", "--client", "-clients=7", ""};

TEST_LOOP(what_is_no_option_is_refused, COUNT(not_flags))
{
    char *flags[] = {"straitd", (char *)not_flags[_i], "7"};
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_flags(&options, 3, flags, &error));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_flags(&options, 2, flags, &error));
    ck_assert_str_ne("", error.text);
}

TEST(what_became_of_an_option_is_said)
{
    char *flags[] = {"straitd", "--gpu-peer=no"}, *environment[] = {"STRAITD_GPU_ATTENTION=5ms", NULL};
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_flags(&options, 2, flags, &error));
    ck_assert_str_eq("command line: option gpu-peer is now gpu-wires=peer (pinned: without it)", error.text);
    ck_assert_int_eq(STRAIT_ERR_INVALID, set_text("\nsend-bytes = 1M\n"));
    ck_assert_str_eq("here:2: option send-bytes is gone: the send arena is half of arena-bytes", error.text);
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_environment(&options, environment, &error));
    ck_assert_ptr_nonnull(strstr(error.text, "option gpu-attention is now busy-poll, in microseconds"));
}

/* ---- What no single option can tell ------------------------------------------------------------------------------ */

static const struct check_case {
    const char *text;
    bool good;
} checks[] = {
    {"chunk-bytes = 16M\narena-bytes = 16M", true},
    {"chunk-bytes = 16M\narena-bytes = 15M", false},
    {"chunk-bytes = 69632", true},
    {"chunk-bytes = 65552", false},
    {"gpu-wires = auto", true},
    {"gpu-wires = auto,peer", false},
    {"gpu-wires = peer,auto", false},
    {"gpu-arena-bytes = 16M", true},
    {"gpu-arena-bytes = 15M", false},
    {"gpu-arena-bytes = 0", true},
    {"listen = 127.9.9.9:1\nmetrics = [::1]:2", true},
    {"listen = [::ffff:127.0.0.1]:1", true},
    {"listen =\nmetrics =", true},
    {"listen = 10.0.0.1:1", false},
    {"listen = [::ffff:10.0.0.1]:1", false},
    {"listen = 10.0.0.1:1\ninsecure-no-auth = yes", true},
    {"metrics = 10.0.0.1:1", false},
    {"metrics = 0.0.0.0:1\ninsecure-no-auth = yes", true},
    {"listen = lo:1,localhost:2,[::ffff:127.3.0.1]:3", true},
    {"listen = lo:1,10.0.0.1:1", false},
    {"listen = *:1\nadvertise = node7:1", false},
    {"metrics = 127.0.0.1:1,*:2", false},
    {"listen = no.such.name.invalid:1", false},
    {"advertise = [fe80::1]:1", false},
    {"advertise = [fe80::1%eth7]:1", true},
    {"listen = *:1\ninsecure-no-auth = yes\nadvertise = node7:1", true},
    {"listen = 0.0.0.0:1\ninsecure-no-auth = yes\nadvertise = node7:1", true},
};

TEST_LOOP(options_that_do_not_fit_together_are_refused, COUNT(checks))
{
    ck_assert_int_eq(STRAIT_OK, set_text(checks[_i].text));
    ck_assert_int_eq(checks[_i].good ? STRAIT_OK : STRAIT_ERR_INVALID, options_check(&options, &error));
    ck_assert(checks[_i].good || error.text[0] != 0);
}

TEST(a_secret_opens_other_addresses_unless_others_can_read_it)
{
    char path[] = "/tmp/strait-test-options-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(16, write(fd, "0123456789abcdef", 16));
    snprintf(options.secret_file, sizeof(options.secret_file), "%s", path);
    ck_assert_int_eq(STRAIT_OK, set_text("listen = 10.0.0.1:1"));
    ck_assert_int_eq(STRAIT_OK, options_check(&options, &error));
    options.insecure_no_auth = true;
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_check(&options, &error));
    options.insecure_no_auth = false;
    ck_assert_int_eq(0, fchmod(fd, 0640));
    ck_assert_int_eq(STRAIT_ERR_INVALID, options_check(&options, &error));
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_int_eq(0, close(fd));
    ck_assert_int_eq(0, unlink(path));
    ck_assert_int_eq(STRAIT_ERR_IO, options_check(&options, &error));
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

TEST(help_names_every_option)
{
    char *text = printed(options_help), flag[64];
    for (size_t i = 0; i < option_row_count; i++) {
        snprintf(flag, sizeof(flag), "  --%s", option_rows[i].name);
        ck_assert_msg(strstr(text, flag) != NULL, "%s", flag);
    }
    ck_assert_ptr_nonnull(strstr(text, "  --insecure-no-auth, --insecure-no-auth=no   (default: no)\n"));
    free(text);
}

/* Removes the # in front of "#name = value", not of "# text". */
static void uncomment(char *text)
{
    for (char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += line != text;
        if (line[0] == '#' && line[1] >= 'a' && line[1] <= 'z')
            line[0] = ' ';
    }
}

TEST(the_sample_sets_every_option_to_its_default)
{
    struct node_options empty = {0};
    char *text = printed(options_sample);
    ck_assert_int_eq(STRAIT_OK, options_text(&empty, text, strlen(text), "sample", &error));
    ck_assert_uint_eq(0, empty.clients); /* all of it are comments */
    uncomment(text);
    ck_assert_int_eq(STRAIT_OK, options_text(&empty, text, strlen(text), "sample", &error));
    ck_assert_mem_eq(&options, &empty, sizeof(options));
    free(text);
}

TEST(the_installed_sample_is_the_printed_one)
{
    char *text = printed(options_sample), installed[65536] = "";
    FILE *file = fopen(SAMPLE, "r");
    ck_assert_msg(file != NULL, "%s: %s", SAMPLE, strerror(errno));
    ck_assert_uint_lt(fread(installed, 1, sizeof(installed) - 1, file), sizeof(installed) - 1);
    fclose(file);
    ck_assert_str_eq(text, installed);
    free(text);
}

int main(void)
{
    return run_tests("options", setup, NULL);
}
