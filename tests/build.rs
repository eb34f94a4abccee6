//! Compiles the tests' kernels.

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
        scope.spawn(|| Module::new("unbounded").source("kernels/unbounded.cu").compile());
        // For the report of registers and spills on every architecture.
        scope.spawn(|| Module::new("paths").source("kernels/paths.cu").compile());
        for name in [
            "collectives",
            "typed_collectives",
            "typed",
            "rma",
            "queues",
            "waits",
            "abi",
            "atomics",
            "barriers",
            "errors",
            "gpu",
            "lanes",
            "posting",
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
