# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# find_package(OxSHMEM 0.1): this release, or one of the same major version whose minor and patch
# versions are at least those.

set(PACKAGE_VERSION "@VERSION@")
if(NOT PACKAGE_FIND_VERSION_MAJOR EQUAL "@MAJOR@" OR PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
    if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
        set(PACKAGE_VERSION_EXACT TRUE)
    endif()
endif()
