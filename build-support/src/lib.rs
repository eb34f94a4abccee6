//! Compiles OxSHMEM device code to PTX and to CPU objects, for build scripts.
//!
//! A crate with device code has this `build.rs`:
//!
//! ```no_run
//! oxshmem_build::Module::new("kernels").source("kernels/ring.cu").compile();
//! ```
//!
//! and declares its kernels with `oxshmem::kernels!`, which names the module (`pub struct Kernels
//! from "kernels" { ... }`) and checks the arguments of launches. `oxshmem::include_module!(pub
//! KERNELS, "kernels")` takes the module in without declarations, for `oxshmem::Pe::load`.
//!
//! # What a module is
//!
//! A module is one translation unit: its sources are included one after the other, in the order
//! given. It is compiled
//!
//! * by the host's C++ compiler, into a static library that is linked into the program (the `cpu`
//!   device), always;
//! * by nvcc, when there is one: PTX for the virtual architectures in [`ARCHITECTURES`] (or those
//!   of them that [`Module::architectures`] names), and from each PTX a cubin for the real
//!   architecture of the same number. Both go into the program: a cubin is loaded at once, PTX
//!   serves other and newer GPUs, for which the driver compiles it. What each function uses is in
//!   [`Artifacts::usage`] and in the file `<name>.usage.txt`.
//!
//! Builds that are not release builds compile for the `cpu` device with `-Og`, which takes a fifth
//! of the time of a release build's `-O2` (`CXXFLAGS=-O2` has them optimise too). They make PTX for
//! the lowest architecture alone, and from that a cubin for sm_90: so they lack what a source has
//! for newer architectures only, and take a third of the time. Where the machine has no NVIDIA GPU
//! either, they leave out the cubin and have nvcc compile as fast as it can (`--Ofast-compile=max`,
//! from CUDA 13.0 on): what is built there is seldom run on a GPU, and runs slower if it is.
//! `OXSHMEM_CUDA=1` builds as on a machine with a GPU, and [`Module::reports_usage`] does so for
//! one module. [`Module::large`] leaves out one module's cubin in any build but a release build.
//!
//! A build script with several modules compiles them side by side by calling [`Module::compile`]
//! from several threads: together they run as many compilers at a time as cargo allows.
//!
//! PTX says that it is of the oldest version of the PTX ISA that has what it uses, so that older
//! drivers compile it. The ptxas beside nvcc parses it for that, in every build. Where there is
//! none, PTX keeps the version that nvcc gives it.
//!
//! PTX that differs from the next lower architecture's in nothing but its `.target` line is left
//! out.
//!
//! Symbols of a module's CPU object are local to it, except for its entry. So two modules of one
//! program may define functions of the same name, as they may on a GPU.
//!
//! # Relocatable code
//!
//! [`Module::compile_relocatable`] makes of the same sources what a linker takes together with
//! other relocatable code: the runtime's device library is made so.
//!
//! # What is compiled again
//!
//! Compilers work in `target/oxshmem-modules`, which all profiles, feature sets and triples of a
//! target directory share, and their results are copied to `OUT_DIR`. A step whose command and
//! inputs are those of its last run is not repeated, so lints, documentation, tests and fuzzing
//! together compile a module once.
//!
//! # Generated Rust
//!
//! `$OUT_DIR/<name>.rs` is one expression of type `::oxshmem::ModuleSource`. It carries its own
//! `#[link]` attribute, so the CPU object is linked into whichever target of the package includes
//! it: library, binary, test, bench or example.
//!
//! # The CUDA compiler
//!
//! Looked for in this order: `$NVCC`, `$CUDA_HOME/bin`, `$CUDA_PATH/bin`, `PATH`,
//! `.toolchain/cuda/bin` in the package's folder or one above it (where `scripts/setup` puts it),
//! `/usr/local/cuda/bin`. What `NVCC` names has to work; elsewhere a compiler that is older than
//! CUDA 12.8 is passed over if a later place has a newer one. Without any, everything but the
//! `cuda` device works, and the build says so in one line. `OXSHMEM_CUDA=0` leaves PTX out
//! silently. `OXSHMEM_CUDA=1` makes a missing compiler an error, and builds for a GPU though this
//! machine may have none. nvcc reads `NVCC_CCBIN` (its host compiler), `NVCC_PREPEND_FLAGS` and
//! `NVCC_APPEND_FLAGS`.
//!
//! # Headers
//!
//! The device headers are taken from `device-kernels/include` beside this crate's folder; see
//! [`include_dir`]. A copy of this crate outside the repository has to bring that folder along.

mod cargo;
mod cpu;
mod cuda;
mod error;
mod files;
mod generate;
mod step;
mod usage;
mod work;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cargo::Cargo;
pub use cuda::ARCHITECTURES;
pub use error::Error;
use generate::Unit;
pub use usage::FunctionUsage;
use work::Work;

/// Returns the folder of the device headers: `#include <oxshmem/...>` is relative to it.
#[must_use]
pub fn include_dir() -> PathBuf {
    // A link to device-kernels/include, or, in the published crate, a copy.
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    headers.canonicalize().unwrap_or(headers)
}

/// A device-code module to compile: a builder, finished by [`compile`](Module::compile).
#[derive(Debug, Clone)]
pub struct Module {
    name: String,
    sources: Vec<PathBuf>,
    includes: Vec<PathBuf>,
    defines: Vec<(String, String)>,
    architectures: Vec<u32>,
    large: bool,
    reports_usage: bool,
}

/// What compiling a module left in `OUT_DIR`.
#[derive(Debug, Clone)]
pub struct Artifacts {
    /// The generated Rust expression, `<name>.rs`.
    pub rust: PathBuf,
    /// The static library that holds the CPU object.
    pub cpu: PathBuf,
    /// PTX by virtual architecture (80 stands for `compute_80`), ascending, no two alike. Empty
    /// without a CUDA compiler.
    pub ptx: Vec<(u32, PathBuf)>,
    /// Cubins by real architecture (80 stands for `sm_80`), one for each that the build is made
    /// for. Empty without a CUDA compiler, and in a build that makes none.
    pub cubins: Vec<(u32, PathBuf)>,
    /// What each device function uses on each real architecture, as `ptxas` reports it. Empty
    /// without cubins.
    pub usage: Vec<FunctionUsage>,
}

/// What compiling relocatable code left in `OUT_DIR`.
#[derive(Debug, Clone)]
pub struct Relocatable {
    /// `<name>.fatbin`: cubins for the real architectures that the build is made for, and PTX for
    /// newer ones. Empty without a CUDA compiler.
    pub image: PathBuf,
    /// The compiler, if there is one.
    pub nvcc: Option<PathBuf>,
}

impl Module {
    /// Starts a module. `name` is what `oxshmem::kernels!` and `oxshmem::include_module!` name it
    /// by: a C identifier, unique in the package. A second module of that name in one build script
    /// is an error.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sources: Vec::new(),
            includes: Vec::new(),
            defines: Vec::new(),
            architectures: ARCHITECTURES.into(),
            large: false,
            reports_usage: false,
        }
    }

    /// Adds a source file, relative to the package's folder.
    #[must_use]
    pub fn source(mut self, path: impl Into<PathBuf>) -> Self {
        self.sources.push(path.into());
        self
    }

    /// Adds a folder to search for headers, relative to the package's folder. [`include_dir`] is
    /// always searched, after these.
    #[must_use]
    pub fn include(mut self, dir: impl Into<PathBuf>) -> Self {
        self.includes.push(dir.into());
        self
    }

    /// Defines a preprocessor macro, for the CPU object and for PTX alike, as a `#define` before
    /// the sources does. The value may hold commas, quotes and spaces.
    #[must_use]
    pub fn define(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.defines.push((name.into(), value.into()));
        self
    }

    /// Leaves PTX out, for code that only the `cpu` device can run.
    #[must_use]
    pub fn cpu_only(mut self) -> Self {
        self.architectures.clear();
        self
    }

    /// Makes PTX for these of [`ARCHITECTURES`] alone, ascending. The module runs on GPUs of the
    /// lowest of them and newer ones. What takes long to compile need not be compiled for each.
    #[must_use]
    pub fn architectures(mut self, architectures: impl Into<Vec<u32>>) -> Self {
        self.architectures = architectures.into();
        self
    }

    /// Makes cubins in release builds alone, for a module that takes long to assemble. In other
    /// builds the driver takes as long when the module is loaded.
    #[must_use]
    pub fn large(mut self) -> Self {
        self.large = true;
        self
    }

    /// Reports what each function uses in every build, also in those that make no cubins (see the
    /// crate's documentation): a test may read `<name>.usage.txt`.
    #[must_use]
    pub fn reports_usage(mut self) -> Self {
        self.reports_usage = true;
        self
    }

    /// Compiles, prints cargo's directives, and ends the build script with the compiler's own
    /// output if that fails.
    pub fn compile(self) -> Artifacts {
        or_exit(self.try_compile())
    }

    /// Does the same as [`compile`](Module::compile), but returns the error.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Cargo's directives are printed on success only: cargo reruns a failed build
    /// script anyway.
    pub fn try_compile(self) -> Result<Artifacts, Error> {
        let cargo = Cargo::from_env()?;
        let env = |name: &str| std::env::var_os(name);
        let (artifacts, directives) = once(&self.name, Made::Module, || self.compile_in(&cargo, &include_dir(), &env))?;
        print(directives);
        Ok(artifacts)
    }

    /// Compiles to relocatable device code alone, which a program links at run time:
    /// `include_bytes!` takes the file in. Any kernel with at least 64 registers a thread can be
    /// linked with it. Ends the build script as [`compile`](Module::compile) does.
    pub fn compile_relocatable(self) -> Relocatable {
        or_exit(self.try_compile_relocatable())
    }

    /// Does the same as [`compile_relocatable`](Module::compile_relocatable), but returns the
    /// error.
    ///
    /// # Errors
    ///
    /// See [`Error`]; as [`try_compile`](Module::try_compile).
    pub fn try_compile_relocatable(self) -> Result<Relocatable, Error> {
        let cargo = Cargo::from_env()?;
        let env = |name: &str| std::env::var_os(name);
        let make = || self.compile_relocatable_in(&cargo, &include_dir(), &env);
        let (relocatable, directives) = once(&self.name, Made::Relocatable, make)?;
        print(directives);
        Ok(relocatable)
    }

    /// Compiles to relocatable device code, links it, and writes `<name>.usage.txt` alone: what the
    /// kernels need where nothing limits their registers. Ends the build script as
    /// [`compile`](Module::compile) does.
    pub fn report_linked(self) -> Vec<FunctionUsage> {
        or_exit(self.try_report_linked())
    }

    /// Does the same as [`report_linked`](Module::report_linked), but returns the error.
    ///
    /// # Errors
    ///
    /// See [`Error`]; as [`try_compile`](Module::try_compile).
    pub fn try_report_linked(self) -> Result<Vec<FunctionUsage>, Error> {
        once(&self.name, Made::Module, || self.report_linked_from_env())
    }

    /// Fails like [`try_report_linked`](Module::try_report_linked).
    fn report_linked_from_env(&self) -> Result<Vec<FunctionUsage>, Error> {
        let cargo = Cargo::from_env()?;
        let env = |name: &str| std::env::var_os(name);
        let headers = include_dir();
        let unit = self.unit(&cargo, &headers)?;
        let found = cuda::find(&cargo, &env)?;
        let (mut files, mut usage) = (unit.sources.clone(), Vec::new());
        if let cuda::Found::Compiler(nvcc) = &found {
            let mut hasher = DefaultHasher::new();
            unit.hash(&mut hasher);
            let work = Work::open(&cargo, &unit.name, hasher.finish())?;
            let linked = cuda::Linked::prepare(&unit, &work.dir, nvcc, &cuda::salt(nvcc, &env), cargo.release)?;
            step::run_all(linked.jobs().collect(), cargo.jobs)?;
            usage = linked.usage()?;
            files = linked.dependencies()?;
            files.retain(|path| !path.starts_with(&work.dir));
        }
        usage::write_report(&cargo.out_dir.join(format!("{}.usage.txt", unit.name)), &usage)?;
        let mut directives = watched(files, &headers, &cargo);
        directives.extend(cuda::directives(&found, &cargo));
        print(directives);
        Ok(usage)
    }

    /// Fails like [`compile_in`](Module::compile_in).
    fn compile_relocatable_in(
        &self,
        cargo: &Cargo,
        headers: &Path,
        env: cuda::Env<'_>,
    ) -> Result<(Relocatable, Vec<String>), Error> {
        let unit = self.unit(cargo, headers)?;
        let found = cuda::find(cargo, env)?;
        let image = cargo.out_dir.join(format!("{}.fatbin", unit.name));
        let (mut files, mut warnings) = (unit.sources.clone(), Vec::new());
        let nvcc = match &found {
            cuda::Found::Compiler(nvcc) => {
                let mut hasher = DefaultHasher::new();
                unit.hash(&mut hasher);
                let work = Work::open(cargo, &unit.name, hasher.finish())?;
                let binary = cuda::FatBinary::prepare(&unit, &work.dir, nvcc, &cuda::salt(nvcc, env), cargo.release)?;
                step::run_all(vec![binary.job()], cargo.jobs)?;
                work.publish(binary.image(), &cargo.out_dir)?;
                files = binary.dependencies()?;
                files.retain(|path| !path.starts_with(&work.dir));
                warnings = binary.warnings()?;
                Some(nvcc.path.clone())
            }
            cuda::Found::SwitchedOff | cuda::Found::Nothing => {
                step::write_if_changed(&image, &[])?;
                None
            }
        };
        let mut directives = watched(files, headers, cargo);
        directives.extend(warnings.iter().map(|line| format!("warning={line}")));
        directives.extend(cuda::directives(&found, cargo));
        Ok((Relocatable { image, nvcc }, directives))
    }

    /// Checks everything and makes paths absolute.
    fn unit(&self, cargo: &Cargo, headers: &Path) -> Result<Unit, Error> {
        let name = self.name.clone();
        let identifier = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !name.bytes().next().is_none_or(|byte| byte.is_ascii_digit());
        if !identifier {
            return Err(Error::BadName(name));
        }
        if self.sources.is_empty() {
            return Err(Error::NoSource(name));
        }
        if !headers.join("oxshmem").is_dir() {
            return Err(Error::MissingHeaders(headers.to_owned()));
        }
        let known = |arch: &u32| ARCHITECTURES.contains(arch);
        let architectures = self.architectures.clone();
        if !architectures.iter().all(known) || !architectures.is_sorted_by(|a, b| a < b) {
            return Err(Error::BadArchitectures { module: name, architectures, known: &ARCHITECTURES });
        }
        let broken = |(name, value): &&(String, String)| name.contains('\n') || value.contains('\n');
        if let Some((macro_name, _)) = self.defines.iter().find(broken) {
            return Err(Error::BadMacro { module: name, macro_name: macro_name.clone() });
        }
        let absolute = |path: &PathBuf| cargo.manifest_dir.join(path);
        let sources: Vec<PathBuf> = self.sources.iter().map(absolute).collect();
        if let Some(path) = sources.iter().find(|path| !path.is_file()) {
            return Err(Error::MissingSource { module: name, path: path.clone() });
        }
        let symbol_tail = format!("{}_{}_{name}", cargo.package, cargo.version)
            .replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_");
        let mut includes: Vec<PathBuf> = self.includes.iter().map(absolute).collect();
        includes.push(headers.to_owned());
        Ok(Unit {
            name,
            symbol_tail,
            sources,
            includes,
            defines: self.defines.clone(),
            headers: headers.to_owned(),
            architectures,
            large: self.large,
            reports_usage: self.reports_usage,
        })
    }

    /// Compiles for the package that `cargo` describes. Returns the directives to print, without
    /// their `cargo:`.
    fn compile_in(&self, cargo: &Cargo, headers: &Path, env: cuda::Env<'_>) -> Result<(Artifacts, Vec<String>), Error> {
        let unit = self.unit(cargo, headers)?;
        let nvcc = if self.architectures.is_empty() { cuda::Found::SwitchedOff } else { cuda::find(cargo, env)? };

        let toolchain = cpu::Toolchain::find(cargo, env)?;
        let mut hasher = DefaultHasher::new();
        (&unit, toolchain.identity()).hash(&mut hasher);
        let work = Work::open(cargo, &unit.name, hasher.finish())?;

        let cpu = cpu::Object::prepare(&unit, &work.dir, &toolchain)?;
        let cuda = match &nvcc {
            cuda::Found::Compiler(nvcc) => {
                let effort = cuda::Effort::of(cargo, &unit, env);
                Some(cuda::Images::prepare(&unit, &work.dir, nvcc, &cuda::salt(nvcc, env), effort)?)
            }
            cuda::Found::SwitchedOff | cuda::Found::Nothing => None,
        };
        let mut jobs: Vec<step::Job<'_>> = vec![Box::new(|| cpu.build())];
        if let Some(images) = &cuda {
            jobs.extend(images.jobs());
        }
        step::run_all(jobs, cargo.jobs)?;
        let (mut ptx, mut cubins, usage) = match &cuda {
            Some(images) => images.collect()?,
            None => Default::default(),
        };
        for (_, path) in ptx.iter_mut().chain(&mut cubins) {
            *path = work.publish(path, &cargo.out_dir)?;
        }
        let archive = work.publish(cpu.archive(), &cargo.out_dir)?;
        usage::write_report(&cargo.out_dir.join(format!("{}.usage.txt", unit.name)), &usage)?;

        let rust = cargo.out_dir.join(format!("{}.rs", unit.name));
        step::write_if_changed(&rust, generate::rust_expression(&unit, &ptx, &cubins).as_bytes())?;

        let mut files = cpu.dependencies()?;
        let mut warnings = cpu.warnings()?;
        if let Some(images) = &cuda {
            files.extend(images.dependencies()?);
            warnings.extend(images.warnings()?);
        }
        files.retain(|path| !path.starts_with(&work.dir));
        let mut directives = vec![format!("rustc-link-search=native={}", cargo.out_dir.display())];
        directives.extend(watched(files, headers, cargo));
        directives.extend(warnings.iter().map(|line| format!("warning={line}")));
        directives.extend(cpu::directives(cargo));
        directives.extend(cuda::directives(&nvcc, cargo));
        let artifacts = Artifacts { rust, cpu: archive, ptx, cubins, usage };
        Ok((artifacts, directives))
    }
}

/// What a build script makes of a name in `OUT_DIR`: relocatable code is in a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Module,
    Relocatable,
}

/// Makes something of a module, unless this build script has made it of another one of that name.
fn once<T>(name: &str, made: Made, make: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    static ALL: Mutex<Vec<(String, Made)>> = Mutex::new(Vec::new());
    let all = || ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = (name.to_owned(), made);
    {
        let mut all = all();
        if all.contains(&entry) {
            return Err(Error::SameName(entry.0));
        }
        all.push(entry.clone());
    }
    let result = make();
    if result.is_err() {
        // A build script may try again in another way.
        all().retain(|other| *other != entry);
    }
    result
}

/// Returns directives to watch `files` and the device headers.
fn watched(mut files: Vec<PathBuf>, headers: &Path, cargo: &Cargo) -> Vec<String> {
    // Cargo watches all files of a folder. What the build script itself has written, which is newer
    // than its last start, would make cargo run it each time.
    files.retain(|path| !path.starts_with(headers) && !path.starts_with(&cargo.out_dir));
    files.push(headers.to_owned());
    files.sort();
    files.dedup();
    files.iter().map(|path| format!("rerun-if-changed={}", path.display())).collect()
}

/// Prints directives to cargo.
fn print(directives: Vec<String>) {
    for directive in directives {
        // A build script with several modules says once that there is no CUDA compiler.
        static NOTICED: AtomicBool = AtomicBool::new(false);
        if directive != cuda::NOTICE || !NOTICED.swap(true, Ordering::Relaxed) {
            println!("cargo:{directive}");
        }
    }
}

/// Returns what compiling left, or the end of the build script with the error.
fn or_exit<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    })
}

#[cfg(test)]
mod tests;
