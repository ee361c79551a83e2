# In place of the driver and of the codec's plugin, for tests that put this folder before all others.
set(fake_cuda_folder ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
add_library(strait-fake-cuda SHARED fake_cuda/memory.c fake_cuda/stream.c)
add_library(strait-fake-codec SHARED fake_cuda/codec.c)
target_link_libraries(strait-fake-cuda PRIVATE strait_options Threads::Threads)
target_link_libraries(strait-fake-codec PRIVATE strait_kernels strait-fake-cuda -Wl,--exclude-libs,ALL)
set_target_properties(strait-fake-cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1)
set_target_properties(strait-fake-codec PROPERTIES OUTPUT_NAME strait-cuda SOVERSION 0)
# Streams that wait for transfers: the programs link the driver, so that it is loaded as an application has it.
strait_test(client_stream USES client_harness LABELS unit TIMEOUT 60)
target_link_libraries(test_client_stream PRIVATE strait-fake-cuda)
target_link_libraries(test_node_device_stream PRIVATE strait-fake-cuda)
set_target_properties(strait-fake-cuda strait-fake-codec PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${fake_cuda_folder})
