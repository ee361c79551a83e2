# What every folder shares: warnings, sanitizers, packages and the component function.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(SSL REQUIRED IMPORTED_TARGET libssl)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(URING IMPORTED_TARGET liburing) # without it, checkpoints are written by threads
find_program(PROTOC_C protoc-c REQUIRED)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# STRAIT_SANITIZE=address,undefined or thread: the presets set it.
set(STRAIT_SANITIZE "" CACHE STRING "Sanitizers for every target")

# Hardening of everything that is built, as Debian's hardening=+all: overruns of buffers on the stack, and of those whose
# size the compiler knows, end the process; so does a jump of the stack over its guard page; calls and returns land where
# they may (CET on x86, BTI and pointer authentication on aarch64); tables of addresses are read-only once the program has
# begun; no stack is executable; programs are loaded anywhere. tests/hardening.sh looks at the built files. Sanitizers
# have checks of their own in place of these.
if(NOT STRAIT_SANITIZE AND NOT STRAIT_FUZZERS)
    include(CheckCCompilerFlag)
    include(CheckCSourceCompiles)
    include(CheckPIESupported)
    check_pie_supported(LANGUAGES C)
    set(CMAKE_POSITION_INDEPENDENT_CODE ON)
    foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection -mbranch-protection=standard)
        string(MAKE_C_IDENTIFIER "STRAIT_HAS${flag}" known)
        check_c_compiler_flag(${flag} ${known})
        if(${known})
            add_compile_options($<$<COMPILE_LANGUAGE:C>:${flag}> "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler ${flag}>")
        endif()
    endforeach()
    set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
    check_c_source_compiles("#include <string.h>\nint main(void) { return (int)strlen(\"\"); }" STRAIT_HAS_FORTIFY_3)
    unset(CMAKE_REQUIRED_FLAGS)
    set(fortify "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$<IF:$<BOOL:${STRAIT_HAS_FORTIFY_3}>,3,2>")
    add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:C>,$<NOT:$<CONFIG:Debug>>>:SHELL:${fortify}>") # needs -O
    add_link_options("LINKER:-z,relro" "LINKER:-z,now" "LINKER:-z,noexecstack")
endif()

add_library(strait_options INTERFACE)
target_compile_features(strait_options INTERFACE c_std_11)
target_compile_options(strait_options INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    $<$<BOOL:${STRAIT_WERROR}>:-Werror> -fvisibility=hidden -fno-strict-aliasing)
target_compile_definitions(strait_options INTERFACE _GNU_SOURCE)
target_include_directories(strait_options INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)

if(STRAIT_SANITIZE)
    target_compile_options(strait_options INTERFACE -fsanitize=${STRAIT_SANITIZE} -fno-omit-frame-pointer
        -fno-sanitize-recover=all)
    target_link_options(strait_options INTERFACE -fsanitize=${STRAIT_SANITIZE})
endif()

# strait_component(NAME SOURCES ... USES ...): one folder as a static library `strait_NAME`, position independent so
# that shared libraries can be made of it.
function(strait_component name)
    cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
    add_library(strait_${name} STATIC ${ARG_SOURCES})
    set_target_properties(strait_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(strait_${name} PUBLIC strait_options ${ARG_USES})
endfunction()
