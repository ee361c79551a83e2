# CUDA, UCX and NCCL are used when they are found. AUTO looks, ON insists, OFF does not look.
foreach(feature CUDA UCX NCCL)
    set(STRAIT_${feature} AUTO CACHE STRING "Use ${feature}: AUTO, ON or OFF")
    set_property(CACHE STRAIT_${feature} PROPERTY STRINGS AUTO ON OFF)
    set(STRAIT_HAVE_${feature} FALSE)
endforeach()

function(strait_missing feature why)
    if(STRAIT_${feature} STREQUAL "ON")
        message(FATAL_ERROR "STRAIT_${feature} is ON, but ${why}")
    endif()
endfunction()

# The kernels need what came with 9.0. Machine code for it and, for what comes later, code that the driver translates.
if(NOT STRAIT_CUDA STREQUAL "OFF" AND (STRAIT_CUDA STREQUAL "ON" OR NOT (STRAIT_SANITIZE OR STRAIT_FUZZERS OR CMAKE_CROSSCOMPILING)))
    find_program(STRAIT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
    if(STRAIT_NVCC)
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES 90)
        endif()
        set(ENV{CUDACXX} ${STRAIT_NVCC})
        include(CheckLanguage)
        check_language(CUDA) # nvcc may refuse the host compiler
        if(CMAKE_CUDA_COMPILER)
            enable_language(CUDA)
            set(STRAIT_HAVE_CUDA TRUE)
        else()
            strait_missing(CUDA "${STRAIT_NVCC} does not work")
        endif()
    else()
        strait_missing(CUDA "no nvcc was found")
    endif()
endif()
if(STRAIT_HAVE_CUDA)
    # Programs of the build folder find the plugin there, wherever the folder is.
    set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
    list(APPEND CMAKE_BUILD_RPATH ${PROJECT_BINARY_DIR}/kernels)
endif()

if(NOT STRAIT_UCX STREQUAL "OFF")
    pkg_check_modules(UCX QUIET IMPORTED_TARGET ucx)
    if(UCX_FOUND)
        set(STRAIT_HAVE_UCX TRUE)
    else()
        strait_missing(UCX "pkg-config does not know ucx")
    endif()
endif()

if(NOT STRAIT_NCCL STREQUAL "OFF")
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS /usr/local/cuda/include)
    if(NCCL_INCLUDE_DIR) # the library is loaded when it is needed
        set(STRAIT_HAVE_NCCL TRUE)
    else()
        strait_missing(NCCL "nccl.h was not found")
    endif()
endif()

message(STATUS "strait: CUDA ${STRAIT_HAVE_CUDA} (architectures ${CMAKE_CUDA_ARCHITECTURES}), "
    "UCX ${STRAIT_HAVE_UCX} (${UCX_VERSION}), NCCL ${STRAIT_HAVE_NCCL}")
