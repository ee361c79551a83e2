# Packages for Debian, Ubuntu and RPM, by CPack: strait, strait-dev (strait-devel) and, where there is CUDA, strait-cuda.
# deploy/package.sh makes them; so does `cmake --build build/release --target package`.
set(CPACK_PACKAGE_VENDOR "The Strait authors")
set(CPACK_PACKAGE_CONTACT "The Strait authors <strait@example.org>")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL strait dev)
set(scripts ${PROJECT_SOURCE_DIR}/deploy/package)

set(about_strait "Daemon, command and libraries of Strait, which moves the KV cache of large language models
from prefill to decode workers, losslessly compressed.")
set(about_dev "Headers, pkg-config and CMake files of libstrait, libstrait-codec, libstrait-coll,
libstrait-checkpoint and libstrait-ep.")
set(about_cuda "Plugins of Strait for NVIDIA's GPUs: the codec, pools in GPU memory, NCCL, and compressed
collectives. The GPU's driver, and NCCL for what uses it, are opened where they are found.")
if(STRAIT_HAVE_CUDA)
    list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()

# ---- Debian and Ubuntu -----------------------------------------------------------------------------------------------

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# The plugins' own libraries are no system's; that they need the package strait is said below.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/kernels ${PROJECT_BINARY_DIR}/client
    ${PROJECT_BINARY_DIR}/daemon ${PROJECT_BINARY_DIR}/collective ${PROJECT_BINARY_DIR}/checkpoint
    ${PROJECT_BINARY_DIR}/ep)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(same "(= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_STRAIT_PACKAGE_NAME strait)
set(CPACK_DEBIAN_STRAIT_PACKAGE_SECTION net)
set(CPACK_DEBIAN_STRAIT_PACKAGE_DEPENDS "adduser | systemd")
set(CPACK_DEBIAN_STRAIT_PACKAGE_SUGGESTS "strait-cuda")
file(WRITE ${PROJECT_BINARY_DIR}/conffiles "/etc/strait/straitd.conf\n")
set(CPACK_DEBIAN_STRAIT_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/conffiles
    ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm ${scripts}/triggers)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME strait-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "strait ${same}")
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME strait-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "strait ${same}")
set(CPACK_DEBIAN_CUDA_PACKAGE_SUGGESTS "libcuda1, libnccl2")

# ---- RPM -------------------------------------------------------------------------------------------------------------

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Apache-2.0 AND BSD-1-Clause")
if(STRAIT_HAVE_CUDA) # CUDA's runtime is in the plugins and in the command
    string(APPEND CPACK_RPM_PACKAGE_LICENSE " AND LicenseRef-NVIDIA-CUDA-EULA")
endif()
set(CPACK_RPM_MAIN_COMPONENT strait)
set(CPACK_RPM_STRAIT_PACKAGE_NAME strait)
set(CPACK_RPM_STRAIT_POST_INSTALL_SCRIPT_FILE ${scripts}/rpm_post)
set(CPACK_RPM_STRAIT_PRE_UNINSTALL_SCRIPT_FILE ${scripts}/rpm_preun)
set(CPACK_RPM_STRAIT_POST_UNINSTALL_SCRIPT_FILE ${scripts}/rpm_postun)
set(CPACK_RPM_STRAIT_USER_FILELIST "%config(noreplace) /etc/strait/straitd.conf")
set(CPACK_RPM_DEV_PACKAGE_NAME strait-devel)
set(CPACK_RPM_DEV_PACKAGE_REQUIRES "strait = ${PROJECT_VERSION}")
set(CPACK_RPM_CUDA_PACKAGE_NAME strait-cuda)
set(CPACK_RPM_CUDA_PACKAGE_REQUIRES "strait = ${PROJECT_VERSION}")
# Folders of others.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /etc /usr/lib/systemd /usr/lib/systemd/system /usr/lib/sysusers.d
    /usr/lib/tmpfiles.d /usr/share/man /usr/share/man/man1 /usr/share/man/man8
    /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/fish /usr/share/fish/vendor_completions.d
    /usr/share/zsh /usr/share/zsh/site-functions /usr/lib64/pkgconfig /usr/lib64/cmake)

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    set(CPACK_COMPONENT_${upper}_DESCRIPTION "${about_${component}}")
    set(CPACK_RPM_${component}_PACKAGE_SUMMARY "${PROJECT_DESCRIPTION}")
    # Policy wants it in each package; other installations have LICENSE and NOTICE.
    install(FILES deploy/package/copyright DESTINATION share/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}
        COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
