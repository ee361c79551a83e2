# Libraries, headers, command, man page, pkg-config file and the exported target strait::codec.
include(CMakePackageConfigHelpers)

set_target_properties(strait-codec PROPERTIES EXPORT_NAME codec)
install(TARGETS strait-codec EXPORT strait-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/strait DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(STRAIT_TOOLS)
    install(TARGETS strait RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES docs/strait.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES tests/data/kv-slice.safetensors DESTINATION ${CMAKE_INSTALL_DATADIR}/strait)
endif()
install(FILES LICENSE kernels/FORMAT.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Relative to the file itself, so that the installation can move.
file(RELATIVE_PATH STRAIT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/strait.pc.in strait.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/strait.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/strait)
install(EXPORT strait-targets NAMESPACE strait:: FILE strait-config.cmake DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/strait-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strait-config-version.cmake DESTINATION ${config_dir})
