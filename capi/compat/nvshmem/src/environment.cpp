// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// NVSHMEM_* variables: those that have a counterpart set it, unless the program's user has set that
// one, and the others are named in one warning.

#include "internal.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <mutex>
#include <string>
#include <strings.h>
#include <vector>

extern char **environ;

namespace {

// How a value is written for the counterpart; empty if it is the default there.
using Convert = std::string (*)(const std::string &value);

std::string as_is(const std::string &value) {
    return value;
}

// A variable that is set says yes, unless it begins as no does.
bool is_true(const std::string &value) {
    return value.empty() || std::strchr("0NnFf", value[0]) == nullptr;
}

std::string boolean(const std::string &value) {
    return is_true(value) ? "1" : "0";
}

// Reads a whole number, decimal or hexadecimal.
bool read_number(const std::string &value, long &number) {
    char *end = nullptr;
    number = std::strtol(value.c_str(), &end, 0);
    return end != value.c_str() && *end == '\0';
}

// Converts a number to the nearest one that is allowed; one below `first` leaves the choice to the
// library. Init refuses what is no number, and says which numbers are allowed.
std::string nearest(const std::string &value, long first, long least, long most) {
    long wanted = 0;
    if (!read_number(value, wanted)) {
        return value;
    }
    return wanted < first ? "" : std::to_string(std::min(std::max(wanted, least), most));
}

std::string number(const std::string &value) {
    return nearest(value, 0, 0, LONG_MAX);
}

// Programs request one queue pair for each of their experts, which may be more than there can be.
// With 0 they request queue pairs of another kind.
std::string queue_pairs(const std::string &value) {
    return nearest(value, 1, 1, 64);
}

std::string teams(const std::string &value) {
    return nearest(value, 1, 4, 256);
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

// Splits a list, and leaves out what is empty.
std::vector<std::string> split(const std::string &text, char by) {
    std::vector<std::string> parts;
    for (size_t from = 0; from <= text.size();) {
        const size_t end = std::min(text.find(by, from), text.size());
        if (end > from) {
            parts.push_back(text.substr(from, end - from));
        }
        from = end + 1;
    }
    return parts;
}

std::string join_list(const std::vector<std::string> &parts) {
    std::string text;
    for (const std::string &part : parts) {
        text += (text.empty() ? "" : ",") + part;
    }
    return text;
}

void add_new(std::vector<std::string> &to, const std::string &item) {
    if (std::find(to.begin(), to.end(), item) == to.end()) {
        to.push_back(item);
    }
}

// Returns the RDMA devices that begin with `name`, or that one alone where it is whole. PyTorch
// copies NCCL's list of devices, where the beginning of a name is enough. Without such a device it
// is the name: init warns that it is not there, or fails if OXSHMEM_HCA names a kind of device.
std::vector<std::string> devices_of(const std::string &name) {
    std::vector<std::string> found;
    if (DIR *folder = opendir("/sys/class/infiniband")) {
        while (const dirent *entry = readdir(folder)) {
            const std::string device = entry->d_name;
            if (device == name) {
                found = {name};
                break;
            }
            if (device.rfind(name, 0) == 0) {
                found.push_back(device);
            }
        }
        closedir(folder);
    }
    std::sort(found.begin(), found.end());
    return found.empty() ? std::vector<std::string>{name} : found;
}

// Returns whether OXSHMEM_HCA leaves open which devices are used.
bool may_choose_devices() {
    const char *hca = std::getenv("OXSHMEM_HCA");
    const std::string wanted = hca == nullptr ? "auto" : hca;
    return wanted == "auto" || wanted == "mlx5" || wanted == "verbs";
}

// Converts DEVICE:PORT,... where `^` before it excludes the devices, and `=` says that their names
// are whole.
std::string device_list(const std::string &value) {
    if (!may_choose_devices()) {
        return "";
    }
    const bool excludes = value.rfind('^', 0) == 0;
    const size_t sign = excludes ? 1 : 0;
    const bool is_exact = value.compare(sign, 1, "=") == 0;
    std::vector<std::string> listed;
    bool has_port = false;
    for (const std::string &entry : split(value.substr(sign + (is_exact ? 1 : 0)), ',')) {
        const std::vector<std::string> parts = split(entry, ':');
        const std::string name = parts.empty() ? entry : parts[0];
        has_port |= parts.size() > 1;
        const std::string port = parts.size() > 1 && !excludes ? "/" + parts[1] : "";
        for (const std::string &device : is_exact ? std::vector<std::string>{name} : devices_of(name)) {
            add_new(listed, device + port);
        }
    }
    if (listed.empty()) {
        return "";
    }
    if (excludes && has_port) {
        std::fprintf(stderr,
                     "OxSHMEM: NVSHMEM_HCA_LIST=%s excludes these devices with all their ports: OXSHMEM_HCA_DEVICES "
                     "excludes whole devices, or lists the ports that may be used\n",
                     value.c_str());
    }
    return (excludes ? "^" : "") + join_list(listed);
}

// Converts DEVICE:PORT:COUNT,... The PEs of a node get the devices in turn if
// NVSHMEM_ENABLE_NIC_PE_MAPPING says so; otherwise each gets one of them that is near.
std::string device_mapping(const std::string &value) {
    if (!may_choose_devices()) {
        return "";
    }
    const char *in_turn = std::getenv("NVSHMEM_ENABLE_NIC_PE_MAPPING");
    const bool is_mapping = in_turn != nullptr && is_true(in_turn);
    std::vector<std::string> listed;
    constexpr size_t kMost = 1024; // as many PEs as no node has
    for (const std::string &entry : split(value, ',')) {
        const std::vector<std::string> parts = split(entry, ':');
        const std::string device = parts.size() > 1 ? parts[0] + "/" + parts[1] : entry;
        long count = 1;
        if (parts.size() > 2 && !read_number(parts[2], count)) {
            return value;
        }
        if (!is_mapping) {
            add_new(listed, device);
            continue;
        }
        for (long i = 0; i < count && listed.size() < kMost; ++i) {
            listed.push_back(std::to_string(listed.size()) + "=" + device);
        }
    }
    return join_list(listed);
}

// Reads a size, which may have a fraction and a unit.
bool read_size(const char *value, double &bytes) {
    char *end = nullptr;
    bytes = std::strtod(value, &end);
    const char units[] = "KMGT";
    const char unit = static_cast<char>(*end == '\0' ? 0 : *end & ~0x20);
    const char *found = unit == 0 ? nullptr : std::strchr(units, unit);
    if (end == value || !std::isfinite(bytes) || bytes < 0 || (unit != 0 && found == nullptr)) {
        return false;
    }
    for (const char *step = units; found != nullptr && step <= found; ++step) {
        bytes *= 1024;
    }
    return true;
}

// Returns the size up to which the heap grows. Programs take for granted that it may be as large as
// a GPU's memory. What asks for less is no reason to limit it, and what asks for more than there
// can be is no reason to end init. Init refuses a value that is no size, and says how sizes are
// written.
std::string heap_max() {
    constexpr double kMiB = 1 << 20, kDefault = 128.0 * 1024, kMost = 512.0 * 1024;
    double most = kDefault;
    for (const char *name : {"NVSHMEM_SYMMETRIC_SIZE", "NVSHMEM_MAX_MEMORY_PER_GPU"}) {
        const char *value = std::getenv(name);
        double bytes = 0;
        if (value == nullptr || *value == '\0') {
            continue;
        }
        if (!read_size(value, bytes)) {
            return value;
        }
        // The runtime's own memory is a part of the heap.
        constexpr double kOwn = 256;
        most = std::max(most, bytes / kMiB + kOwn);
    }
    return std::to_string(static_cast<unsigned long long>(std::min(most, kMost))) + "M";
}

struct Variable {
    const char *theirs;
    const char *ours;
    Convert convert;
};

// docs/compat.md has the same list.
const Variable kVariables[] = {
    {"NVSHMEM_DISABLE_P2P", "OXSHMEM_DISABLE_P2P", boolean},
    {"NVSHMEM_IB_ENABLE_IBGDA", "OXSHMEM_NETWORK", device_posts},
    {"NVSHMEM_REMOTE_TRANSPORT", "OXSHMEM_NETWORK", network},
    {"NVSHMEM_IB_GID_INDEX", "OXSHMEM_IB_GID_INDEX", number},
    {"NVSHMEM_IB_TRAFFIC_CLASS", "OXSHMEM_IB_TRAFFIC_CLASS", number},
    {"NVSHMEM_IB_SL", "OXSHMEM_IB_SL", number},
    {"NVSHMEM_IBGDA_NUM_RC_PER_PE", "OXSHMEM_QPS_PER_PEER", queue_pairs},
    {"NVSHMEM_HCA_LIST", "OXSHMEM_HCA_DEVICES", device_list},
    {"NVSHMEM_HCA_PE_MAPPING", "OXSHMEM_HCA_DEVICES", device_mapping},
    {"NVSHMEM_MAX_TEAMS", "OXSHMEM_MAX_TEAMS", teams},
    {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "OXSHMEM_INTERFACE", as_is},
    {"NVSHMEM_DEBUG", "OXSHMEM_LOG", log_level},
};

// Variables that ask for what is so in any case, or that other functions read.
const char *const kNeedless[] = {
    "NVSHMEM_SYMMETRIC_SIZE",
    "NVSHMEM_MAX_MEMORY_PER_GPU",
    "NVSHMEM_HOME",
    "NVSHMEM_PREFIX",
    "NVSHMEM_BOOTSTRAP",
    "NVSHMEM_BOOTSTRAP_PMI",
    "NVSHMEM_BOOTSTRAP_TWO_STAGE",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING",
    "NVSHMEM_DISABLE_NVLS",
    "NVSHMEM_DISABLE_NCCL",
    "NVSHMEM_DISABLE_MNNVL",
    "NVSHMEM_NVTX",
    "NVSHMEM_CUMEM_GRANULARITY",
    "NVSHMEM_LIB_DIR",
    "NVSHMEM_INCLUDE_DIR",
    "NVSHMEM_DIR",
    "NVSHMEM_ROOT",
};

} // namespace

namespace oxshmem_nv {

bool wants_mpi() {
    const char *value = std::getenv("NVSHMEM_BOOTSTRAP");
    return value != nullptr && strcasecmp(value, "MPI") == 0;
}

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
        setenv("OXSHMEM_HEAP_MAX", heap_max().c_str(), 0);
        // Programs that are written for NVSHMEM know no deadline of the calls in which all PEs
        // meet.
        setenv("OXSHMEM_MEETING_TIMEOUT", "24h", 0);
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
