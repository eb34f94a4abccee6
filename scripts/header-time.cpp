// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// How long NVRTC takes for each of the sources named, in milliseconds of CPU time: the median of several compilations after one
// that is not counted; `anew`, or `again` from the driver's cache, where there is one. See scripts/header-time.
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

static double compile(const char *name, const std::string &source, int n_options, const char *const *options) {
    const std::clock_t begin = std::clock();
    nvrtcProgram program;
    nvrtcCreateProgram(&program, source.c_str(), name, 0, nullptr, nullptr);
    const nvrtcResult result = nvrtcCompileProgram(program, n_options, options);
    const std::clock_t end = std::clock();
    if (result != NVRTC_SUCCESS) {
        size_t size = 0;
        nvrtcGetProgramLogSize(program, &size);
        std::string log(size, '\0');
        nvrtcGetProgramLog(program, &log[0]);
        std::fprintf(stderr, "%s: %s\n%s\n", name, nvrtcGetErrorString(result), log.c_str());
        std::exit(1);
    }
    nvrtcDestroyProgram(&program);
    return 1e3 * static_cast<double>(end - begin) / CLOCKS_PER_SEC;
}

// header-time anew|again ARCHITECTURE INCLUDE-FOLDER REPETITIONS SOURCE...: prints one number for each source.
int main(int argc, char **argv) {
    if (argc < 6 || (std::strcmp(argv[1], "anew") != 0 && std::strcmp(argv[1], "again") != 0)) {
        std::fprintf(stderr, "usage: %s anew|again ARCHITECTURE INCLUDE-FOLDER REPETITIONS SOURCE...\n", argv[0]);
        return 2;
    }
    const std::string architecture = std::string("--gpu-architecture=compute_") + argv[2];
    const std::string include = std::string("--include-path=") + argv[3];
    const char *const options[] = {architecture.c_str(), include.c_str(), "--std=c++17", "--no-cache"};
    const int n_options = std::strcmp(argv[1], "anew") == 0 ? 4 : 3;
    for (int i = 5; i < argc; ++i) {
        std::ifstream file(argv[i]);
        std::stringstream text;
        text << file.rdbuf();
        if (!file) {
            std::fprintf(stderr, "cannot read %s\n", argv[i]);
            return 1;
        }
        compile(argv[i], text.str(), n_options, options);
        std::vector<double> times;
        for (int repetition = std::atoi(argv[4]); repetition > 0; --repetition) {
            times.push_back(compile(argv[i], text.str(), n_options, options));
        }
        std::sort(times.begin(), times.end());
        std::printf("%.0f\n", times.empty() ? 0.0 : times[times.size() / 2]);
    }
}
