//! What the cases share: a PE, a module, the report that kernels write wrong values to, and shorter
//! lists for PEs that share a GPU.

use std::hash::Hash;

use bytemuck::{Pod, Zeroable};
use oxshmem::bootstrap::FailureKind;
use oxshmem::{
    Config, Error, Kernel, KernelArgs, LaunchConfig, Module, ModuleSource, Operations, Pe, SymmetricSlice, TeamError,
};
use oxshmem_tests::covering::{covering, has_equal};

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

    /// Like [`new`](Self::new), with a configuration.
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

    pub fn function(&self, kernel: &str) -> oxshmem::Result<Kernel> {
        self.module.kernel(kernel)
    }

    /// Runs `kernel` to its end, and fails if it reported a wrong value. The arguments must be the
    /// kernel's.
    pub fn run(&self, kernel: &str, config: LaunchConfig, args: impl KernelArgs) -> oxshmem::Result<()> {
        // SAFETY: the kernels are ours and every caller passes what they declare; sizes are checked
        // by the launch.
        unsafe { self.function(kernel)?.launch(&self.pe, config, args)? };
        self.pe.synchronize()?;
        let report = self.pe.read(self.report.view(..1))?[0];
        let Report { failures, line, seen, wanted, block, thread } = report;
        assert!(
            failures == 0,
            "PE {}: kernels/{}.cu:{line}: {kernel}, block {block}, thread {thread}: {seen:#x} instead of {wanted:#x}, and {} more \
             wrong values",
            self.me(),
            self.source.name(),
            failures - 1
        );
        Ok(())
    }

    /// Like [`run`](Self::run), in `blocks` blocks of `threads` threads.
    pub fn run_linear(&self, kernel: &str, blocks: u32, threads: u32, args: impl KernelArgs) -> oxshmem::Result<()> {
        self.run(kernel, LaunchConfig::linear(blocks, threads), args)
    }

    /// Symmetric memory with `data` in it, on every PE its own.
    pub fn filled<T: Pod>(&self, data: &[T]) -> oxshmem::Result<SymmetricSlice<T>> {
        let slice = self.pe.alloc(data.len())?;
        self.pe.write(&slice, data)?;
        Ok(slice)
    }

    /// Ends the PE in order.
    pub fn finish(self) -> Result<(), Box<dyn std::error::Error>> {
        Ok(self.pe.finalize()?)
    }
}

/// Makes a call of the world team, `what` in its error, which the last PE makes only after the
/// others have seen that it is missing. Returns the result of the next call, which all make. Run
/// with a short `OXSHMEM_MEETING_TIMEOUT`, by at least 2 PEs.
pub fn misses_last<T: std::fmt::Debug>(
    rig: &Rig,
    what: &str,
    call: impl Fn() -> oxshmem::Result<T>,
) -> oxshmem::Result<T> {
    let last = rig.n_pes() - 1;
    let told = rig.pe.alloc::<u64>(1)?;
    if rig.me() == last {
        rig.pe.signal_wait_until(told.signal(0), oxshmem::Compare::Eq, last as u64)?;
    }
    match call() {
        Err(Error::Team(TeamError::Meeting { failure, pes })) if failure.kind == FailureKind::Missing => {
            let text = failure.to_string();
            let named = failure.ranks == [last as u32] && pes.0 == [last as u32];
            assert!(rig.me() == last || named && text.starts_with(&format!("member {last} of ")), "{text}");
            assert!(rig.me() == last || text.contains(what), "{text}");
        }
        other => panic!("{other:?}"),
    }
    if rig.me() != last {
        rig.pe.signal(told.signal(0).add(1), last)?;
        rig.pe.quiet()?;
    }
    // The late one has made the call as often as the others, so the next is the same for all.
    rig.pe.barrier_all()?;
    let made = call();
    rig.pe.free(told)?;
    made
}

/// splitmix64, as in `kernels/conformance.h`.
pub use oxshmem_system::mixing::mix;

/// Which cases of a list are run.
///
/// A kernel that waits for its peers spins, and PEs that share a GPU take turns in time slices:
/// what takes microseconds elsewhere then takes a slice of each PE. So there only as many cases are
/// run as it takes to see every feature of the list, and PE 0 says so. On the `cpu` device, whose
/// PEs give way while they wait, and with a GPU per PE all are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All.
    Whole,
    /// Those that [`covering`] chooses, for this reason.
    Thinned(&'static str),
}

impl Extent {
    /// What PEs on these devices run; [`oxshmem_tests::THINNED`] thins the list anyway. Collective.
    pub fn of(pe: &Pe) -> oxshmem::Result<Self> {
        if std::env::var_os(oxshmem_tests::THINNED).is_some() {
            return Ok(Self::Thinned("a short list was requested"));
        }
        let shared = match pe.gpu() {
            Some(gpu) => {
                let system = rustix::system::uname();
                has_equal(&gather(pe, &format!("{} {}", gpu.pci, system.nodename().to_string_lossy()))?)
            }
            None => false,
        };
        Ok(if shared { Self::Thinned("PEs share a GPU") } else { Self::Whole })
    }

    /// What is run of `cases`, in their order; the features are those of pairs of values that shall
    /// meet in a case. `what` names the cases in the line that PE 0 prints. All PEs of a team get
    /// the same from the same list.
    pub fn of_list<T, F: Hash + Eq>(
        self,
        what: &str,
        pe: &Pe,
        cases: Vec<T>,
        features: impl Fn(&T) -> Vec<F>,
    ) -> Vec<T> {
        let Self::Thinned(reason) = self else { return cases };
        let all = cases.len();
        let cases = covering(cases, features);
        if pe.my_pe() == 0 {
            let few = cases.len();
            println!("{what}: {few} of {all} calls, since {reason}; every type, operation, size and way still occurs");
        }
        cases
    }
}

/// What each PE says, by PE. Collective; texts are cut to 64 bytes.
fn gather(pe: &Pe, text: &str) -> oxshmem::Result<Vec<[u8; 64]>> {
    let mut mine = [0; 64];
    mine.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    let all = pe.alloc::<[u8; 64]>(pe.n_pes())?;
    (0..pe.n_pes()).try_for_each(|to| pe.put(all.view(pe.my_pe()..), &[mine], to))?;
    pe.barrier_all()?;
    let texts = pe.read(all.view(..pe.n_pes()))?;
    pe.free(all)?;
    Ok(texts)
}
