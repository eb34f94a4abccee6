// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// How long NVRTC takes for each of the sources named, in milliseconds of CPU time: the median of several compilations after one
// that is not counted. See scripts/header-time.
#include <nvrtc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

// header-time ARCHITECTURE INCLUDE-FOLDER REPETITIONS SOURCE...: prints one number for each source.
int main(int argc, char **argv) {
    if (argc < 5) {
        std::fprintf(stderr, "usage: %s ARCHITECTURE INCLUDE-FOLDER REPETITIONS SOURCE...\n", argv[0]);
        return 2;
    }
    const std::string architecture = std::string("--gpu-architecture=compute_") + argv[1];
    const std::string include = std::string("--include-path=") + argv[2];
    const char *const options[] = {architecture.c_str(), include.c_str(), "--std=c++17"};
    for (int i = 4; i < argc; ++i) {
        std::ifstream file(argv[i]);
        std::stringstream text;
        text << file.rdbuf();
        if (!file) {
            std::fprintf(stderr, "cannot read %s\n", argv[i]);
            return 1;
        }
        compile(argv[i], text.str(), 3, options);
        std::vector<double> times;
        for (int repetition = std::atoi(argv[3]); repetition > 0; --repetition) {
            times.push_back(compile(argv[i], text.str(), 3, options));
        }
        std::sort(times.begin(), times.end());
        std::printf("%.0f\n", times.empty() ? 0.0 : times[times.size() / 2]);
    }
}
