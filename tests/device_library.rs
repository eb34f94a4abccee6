//! The device library has all that kernels are compiled to call, no less and no more: linked by the
//! toolkit's linker, without a GPU.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use oxshmem::abi::ABI_VERSION;
use oxshmem::device::cuda::DEVICE_LIBRARY;

/// `kernels/linked.cu`, which uses the whole interface.
const LINKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/linked.fatbin"));

/// The compiler that both were made with; empty if there was none.
const NVCC: &str = env!("TESTS_NVCC");

/// The interface, as `detail/library.h` declares it.
const INTERFACE: &str = include_str!("../device-kernels/include/oxshmem/detail/library.h");

fn link(folder: &Path, inputs: &[&str]) -> std::io::Result<Output> {
    let linker = Path::new(NVCC).with_file_name("nvlink");
    Command::new(linker).args(["-arch=sm_90", "-o", "linked.cubin"]).args(inputs).current_dir(folder).output()
}

#[test]
fn it_has_all_that_kernels_call() -> std::io::Result<()> {
    if NVCC.is_empty() {
        println!("skipped: built without a CUDA compiler");
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("device-library");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("kernels.fatbin"), LINKED)?;
    std::fs::write(folder.join("library.fatbin"), DEVICE_LIBRARY)?;

    let together = link(&folder, &["kernels.fatbin", "library.fatbin"])?;
    assert!(together.status.success(), "{}", String::from_utf8_lossy(&together.stderr));
    let cubin = std::fs::read(folder.join("linked.cubin"))?;
    assert!(cubin.starts_with(b"\x7fELF"));

    // Alone, the kernels lack everything that the interface declares, and the state.
    let alone = link(&folder, &["kernels.fatbin"])?;
    assert!(!alone.status.success());
    let said = String::from_utf8_lossy(&alone.stderr);
    let lacking: BTreeSet<&str> = said.split('\'').filter(|word| word.starts_with("oxshmem_library_")).collect();
    let parts = INTERFACE.split("OXSHMEM_LIBRARY(").skip(1).filter_map(|rest| rest.split_once(')'));
    let declared: BTreeSet<String> = parts
        .map(|(name, _)| name)
        .chain(["state"])
        .map(|name| format!("oxshmem_library_{name}_v{ABI_VERSION}"))
        .collect();
    assert_eq!(lacking, declared.iter().map(String::as_str).collect(), "{said}");
    Ok(())
}
