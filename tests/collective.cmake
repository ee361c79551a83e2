# libstrait-coll between programs and a fake NCCL: how it gets there, that calls arrive as they were, what it counts.
set(fake_nccl_folder ${CMAKE_CURRENT_BINARY_DIR}/fake_libnccl)
foreach(kind "" -old)
    add_library(strait-fake-libnccl${kind} SHARED collective/fake_nccl.c)
    target_link_libraries(strait-fake-libnccl${kind} PRIVATE strait_options)
    set_target_properties(strait-fake-libnccl${kind} PROPERTIES OUTPUT_NAME nccl SOVERSION 2
        LIBRARY_OUTPUT_DIRECTORY ${fake_nccl_folder}${kind})
endforeach()
target_compile_definitions(strait-fake-libnccl-old PRIVATE FAKE_OLD)

# One program three ways: linked with NCCL, opening it by name, and as what another one opens.
set(caller_sources collective/caller.c collective/check_every.c)
add_executable(collective_linked ${caller_sources})
add_executable(collective_by_name ${caller_sources})
add_library(collective_module MODULE ${caller_sources})
add_library(collective_tool MODULE collective/tool.c)
add_executable(collective_opener collective/opener.c)
target_compile_definitions(collective_linked PRIVATE CALLER_LINKED)
target_compile_definitions(collective_module PRIVATE CALLER_LINKED CALLER_MODULE)
target_link_libraries(collective_linked PRIVATE strait-fake-libnccl)
target_link_libraries(collective_module PRIVATE strait-fake-libnccl)
foreach(target collective_linked collective_by_name collective_module collective_tool collective_opener)
    target_link_libraries(${target} PRIVATE strait_options Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
endforeach()
# The folder of the fake is given by LD_LIBRARY_PATH, of all but the module: as frameworks that bring their own NCCL.
set_target_properties(collective_linked PROPERTIES SKIP_BUILD_RPATH ON)

if(NOT CMAKE_CROSSCOMPILING) # an emulator is in the way of what is preloaded
    foreach(subject preload replace find refuse print)
        strait_add_test(collective_${subject} LABELS collective TIMEOUT 60
            COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/collective/matrix.sh ${subject} $<TARGET_FILE:strait-coll>
                ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR}/collective_${subject})
    endforeach()
    strait_add_test(collective_exports LABELS collective
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/collective/exports.sh $<TARGET_FILE:strait-coll>
            $<TARGET_FILE:strait-fake-libnccl> "${NCCL_INCLUDE_DIR}")
endif()
strait_python_test(collective_ctypes NEEDS ctypes COMMAND tests/collective/through_ctypes.py
    $<TARGET_FILE:strait-coll> $<TARGET_FILE:strait-fake-libnccl>)
add_subdirectory(collective)

# The kernel that adds up, on a GPU; and NCCL, on two.
if(STRAIT_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)
    add_executable(test_collective_reduce_cuda test_collective_reduce_cuda.c reduce_times.c)
    target_link_libraries(test_collective_reduce_cuda PRIVATE strait_coll_reduce_cuda strait_coll_reduce strait_test_support)
    strait_add_test(collective_reduce_cuda COMMAND test_collective_reduce_cuda LABELS gpu TIMEOUT 300)
    if(STRAIT_HAVE_NCCL)
        add_executable(reduce_nccl reduce_nccl.c)
        target_include_directories(reduce_nccl PRIVATE ${NCCL_INCLUDE_DIR})
        target_link_libraries(reduce_nccl PRIVATE strait_coll_reduce strait_test_support CUDA::cudart_static ${CMAKE_DL_LIBS})
        strait_add_test(collective_reduce_nccl COMMAND reduce_nccl LABELS gpu TIMEOUT 300)
    endif()
endif()
