/* The session on a library that answers nothing by itself: what it waits for does not come, or comes late. */
#include "frameworks/nixl/session.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <sys/eventfd.h>

using namespace strait_nixl;

/* ---- The library ------------------------------------------------------------------------------------------------- */

struct strait_client {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::deque<strait_event> events;
    unsigned credit = 0;
    std::vector<std::string> sent;
};

static strait_client client;
static char pool_storage, peer_storage;
static strait_pool *const pool = reinterpret_cast<strait_pool *>(&pool_storage);
static int pools_removed, times_served;
static bool fences_end;

static void happen(strait_event_type type, const std::function<void(strait_event &)> &fill)
{
    strait_event event = {};
    event.type = type;
    fill(event);
    client.events.push_back(event);
    (void)!eventfd_write(client.fd, 1);
}

extern "C" {

strait_status strait_client_open(const strait_client_config *, strait_client **opened)
{
    *opened = &client;
    return STRAIT_OK;
}
void strait_client_close(strait_client *)
{
}
bool strait_client_connected(const strait_client *)
{
    return true;
}
int strait_client_fd(const strait_client *)
{
    return client.fd;
}
uint32_t strait_poll(strait_client *, strait_event *event, uint32_t)
{
    if (client.events.empty()) {
        eventfd_t value;
        (void)!eventfd_read(client.fd, &value);
        return 0;
    }
    *event = client.events.front();
    client.events.pop_front();
    return 1;
}
const char *strait_status_string(int)
{
    return "";
}
strait_status strait_pool_register(strait_client *, const strait_pool_params *, strait_pool **)
{
    return STRAIT_ERR_NO_MEMORY;
}
strait_status strait_pool_wait(strait_pool *, int, const char **)
{
    return STRAIT_OK;
}
strait_status strait_pool_serve(strait_pool *, const strait_page_list *, uint32_t)
{
    times_served++;
    return STRAIT_OK;
}
strait_status strait_pool_fence(strait_pool *, const strait_fence_params *params)
{
    if (fences_end)
        happen(STRAIT_EVENT_FENCED, [params](strait_event &event) { event.context = params->context; });
    return STRAIT_OK;
}
void strait_pool_remove(strait_pool *)
{
    pools_removed++;
}
strait_status strait_pool_export(const strait_pool *, void *, size_t, size_t *)
{
    return STRAIT_ERR_NO_MEMORY;
}
strait_status strait_peer_import(strait_client *, const void *, size_t, strait_peer **peer)
{
    *peer = reinterpret_cast<strait_peer *>(&peer_storage);
    return STRAIT_OK;
}
void strait_peer_remove(strait_peer *)
{
}
strait_status strait_notify(strait_peer *, const void *, size_t, const void *data, size_t size)
{
    if (client.credit == 0)
        return STRAIT_ERR_AGAIN;
    client.credit--;
    client.sent.emplace_back(static_cast<const char *>(data), size);
    return STRAIT_OK;
}
void strait_abort(strait_transfer *)
{
}
void strait_release(strait_transfer *)
{
}
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
}

static void check_memory_that_is_not_let_go_of(Session &session)
{
    session.drain_seconds = 0;
    std::shared_ptr<bool> gone;
    require(!session.remove_pool(pool, &gone), "a pool that the node keeps is not gone");
    require(!session.remove_pool(pool, &gone) && pools_removed == 1, "it is removed once");
    Transfer transfer;
    transfer.handle = reinterpret_cast<strait_transfer *>(&pool_storage);
    require(!session.release(transfer) && transfer.handle != nullptr, "nor has a transfer that is not drained");

    session.drain_seconds = 10;
    {
        auto held = session.lock();
        happen(STRAIT_EVENT_POOL_REMOVED, [](strait_event &event) { event.pool = pool; });
        happen(STRAIT_EVENT_STATE, [&](strait_event &event) {
            event.context = &transfer;
            event.state = STRAIT_FAILED;
        });
        happen(STRAIT_EVENT_DRAINED, [&](strait_event &event) { event.context = &transfer; });
    }
    require(session.remove_pool(pool, &gone), "it is gone when the node says so");
    require(session.release(transfer) && transfer.handle == nullptr, "and the transfer when it is drained");
}

static void check_fences(Session &session)
{
    const std::vector<strait_page_list> page = {{0, 0, 1, 0, nullptr}};
    session.drain_seconds = 0;
    require(!session.fence(pool, page), "a fence is not over by itself");
    session.drain_seconds = 10;
    fences_end = true;
    require(session.fence(pool, page), "it is when the node says so");
    require(times_served == 2, "pages are served again either way");
}

/* A callback that answers a peer without credit neither waits nor overtakes. */
static void check_answers_wait_in_order(Session &session, Peer *answered)
{
    const auto begin = std::chrono::steady_clock::now();
    {
        auto held = session.lock();
        *answered = session.import_peer("peer");
        for (const char *data : {"1", "2", "3"})
            happen(STRAIT_EVENT_NOTE, [data](strait_event &event) {
                event.data = data;
                event.data_size = 1;
            });
        session.progress();
        require(client.sent.empty(), "there is no credit yet");
        client.credit = 2;
    }
    require(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5), "nobody waits with the lock held");
    require(!session.wait_sent(*answered, 0) && client.sent.size() == 2, "what there is credit for is sent");
    {
        auto held = session.lock();
        client.credit = 9;
    }
    require(session.notify(*answered, "-", "4") == STRAIT_OK && session.wait_sent(*answered, 5), "then the rest");
    require(client.sent == std::vector<std::string>({"1", "2", "3", "4"}), "in order");
}

int main()
{
    Peer answered;
    Session *current = nullptr;
    Session session(
        "", [&](const std::string &data) { (void)current->notify(answered, "-", data); },
        [](const std::string &, const std::string &) {});
    current = &session;
    check_memory_that_is_not_let_go_of(session);
    check_fences(session);
    check_answers_wait_in_order(session, &answered);
    session.stop();
    answered.reset();
    printf("100%%: Checks: 3, Failures: 0, Errors: 0\n");
    return 0;
}
