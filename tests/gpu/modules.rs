//! Modules that are refused, each with its reason, and two that are loaded together.

use std::ffi::c_void;

use oxshmem::device::DeviceError;
use oxshmem::device::cpu::ModuleError as SharedModuleError;
use oxshmem::device::cuda::ModuleError;
use oxshmem::{Error, LaunchConfig, ModuleSource, abi};

use crate::{GPU, Outcome, init};

/// PTX with a state symbol that says this, and a kernel.
fn ptx(version: &str, state: &str) -> &'static str {
    let text = format!(
        ".version {version}\n.target sm_80\n.address_size 64\n{state}\n.visible .entry nothing()\n{{\nret;\n}}\n"
    );
    Box::leak(text.into_boxed_str())
}

fn state(magic: u32, version: u32, bytes: usize) -> String {
    let said: Vec<String> = [magic, version, bytes as u32]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .map(|byte| byte.to_string())
        .collect();
    format!(".visible .const .align 128 .b8 oxshmem_state[{bytes}] = {{{}}};", said.join(", "))
}

fn module(text: &'static str) -> ModuleSource {
    source("made_up", Box::leak(Box::new([(80, text)])))
}

pub fn source(name: &'static str, ptx: &'static [(u32, &'static str)]) -> ModuleSource {
    unsafe extern "C" fn no_object() -> *const c_void {
        std::ptr::null()
    }
    // SAFETY: on the `cuda` device nothing calls the function, and there are no cubins.
    unsafe { ModuleSource::from_build(name, ptx, &[], no_object) }
}

pub fn modules() -> Outcome {
    let pe = init()?;
    let bytes = size_of::<abi::State>();
    let good = state(abi::MAGIC, abi::ABI_VERSION, bytes);
    let refused = |text: &'static str| match pe.load(&module(text)) {
        Err(Error::Device(error)) => {
            println!("{error}");
            error
        }
        other => panic!("{other:?}"),
    };

    let newer = refused(ptx("99.0", &good));
    assert!(matches!(newer, DeviceError::CudaModule { source: ModuleError::NewPtx { .. }, .. }), "{newer}");
    let broken = refused(ptx("8.0", &format!("{good}\nthis is no PTX")));
    assert!(
        matches!(&broken, DeviceError::CudaModule { source: ModuleError::Load { log, .. }, .. } if !log.is_empty()),
        "{broken}"
    );
    let stateless = refused(ptx("8.0", ""));
    assert!(matches!(stateless, DeviceError::CudaModule { source: ModuleError::State { .. }, .. }), "{stateless}");
    let foreign = refused(ptx("8.0", &state(1, 1, bytes)));
    assert!(matches!(foreign, DeviceError::CudaModule { source: ModuleError::State { .. }, .. }), "{foreign}");
    match refused(ptx("8.0", &state(abi::MAGIC, abi::ABI_VERSION + 1, bytes + 128))) {
        DeviceError::Module { source: SharedModuleError::AbiVersion { module, module_bytes, runtime, .. }, .. } => {
            assert_eq!((module, runtime), (abi::ABI_VERSION + 1, abi::ABI_VERSION));
            assert_eq!(module_bytes as usize, bytes + 128);
        }
        other => panic!("{other}"),
    }
    match pe.load(&source("empty", &[])) {
        Err(Error::Device(DeviceError::CudaModule { source: ModuleError::NoPtx, .. })) => {}
        other => panic!("{other:?}"),
    }

    // Both know the PE, and loading one again changes nothing.
    let accepted = pe.load(&module(ptx("8.0", &good)))?.kernel("nothing")?;
    let answer = pe.alloc::<i32>(2)?;
    for _ in 0..2 {
        let who = pe.load(&GPU)?.kernel("who_am_i")?;
        // SAFETY: the one kernel takes nothing, the other the address of two integers.
        unsafe {
            accepted.launch(&pe, LaunchConfig::linear(1, 1), ())?;
            who.launch(&pe, LaunchConfig::linear(1, 1), (&answer,))?;
        }
        pe.synchronize()?;
        assert_eq!(pe.read(answer.view(..2))?, [pe.my_pe() as i32, pe.n_pes() as i32]);
    }
    Ok(pe.finalize()?)
}
