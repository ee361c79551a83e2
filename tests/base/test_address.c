/* Addresses as text and numbers, what a list stands for, and what of it is told to peers. */
#include <check.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/listen.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char why[256];

static void setup(void)
{
    memset(why, 0, sizeof(why));
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

static const struct split_case {
    const char *text, *host; /* NULL: not of this form */
    unsigned port;
} splits[] = {
    {"node7:7350", "node7", 7350},
    {"node7.rack-2.example:1", "node7.rack-2.example", 1},
    {"eth0.100:0", "eth0.100", 0},
    {"*:7350", "*", 7350},
    {"10.0.0.7:65535", "10.0.0.7", 65535},
    {"[::]:1", "::", 1},
    {"[fe80::1%eth0]:7350", "fe80::1%eth0", 7350},
    {"[fe80::1%br-0123456789abcd]:7350", NULL, 0}, /* longer than the name of an interface */
    {"[::ffff:10.0.0.7]:2", "::ffff:10.0.0.7", 2},
    {"node7", NULL, 0},
    {"node7:", NULL, 0},
    {":7350", NULL, 0},
    {"", NULL, 0},
    {":", NULL, 0},
    {"[]:1", NULL, 0},
    {"[", NULL, 0},
    {"[:1", NULL, 0},
    {"[::1:1", NULL, 0},
    {"::1]:1", NULL, 0},
    {"::1:7350", NULL, 0},
    {"[::1]7350", NULL, 0},
    {"[127.0.0.1]:1", NULL, 0},
    {"[node7]:1", NULL, 0},
    {"[::g]:1", NULL, 0},
    {"[fe80::1%]:1", NULL, 0},
    {"[fe80::1%e/h]:1", NULL, 0},
    {"10.7:1", NULL, 0}, /* inet_aton would make it 10.0.0.7 */
    {"256.0.0.1:1", NULL, 0},
    {"7:1", NULL, 0},
    {"node7:65536", NULL, 0},
    {"node7:+1", NULL, 0},
    {"node7:000001", NULL, 0},
    {"node 7:1", NULL, 0},
    {"a,b:1", NULL, 0},
    {"**:1", NULL, 0},
};

TEST_LOOP(an_address_is_split_whole_or_not_at_all, COUNT(splits))
{
    char host[ADDRESS_HOST_MAX] = "before";
    unsigned port = 77;
    const struct split_case *c = &splits[_i];
    ck_assert_msg(address_split(c->text, host, &port) == (c->host != NULL), "%s", c->text);
    ck_assert_str_eq(c->host != NULL ? c->host : "before", host);
    ck_assert_uint_eq(c->host != NULL ? c->port : 77, port);
}

TEST(a_host_has_at_most_253_bytes)
{
    char longest[300], host[ADDRESS_HOST_MAX];
    unsigned port;
    memset(longest, 'a', sizeof(longest));
    strcpy(longest + 253, ":1");
    ck_assert(address_split(longest, host, &port));
    memset(longest, 'a', sizeof(longest));
    strcpy(longest + 254, ":1");
    ck_assert(!address_split(longest, host, &port));
}

static const struct list_case {
    const char *text;
    bool good;
} lists[] = {
    {"a:1", true},
    {"a:1,10.0.0.7:2,[::1]:3", true},
    {"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1", true},
    {"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1", false},
    {"a:1,", false},
    {",a:1", false},
    {"a:1,,b:1", false},
    {"a:1, b:1", false},
    {"a:0", false},
    {"*:1", false},
    {"0.0.0.0:1", false},
    {"a:1,[::]:1", false},
    {"[::ffff:0.0.0.0]:1", false},
    {"", false},
};

TEST_LOOP(a_list_to_dial_has_one_to_eight_addresses, COUNT(lists))
{
    ck_assert_msg(address_list_ok(lists[_i].text) == lists[_i].good, "%s", lists[_i].text);
}

TEST(lists_meet_in_an_item_that_both_have)
{
    ck_assert(address_lists_meet("a:1", "b:1,a:1"));
    ck_assert(address_lists_meet("a:1,b:1", "b:1"));
    ck_assert(!address_lists_meet("a:1", "a:11,aa:1"));
    ck_assert(!address_lists_meet("", ""));
    ck_assert(!address_lists_meet("a:1,", ",b:1"));
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static const struct number_case {
    const char *host, *text; /* as it is written again, with port 7 */
    bool loopback, wildcard, link_local;
} numbers[] = {
    {"127.0.0.1", "127.0.0.1:7", true, false, false},
    {"127.255.255.254", "127.255.255.254:7", true, false, false},
    {"128.0.0.1", "128.0.0.1:7", false, false, false},
    {"::1", "[::1]:7", true, false, false},
    {"::2", "[::2]:7", false, false, false},
    {"0:0:0:0:0:0:0:1", "[::1]:7", true, false, false},
    {"::ffff:127.0.0.1", "127.0.0.1:7", true, false, false},
    {"::ffff:7f01:203", "127.1.2.3:7", true, false, false},
    {"::ffff:10.0.0.7", "10.0.0.7:7", false, false, false},
    {"0.0.0.0", "0.0.0.0:7", false, true, false},
    {"::", "[::]:7", false, true, false},
    {"::ffff:0.0.0.0", "0.0.0.0:7", false, true, false},
    {"fe80::1%lo", "[fe80::1%lo]:7", false, false, true},
    {"fe80::1%1", "[fe80::1%lo]:7", false, false, true}, /* the loopback is the first interface */
    {"FD00::A", "[fd00::a]:7", false, false, false},
};

TEST_LOOP(a_number_is_read_and_written, COUNT(numbers))
{
    struct sockaddr_storage address;
    char text[ADDRESS_TEXT_MAX];
    const struct number_case *c = &numbers[_i];
    ck_assert_int_eq(ADDRESS_NUMERIC, address_numeric(c->host, 7, &address));
    ck_assert_str_eq(c->text, address_text(&address, text));
    ck_assert_uint_eq(7, address_port(&address));
    ck_assert(c->loopback == address_is_loopback(&address));
    ck_assert(c->wildcard == address_is_wildcard(&address));
    ck_assert(c->link_local == address_is_link_local(&address));
}

/* As the kernel tells them for a socket of both families. */
TEST(a_mapped_address_is_the_one_that_it_stands_for)
{
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
    struct sockaddr_storage address = {0};
    char text[ADDRESS_TEXT_MAX];
    memcpy(mapped.sin6_addr.s6_addr + 10, "\xff\xff\x7f\x00\x00\x02", 6);
    memcpy(&address, &mapped, sizeof(mapped));
    ck_assert(address_is_loopback(&address));
    ck_assert_str_eq("127.0.0.2:9", address_text(&address, text));
    address_normalise(&address);
    ck_assert_int_eq(AF_INET, address.ss_family);
    ck_assert_str_eq("127.0.0.2:9", address_text(&address, text));
}

TEST(other_hosts_are_names_or_lack_a_zone)
{
    struct sockaddr_storage address;
    ck_assert_int_eq(ADDRESS_NAME, address_numeric("node7", 1, &address));
    ck_assert_int_eq(ADDRESS_NAME, address_numeric("*", 1, &address));
    ck_assert_int_eq(ADDRESS_NO_ZONE, address_numeric("fe80::1", 1, &address));
    ck_assert_int_eq(ADDRESS_NO_ZONE, address_numeric("fe80::1%nowhere", 1, &address));
    ck_assert_int_eq(ADDRESS_NO_ZONE, address_numeric("fe80::1%999999999", 1, &address));
    ck_assert_int_eq(ADDRESS_NO_ZONE, address_numeric("fe80::1%0", 1, &address));
}

/* ---- What a list stands for -------------------------------------------------------------------------------------- */

static const char *resolved(const char *list)
{
    static char text[ADDRESS_FOUND_MAX * ADDRESS_TEXT_MAX];
    struct address_list found;
    char one[ADDRESS_TEXT_MAX];
    if (address_resolve(list, &found, why, sizeof(why)) != STRAIT_OK)
        return why;
    text[0] = 0;
    for (uint32_t i = 0; i < found.count; i++) {
        strcat(text, i > 0 ? " " : "");
        strcat(text, address_text(&found.found[i].address, one));
    }
    return text;
}

TEST(a_list_stands_for_addresses_each_once)
{
    ck_assert_str_eq("127.0.0.1:5 [fd00::1]:6", resolved("127.0.0.1:5,[fd00::1]:6,[::ffff:127.0.0.1]:5"));
    ck_assert_str_eq("[::]:5 0.0.0.0:5", resolved("*:5"));
    ck_assert_ptr_nonnull(strstr(resolved("lo:5"), "127.0.0.1:5")); /* an interface */
    ck_assert_ptr_nonnull(strstr(resolved("localhost:5"), "127.0.0.1:5"));
}

TEST(what_stands_for_nothing_is_named)
{
    ck_assert_str_eq("no.such.name.invalid:5: Name or service not known",
                     resolved("127.0.0.1:5,no.such.name.invalid:5"));
    ck_assert_str_eq("[fe80::1]:5 is link-local: it needs a zone that is an interface here, as in [fe80::1%eth0]:7350",
                     resolved("[fe80::1]:5"));
    ck_assert_str_eq("\"127.0.0.1\" is not host:port", resolved("127.0.0.1"));
    ck_assert_str_eq("\"\" is not host:port", resolved("127.0.0.1:1,"));
    ck_assert_str_eq("more than 8 addresses are named", resolved("lo:1,lo:1,lo:1,lo:1,lo:1,lo:1,lo:1,lo:1,lo:1"));
}

/* ---- Advertising ------------------------------------------------------------------------------------------------- */

static const char *advertised(const char *advertise, const char *listening, size_t size)
{
    static char text[512];
    struct address_list found = {0};
    if (listening[0] != 0)
        ck_assert_int_eq(STRAIT_OK, address_resolve(listening, &found, why, sizeof(why)));
    return address_advertise(advertise, &found, text, size, why, sizeof(why)) == STRAIT_OK ? text : why;
}

TEST(peers_are_told_where_we_listen_the_best_first)
{
    ck_assert_str_eq("127.0.0.1:5", advertised("", "127.0.0.1:5", 257));
    ck_assert_str_eq("127.0.0.1:5,[::1]:5", advertised("", "127.0.0.1:5,[::1]:5", 257));
    ck_assert_str_eq("10.0.0.7:5", advertised("", "127.0.0.1:5,10.0.0.7:5", 257)); /* no loopback beside others */
    ck_assert_str_eq("[2001:db8::1]:5,10.0.0.7:5,[fd00::1]:5,169.254.0.1:5",
                     advertised("", "169.254.0.1:5,[fd00::1]:5,[fe80::1%lo]:5,[2001:db8::1]:5,10.0.0.7:5", 257));
    ck_assert_str_eq("", advertised("", "", 257));                               /* we listen nowhere */
    ck_assert_str_eq("10.0.0.7:5", advertised("", "10.0.0.7:5,10.0.0.8:5", 21)); /* only whole ones */
    ck_assert_str_eq("10.0.0.7:5,10.0.0.8:5", advertised("", "10.0.0.7:5,10.0.0.8:5", 22));
}

TEST(the_zone_of_a_link_local_address_is_the_peers)
{
    ck_assert_ptr_nonnull(strstr(advertised("", "[fe80::1%lo]:5", 257), "peers do not know its zone: set advertise"));
    ck_assert_str_eq("[fe80::1%ib7]:5", advertised("[fe80::1%ib7]:5", "[fe80::1%lo]:5", 257));
    ck_assert_ptr_nonnull(strstr(advertised("[fe80::1]:5", "", 257), "needs the zone as peers name it"));
}

TEST(what_is_set_is_told)
{
    ck_assert_str_eq("node7:5,10.0.0.7:6", advertised("node7:5,10.0.0.7:6", "127.0.0.1:5", 257));
    ck_assert_str_eq("10.0.0.7:5", advertised("[::ffff:10.0.0.7]:5", "127.0.0.1:5", 257));
    ck_assert_ptr_nonnull(strstr(advertised("lo:5", "127.0.0.1:5", 257), "127.0.0.1:5")); /* not its name */
}

/* ---- Sockets ----------------------------------------------------------------------------------------------------- */

TEST(any_port_is_the_same_at_every_address)
{
    struct listen_sockets sockets;
    char text[ADDRESS_TEXT_MAX];
    ck_assert_int_eq(STRAIT_OK, listen_tcp("127.0.0.1:0,127.0.0.2:0,127.0.0.3:0", 8, &sockets, why, sizeof(why)));
    ck_assert_uint_eq(3, sockets.bound.count);
    ck_assert_str_eq("", why);
    const unsigned port = address_port(&sockets.bound.found[0].address);
    ck_assert_uint_ne(0, port);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(port, address_port(&sockets.bound.found[i].address));
    /* The second address is in use at the port that would be drawn: the first is given up with it. */
    snprintf(text, sizeof(text), "127.0.0.4:%u,127.0.0.2:%u", port, port);
    struct listen_sockets others;
    ck_assert_int_eq(STRAIT_ERR_IO, listen_tcp(text, 8, &others, why, sizeof(why)));
    char expected[128];
    snprintf(expected, sizeof(expected), "127.0.0.2:%u: Address already in use", port);
    ck_assert_str_eq(expected, why);
    ck_assert_uint_eq(0, others.bound.count);
    snprintf(text, sizeof(text), "127.0.0.4:%u", port);
    ck_assert_int_eq(STRAIT_OK, listen_tcp(text, 8, &others, why, sizeof(why)));
    listen_close(&others);
    listen_close(&sockets);
}

TEST(an_address_of_another_host_is_named)
{
    struct listen_sockets sockets;
    ck_assert_int_eq(STRAIT_ERR_IO, listen_tcp("127.0.0.1:0,192.0.2.1:5", 8, &sockets, why, sizeof(why)));
    ck_assert_str_eq("192.0.2.1:5: Cannot assign requested address", why);
}

/* Both wildcards at one port, whatever net.ipv6.bindv6only is. */
TEST(both_families_have_sockets_of_their_own)
{
    struct listen_sockets sockets;
    ck_assert_int_eq(STRAIT_OK, listen_tcp("*:0", 8, &sockets, why, sizeof(why)));
    for (uint32_t i = 0; i < sockets.bound.count; i++) {
        int only = 0;
        socklen_t size = sizeof(only);
        if (sockets.bound.found[i].address.ss_family == AF_INET6) {
            ck_assert_int_eq(0, getsockopt(sockets.fds[i], IPPROTO_IPV6, IPV6_V6ONLY, &only, &size));
            ck_assert_int_eq(1, only);
        }
        ck_assert_uint_eq(address_port(&sockets.bound.found[0].address), address_port(&sockets.bound.found[i].address));
    }
    ck_assert(sockets.bound.count == 2 || why[0] != 0); /* a kernel without IPv6 is told */
    listen_close(&sockets);
}

int main(void)
{
    return run_tests("address", setup, NULL);
}
