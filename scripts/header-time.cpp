// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// How long NVRTC takes for each of the sources named, and then the driver to make of its PTX what
// can be launched, in milliseconds of CPU time: medians of several times after one that is not
// counted. `anew`; `again`, from the driver's cache, where there is one; or `linked` with the
// device library, anew. See scripts/header-time.
#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static double milliseconds(std::clock_t since) {
    return 1e3 * static_cast<double>(std::clock() - since) / CLOCKS_PER_SEC;
}

static double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times.empty() ? 0 : times[times.size() / 2];
}

static std::string contents(const char *name) {
    std::ifstream file(name, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) {
        std::fprintf(stderr, "cannot read %s\n", name);
        std::exit(1);
    }
    return text.str();
}

// Compiles to `ptx`.
static double compile(const char *name, const std::string &source, const std::vector<const char *> &options, std::string &ptx) {
    const std::clock_t begin = std::clock();
    nvrtcProgram program;
    nvrtcCreateProgram(&program, source.c_str(), name, 0, nullptr, nullptr);
    const nvrtcResult result = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    const double time = milliseconds(begin);
    size_t size = 0;
    if (result != NVRTC_SUCCESS) {
        nvrtcGetProgramLogSize(program, &size);
        std::string log(size, '\0');
        nvrtcGetProgramLog(program, &log[0]);
        std::fprintf(stderr, "%s: %s\n%s\n", name, nvrtcGetErrorString(result), log.c_str());
        std::exit(1);
    }
    nvrtcGetPTXSize(program, &size);
    ptx.resize(size); // with the 0 at its end
    nvrtcGetPTX(program, &ptx[0]);
    nvrtcDestroyProgram(&program);
    return time;
}

// The driver's functions; without a GPU there are none.
#define DRIVER_FUNCTIONS(X)                                                                                                    \
    X(cuInit)                                                                                                                  \
    X(cuDeviceGet)                                                                                                             \
    X(cuDevicePrimaryCtxRetain)                                                                                                \
    X(cuCtxSetCurrent)                                                                                                         \
    X(cuModuleLoadData)                                                                                                        \
    X(cuModuleUnload)                                                                                                          \
    X(cuLinkCreate)                                                                                                            \
    X(cuLinkAddData) X(cuLinkComplete) X(cuLinkDestroy)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name) // of a name that cuda.h defines as another one

struct Driver {
#define MEMBER(name) decltype(&::name) name##_;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER

    bool open() {
        void *const library = dlopen("libcuda.so.1", RTLD_NOW);
        bool found = library != nullptr;
#define FIND(name) found = found && (name##_ = reinterpret_cast<decltype(name##_)>(dlsym(library, TEXT(name)))) != nullptr;
        DRIVER_FUNCTIONS(FIND)
#undef FIND
        CUdevice device;
        CUcontext context;
        return found && cuInit_(0) == CUDA_SUCCESS && cuDeviceGet_(&device, 0) == CUDA_SUCCESS &&
               cuDevicePrimaryCtxRetain_(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent_(context) == CUDA_SUCCESS;
    }

    static void check(const char *call, CUresult result) {
        if (result != CUDA_SUCCESS) {
            std::fprintf(stderr, "%s: error %d\n", call, static_cast<int>(result));
            std::exit(1);
        }
    }

    // Loads PTX, linked with the library if there is one.
    double load(std::string &ptx, std::string &library) const {
        const std::clock_t begin = std::clock();
        CUmodule module;
        if (library.empty()) {
            check("cuModuleLoadData", cuModuleLoadData_(&module, ptx.data()));
        } else {
            CUlinkState linker;
            void *image;
            size_t size;
            check("cuLinkCreate", cuLinkCreate_(0, nullptr, nullptr, &linker));
            const auto add = [&](CUjitInputType type, std::string &code, const char *name) {
                check("cuLinkAddData", cuLinkAddData_(linker, type, &code[0], code.size(), name, 0, nullptr, nullptr));
            };
            add(CU_JIT_INPUT_PTX, ptx, "the kernel");
            add(CU_JIT_INPUT_FATBINARY, library, "the device library");
            check("cuLinkComplete", cuLinkComplete_(linker, &image, &size));
            check("cuModuleLoadData", cuModuleLoadData_(&module, image));
            cuLinkDestroy_(linker);
        }
        const double time = milliseconds(begin);
        cuModuleUnload_(module);
        return time;
    }
};

// Prints two numbers for each source: NVRTC's and the driver's, which is -1 without a GPU.
int main(int argc, char **argv) {
    const std::string how = argc < 7 ? "" : argv[1];
    if (how != "anew" && how != "again" && how != "linked") {
        std::fprintf(stderr, "usage: %s anew|again|linked ARCHITECTURE INCLUDE-FOLDER DEVICE-LIBRARY REPETITIONS SOURCE...\n",
                     argv[0]);
        return 2;
    }
    const std::string architecture = std::string("--gpu-architecture=compute_") + argv[2];
    const std::string include = std::string("--include-path=") + argv[3];
    std::vector<const char *> options{architecture.c_str(), include.c_str(), "--std=c++17"};
    if (how != "again") {
        options.push_back("--no-cache");
        setenv("CUDA_CACHE_DISABLE", "1", 1);
    }
    std::string library;
    if (how == "linked") {
        options.insert(options.end(), {"--relocatable-device-code=true", "--define-macro=OXSHMEM_DEVICE_LIBRARY"});
        library = contents(argv[4]);
    }
    Driver driver;
    const bool has_gpu = driver.open();
    for (int i = 6; i < argc; ++i) {
        const std::string source = contents(argv[i]);
        std::string ptx;
        std::vector<double> compiled, loaded;
        for (int repetition = 0; repetition <= std::atoi(argv[5]); ++repetition) {
            const double first = compile(argv[i], source, options, ptx);
            const double second = has_gpu ? driver.load(ptx, library) : -1;
            if (repetition > 0) {
                compiled.push_back(first);
                loaded.push_back(second);
            }
        }
        std::printf("%.0f %.0f\n", median(compiled), median(loaded));
    }
}
