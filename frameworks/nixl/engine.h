/* NIXL's back end over libstrait, embedded in the agent's process.
 *
 * Memory that an agent registers becomes a pool whose pages its peers may read; a READ is a strait_read. A WRITE asks
 * the target to read: the target's plug-in expects the pages and takes them, so that no byte lands where nobody
 * expects it, and answers when they are in place.
 *
 * Descriptors must begin and end at multiples of the option `page` from the beginning of their registration. */
#ifndef STRAIT_NIXL_ENGINE_H
#define STRAIT_NIXL_ENGINE_H

#include <memory>

#include "backend/backend_engine.h"
#include "frameworks/nixl/session.h"

namespace strait_nixl
{

class Request;
class Memory;

class Engine : public nixlBackendEngine
{
  public:
    explicit Engine(const nixlBackendInitParams *params);
    ~Engine() override;

    bool supportsRemote() const override
    {
        return true;
    }
    bool supportsLocal() const override
    {
        return true;
    }
    bool supportsNotif() const override
    {
        return true;
    }
    nixl_mem_list_t getSupportedMems() const override
    {
        return {DRAM_SEG, VRAM_SEG};
    }

    nixl_status_t registerMem(const nixlBlobDesc &memory, const nixl_mem_t &type, nixlBackendMD *&out) override;
    nixl_status_t deregisterMem(nixlBackendMD *memory) override;
    nixl_status_t connect(const std::string &agent) override;
    nixl_status_t disconnect(const std::string &agent) override;
    nixl_status_t unloadMD(nixlBackendMD *memory) override;
    nixl_status_t getPublicData(const nixlBackendMD *memory, std::string &data) const override;
    nixl_status_t getConnInfo(std::string &info) const override;
    nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override;
    nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type, const std::string &agent,
                               nixlBackendMD *&output) override;
    nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) override;

    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *options) const override;
    nixl_status_t postXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *options) const override;
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;

    nixl_status_t getNotifs(notif_list_t &notifs) override;
    nixl_status_t genNotif(const std::string &agent, const std::string &message) const override;

    static nixl_b_params_t defaults();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace strait_nixl

#endif
