//! What the cases share: a PE, a module, and the report that kernels write wrong values to.

use bytemuck::{Pod, Zeroable};
use oxshmem::{Config, Function, KernelArgs, LaunchConfig, Module, ModuleSource, Pe, SymmetricSlice};

/// Mirrors `Report` of `kernels/conformance.h`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Report {
    failures: u64,
    line: u64,
    seen: u64,
    wanted: u64,
    block: u64,
    thread: u64,
}

/// A PE with a module of kernels.
#[derive(Debug)]
pub struct Rig {
    pub pe: Pe,
    source: &'static ModuleSource,
    module: Module,
    report: SymmetricSlice<Report>,
}

impl Rig {
    /// Joins the job and loads `source`.
    pub fn new(source: &'static ModuleSource) -> oxshmem::Result<Self> {
        Self::with_config(source, Config::from_env()?)
    }

    /// As [`new`](Self::new), with a configuration.
    pub fn with_config(source: &'static ModuleSource, config: Config) -> oxshmem::Result<Self> {
        let pe = Pe::with_config(config)?;
        let module = pe.load(source)?;
        let report = pe.alloc(1)?;
        Ok(Self { pe, source, module, report })
    }

    pub fn me(&self) -> usize {
        self.pe.my_pe()
    }

    pub fn n_pes(&self) -> usize {
        self.pe.n_pes()
    }

    /// The argument for kernels that take a report.
    pub fn report(&self) -> &SymmetricSlice<Report> {
        &self.report
    }

    pub fn function(&self, kernel: &str) -> oxshmem::Result<Function> {
        Ok(self.module.function(kernel)?)
    }

    /// Runs `kernel` to its end, and fails if it reported a wrong value. The arguments must be the kernel's.
    pub fn run(&self, kernel: &str, config: LaunchConfig, args: impl KernelArgs) -> oxshmem::Result<()> {
        // SAFETY: the kernels are ours and every caller passes what they declare; sizes are checked by the launch.
        unsafe { self.pe.launch(&self.function(kernel)?, config, args)? };
        self.pe.synchronize()?;
        let report = self.pe.read_local(&self.report, 0..1)?[0];
        let Report { failures, line, seen, wanted, block, thread } = report;
        assert!(
            failures == 0,
            "PE {}: kernels/{}.cu:{line}: {kernel}, block {block}, thread {thread}: {seen:#x} instead of {wanted:#x}, and {} more \
             wrong values",
            self.me(),
            self.source.name,
            failures - 1
        );
        Ok(())
    }

    /// As [`run`](Self::run), in `blocks` blocks of `threads` threads.
    pub fn run_linear(&self, kernel: &str, blocks: u32, threads: u32, args: impl KernelArgs) -> oxshmem::Result<()> {
        self.run(kernel, LaunchConfig::linear(blocks, threads), args)
    }

    /// Symmetric memory with `data` in it, on every PE its own.
    pub fn filled<T: Pod>(&self, data: &[T]) -> oxshmem::Result<SymmetricSlice<T>> {
        let slice = self.pe.alloc(data.len())?;
        self.pe.write_local(&slice, 0, data)?;
        Ok(slice)
    }

    /// Ends the PE in order.
    pub fn finish(self) -> Result<(), Box<dyn std::error::Error>> {
        Ok(self.pe.finalize()?)
    }
}

/// splitmix64, as in `kernels/conformance.h`.
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
