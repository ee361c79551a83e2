# Libraries, headers, commands, man pages, the service's files, pkg-config files and the exported targets strait::client,
# strait::codec, strait::coll, strait::checkpoint and strait::ep. Components, of which StraitPackage.cmake makes packages: strait (the default), dev (for
# those who build with it) and cuda (plugins for GPUs).
include(CMakePackageConfigHelpers)

set_target_properties(strait-codec PROPERTIES EXPORT_NAME codec)
# Embedded mode loads libstrait-node by its name: from beside libstrait, wherever that is.
set_target_properties(strait-client PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS strait-codec strait-client strait-coll strait-checkpoint strait-ep EXPORT strait-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT dev INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS strait-node LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
# The plugins for GPUs lie there too.
set_property(TARGET strait-node APPEND PROPERTY INSTALL_RPATH "$ORIGIN")
file(RELATIVE_PATH libraries_from_commands ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_property(TARGET straitd APPEND PROPERTY INSTALL_RPATH "$ORIGIN/${libraries_from_commands}")
# For programs that open NCCL by name: a folder for LD_LIBRARY_PATH, of its own, as it hides NCCL from what finds it there.
file(CREATE_LINK ../../libstrait-coll.so.0 ${PROJECT_BINARY_DIR}/libnccl.so.2 SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/libnccl.so.2 DESTINATION ${CMAKE_INSTALL_LIBDIR}/strait/nccl)
# So does the one in place of NCCL EP.
install(TARGETS strait-nccl-ep LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/strait/nccl_ep NAMELINK_SKIP)
if(STRAIT_TOOLS)
    set_property(TARGET strait APPEND PROPERTY INSTALL_RPATH "$ORIGIN/${libraries_from_commands}") # for its plugins
    install(TARGETS strait RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES docs/strait.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    if(TARGET completions)
        foreach(program strait straitd)
            install(FILES ${PROJECT_BINARY_DIR}/completions/${program}.bash
                DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program})
            foreach(folder site-functions vendor-completions) # Debian's zsh looks into the second only
                install(FILES ${PROJECT_BINARY_DIR}/completions/${program}.zsh
                    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${folder} RENAME _${program})
            endforeach()
            install(FILES ${PROJECT_BINARY_DIR}/completions/${program}.fish
                DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
        endforeach()
    endif()
    install(FILES tests/data/kv-slice.safetensors DESTINATION ${CMAKE_INSTALL_DATADIR}/strait)
endif()
install(FILES LICENSE NOTICE CHANGELOG.md kernels/FORMAT.md docs/transformers.svg docs/collectives-links.svg DESTINATION ${CMAKE_INSTALL_DOCDIR})
# They lie in one folder there: links to each other are kept, those to files that are not installed become names.
foreach(name install frameworks protocol operations runbook security transports collectives checkpoints expert-parallel)
    file(READ docs/${name}.md text)
    string(REPLACE "](../kernels/FORMAT.md)" "](FORMAT.md)" text "${text}")
    string(REPLACE "](plan.md)" "](../docs/plan.md)" text "${text}")
    string(REGEX REPLACE "\\[[^]]*\\]\\(\\.\\./([^)#]*)[^)]*\\)" "`\\1` in the source tree" text "${text}")
    file(WRITE ${PROJECT_BINARY_DIR}/doc/${name}.md "${text}")
    install(FILES ${PROJECT_BINARY_DIR}/doc/${name}.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS docs/${name}.md)
endforeach()

# ---- The service -----------------------------------------------------------------------------------------------------

install(TARGETS straitd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES docs/straitd.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)

# The unit names its program and its configuration by their full paths, those of /usr in the source. Where they are is known
# when it is installed: packages have another prefix than the build. A configuration that is there is the operator's. It
# belongs into /etc when the prefix is /usr, else below the prefix, unless CMAKE_INSTALL_SYSCONFDIR is a full path.
install(CODE "set(source \"${PROJECT_SOURCE_DIR}/deploy\")
    set(work \"${CMAKE_CURRENT_BINARY_DIR}\")
    set(bindir \"${CMAKE_INSTALL_BINDIR}\")
    set(sysconfdir \"${CMAKE_INSTALL_SYSCONFDIR}\")")
install(CODE [[
    if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
        cmake_path(ABSOLUTE_PATH sysconfdir BASE_DIRECTORY /)
    endif()
    cmake_path(ABSOLUTE_PATH sysconfdir BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
    cmake_path(ABSOLUTE_PATH bindir BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
    file(READ "${source}/straitd.service" unit)
    string(REPLACE "/usr/bin/" "${bindir}/" unit "${unit}")
    string(REPLACE "/etc/" "${sysconfdir}/" unit "${unit}")
    file(WRITE "${work}/straitd.service" "${unit}")
    file(INSTALL "${work}/straitd.service" DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/system")
    if(NOT EXISTS "$ENV{DESTDIR}${sysconfdir}/strait/straitd.conf")
        file(INSTALL "${source}/straitd.conf" DESTINATION "${sysconfdir}/strait")
    endif()]])
install(FILES deploy/straitd.socket DESTINATION lib/systemd/system)
install(FILES deploy/prometheus/alerts.yaml DESTINATION ${CMAKE_INSTALL_DATADIR}/strait/prometheus)
install(FILES deploy/opentelemetry/spans.py DESTINATION ${CMAKE_INSTALL_DATADIR}/strait/opentelemetry)
install(FILES deploy/grafana/strait.json DESTINATION ${CMAKE_INSTALL_DATADIR}/strait/grafana)
install(FILES deploy/sysusers.conf DESTINATION lib/sysusers.d RENAME strait.conf)
install(FILES deploy/tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME strait.conf)

# ---- For those who build with it ------------------------------------------------------------------------------------

install(DIRECTORY include/strait DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")
# Relative to the file itself, so that the installation can move.
file(RELATIVE_PATH STRAIT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(name strait strait-codec strait-coll strait-checkpoint strait-ep)
    configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endforeach()

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/strait)
install(EXPORT strait-targets NAMESPACE strait:: FILE strait-config.cmake DESTINATION ${config_dir} COMPONENT dev)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/strait-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strait-config-version.cmake DESTINATION ${config_dir} COMPONENT dev)
