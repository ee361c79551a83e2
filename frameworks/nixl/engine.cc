#include "frameworks/nixl/engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <list>
#include <sstream>
#include <thread>

#include <strait/codec.h>

#include "backend/backend_plugin.h"
#include "frameworks/nixl/note.h"

namespace strait_nixl
{

using Clock = std::chrono::steady_clock;

/* Options that are the plug-in's own; all others are options of the embedded node, as straitd has them. */
static constexpr const char *OWN_OPTIONS[] = {"page", "element", "role", "timeout"};

static constexpr uint32_t PAGE_BYTES = 4096;
static constexpr uint32_t MAILBOX_BYTES = 4096;
/* How long after its deadline a WRITE's answer may come: notes that cannot be delivered fail after 9 s. */
static constexpr std::chrono::seconds ANSWER_LATE{12};
static constexpr int NOTES_SECONDS = 30; /* for notes before a notification to be sent */

static const struct {
    const char *name;
    uint32_t value;
} elements[] = {{"bytes", STRAIT_ELEMENT_BYTES},       {"bf16", STRAIT_ELEMENT_BF16},
                {"fp16", STRAIT_ELEMENT_FP16},         {"fp32", STRAIT_ELEMENT_FP32},
                {"fp8_e4m3", STRAIT_ELEMENT_FP8_E4M3}, {"fp8_e5m2", STRAIT_ELEMENT_FP8_E5M2}},
  roles[] = {{"other", STRAIT_ROLE_OTHER}, {"k", STRAIT_ROLE_K}, {"v", STRAIT_ROLE_V}, {"kv", STRAIT_ROLE_KV}};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* What an agent registered: a pool of its own. Public data: the pool's id, and its blob. */
class Memory : public nixlBackendMD
{
  public:
    Memory(uintptr_t begin, strait_pool *of, std::string exported)
        : nixlBackendMD(true), address(begin), pool(of),
          id(reinterpret_cast<const char *>(strait_pool_id(of)), STRAIT_POOL_ID_BYTES), blob(std::move(exported))
    {
    }
    uintptr_t address;
    strait_pool *pool;
    std::string id, blob;
    std::shared_ptr<bool> gone; /* since it is being removed */
};

/* The same of another agent, or of this one as a target. */
class RemoteMemory : public nixlBackendMD
{
  public:
    RemoteMemory(uintptr_t begin, std::string pool_id, strait_peer *of)
        : nixlBackendMD(false), address(begin), id(std::move(pool_id)), peer(of)
    {
    }
    uintptr_t address;
    std::string id;
    strait_peer *peer;
};

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* The part of a request between one memory here and one there. */
struct Part {
    const Memory *local;
    const RemoteMemory *remote;
    std::vector<Run> runs; /* of a READ from there to here, of a WRITE from here to there */
};

class Request : public nixlBackendReqH
{
  public:
    nixl_xfer_op_t operation;
    std::string agent;
    std::vector<Part> parts;
    bool has_notification = false;
    std::string notification;
    /* Of the latest post. */
    std::list<Transfer> transfers;
    std::vector<uint64_t> ids; /* of WRITEs that the target has not answered */
    size_t pending = 0;        /* parts without a verdict */
    nixl_status_t status = NIXL_ERR_NOT_POSTED;
    Clock::time_point until;

    /* Whether something of the latest post goes on, whatever its status is: of several parts, one fails first. */
    bool is_running() const
    {
        return pending > 0 || std::any_of(transfers.begin(), transfers.end(),
                                          [](const Transfer &transfer) { return !transfer.drained; });
    }
};

static nixl_status_t status_of(strait_reason reason)
{
    switch (reason) {
    case STRAIT_REASON_NONE:
        return NIXL_SUCCESS;
    case STRAIT_REASON_PEER_DOWN:
    case STRAIT_REASON_PEER_ABORT:
    case STRAIT_REASON_TIMEOUT:
        return NIXL_ERR_REMOTE_DISCONNECT;
    case STRAIT_REASON_ABORTED:
        return NIXL_ERR_CANCELED;
    case STRAIT_REASON_GEOMETRY:
        return NIXL_ERR_MISMATCH;
    case STRAIT_REASON_NOT_SERVED:
    case STRAIT_REASON_DENIED:
    case STRAIT_REASON_BUSY:
        return NIXL_ERR_NOT_ALLOWED;
    default:
        return NIXL_ERR_BACKEND;
    }
}

/* ---- The engine's data ------------------------------------------------------------------------------------------- */

struct Engine::State {
    std::string agent;
    uint32_t page = PAGE_BYTES, element = STRAIT_ELEMENT_BYTES, role = STRAIT_ROLE_OTHER;
    unsigned timeout_s = 60;
    std::unique_ptr<Session> session;
    alignas(MAILBOX_BYTES) uint8_t mailbox_bytes[MAILBOX_BYTES];
    strait_pool *mailbox = nullptr; /* notes to this agent are sent to it */
    std::string mailbox_blob;
    std::map<std::string, Peer> mailboxes;                     /* by agent: of those whose metadata was loaded */
    std::map<std::string, std::weak_ptr<strait_peer>> writers; /* by mailbox: of those whose WRITEs are under way */
    std::map<std::string, Memory *> memories;                  /* by pool id */
    std::map<uint64_t, Request *> writes;                      /* by id, that targets have not answered */
    std::list<Transfer> incoming;                              /* WRITEs of others */
    uint64_t next_id = 1;
    notif_list_t notifications;

    void complain(const std::string &what) const
    {
        std::cerr << "strait: agent " << agent << ": " << what << std::endl;
    }
    bool read_options(const nixl_b_params_t &params, std::string *node_options);
    Peer mailbox_of(const std::string &name);
    Peer writer_of(const std::string &mailbox);
    nixl_status_t send(const Peer &to, Note note);
    nixl_status_t tell(const std::string &name, const Note &note);
    void on_note(const std::string &data);
    void on_failed(const std::string &key);
    void write_for(const Note &note);
    nixl_status_t read(Transfer &transfer, strait_pool *to, strait_peer *from, const std::vector<Run> &runs,
                       uint32_t deadline_ms);
    bool fence(const Request &request);
    void end_part(Request &request, nixl_status_t status);
    void answered(uint64_t id, nixl_status_t status);
    void sweep();
};

template <size_t N, typename Table>
static bool find_value(const Table (&table)[N], const std::string &name, uint32_t *value)
{
    for (const auto &row : table)
        if (name == row.name) {
            *value = row.value;
            return true;
        }
    return false;
}

bool Engine::State::read_options(const nixl_b_params_t &params, std::string *node_options)
{
    std::map<std::string, std::string> own, node = {{"listen", "0.0.0.0:0"}};
    for (const auto &[name, value] : params) {
        const bool is_own = std::find(std::begin(OWN_OPTIONS), std::end(OWN_OPTIONS), name) != std::end(OWN_OPTIONS);
        (is_own ? own : node)[name] = value;
    }
    if (own.count("element") != 0 && !find_value(elements, own["element"], &element)) {
        complain("element is one of bytes, bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, not \"" + own["element"] + "\"");
        return false;
    }
    if (own.count("role") != 0 && !find_value(roles, own["role"], &role)) {
        complain("role is one of other, k, v, kv, not \"" + own["role"] + "\"");
        return false;
    }
    if (own.count("page") != 0)
        page = static_cast<uint32_t>(std::strtoul(own["page"].c_str(), nullptr, 10));
    if (page < 64 || page > 16u << 20 || page % 64 != 0) {
        complain("page is a multiple of 64 from 64 to 16777216 bytes, not \"" + own["page"] + "\"");
        return false;
    }
    if (own.count("timeout") != 0)
        timeout_s = static_cast<unsigned>(std::strtoul(own["timeout"].c_str(), nullptr, 10));
    if (timeout_s < 1 || timeout_s > 86400) {
        complain("timeout is 1 to 86400 seconds, not \"" + own["timeout"] + "\"");
        return false;
    }
    for (const auto &[name, value] : node)
        *node_options += name + " = " + value + "\n";
    return true;
}

/* ---- Notes ------------------------------------------------------------------------------------------------------- */

/* The peer to which notes for that agent go; nullptr: it is not known. */
Peer Engine::State::mailbox_of(const std::string &name)
{
    auto held = session->lock();
    auto found = mailboxes.find(name);
    return found != mailboxes.end() ? found->second : nullptr;
}

/* The peer to which the answer of a WRITE goes: what that WRITE names, as its agent may have been started again since
 * its metadata was loaded here, if that ever was. WRITEs of one agent share it, and with it what may be under way. */
Peer Engine::State::writer_of(const std::string &mailbox)
{
    std::erase_if(writers, [](const auto &writer) { return writer.second.expired(); });
    Peer peer = writers[mailbox].lock();
    if (peer == nullptr)
        writers[mailbox] = peer = session->import_peer(mailbox);
    return peer;
}

/* nullptr: to this agent itself. The key tells a WRITE whose note was lost. */
nixl_status_t Engine::State::send(const Peer &to, Note note)
{
    note.agent = agent;
    const std::string data = pack(note);
    if (to == nullptr) {
        auto held = session->lock();
        on_note(data);
        return NIXL_SUCCESS;
    }
    if (data.size() > STRAIT_NOTE_BYTES_MAX)
        return NIXL_ERR_INVALID_PARAM;
    const std::string key = note.kind == Kind::WRITE ? std::to_string(note.id) : "-";
    return session->notify(to, key, data) == STRAIT_OK ? NIXL_SUCCESS : NIXL_ERR_BACKEND;
}

nixl_status_t Engine::State::tell(const std::string &name, const Note &note)
{
    const Peer peer = mailbox_of(name);
    return name != agent && peer == nullptr ? NIXL_ERR_NOT_FOUND : send(name == agent ? nullptr : peer, note);
}

void Engine::State::on_note(const std::string &data)
{
    Note note;
    if (!unpack(data, &note)) {
        complain("a note that is none of this plug-in's was dropped");
        return;
    }
    if (note.kind == Kind::NOTIFICATION)
        notifications.emplace_back(note.agent, note.message);
    else if (note.kind == Kind::WRITE)
        write_for(note);
    else
        answered(note.id, status_of(static_cast<strait_reason>(note.reason)));
}

void Engine::State::on_failed(const std::string &key)
{
    if (key != "-")
        answered(std::strtoull(key.c_str(), nullptr, 10), NIXL_ERR_REMOTE_DISCONNECT);
}

/* Another agent wants to write: this one reads, where it has registered memory. It answers when nothing reads the
 * other's memory any more. */
void Engine::State::write_for(const Note &note)
{
    sweep(); /* here as well: an agent that others write to need not call anything */
    const Peer writer = note.mailbox == mailbox_blob ? nullptr : writer_of(note.mailbox);
    if (note.mailbox != mailbox_blob && writer == nullptr) {
        complain("a WRITE of agent " + note.agent + " that cannot be answered was dropped");
        return;
    }
    Note answer;
    answer.kind = Kind::WRITTEN;
    answer.id = note.id;
    answer.reason = STRAIT_REASON_NOT_SERVED;
    auto found = memories.find(note.pool);
    const Peer source = found != memories.end() ? session->import_peer(note.blob) : nullptr;
    if (source != nullptr) {
        incoming.emplace_back();
        Transfer &transfer = incoming.back();
        transfer.freed = [this, answer, writer](Transfer &ended) {
            Note verdict = answer;
            verdict.reason = static_cast<uint32_t>(ended.reason);
            (void)send(writer, verdict);
        };
        const uint32_t deadline_ms = note.deadline_ms > 0 ? note.deadline_ms : UINT32_MAX;
        if (read(transfer, found->second->pool, source.get(), note.runs, std::min(deadline_ms, timeout_s * 1000)) ==
            NIXL_SUCCESS)
            return;
        incoming.pop_back();
        answer.reason = STRAIT_REASON_GEOMETRY;
    }
    (void)send(writer, answer);
}

/* Lets go of WRITEs of others that have ended. */
void Engine::State::sweep()
{
    for (auto at = incoming.begin(); at != incoming.end();) {
        if (!at->ended || !at->drained) {
            ++at;
            continue;
        }
        strait_release(at->handle);
        at = incoming.erase(at);
    }
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

nixl_status_t Engine::State::read(Transfer &transfer, strait_pool *to, strait_peer *from, const std::vector<Run> &runs,
                                  uint32_t deadline_ms)
{
    std::vector<strait_page_list> own, theirs;
    uint64_t index = 0;
    for (const Run &run : runs) {
        const uint32_t first = static_cast<uint32_t>(index);
        own.push_back({0, first, run.count, run.to, nullptr});
        theirs.push_back({0, first, run.count, run.from, nullptr});
        index += run.count;
        if (index > STRAIT_TRANSFER_PAGES_MAX)
            return NIXL_ERR_INVALID_PARAM;
    }
    strait_read_params params = {};
    params.size = sizeof(params);
    params.lists = own.data();
    params.peer_lists = theirs.data();
    params.list_count = params.peer_list_count = static_cast<uint32_t>(runs.size());
    params.deadline_ms = deadline_ms;
    params.context = &transfer;
    const strait_status status = strait_read(to, from, &params, &transfer.handle);
    return status == STRAIT_OK ? NIXL_SUCCESS : status == STRAIT_ERR_INVALID ? NIXL_ERR_MISMATCH : NIXL_ERR_BACKEND;
}

/* Ends what may still read this agent's memory for a WRITE. False: something goes on. */
bool Engine::State::fence(const Request &request)
{
    bool ended = true;
    for (const Part &part : request.parts) {
        strait_pool *pool = nullptr; /* of memory that is registered still */
        {
            auto held = session->lock();
            for (const auto &[id, memory] : memories)
                if (memory == part.local)
                    pool = memory->pool;
        }
        for (size_t first = 0; pool != nullptr && first < part.runs.size(); first += RUNS_MAX) { /* as they were sent */
            std::vector<strait_page_list> lists;
            for (size_t i = first; i < part.runs.size() && i < first + RUNS_MAX; i++)
                lists.push_back({0, 0, part.runs[i].count, part.runs[i].from, nullptr});
            ended = session->fence(pool, lists) && ended;
        }
    }
    return ended;
}

/* One of the request's transfers, or answers, has come. A READ tells its target when all pages are in place. */
void Engine::State::end_part(Request &request, nixl_status_t status)
{
    if (status != NIXL_SUCCESS && request.status == NIXL_IN_PROG)
        request.status = status;
    if (--request.pending > 0 || request.status != NIXL_IN_PROG)
        return;
    Note note;
    note.message = request.notification;
    request.status = request.has_notification ? tell(request.agent, note) : NIXL_SUCCESS;
}

void Engine::State::answered(uint64_t id, nixl_status_t status)
{
    auto found = writes.find(id);
    if (found == writes.end())
        return;
    Request *request = found->second;
    writes.erase(found);
    request->ids.erase(std::find(request->ids.begin(), request->ids.end(), id));
    end_part(*request, status);
}

/* ---- The engine -------------------------------------------------------------------------------------------------- */

nixl_b_params_t Engine::defaults()
{
    return {{"listen", "0.0.0.0:0"},
            {"page", std::to_string(PAGE_BYTES)},
            {"element", "bytes"},
            {"role", "other"},
            {"timeout", "60"}};
}

Engine::Engine(const nixlBackendInitParams *params) : nixlBackendEngine(params), state_(new State)
{
    State &s = *state_;
    std::string options, why;
    s.agent = localAgent;
    initErr = true;
    if (!s.read_options(getCustomParams(), &options))
        return;
    try {
        s.session.reset(new Session(
            options, [&s](const std::string &data) { s.on_note(data); },
            [&s](const std::string &key, const std::string &) { s.on_failed(key); }));
    } catch (const std::exception &failure) {
        s.complain(failure.what());
        return;
    }
    s.mailbox =
        s.session->register_pool(s.mailbox_bytes, -1, 1, MAILBOX_BYTES, STRAIT_ELEMENT_BYTES, STRAIT_ROLE_OTHER, &why);
    s.mailbox_blob = s.mailbox != nullptr ? s.session->export_pool(s.mailbox) : "";
    if (s.mailbox_blob.empty())
        s.complain("its mailbox was refused: " + why);
    else
        initErr = false;
}

Engine::~Engine()
{
    State &s = *state_;
    if (s.session == nullptr)
        return;
    s.session->stop();
    s.mailboxes.clear();
    s.incoming.clear();
    s.session.reset();
}

nixl_status_t Engine::registerMem(const nixlBlobDesc &memory, const nixl_mem_t &type, nixlBackendMD *&out)
{
    State &s = *state_;
    const uint64_t pages = memory.len / s.page;
    std::string why;
    if (pages == 0 || pages > UINT32_MAX) {
        s.complain(std::to_string(memory.len) + " bytes cannot be registered by pages of " + std::to_string(s.page) +
                   " (option page)");
        return NIXL_ERR_INVALID_PARAM;
    }
    const int device = type == VRAM_SEG ? static_cast<int>(memory.devId) : -1;
    strait_pool *pool = s.session->register_pool(reinterpret_cast<void *>(memory.addr), device,
                                                 static_cast<uint32_t>(pages), s.page, s.element, s.role, &why);
    std::string blob = pool != nullptr ? s.session->export_pool(pool) : "";
    if (blob.empty()) {
        s.complain("memory was refused: " + why);
        return NIXL_ERR_BACKEND;
    }
    auto held = s.session->lock();
    Memory *registered = new Memory(memory.addr, pool, blob);
    s.memories[registered->id] = registered;
    out = registered;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::deregisterMem(nixlBackendMD *memory)
{
    State &s = *state_;
    Memory *registered = static_cast<Memory *>(memory);
    {
        auto held = s.session->lock();
        s.memories.erase(registered->id);
    }
    if (!s.session->remove_pool(registered->pool, &registered->gone)) {
        s.complain("memory that is deregistered may still be in use");
        return NIXL_ERR_BACKEND;
    }
    delete registered;
    return NIXL_SUCCESS;
}

/* Connections are made when they are first needed. */
nixl_status_t Engine::connect(const std::string &agent)
{
    return agent == state_->agent || state_->mailbox_of(agent) != nullptr ? NIXL_SUCCESS : NIXL_ERR_NOT_FOUND;
}

nixl_status_t Engine::disconnect(const std::string &agent)
{
    auto held = state_->session->lock();
    state_->mailboxes.erase(agent);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::unloadMD(nixlBackendMD *memory)
{
    auto held = state_->session->lock();
    RemoteMemory *remote = static_cast<RemoteMemory *>(memory);
    strait_peer_remove(remote->peer);
    delete remote;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getPublicData(const nixlBackendMD *memory, std::string &data) const
{
    const Memory *registered = static_cast<const Memory *>(memory);
    data = registered->id + registered->blob;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getConnInfo(std::string &info) const
{
    info = state_->mailbox_blob;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string &agent, const std::string &info)
{
    auto held = state_->session->lock();
    Peer peer = state_->session->import_peer(info);
    state_->mailboxes.erase(agent); /* it may have been started again */
    if (peer == nullptr)
        return NIXL_ERR_MISMATCH;
    state_->mailboxes[agent] = peer;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &, const std::string &,
                                   nixlBackendMD *&output)
{
    auto held = state_->session->lock();
    strait_peer *peer = nullptr;
    if (input.metaInfo.size() <= STRAIT_POOL_ID_BYTES ||
        strait_peer_import(state_->session->client(), input.metaInfo.data() + STRAIT_POOL_ID_BYTES,
                           input.metaInfo.size() - STRAIT_POOL_ID_BYTES, &peer) != STRAIT_OK)
        return NIXL_ERR_MISMATCH;
    output = new RemoteMemory(input.addr, input.metaInfo.substr(0, STRAIT_POOL_ID_BYTES), peer);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output)
{
    const Memory *registered = static_cast<const Memory *>(input);
    std::string data;
    (void)getPublicData(registered, data);
    nixlBlobDesc described;
    described.addr = registered->address;
    described.metaInfo = data;
    return loadRemoteMD(described, DRAM_SEG, state_->agent, output);
}

/* ---- NIXL's transfers -------------------------------------------------------------------------------------------- */

/* Adds a pair of descriptors to the part of their memories; runs that continue one another become one. */
static void add_run(std::vector<Part> &parts, const Memory *local, const RemoteMemory *remote, const Run &run)
{
    Part *part = nullptr;
    for (Part &known : parts)
        if (known.local == local && known.remote == remote)
            part = &known;
    if (part == nullptr) {
        parts.push_back({local, remote, {}});
        part = &parts.back();
    }
    if (!part->runs.empty()) {
        Run &last = part->runs.back();
        if (last.to + last.count == run.to && last.from + last.count == run.from &&
            last.count <= UINT32_MAX - run.count) {
            last.count += run.count;
            return;
        }
    }
    part->runs.push_back(run);
}

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                               const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                               const nixl_opt_b_args_t *) const
{
    const State &s = *state_;
    if (local.descCount() != remote.descCount())
        return NIXL_ERR_INVALID_PARAM;
    std::unique_ptr<Request> request(new Request);
    request->operation = operation;
    request->agent = agent;
    for (int i = 0; i < local.descCount(); i++) {
        const Memory *here = static_cast<const Memory *>(local[i].metadataP);
        const RemoteMemory *there = static_cast<const RemoteMemory *>(remote[i].metadataP);
        const uint64_t own = local[i].addr - here->address, theirs = remote[i].addr - there->address;
        if (local[i].len != remote[i].len)
            return NIXL_ERR_INVALID_PARAM;
        if (own % s.page != 0 || theirs % s.page != 0 || local[i].len % s.page != 0 || own / s.page > UINT32_MAX ||
            theirs / s.page > UINT32_MAX) {
            s.complain("a descriptor does not consist of pages of " + std::to_string(s.page) +
                       " bytes (option page): offsets " + std::to_string(own) + " and " + std::to_string(theirs) +
                       ", length " + std::to_string(local[i].len));
            return NIXL_ERR_NOT_SUPPORTED;
        }
        const bool reads = operation == NIXL_READ;
        const Run run = {static_cast<uint32_t>((reads ? own : theirs) / s.page),
                         static_cast<uint32_t>((reads ? theirs : own) / s.page),
                         static_cast<uint32_t>(local[i].len / s.page)};
        add_run(request->parts, here, there, run);
    }
    handle = request.release();
    return NIXL_SUCCESS;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                               const std::string &, nixlBackendReqH *&handle, const nixl_opt_b_args_t *options) const
{
    State &s = *state_;
    Request &request = *static_cast<Request *>(handle);
    auto held = s.session->lock();
    s.session->progress();
    if (request.is_running())
        return NIXL_ERR_REPOST_ACTIVE; /* answers of both posts could not be told apart, and pages are in use */
    for (Transfer &transfer : request.transfers)
        strait_release(transfer.handle);
    request.transfers.clear();
    request.has_notification = options != nullptr && options->hasNotif;
    request.notification = request.has_notification ? options->notifMsg : "";
    request.status = NIXL_IN_PROG;
    request.until = Clock::now() + std::chrono::seconds(s.timeout_s);
    request.pending = 1; /* of this call, so that none of the parts is the last meanwhile */
    for (const Part &part : request.parts) {
        for (size_t first = 0; request.status == NIXL_IN_PROG && first < part.runs.size(); first += RUNS_MAX) {
            const size_t count = std::min(part.runs.size() - first, RUNS_MAX);
            const std::vector<Run> runs(part.runs.begin() + first, part.runs.begin() + first + count);
            nixl_status_t status;
            request.pending++;
            if (request.operation == NIXL_READ) {
                request.transfers.emplace_back();
                Transfer &transfer = request.transfers.back();
                transfer.done = [&s, &request](Transfer &ended) { s.end_part(request, status_of(ended.reason)); };
                status = s.read(transfer, part.local->pool, part.remote->peer, runs, s.timeout_s * 1000);
                if (status != NIXL_SUCCESS)
                    request.transfers.pop_back();
            } else {
                Note note;
                note.kind = Kind::WRITE;
                note.mailbox = s.mailbox_blob;
                note.id = s.next_id++;
                note.pool = part.remote->id;
                note.blob = part.local->blob;
                note.deadline_ms = s.timeout_s * 1000;
                note.runs = runs;
                s.writes[note.id] = &request;
                request.ids.push_back(note.id);
                status = s.tell(request.agent, note);
                if (status != NIXL_SUCCESS) {
                    s.answered(note.id, status);
                    continue;
                }
            }
            if (status != NIXL_SUCCESS)
                s.end_part(request, status);
        }
    }
    s.end_part(request, NIXL_SUCCESS);
    return request.status;
}

nixl_status_t Engine::checkXfer(nixlBackendReqH *handle) const
{
    State &s = *state_;
    Request &request = *static_cast<Request *>(handle);
    nixl_status_t status;
    {
        auto held = s.session->lock();
        if (request.status == NIXL_IN_PROG)
            s.session->progress();
        s.sweep();
        if (request.status == NIXL_IN_PROG && !request.ids.empty() && Clock::now() >= request.until)
            request.status = NIXL_ERR_REMOTE_DISCONNECT; /* the target has gone, and with it its answer */
        status = request.status;
    }
    if (status == NIXL_IN_PROG)
        std::this_thread::yield(); /* callers ask in a loop, and the node's thread may want this processor */
    return status;
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH *handle) const
{
    State &s = *state_;
    Request *request = static_cast<Request *>(handle);
    /* A target reads this agent's memory, and writes to its own, until it answers: both are free only then, whatever
     * the status of the request is. The target's read has this agent's deadline; a target whose answer does not come
     * has gone, or does not run: then what reads this agent's memory is ended here. */
    (void)s.session->wait_until([&] { return request->ids.empty() || Clock::now() >= request->until + ANSWER_LATE; },
                                std::numeric_limits<int>::max());
    if (!request->ids.empty() && !s.fence(*request)) {
        s.complain("memory of a WRITE that is released may still be read");
        return NIXL_ERR_BACKEND;
    }
    {
        auto held = s.session->lock();
        for (uint64_t id : request->ids)
            s.writes.erase(id);
        request->ids.clear();
    }
    for (Transfer &transfer : request->transfers)
        if (!s.session->release(transfer)) {
            s.complain("memory of a READ that is released may still be written");
            return NIXL_ERR_BACKEND;
        }
    delete request;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getNotifs(notif_list_t &notifs)
{
    auto held = state_->session->lock();
    state_->session->progress();
    state_->sweep();
    const bool none = state_->notifications.empty();
    notifs.insert(notifs.end(), state_->notifications.begin(), state_->notifications.end());
    state_->notifications.clear();
    held.unlock();
    if (none)
        std::this_thread::yield(); /* as in checkXfer */
    return NIXL_SUCCESS;
}

nixl_status_t Engine::genNotif(const std::string &agent, const std::string &message) const
{
    Note note;
    note.message = message;
    const Peer peer = state_->mailbox_of(agent);
    if (peer != nullptr && !state_->session->wait_sent(peer, NOTES_SECONDS))
        return NIXL_ERR_BACKEND;
    return state_->tell(agent, note);
}

} // namespace strait_nixl

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin *nixl_plugin_init()
{
    return nixlBackendPluginCreator<strait_nixl::Engine>::create(NIXL_PLUGIN_API_VERSION, "STRAIT", STRAIT_VERSION,
                                                                 strait_nixl::Engine::defaults(), {DRAM_SEG, VRAM_SEG});
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini()
{
}
