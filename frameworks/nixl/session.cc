#include "frameworks/nixl/session.h"

#include <chrono>
#include <poll.h>
#include <stdexcept>
#include <sys/eventfd.h>
#include <unistd.h>
#include <vector>

#include <strait/codec.h>

namespace strait_nixl
{

static constexpr int START_SECONDS = 30; /* for a pool to be mapped */

static std::string text_of(const void *data, size_t size)
{
    return size > 0 ? std::string(static_cast<const char *>(data), size) : std::string();
}

Session::Session(const std::string &options, std::function<void(const std::string &)> noted,
                 std::function<void(const std::string &, const std::string &)> failed)
    : noted_(std::move(noted)), failed_(std::move(failed))
{
    strait_client_config config = {};
    config.size = sizeof(config);
    config.embedded = options.c_str();
    const strait_status status = strait_client_open(&config, &client_);
    if (status != STRAIT_OK)
        throw std::runtime_error(std::string("no embedded node: ") + strait_status_string(status) +
                                 "; stderr says more");
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0 || !wait_until([this] { return strait_client_connected(client_); }, START_SECONDS)) {
        strait_client_close(client_);
        throw std::runtime_error(wake_ < 0 ? "no descriptors left" : "the embedded node does not answer");
    }
    thread_ = std::thread([this] { run(); });
}

void Session::stop()
{
    ending_ = true;
    (void)!eventfd_write(wake_, 1);
    if (thread_.joinable())
        thread_.join();
}

Session::~Session()
{
    stop();
    waiting_.clear();
    strait_client_close(client_);
    close(wake_);
}

/* Polls with the lock given up meanwhile. */
bool Session::wait_until(const std::function<bool()> &condition, int seconds)
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (;;) {
        {
            auto held = lock();
            progress();
            if (condition())
                return true;
        }
        if (std::chrono::steady_clock::now() >= end)
            return false;
        pollfd fd = {strait_client_fd(client_), POLLIN, 0};
        (void)poll(&fd, 1, 1);
    }
}

void Session::run()
{
    while (!ending_) {
        pollfd fds[] = {{strait_client_fd(client_), POLLIN, 0}, {wake_, POLLIN, 0}};
        (void)poll(fds, 2, 1000);
        auto held = lock();
        progress();
    }
}

void Session::handle(const strait_event &event)
{
    Transfer *transfer = static_cast<Transfer *>(event.context);
    switch (event.type) {
    case STRAIT_EVENT_STATE:
        if (event.state != STRAIT_DONE && event.state != STRAIT_FAILED)
            break;
        transfer->ended = true;
        transfer->drained = event.drained;
        transfer->reason = event.reason;
        if (transfer->done)
            transfer->done(*transfer);
        if (transfer->drained && transfer->freed)
            transfer->freed(*transfer);
        break;
    case STRAIT_EVENT_DRAINED:
        transfer->drained = true;
        if (transfer->freed)
            transfer->freed(*transfer);
        break;
    case STRAIT_EVENT_POOL_REMOVED: {
        auto removing = removing_.find(event.pool);
        if (removing != removing_.end()) {
            *removing->second = true;
            removing_.erase(removing);
        }
        break;
    }
    case STRAIT_EVENT_FENCED: {
        auto fence = fenced_.find(reinterpret_cast<uintptr_t>(event.context));
        if (fence != fenced_.end())
            fence->second = true;
        break;
    }
    case STRAIT_EVENT_NOTE:
        noted_(text_of(event.data, event.data_size));
        break;
    case STRAIT_EVENT_NOTIFY_FAILED:
        failed_(text_of(event.key, event.key_size), event.text);
        break;
    default:
        break;
    }
}

/* Events are handled one by one: what one of them leads to may release what the others are about. */
void Session::progress()
{
    auto held = lock();
    strait_event event;
    while (strait_poll(client_, &event, 1) > 0)
        handle(event);
    send_waiting();
}

strait_pool *Session::register_pool(void *address, int device, uint32_t pages, uint32_t page_bytes, uint32_t element,
                                    uint32_t role, std::string *why)
{
    auto held = lock();
    strait_pool_region region = {};
    region.handle = STRAIT_HANDLE_POINTER;
    region.device = device;
    region.pointer = address;
    region.page_stride = region.row_bytes = page_bytes;
    region.page_count = pages;
    region.rows = 1;
    region.element = element;
    region.role = role;
    region.layer = -1;
    strait_pool_params params = {};
    params.size = sizeof(params);
    params.regions = &region;
    params.region_count = 1;
    strait_pool *pool = nullptr;
    strait_status status = strait_pool_register(client_, &params, &pool);
    const char *text = "";
    if (status == STRAIT_OK)
        status = strait_pool_wait(pool, START_SECONDS * 1000, &text);
    if (status == STRAIT_OK)
        status = strait_pool_serve(pool, nullptr, 0);
    if (status == STRAIT_OK)
        return pool;
    *why = std::string(strait_status_string(status)) + (text[0] != '\0' ? std::string(": ") + text : "");
    std::shared_ptr<bool> gone;
    if (pool != nullptr)
        (void)remove_pool(pool, &gone);
    return nullptr;
}

bool Session::remove_pool(strait_pool *pool, std::shared_ptr<bool> *gone)
{
    {
        auto held = lock();
        if (*gone == nullptr) {
            *gone = std::make_shared<bool>(false);
            removing_[pool] = *gone;
            strait_pool_remove(pool);
        }
    }
    return wait_until([gone] { return **gone; }, drain_seconds);
}

bool Session::fence(strait_pool *pool, const std::vector<strait_page_list> &lists)
{
    uint64_t number;
    {
        auto held = lock();
        number = next_fence_++;
        strait_fence_params params = {};
        params.size = sizeof(params);
        params.lists = lists.data();
        params.list_count = static_cast<uint32_t>(lists.size());
        params.context = reinterpret_cast<void *>(static_cast<uintptr_t>(number));
        fenced_[number] = false;
        if (strait_pool_fence(pool, &params) != STRAIT_OK) {
            fenced_.erase(number);
            return false;
        }
    }
    const bool ended = wait_until([this, number] { return fenced_[number]; }, drain_seconds);
    auto held = lock();
    fenced_.erase(number);
    (void)strait_pool_serve(pool, lists.data(), static_cast<uint32_t>(lists.size()));
    return ended;
}

Peer Session::import_peer(const std::string &blob)
{
    auto held = lock();
    strait_peer *peer = nullptr;
    if (blob.empty() || strait_peer_import(client_, blob.data(), blob.size(), &peer) != STRAIT_OK)
        return nullptr;
    return Peer(peer, [this](strait_peer *imported) {
        auto removing = lock();
        strait_peer_remove(imported);
    });
}

std::string Session::export_pool(strait_pool *pool)
{
    auto held = lock();
    size_t size = 0;
    if (strait_pool_export(pool, nullptr, 0, &size) != STRAIT_ERR_NO_SPACE)
        return "";
    std::string blob(size, '\0');
    return strait_pool_export(pool, blob.data(), size, &size) == STRAIT_OK ? blob : "";
}

strait_status Session::notify(const Peer &peer, const std::string &key, const std::string &data)
{
    auto held = lock();
    if (waiting_.count(peer) == 0) {
        const strait_status status = strait_notify(peer.get(), key.data(), key.size(), data.data(), data.size());
        if (status != STRAIT_ERR_AGAIN)
            return status;
    }
    waiting_[peer].emplace_back(key, data);
    return STRAIT_OK;
}

/* Failures are told at the end: that may send notes. */
void Session::send_waiting()
{
    std::vector<std::pair<std::string, strait_status>> failed;
    for (auto at = waiting_.begin(); at != waiting_.end();) {
        auto &notes = at->second;
        for (; !notes.empty(); notes.pop_front()) {
            const auto &[key, data] = notes.front();
            const strait_status status =
                strait_notify(at->first.get(), key.data(), key.size(), data.data(), data.size());
            if (status == STRAIT_ERR_AGAIN)
                break;
            if (status != STRAIT_OK)
                failed.emplace_back(key, status);
        }
        at = notes.empty() ? waiting_.erase(at) : std::next(at);
    }
    for (const auto &[key, status] : failed)
        failed_(key, strait_status_string(status));
}

bool Session::wait_sent(const Peer &peer, int seconds)
{
    return wait_until([&] { return waiting_.count(peer) == 0; }, seconds);
}

bool Session::release(Transfer &transfer)
{
    {
        auto held = lock();
        if (transfer.handle == nullptr)
            return true;
        transfer.done = nullptr;
        if (!transfer.ended)
            strait_abort(transfer.handle);
    }
    if (!wait_until([&] { return transfer.ended && transfer.drained; }, drain_seconds))
        return false;
    auto held = lock();
    strait_release(transfer.handle);
    transfer.handle = nullptr;
    return true;
}

} // namespace strait_nixl
