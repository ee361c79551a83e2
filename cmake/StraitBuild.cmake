# What every folder shares: warnings, sanitizers, packages and the component function.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
find_program(PROTOC_C protoc-c REQUIRED)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_library(strait_options INTERFACE)
target_compile_features(strait_options INTERFACE c_std_11)
target_compile_options(strait_options INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    $<$<BOOL:${STRAIT_WERROR}>:-Werror> -fvisibility=hidden -fno-strict-aliasing)
# Ubuntu's compiler has this by itself, and with it warnings about results that nobody looks at: where warnings are errors,
# every compiler has them.
if(STRAIT_WERROR AND NOT STRAIT_SANITIZE)
    target_compile_options(strait_options INTERFACE "$<$<COMPILE_LANGUAGE:C>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>")
endif()
target_compile_definitions(strait_options INTERFACE _GNU_SOURCE)
target_include_directories(strait_options INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)

# STRAIT_SANITIZE=address,undefined or thread: the presets set it.
set(STRAIT_SANITIZE "" CACHE STRING "Sanitizers for every target")
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
