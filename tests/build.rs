//! Compiles the tests' kernels.

/// The oldest GPUs that the tests run on; newer ones take the same PTX. One architecture keeps the build short.
const ARCHITECTURES: [u32; 1] = [90];

/// Those that take longest to assemble: what they call for one type and scope is assembled with the library and with other tests.
const LARGE: [&str; 6] = ["collectives", "queues", "rma", "typed", "typed_collectives", "waits"];

fn main() {
    for name in [
        "abi",
        "atomics",
        "barriers",
        "collectives",
        "errors",
        "gpu",
        "lanes",
        "posting",
        "queues",
        "rma",
        "signals",
        "streams",
        "teams",
        "typed",
        "typed_collectives",
        "waits",
        "wqe",
    ] {
        let module = oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).architectures(ARCHITECTURES);
        if LARGE.contains(&name) { module.large() } else { module }.compile();
    }
    // For the report of registers and spills on every architecture.
    oxshmem_build::Module::new("paths").source("kernels/paths.cu").compile();
    // Kernels without launch bounds, in a program that is compiled as a whole and in one that is linked.
    oxshmem_build::Module::new("unbounded").source("kernels/unbounded.cu").compile();
    for name in ["unbounded", "unbounded_collectives"] {
        oxshmem_build::Module::new(format!("linked_{name}")).source(format!("kernels/{name}.cu")).report_linked();
    }
    // On GPUs it is linked with the device library when a test runs; on `cpu` it is a whole.
    oxshmem_build::Module::new("linked").source("kernels/linked.cu").cpu_only().compile();
    let linked = oxshmem_build::Module::new("linked").source("kernels/linked.cu").architectures(ARCHITECTURES);
    let linked = linked.define("OXSHMEM_DEVICE_LIBRARY", "1").compile_relocatable();
    let nvcc = linked.nvcc.unwrap_or_default();
    // Not OXSHMEM_...: PEs refuse such variables that they do not know.
    println!("cargo::rustc-env=TESTS_NVCC={}", nvcc.display());
    // Calls the port layer as only the `cpu` device can be called.
    oxshmem_build::Module::new("simt").source("kernels/simt.cu").cpu_only().compile();
    // What it counts does not depend on the device.
    oxshmem_build::Module::new("costs").source("kernels/costs.cu").cpu_only().compile();
}
