//! Compiles the tests' kernels.

use std::fs;
use std::path::PathBuf;
use std::thread;

use oxshmem_build::Module;

/// The oldest GPUs that the tests run on; newer ones take the same PTX. One architecture keeps the
/// build short.
const ARCHITECTURES: [u32; 1] = [90];

/// Those that take longest to assemble: what they call for one type and scope is assembled with the
/// library and with other tests.
const LARGE: [&str; 6] = ["collectives", "queues", "rma", "typed", "typed_collectives", "waits"];

fn main() {
    // What takes longest comes first, so that nothing is left alone at the end.
    thread::scope(|scope| {
        // Kernels without launch bounds, in a program that is linked and in one that is compiled as
        // a whole.
        for name in ["unbounded_collectives", "unbounded"] {
            scope.spawn(move || {
                Module::new(format!("linked_{name}")).source(format!("kernels/{name}.cu")).report_linked();
            });
        }
        scope.spawn(|| Module::new("unbounded").source("kernels/unbounded.cu").reports_usage().compile());
        // For the report of registers and spills on every architecture.
        scope.spawn(|| Module::new("paths").source("kernels/paths.cu").reports_usage().compile());
        for name in [
            "collectives",
            "typed_collectives",
            "typed",
            "rma",
            "queues",
            "waits",
            "abi",
            "aggregates",
            "atomics",
            "barriers",
            "buffers",
            "check",
            "contexts",
            "errors",
            "gpu",
            "grid",
            "lanes",
            "posting",
            "profile",
            "profile_off",
            "signals",
            "streams",
            "teams",
            "wqe",
        ] {
            scope.spawn(move || {
                let module = Module::new(name).source(format!("kernels/{name}.cu")).architectures(ARCHITECTURES);
                if LARGE.contains(&name) { module.large() } else { module }.compile();
            });
        }
        scope.spawn(linked);
        scope.spawn(compat);
        // Calls the port layer as only the `cpu` device can be called.
        scope.spawn(|| Module::new("simt").source("kernels/simt.cu").cpu_only().compile());
        // What it counts does not depend on the device.
        scope.spawn(|| Module::new("costs").source("kernels/costs.cu").cpu_only().compile());
    });
}

/// Compiles what is linked with the device library when a test runs. On `cpu` it is a whole.
fn linked() {
    Module::new("linked").source("kernels/linked.cu").cpu_only().compile();
    let linked = Module::new("linked").source("kernels/linked.cu").architectures(ARCHITECTURES);
    let linked = linked.define("OXSHMEM_DEVICE_LIBRARY", "1").compile_relocatable();
    let nvcc = linked.nvcc.unwrap_or_default();
    // Not OXSHMEM_...: PEs refuse such variables that they do not know.
    println!("cargo::rustc-env=TESTS_NVCC={}", nvcc.display());
}

/// Compiles the kernels that call every typed name once more, with the names of the compatibility
/// layer and through its headers. The same values are checked.
fn compat() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let kernels = std::path::absolute("kernels").unwrap_or_default();
    for name in ["typed", "typed_collectives"] {
        let from = kernels.join(format!("{name}.cu"));
        println!("cargo::rerun-if-changed={}", from.display());
        let text = fs::read_to_string(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        let to = out.join(format!("compat_{name}.cu"));
        fs::write(&to, compat_names(&text)).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        let module = Module::new(format!("compat_{name}")).source(to);
        module.include(&kernels).include("../capi/compat/nvshmem/include").cpu_only().compile();
    }
    let own = Module::new("compat_own").source("kernels/compat_own.cu");
    own.include(&kernels).include("../capi/compat/nvshmem/include").cpu_only().compile();
    let others = Module::new("compat_names").source("kernels/compat_names.cu");
    others.include("../capi/compat/nvshmem/include").cpu_only().compile();
}

/// What these kernels call, with the names of the compatibility layer, which has neither complex
/// reductions nor `collect` and `alltoalls`, and takes operators and comparisons as integers.
fn compat_names(text: &str) -> String {
    let scopes = "#include <nvshmem.h>\n\n\
        #define COMPAT_FOR_EACH_SCOPE(X, ...) \
        X(nvshmem_, , oxshmem::thread, __VA_ARGS__) \
        X(nvshmemx_, _warp, oxshmem::warp, __VA_ARGS__) \
        X(nvshmemx_, _block, oxshmem::block, __VA_ARGS__)\n";
    let replaced = [
        ("#include <oxshmem/typed.h>", scopes),
        ("OXSHMEM_FOR_EACH_NARROW_SCOPE", "COMPAT_FOR_EACH_SCOPE"),
        ("OXSHMEM_FOR_EACH_SCOPE", "COMPAT_FOR_EACH_SCOPE"),
        ("SignalOp op", "int op"),
        ("using oxshmem::SignalOp;", ""),
        ("oxshmem::CMP_", "NVSHMEM_CMP_"),
        ("oxshmem::SIGNAL_", "NVSHMEM_SIGNAL_"),
        ("oxshmem_signal_op", "nvshmemx_signal_op"),
        ("oxshmemx_quiet_warp()", "oxshmem::quiet(oxshmem::warp)"),
        ("oxshmemx_quiet_block()", "oxshmem::quiet(oxshmem::block)"),
        ("oxshmemx_", "nvshmemx_"),
        ("oxshmem_", "nvshmem_"),
    ];
    let text = replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.contains("prefix##COLLECT##") || line.contains("prefix##ALLTOALLS##") {
            // Its check is in the next line; the last of a macro ends it.
            if lines.next().is_some_and(|check| !check.trim_end().ends_with('\\')) {
                kept.push("");
            }
        } else if !line.contains("FOR_EACH_COMPLEX_REDUCE_TYPE") {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}
