# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# OxSHMEM under the names of NVSHMEM's package: nvshmem::nvshmem_host, nvshmem::nvshmem_device, and
# nvshmem::nvshmem, which is both. OxSHMEM is not affiliated with NVIDIA.

get_filename_component(NVSHMEM_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(NVSHMEM_INCLUDE_DIR "${NVSHMEM_PREFIX}/include")
set(NVSHMEM_LIB_DIR "${NVSHMEM_PREFIX}/lib")
set(NVSHMEM_VERSION "3.8.0")

if(NOT TARGET nvshmem::nvshmem_host)
    add_library(nvshmem::nvshmem_host SHARED IMPORTED)
    set_target_properties(nvshmem::nvshmem_host PROPERTIES
        IMPORTED_LOCATION "${NVSHMEM_LIB_DIR}/libnvshmem_host.so.3"
        IMPORTED_SONAME "libnvshmem_host.so.3"
        INTERFACE_INCLUDE_DIRECTORIES "${NVSHMEM_INCLUDE_DIR}")
    add_library(nvshmem::nvshmem_device STATIC IMPORTED)
    set_target_properties(nvshmem::nvshmem_device PROPERTIES
        IMPORTED_LOCATION "${NVSHMEM_LIB_DIR}/libnvshmem_device.a"
        INTERFACE_INCLUDE_DIRECTORIES "${NVSHMEM_INCLUDE_DIR}"
        INTERFACE_LINK_LIBRARIES nvshmem::nvshmem_host)
    add_library(nvshmem::nvshmem INTERFACE IMPORTED)
    set_target_properties(nvshmem::nvshmem PROPERTIES
        INTERFACE_LINK_LIBRARIES "nvshmem::nvshmem_device;nvshmem::nvshmem_host")
endif()
