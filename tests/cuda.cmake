# The CUDA variant. Without a GPU its test says so and is skipped.
if(STRAIT_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)
    add_executable(test_cuda test_cuda.c cuda_many.c cuda_support.c)
    target_link_libraries(test_cuda PRIVATE strait_kernels strait_test_support CUDA::cudart_static)
    strait_add_test(cuda COMMAND test_cuda LABELS gpu TIMEOUT 300)
endif()
