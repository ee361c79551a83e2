# The CUDA variant. Without a GPU its test says so and is skipped.
if(STRAIT_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)
    add_executable(test_cuda test_cuda.c cuda_many.c cuda_mixed.c cuda_support.c cuda_times.c)
    target_link_libraries(test_cuda PRIVATE strait_kernels strait_test_support CUDA::cudart_static)
    strait_add_test(cuda COMMAND test_cuda LABELS gpu TIMEOUT 300)

    # What kernels do in registers also runs on the host.
    add_executable(test_cuda_values test_cuda_values.cu)
    target_include_directories(test_cuda_values PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(test_cuda_values PRIVATE $<LINK_ONLY:strait_kernels>)
    set_target_properties(test_cuda_values PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static)
    strait_add_test(cuda_values COMMAND test_cuda_values LABELS unit TIMEOUT 60)
endif()
