#include "bench/collective_library.h"

#include <dlfcn.h>

#include "tools/util.h"

static bool find(void *handle, const char *file, const char *name, void **function)
{
    *function = dlsym(handle, name);
    if (*function == NULL)
        print_error(file, "has no %s", name);
    return *function != NULL;
}

static bool find_all(struct collective_library *library, void *handle, const char *file)
{
#define FIND(name) find(handle, file, "nccl" #name, (void **)&library->name)
    return FIND(GetVersion) && FIND(GetUniqueId) && FIND(CommInitRank) && FIND(CommDestroy) && FIND(AllGather) &&
           FIND(AlltoAll) && FIND(ReduceScatter) && FIND(AllReduce) && FIND(Send) && FIND(Recv) && FIND(GroupStart) &&
           FIND(GroupEnd) && FIND(GetErrorString);
#undef FIND
}

bool collective_library_open(struct collective_library *library, const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    Dl_info info;

    *library = (struct collective_library){.path = name};
    if (handle == NULL) {
        print_error(NULL, "%s", dlerror());
        return false;
    }
    if (!find_all(library, handle, name))
        return false;
    *(void **)&library->GetLastError = dlsym(handle, "ncclGetLastError");
    *(void **)&library->report = dlsym(handle, "strait_coll_report");
    if (dladdr(*(void **)&library->GetUniqueId, &info) != 0 && info.dli_fname != NULL)
        library->path = info.dli_fname;
    return true;
}

bool collective_library_ok(const struct collective_library *library, coll_result result, const char *what)
{
    if (result == COLL_SUCCESS)
        return true;
    print_error(NULL, "%s of %s: %s: %s", what, library->path, library->GetErrorString(result),
                library->GetLastError != NULL ? library->GetLastError(NULL) : "");
    return false;
}
