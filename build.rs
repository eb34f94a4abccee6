//! Compiles the runtime's device code (`device-kernels/kernels`), the device library among it.

use std::thread;

use oxshmem_build::Module;

fn main() {
    thread::scope(|scope| {
        for name in ["aggregate", "collectives", "host_ops", "levels", "soft_hca"] {
            scope.spawn(move || Module::new(name).source(format!("device-kernels/kernels/{name}.cu")).compile());
        }
        scope.spawn(|| {
            Module::new("device_library").source("device-kernels/kernels/device_library.cu").compile_relocatable();
        });
    });
}
