#include "bench/device_gemm.h"

#include <dlfcn.h>
#include <stdio.h>

#include <cuda_runtime_api.h>
#include <library_types.h>

#include "bench/device_pool.h"
#include "tools/util.h"

/* From cublas_api.h, which need not be installed. */
enum { NO_TRANSPOSE = 0, TRANSPOSE = 1, COMPUTE_FLOAT = 68, ALGORITHM_DEFAULT = -1 };

static void *open_library(const char *path)
{
    static const char *const names[] = {
        "libcublas.so.13",
        "libcublas.so.12",
        "/usr/local/cuda/lib64/libcublas.so.13",
        "/usr/local/cuda/lib64/libcublas.so.12",
    };
    void *library = NULL;

    if (path != NULL)
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (unsigned i = 0; library == NULL && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* ISO C has no conversion from object to function pointers. */
static bool find(void *library, const char *name, void *function)
{
    *(void **)function = dlsym(library, name);
    return *(void **)function != NULL;
}

static bool open_handle(struct device_gemm *gemm, struct CUstream_st *stream)
{
    int (*create)(void **handle), (*use_stream)(void *handle, struct CUstream_st *stream);
    int (*tell_version)(void *handle, int *version);

    return find(gemm->library, "cublasCreate_v2", (void *)&create) &&
           find(gemm->library, "cublasSetStream_v2", (void *)&use_stream) &&
           find(gemm->library, "cublasGetVersion_v2", (void *)&tell_version) &&
           find(gemm->library, "cublasDestroy_v2", (void *)&gemm->destroy) &&
           find(gemm->library, "cublasGemmEx", (void *)&gemm->product) &&
           find(gemm->library, "cublasSetSmCountTarget", (void *)&gemm->set_multiprocessors) &&
           create(&gemm->handle) == 0 && use_stream(gemm->handle, stream) == 0 &&
           tell_version(gemm->handle, &gemm->version) == 0;
}

bool device_gemm_open(struct device_gemm *gemm, const char *path, int size, const void *values,
                      struct CUstream_st *stream, char *why, size_t why_size)
{
    *gemm = (struct device_gemm){.library = open_library(path), .size = size, .ab = values};
    if (gemm->library == NULL) {
        const char *said = dlerror();
        snprintf(why, why_size, "no cuBLAS: %s", said != NULL ? said : "not found");
        return false;
    }
    if (open_handle(gemm, stream) &&
        cudaMalloc((void **)&gemm->c, 2ull * (unsigned)size * (unsigned)size) == cudaSuccess)
        return true;
    snprintf(why, why_size, "cuBLAS cannot be used");
    return false;
}

/* The library stays loaded, because the driver knows its kernels. */
void device_gemm_close(struct device_gemm *gemm)
{
    cudaFree(gemm->c);
    if (gemm->handle != NULL)
        gemm->destroy(gemm->handle);
    *gemm = (struct device_gemm){0};
}

bool device_gemm_run(const struct device_gemm *gemm)
{
    static const float one = 1, zero = 0;
    const int n = gemm->size;
    int status = gemm->product(gemm->handle, TRANSPOSE, NO_TRANSPOSE, n, n, n, &one, gemm->ab, CUDA_R_16BF, n, gemm->ab,
                               CUDA_R_16BF, n, &zero, gemm->c, CUDA_R_16BF, n, COMPUTE_FLOAT, ALGORITHM_DEFAULT);

    if (status != 0)
        print_error(NULL, "cuBLAS: a product failed with %d", status);
    return status == 0;
}

bool device_gemm_use(const struct device_gemm *gemm, int multiprocessors)
{
    int status = gemm->set_multiprocessors(gemm->handle, multiprocessors);

    if (status != 0)
        print_error(NULL, "cuBLAS: multiprocessors cannot be set: %d", status);
    return status == 0;
}
