// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// NVRTC, which has no standard headers: what this library needs of them. The types are those that
// libcu++ and other libraries that fill the same gap define, so a program may have both.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#ifndef SIZE_MAX
#define SIZE_MAX (~static_cast<size_t>(0))
#endif
