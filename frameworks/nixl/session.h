/* A client of libstrait that several threads use: a lock around its calls, and a thread that handles its events, so
 * that an agent's peers are served while the agent itself does nothing.
 *
 * Thread-safety: all members may be called from any thread. Callbacks are made with the lock held, by whichever thread
 * handles events, and may call back into the session (the lock is recursive). */
#ifndef STRAIT_NIXL_SESSION_H
#define STRAIT_NIXL_SESSION_H

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <strait/strait.h>

namespace strait_nixl
{

/* Receives the events of one transfer. Lives until the transfer was released. */
struct Transfer {
    strait_transfer *handle = nullptr;
    bool ended = false, drained = false;
    strait_reason reason = STRAIT_REASON_NONE;
    std::function<void(Transfer &)> done;  /* at the verdict */
    std::function<void(Transfer &)> freed; /* when nothing touches its pages any more, which is never before that */
};

using Peer = std::shared_ptr<strait_peer>; /* let go of before its session ends */

class Session
{
  public:
    /* Opens a client that embeds a node with these options, one "name = value" per line. `noted` gets each note that
     * arrives, `failed` the key and data of none: only the key, as the library reports no more. Throws
     * std::runtime_error, with what to change. */
    Session(const std::string &options, std::function<void(const std::string &data)> noted,
            std::function<void(const std::string &key, const std::string &why)> failed);
    ~Session();
    void stop(); /* no callback is made from then on */
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    std::unique_lock<std::recursive_mutex> lock()
    {
        return std::unique_lock<std::recursive_mutex>(mutex_);
    }
    strait_client *client() const
    {
        return client_;
    }

    /* Registers memory as a pool of `pages` pages of page_bytes, serves all of it, and waits until the node has it.
     * nullptr: refused; *why says why. */
    strait_pool *register_pool(void *address, int device, uint32_t pages, uint32_t page_bytes, uint32_t element,
                               uint32_t role, std::string *why);
    /* Returns true when the node touches its memory no more, false when it still may after drain_seconds: then it can
     * be called again, with the same *gone, which is nullptr at first. */
    bool remove_pool(strait_pool *pool, std::shared_ptr<bool> *gone);
    std::string export_pool(strait_pool *pool); /* "": no memory */
    /* Ends the reads of these pages by peers, and waits until there are none; then serves them again. False: some may
     * go on after drain_seconds. */
    bool fence(strait_pool *pool, const std::vector<strait_page_list> &lists);

    Peer import_peer(const std::string &blob); /* nullptr: it is none */
    /* Sends a note: at once, or where too many are under way, from progress() in the order of these calls. It never
     * waits, so callbacks may call it. The key comes back if the note fails. */
    strait_status notify(const Peer &peer, const std::string &key, const std::string &data);
    /* Waits until the notes to this peer have been sent. False: they have not within so many seconds. */
    bool wait_sent(const Peer &peer, int seconds);
    void progress(); /* handles what has come */
    /* Ends the transfer and waits until nothing touches its pages. False: something may after drain_seconds; then it
     * can be called again. */
    bool release(Transfer &transfer);
    /* Handles what comes until the condition, which is asked with the lock held, is true, or for so long. */
    bool wait_until(const std::function<bool()> &condition, int seconds);

    int drain_seconds = 30; /* for what was given up to let go of its memory */

  private:
    void handle(const strait_event &event);
    void send_waiting();
    void run();

    std::recursive_mutex mutex_;
    strait_client *client_ = nullptr;
    std::function<void(const std::string &)> noted_;
    std::function<void(const std::string &, const std::string &)> failed_;
    std::map<strait_pool *, std::shared_ptr<bool>> removing_; /* whether they are gone */
    std::map<uint64_t, bool> fenced_;                         /* by number: whether no read is left */
    uint64_t next_fence_ = 1;
    std::map<Peer, std::deque<std::pair<std::string, std::string>>> waiting_; /* keys and data of notes to be sent */
    int wake_ = -1;
    std::atomic<bool> ending_{false};
    std::thread thread_;
};

} // namespace strait_nixl

#endif
