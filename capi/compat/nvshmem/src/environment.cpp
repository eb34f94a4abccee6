// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// NVSHMEM_* variables: those that have a counterpart set it, unless the program's user has set that
// one, and the others are named in one warning.

#include "internal.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

extern char **environ;

namespace {

// How a value is written for the counterpart; empty if it is the default there.
using Convert = std::string (*)(const std::string &value);

std::string as_is(const std::string &value) {
    return value;
}

bool is_true(const std::string &value) {
    return !value.empty() && std::strchr("1tTyY", value[0]) != nullptr;
}

std::string boolean(const std::string &value) {
    return is_true(value) ? "1" : "0";
}

// A size may have a fraction and a unit, and the heap grows as far as it is told to: what is
// smaller than the default is no reason to limit it.
std::string heap_size(const std::string &value) {
    char *end = nullptr;
    double bytes = std::strtod(value.c_str(), &end);
    const char units[] = "KMGT";
    const char unit = static_cast<char>(*end == '\0' ? 0 : *end & ~0x20);
    if (end == value.c_str() || !std::isfinite(bytes) || (unit != 0 && std::strchr(units, unit) == nullptr)) {
        return value; // init refuses it, and says how sizes are written
    }
    if (const char *found = unit == 0 ? nullptr : std::strchr(units, unit)) {
        for (const char *step = units; step <= found; ++step) {
            bytes *= 1024;
        }
    }
    constexpr double kDefault = 16.0 * (1ull << 30), kMiB = 1 << 20;
    // The runtime's own memory is a part of the heap.
    const double wanted = bytes / kMiB + 256;
    if (wanted <= kDefault / kMiB) {
        return "";
    }
    constexpr double kMost = 1e12; // more than any machine has, which init says
    return std::to_string(static_cast<unsigned long long>(wanted < kMost ? wanted : kMost)) + "M";
}

std::string network(const std::string &value) {
    return value == "ibrc" || value == "ibdevx" ? "ibrc" : "";
}

std::string device_posts(const std::string &value) {
    return is_true(value) ? "ibgda" : "";
}

std::string log_level(const std::string &value) {
    if (value == "TRACE") {
        return "trace";
    }
    return value == "INFO" || value == "ABORT" ? "info" : "";
}

struct Variable {
    const char *theirs;
    const char *ours;
    Convert convert;
};

// docs/compat.md has the same list.
const Variable kVariables[] = {
    {"NVSHMEM_SYMMETRIC_SIZE", "OXSHMEM_HEAP_MAX", heap_size},
    {"NVSHMEM_DISABLE_P2P", "OXSHMEM_DISABLE_P2P", boolean},
    {"NVSHMEM_IB_ENABLE_IBGDA", "OXSHMEM_NETWORK", device_posts},
    {"NVSHMEM_REMOTE_TRANSPORT", "OXSHMEM_NETWORK", network},
    {"NVSHMEM_IB_GID_INDEX", "OXSHMEM_IB_GID_INDEX", as_is},
    {"NVSHMEM_IB_TRAFFIC_CLASS", "OXSHMEM_IB_TRAFFIC_CLASS", as_is},
    {"NVSHMEM_IB_SL", "OXSHMEM_IB_SL", as_is},
    {"NVSHMEM_IBGDA_NUM_RC_PER_PE", "OXSHMEM_QPS_PER_PEER", as_is},
    {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "OXSHMEM_INTERFACE", as_is},
    {"NVSHMEM_DEBUG", "OXSHMEM_LOG", log_level},
};

// Variables that ask for what is so in any case.
const char *const kNeedless[] = {
    "NVSHMEM_HOME",
    "NVSHMEM_PREFIX",
    "NVSHMEM_BOOTSTRAP",
    "NVSHMEM_BOOTSTRAP_PMI",
    "NVSHMEM_BOOTSTRAP_TWO_STAGE",
    "NVSHMEM_DISABLE_NVLS",
    "NVSHMEM_DISABLE_NCCL",
    "NVSHMEM_DISABLE_MNNVL",
    "NVSHMEM_NVTX",
    "NVSHMEM_MAX_MEMORY_PER_GPU",
    "NVSHMEM_CUMEM_GRANULARITY",
    "NVSHMEM_LIB_DIR",
    "NVSHMEM_INCLUDE_DIR",
    "NVSHMEM_DIR",
    "NVSHMEM_ROOT",
};

} // namespace

namespace oxshmem_nv {

void read_environment() {
    static std::once_flag once;
    std::call_once(once, [] {
        for (const Variable &variable : kVariables) {
            const char *value = std::getenv(variable.theirs);
            const std::string ours = value == nullptr ? "" : variable.convert(value);
            // What is set already wins, be it by the user or by an earlier row.
            if (!ours.empty()) {
                setenv(variable.ours, ours.c_str(), 0);
            }
        }
        std::string unknown;
        for (char **entry = environ; *entry != nullptr; ++entry) {
            const std::string name(*entry, std::strcspn(*entry, "="));
            bool known = name.rfind("NVSHMEM_", 0) != 0;
            for (const Variable &variable : kVariables) {
                known |= name == variable.theirs;
            }
            for (const char *needless : kNeedless) {
                known |= name == needless;
            }
            if (!known) {
                unknown += (unknown.empty() ? "" : ", ") + name;
            }
        }
        if (!unknown.empty()) {
            std::fprintf(stderr, "OxSHMEM: these variables have no effect: %s; docs/environment.md has OxSHMEM's own\n",
                         unknown.c_str());
        }
    });
}

} // namespace oxshmem_nv
