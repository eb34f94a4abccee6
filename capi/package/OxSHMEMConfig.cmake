# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# find_package(OxSHMEM): the target OxSHMEM::oxshmem, the library and the headers of host and
# device.

get_filename_component(OxSHMEM_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../@UP@" ABSOLUTE)
set(OxSHMEM_VERSION "@VERSION@")
if(NOT TARGET OxSHMEM::oxshmem)
    add_library(OxSHMEM::oxshmem SHARED IMPORTED)
    set_target_properties(OxSHMEM::oxshmem PROPERTIES
        IMPORTED_LOCATION "${OxSHMEM_PREFIX}/@LIBDIR@/liboxshmem.so.@VERSION@"
        IMPORTED_SONAME "liboxshmem.so.@MAJOR@"
        INTERFACE_INCLUDE_DIRECTORIES "${OxSHMEM_PREFIX}/include"
        INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
