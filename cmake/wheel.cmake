# The wheel: compiled by zig against an old glibc, with the libraries that deploy/wheel_libraries.sh has built in the folder
# STRAIT_WHEEL_CACHE. nvcc keeps the compiler of the machine for the host's part of its files, which is linked by zig too.
set(cache ${STRAIT_WHEEL_CACHE})
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES STRAIT_WHEEL_CACHE)
set(CMAKE_C_COMPILER ${cache}/bin/cc)
set(CMAKE_AR ${cache}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${cache}/bin/ranlib CACHE FILEPATH "")
set(ENV{PKG_CONFIG_LIBDIR} ${cache}/prefix/lib/pkgconfig)
# gcc's runtime goes first: in zig's, __builtin_cpu_supports() says no to everything, and the codec would be the scalar one.
# What follows are libraries of their own before glibc 2.34.
execute_process(COMMAND gcc -print-libgcc-file-name OUTPUT_VARIABLE libgcc OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(CMAKE_C_STANDARD_LIBRARIES "${libgcc} -lpthread -ldl -lrt -lm")
set(CMAKE_C_FLAGS_INIT "-I${cache}/prefix/include") # uthash has no pkg-config file
# zig's linker has no --push-state.
set(CMAKE_C_LINK_LIBRARY_USING_WHOLE_ARCHIVE LINKER:--whole-archive <LINK_ITEM> LINKER:--no-whole-archive)
set(CMAKE_C_LINK_LIBRARY_USING_WHOLE_ARCHIVE_SUPPORTED TRUE)
find_program(STRAIT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
get_filename_component(cuda "${STRAIT_NVCC}" DIRECTORY)
set(libraries "<LINK_LIBRARIES> -L${cuda}/../lib64 ${CMAKE_C_STANDARD_LIBRARIES}")
set(CMAKE_CUDA_CREATE_SHARED_LIBRARY
    "${cache}/bin/c++ <LINK_FLAGS> -shared <SONAME_FLAG><TARGET_SONAME> -o <TARGET> <OBJECTS> ${libraries}")
set(CMAKE_CUDA_LINK_EXECUTABLE "${cache}/bin/c++ -pie <LINK_FLAGS> <OBJECTS> -o <TARGET> ${libraries}")
