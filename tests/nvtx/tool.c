// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A tool that takes NVTX ranges, as Nsight Systems' library does, and writes a line for each to the
// file that NVTX_TOOL_LOG names: the depth, the domain and the range. The types are those of NVTX
// 3's nvtxTypes.h and nvToolsExt.h, written down here once more.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef struct {
    size_t struct_size;
    int (*get_module_function_table)(int module, function ***table, unsigned *size);
} callbacks;
typedef struct {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_injection_version)(uint32_t version);
} version_info;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} attributes;

static FILE *out;
static int depth;

static void *create(const char *name) {
    return strdup(name);
}
static int push(void *domain, const attributes *range) {
    if (range->version != 3 || range->size != sizeof(*range) || range->message_type != 1) {
        fprintf(out, "bad attributes\n");
    }
    fprintf(out, "%d %s %s %llu\n", depth, (const char *)domain, range->message,
            range->payload_type == 1 ? (unsigned long long)range->payload : 0ull);
    fflush(out);
    return depth++;
}
static int pop(void *domain) {
    (void)domain;
    fprintf(out, "%d end\n", --depth);
    fflush(out);
    return depth;
}

int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t)) {
    const version_info *version = get_export_table(3);
    const callbacks *table = get_export_table(1);
    function **functions;
    unsigned size = 0;
    if (getenv("NVTX_TOOL_REFUSES") || !version || version->version != 3 || !table || table->struct_size < sizeof(*table) ||
        !table->get_module_function_table(5, &functions, &size) || size < 16) {
        return 0;
    }
    version->set_injection_version(3);
    out = fopen(getenv("NVTX_TOOL_LOG"), "w");
    if (!out) {
        return 0;
    }
    if (!getenv("NVTX_TOOL_TAKES_NOTHING")) {
        *functions[4] = (function)push;
        *functions[5] = (function)pop;
        *functions[12] = (function)create;
    }
    return 1;
}
