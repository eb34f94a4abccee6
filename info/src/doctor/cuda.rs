//! What the CUDA driver says, asked in the process of a probe.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use cudarc::driver::sys::{CUdevice_P2PAttribute as P2p, CUdevice_attribute as Attribute, CUresult};
use serde::{Deserialize, Serialize};

use super::guard::tell;

/// Something that the driver said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum CudaFact {
    /// libcuda cannot be loaded.
    NoLibrary {
        /// The loader's words.
        reason: String,
    },
    /// libcuda lacks functions.
    MissingSymbols {
        /// Their names.
        names: Vec<String>,
    },
    /// The newest CUDA release that the driver serves: 13000 for 13.0.
    Version {
        /// The number in the form that `cuDriverGetVersion` writes.
        version: i32,
    },
    /// The driver is initialised, or why not.
    Started {
        /// The driver's words.
        error: Option<String>,
    },
    /// GPUs that this process sees.
    Count {
        /// How many.
        count: i32,
    },
    /// One of them.
    Gpu(Gpu),
    /// What one does to another.
    Pair(Pair),
    /// Memory was created, mapped, and exported for RDMA cards, or how far that went.
    Export {
        /// On which GPU.
        gpu: i32,
        /// Whether a descriptor for other processes was available.
        shared: Result<(), String>,
        /// Whether a dma-buf was available.
        dma_buf: Result<(), String>,
    },
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Gpu {
    /// Its number in this process.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its PCI address, as sysfs writes it.
    pub pci: String,
    /// Its memory, bytes.
    pub memory: u64,
    /// 90 for sm_90.
    pub architecture: i32,
    /// Virtual memory management.
    pub vmm: bool,
    /// Sharing of that memory by file descriptor.
    pub descriptors: bool,
    /// dma-bufs of its memory.
    pub dma_buf: bool,
    /// RDMA to memory of virtual memory management.
    pub rdma_vmm: bool,
    /// How it orders the writes of cards: 100 and above for kernels of its own.
    pub write_ordering: i32,
    /// Registration of host memory.
    pub host_register: bool,
}

/// What a GPU does to the memory of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Whose kernels.
    pub from: i32,
    /// Whose memory.
    pub to: i32,
    /// Loads and stores.
    pub access: bool,
    /// Atomics.
    pub atomics: bool,
    /// The driver's rank of the link, lower is better.
    pub rank: i32,
}

/// Functions that the probe calls; cudarc panics at the first that is missing.
const FUNCTIONS: [&CStr; 24] = [
    c"cuDriverGetVersion",
    c"cuInit",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetName",
    c"cuDeviceGetPCIBusId",
    c"cuDeviceTotalMem_v2",
    c"cuDeviceGetAttribute",
    c"cuDeviceCanAccessPeer",
    c"cuDeviceGetP2PAttribute",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxSetCurrent",
    c"cuMemCreate",
    c"cuMemGetAllocationGranularity",
    c"cuMemAddressReserve",
    c"cuMemMap",
    c"cuMemSetAccess",
    c"cuMemHostRegister_v2",
    c"cuMemHostGetDevicePointer_v2",
    c"cuMemHostUnregister",
    c"cuMemExportToShareableHandle",
    c"cuMemGetHandleForAddressRange",
];

fn check(call: &str, result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the driver stores a pointer to static text, or null.
    let known = unsafe { sys::cuGetErrorName(result, &raw mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    // SAFETY: static text that ends with 0.
    let name = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy() } else { "unknown error".into() };
    Err(format!("{call}: {name} ({})", result as u32))
}

macro_rules! driver {
    ($function:ident($($argument:expr),* $(,)?)) => {
        check(stringify!($function), sys::$function($($argument),*))
    };
}

/// Returns what the loader says.
pub(super) fn loader(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Loads and starts the driver; returns the findings.
fn start(say: impl Fn(CudaFact)) -> bool {
    // SAFETY: loads the library, which runs nothing but its own set-up.
    if !unsafe { sys::is_culib_present() } {
        // SAFETY: as above.
        let tried = unsafe { libloading::Library::new("libcuda.so.1") };
        say(CudaFact::NoLibrary { reason: tried.err().map(|error| loader(&error)).unwrap_or_default() });
        return false;
    }
    // SAFETY: the library is there; its functions are looked up, not called.
    let missing =
        |name: &&CStr| unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.to_bytes_with_nul()) }.is_err();
    let names: Vec<String> =
        FUNCTIONS.iter().copied().filter(missing).map(|name| name.to_string_lossy().into_owned()).collect();
    if !names.is_empty() {
        say(CudaFact::MissingSymbols { names });
        return false;
    }
    let mut version = 0;
    // SAFETY: writes one integer.
    if unsafe { driver!(cuDriverGetVersion(&raw mut version)) }.is_ok() {
        say(CudaFact::Version { version });
    }
    // SAFETY: may be called any number of times.
    let started = unsafe { driver!(cuInit(0)) };
    say(CudaFact::Started { error: started.clone().err() });
    started.is_ok()
}

/// Does the same for probes of something else: the probe `cuda` says what is wrong.
pub(super) fn start_quietly() -> bool {
    start(|_| ())
}

/// Runs the probe `cuda`: the driver, the GPUs, what each does to the others.
pub fn probe() {
    if !start(|fact| tell(&fact)) {
        return;
    }
    let mut count = 0;
    // SAFETY: writes one integer.
    if unsafe { driver!(cuDeviceGetCount(&raw mut count)) }.is_err() {
        return;
    }
    tell(&CudaFact::Count { count });
    for ordinal in 0..count {
        if let Ok(gpu) = look(ordinal) {
            tell(&CudaFact::Gpu(gpu));
        }
    }
    for from in 0..count {
        for to in (0..count).filter(|to| *to != from) {
            if let Ok(pair) = look_at_pair(from, to) {
                tell(&CudaFact::Pair(pair));
            }
        }
    }
}

fn look(ordinal: i32) -> Result<Gpu, String> {
    let mut device = 0;
    const NAME_BYTES: u8 = 128;
    const PCI_BYTES: u8 = 32;
    let (mut name, mut pci, mut memory) = ([0u8; NAME_BYTES as usize], [0u8; PCI_BYTES as usize], 0);
    // SAFETY: each call writes one value, or a text with a 0 at its end of at most the length
    // given.
    unsafe {
        driver!(cuDeviceGet(&raw mut device, ordinal))?;
        driver!(cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES.into(), device))?;
        driver!(cuDeviceGetPCIBusId(pci.as_mut_ptr().cast(), PCI_BYTES.into(), device))?;
        driver!(cuDeviceTotalMem_v2(&raw mut memory, device))?;
    }
    let text = |bytes: &[u8]| CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned());
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: writes one integer. An old driver does not know every attribute.
        let known = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        if known == CUresult::CUDA_SUCCESS { value } else { 0 }
    };
    Ok(Gpu {
        ordinal,
        name: text(&name).unwrap_or_default(),
        pci: text(&pci).unwrap_or_default().to_ascii_lowercase(),
        memory: memory as u64,
        architecture: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10
            + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        vmm: attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0,
        descriptors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0,
        dma_buf: attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        rdma_vmm: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
        write_ordering: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
        host_register: attribute(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0,
    })
}

fn look_at_pair(from: i32, to: i32) -> Result<Pair, String> {
    let (mut a, mut b, mut access) = (0, 0, 0);
    // SAFETY: each call writes one value.
    unsafe {
        driver!(cuDeviceGet(&raw mut a, from))?;
        driver!(cuDeviceGet(&raw mut b, to))?;
        driver!(cuDeviceCanAccessPeer(&raw mut access, a, b))?;
    }
    let attribute = |attribute: P2p| {
        let mut value = 0;
        // SAFETY: writes one integer.
        let known = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, attribute, a, b) };
        if known == CUresult::CUDA_SUCCESS { value } else { 0 }
    };
    Ok(Pair {
        from,
        to,
        access: access != 0,
        atomics: attribute(P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) != 0,
        rank: attribute(P2p::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK),
    })
}

/// Runs the probe `export`: memory of a GPU as the heap has it, and descriptors for other processes
/// and for cards.
pub fn probe_export(ordinal: i32) {
    if !start(|fact| tell(&fact)) {
        return;
    }
    let (shared, exported) = match create(ordinal) {
        Ok(memory) => (share(memory.handle).map(drop), dma_buf(memory.address, memory.bytes, false).map(drop)),
        Err(reason) => (Err(reason.clone()), Err(reason)),
    };
    tell(&CudaFact::Export { gpu: ordinal, shared, dma_buf: exported });
    // The process ends with it, and with the memory.
}

/// Memory of a GPU, mapped. It is left to the end of the process.
#[derive(Debug)]
pub(super) struct Memory {
    pub handle: u64,
    pub address: u64,
    pub bytes: usize,
}

/// Makes the GPU's context current, and memory as the heap's.
pub(super) fn create(ordinal: i32) -> Result<Memory, String> {
    let mut device = 0;
    let mut context = std::ptr::null_mut();
    // SAFETY: each call writes one value.
    unsafe {
        driver!(cuDeviceGet(&raw mut device, ordinal))?;
        driver!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        driver!(cuCtxSetCurrent(context))?;
    }
    // SAFETY: plain data, for which zeros are a value.
    let mut properties: sys::CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal;
    let mut for_cards = 0;
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    // SAFETY: writes one integer; what the driver does not know stays 0.
    let known = unsafe { sys::cuDeviceGetAttribute(&raw mut for_cards, attribute, device) } == CUresult::CUDA_SUCCESS;
    properties.allocFlags.gpuDirectRDMACapable = u8::from(known && for_cards != 0);
    let (mut bytes, mut handle, mut address) = (0, 0, 0);
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the structures are complete; addresses are reserved before they are mapped.
    unsafe {
        driver!(cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum))?;
        driver!(cuMemCreate(&raw mut handle, bytes, &raw const properties, 0))?;
        driver!(cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0))?;
        driver!(cuMemMap(address, bytes, 0, handle, 0))?;
        let mut access: sys::CUmemAccessDesc = MaybeUninit::zeroed().assume_init();
        access.location = properties.location;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        driver!(cuMemSetAccess(address, bytes, &raw const access, 1))?;
    }
    Ok(Memory { handle, address, bytes })
}

/// Returns a descriptor of memory for other processes.
pub(super) fn share(handle: u64) -> Result<i32, String> {
    let mut descriptor = -1i32;
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: writes one descriptor, an integer.
    unsafe { driver!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, kind, 0)) }?;
    Ok(descriptor)
}

/// Returns a dma-buf of memory; with `pcie` with the addresses of the PCIe BAR.
pub(super) fn dma_buf(address: u64, bytes: usize, pcie: bool) -> Result<i32, String> {
    // CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE of cuda.h, since CUDA 12.8; older drivers refuse
    // it.
    const PCIE: u64 = 1;
    let mut descriptor = -1i32;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let flags = if pcie { PCIE } else { 0 };
    // SAFETY: writes one descriptor, an integer; the range is mapped.
    unsafe { driver!(cuMemGetHandleForAddressRange((&raw mut descriptor).cast(), address, bytes, kind, flags)) }?;
    Ok(descriptor)
}

/// Lets kernels of the current context store to a page of registers, and takes that back.
pub(super) fn map_registers(page: *mut u8) -> Result<(), String> {
    let bytes = rustix::param::page_size();
    let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_IOMEMORY | sys::CU_MEMHOSTREGISTER_PORTABLE;
    let mut address = 0;
    // SAFETY: the page is mapped, and nothing is stored to it.
    unsafe {
        driver!(cuMemHostRegister_v2(page.cast(), bytes, flags))?;
        let mapped = driver!(cuMemHostGetDevicePointer_v2(&raw mut address, page.cast(), 0));
        driver!(cuMemHostUnregister(page.cast()))?;
        mapped
    }
}
