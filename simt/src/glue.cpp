// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the executor needs from C++: the variables that device headers name, and the C++ runtime's
// own state.
#include <oxshmem/abi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cxxabi.h>

struct oxshmem_cpu_thread;

extern "C" {

__thread oxshmem_cpu_thread *oxshmem_cpu_current __attribute__((tls_model("initial-exec"))) = nullptr;
oxshmem::abi::State oxshmem_cpu_state = {};

oxshmem_cpu_thread **oxshmem_cpu_current_slot() {
    return &oxshmem_cpu_current;
}

void *oxshmem_cpu_state_address() {
    return &oxshmem_cpu_state;
}
uint32_t oxshmem_cpu_abi_version() {
    return oxshmem::abi::kAbiVersion;
}
uint32_t oxshmem_cpu_state_bytes() {
    return sizeof(oxshmem::abi::State);
}

// Static shared memory: each declaration takes a number before main().
static uint32_t shared_slots = 0;
uint32_t oxshmem_cpu_new_shared_slot() {
    return __atomic_fetch_add(&shared_slots, 1u, __ATOMIC_RELAXED);
}
uint32_t oxshmem_cpu_shared_slots() {
    return __atomic_load_n(&shared_slots, __ATOMIC_RELAXED);
}

// Itanium C++ ABI, 2.2.2: __cxa_eh_globals is the chain of caught exceptions and the count of
// uncaught ones.
void oxshmem_cpu_forget_exceptions() {
    struct globals {
        void *caught;
        unsigned uncaught;
    };
    const globals none = {};
    std::memcpy(static_cast<void *>(abi::__cxa_get_globals()), &none, sizeof(none));
}
}
