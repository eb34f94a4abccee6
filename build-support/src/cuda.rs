//! PTX and cubins: finding nvcc and running it.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::cargo::Cargo;
use crate::generate::{self, Unit};
use crate::step::{self, Job, Step};
use crate::usage::{self, FunctionUsage};

/// The architectures that PTX (`compute_N`) and cubins (`sm_N`) are made for, ascending.
pub const ARCHITECTURES: [u32; 3] = [80, 90, 100];

/// The architecture that other builds than release builds make a cubin for, from the PTX of the
/// lowest architecture: device code takes long to compile, most of all to assemble. On other GPUs
/// the driver compiles the PTX when it is loaded.
const DEV_ARCHITECTURE: u32 = 90;

/// The oldest CUDA release whose nvcc is known to have `--Ofast-compile`, which compiles PTX in a
/// third of the time.
const FAST_COMPILE: (u32, u32) = (13, 0);

/// The oldest CUDA release that knows the last of [`ARCHITECTURES`].
const OLDEST: (u32, u32) = (12, 8);

/// Variables that decide which compiler is used.
const CHOICE: [&str; 4] = ["OXSHMEM_CUDA", "NVCC", "CUDA_HOME", "CUDA_PATH"];

/// Variables that nvcc reads itself.
const OPTIONS: [&str; 3] = ["NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];

/// Where a toolkit is usually installed.
const USUAL_PLACE: &str = "/usr/local/cuda";

/// The directive that says that there is no compiler.
pub(crate) const NOTICE: &str = "warning=no CUDA compiler found: building without PTX, so without the `cuda` device (scripts/setup installs one; set NVCC or CUDA_HOME to another one, and build again)";

/// Looks up an environment variable.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A CUDA compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nvcc {
    /// The program.
    pub path: PathBuf,
    /// What `--version` printed.
    pub version: String,
    /// The release that this names.
    release: (u32, u32),
}

/// What a build makes of device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// PTX and cubins for every architecture: a release build.
    Release,
    /// PTX for the lowest architecture, and one cubin from it.
    Dev,
    /// PTX for the lowest architecture alone, compiled as fast as can be. It shows that the code
    /// compiles, and runs where a GPU is found after all.
    Check,
}

impl Effort {
    /// Returns what the build that `cargo` describes makes of a module: `Check` where no GPU could
    /// run a dev build's code, and no report of registers is made from it.
    pub fn of(cargo: &Cargo, unit: &Unit, env: Env<'_>) -> Self {
        let required = env("OXSHMEM_CUDA").is_some_and(|value| value == "1");
        match cargo.release {
            true => Self::Release,
            false if required || cargo.has_gpu || unit.reports_usage => Self::Dev,
            false => Self::Check,
        }
    }
}

/// What the search for a CUDA compiler led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// One that knows all of [`ARCHITECTURES`].
    Compiler(Nvcc),
    /// `OXSHMEM_CUDA=0`.
    SwitchedOff,
    /// None anywhere.
    Nothing,
}

/// Finds the CUDA compiler and checks its version.
pub(crate) fn find(cargo: &Cargo, env: Env<'_>) -> Result<Found, Error> {
    let required = match env("OXSHMEM_CUDA").filter(|value| !value.is_empty()) {
        None => false,
        Some(value) => match value.to_str() {
            Some("0") => return Ok(Found::SwitchedOff),
            Some("1") => true,
            _ => return Err(Error::BadSwitch(value.to_string_lossy().into_owned())),
        },
    };
    choose(candidates(&cargo.manifest_dir, Path::new(USUAL_PLACE), env)?, required)
}

/// Returns the first compiler that works and is new enough; if there are only others, what is wrong
/// with the first of them.
fn choose(paths: Vec<PathBuf>, required: bool) -> Result<Found, Error> {
    let mut refused = None;
    for path in paths {
        match check_version(path) {
            Ok(nvcc) => return Ok(Found::Compiler(nvcc)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) => Err(error),
        None if required => Err(Error::NvccRequired),
        None => Ok(Found::Nothing),
    }
}

/// Returns every nvcc there is, in the order that the crate's documentation gives. What `NVCC`
/// names is the only one.
fn candidates(manifest_dir: &Path, usual_place: &Path, env: Env<'_>) -> Result<Vec<PathBuf>, Error> {
    let set = |name| env(name).filter(|value| !value.is_empty());
    if let Some(value) = set("NVCC") {
        let path = PathBuf::from(value);
        // A bare name is looked up in PATH, as a shell would.
        let path = if path.components().count() == 1 { in_path(&path, env).unwrap_or(path) } else { path };
        return if is_program(&path) { Ok(vec![path]) } else { Err(Error::BadNvcc(path)) };
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).map(PathBuf::from);
    let mut paths: Vec<PathBuf> = homes.map(|home| home.join("bin/nvcc")).collect();
    paths.extend(in_path(Path::new("nvcc"), env));
    paths.extend(manifest_dir.ancestors().map(|dir| dir.join(".toolchain/cuda/bin/nvcc")));
    paths.push(usual_place.join("bin/nvcc"));
    paths.retain(|path| is_program(path));
    Ok(paths)
}

fn in_path(name: &Path, env: Env<'_>) -> Option<PathBuf> {
    std::env::split_paths(&env("PATH")?).map(|dir| dir.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

fn check_version(nvcc: PathBuf) -> Result<Nvcc, Error> {
    let failed = |reason: String| Error::NvccVersion { nvcc: nvcc.clone(), reason };
    let output = Command::new(&nvcc).arg("--version").output().map_err(|error| failed(error.to_string()))?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(failed(format!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    let found = parse_release(&version).ok_or_else(|| failed(format!("no release number in {version:?}")))?;
    if found < OLDEST {
        let newest = ARCHITECTURES[ARCHITECTURES.len() - 1];
        return Err(Error::OldNvcc { nvcc, found, needed: OLDEST, newest });
    }
    Ok(Nvcc { path: nvcc, version, release: found })
}

/// Returns the release in `Cuda compilation tools, release 13.0, V13.0.88`.
fn parse_release(version: &str) -> Option<(u32, u32)> {
    let (_, rest) = version.split_once("release ")?;
    let (major, rest) = rest.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns what PTX and cubins depend on besides commands and files: the compiler's version, and
/// the options it takes from the environment.
pub(crate) fn salt(nvcc: &Nvcc, env: Env<'_>) -> String {
    format!("{}{:?}", nvcc.version, OPTIONS.map(env))
}

/// Returns the directives to cargo about the search: what to watch, and the line that says that
/// there is no PTX.
pub(crate) fn directives(found: &Found, cargo: &Cargo) -> Vec<String> {
    let mut lines: Vec<String> =
        CHOICE.iter().chain(&OPTIONS).map(|name| format!("rerun-if-env-changed={name}")).collect();
    match found {
        Found::Compiler(nvcc) => lines.push(format!("rerun-if-changed={}", nvcc.path.display())),
        Found::SwitchedOff => {}
        Found::Nothing => {
            // Where a compiler that is installed later may be found.
            lines.push("rerun-if-env-changed=PATH".to_owned());
            // The list of pinned wheels, which scripts/setup touches when it has installed them.
            let pins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cuda-wheels.txt");
            if pins.is_file() {
                lines.push(format!("rerun-if-changed={}", pins.display()));
            }
            if announces(cargo, Path::new(env!("CARGO_MANIFEST_DIR"))) {
                lines.push(NOTICE.to_owned());
            }
        }
    }
    lines
}

/// Returns whether this package's build says that there is no PTX. The runtime's does, since every
/// crate with device code depends on it; others do where cargo hides the runtime's warnings,
/// because it came from a registry, git or a vendored folder.
fn announces(cargo: &Cargo, this_crate: &Path) -> bool {
    let marks = [".cargo-ok", ".cargo-checksum.json", ".cargo_vcs_info.json"];
    let hidden = this_crate.ancestors().any(|dir| marks.iter().any(|mark| dir.join(mark).is_file()));
    cargo.package == "oxshmem" || hidden
}

/// PTX of an architecture, and the cubin that is made from it, if any: for the same architecture
/// or, in other than release builds, a newer one.
#[derive(Debug)]
struct Image {
    virtual_arch: u32,
    compile: Step,
    /// The compiler's output, except for its version (see [`Image::name_version`]).
    ptx: PathBuf,
    /// Parses that PTX. `None` where no assembler is beside the compiler.
    parse: Option<Step>,
    assemble: Option<(u32, Step)>,
}

impl Image {
    /// Writes the PTX with the oldest version that has its target and all that it uses, so that
    /// older drivers compile it. The compiler names its own newest version, whatever the code uses.
    /// The assembler names the versions that the code needs beyond those of its target.
    fn name_version(&self) -> Result<(), Error> {
        let compiled = &self.compile.output;
        let text = std::fs::read_to_string(compiled).map_err(Error::file(compiled))?;
        let write = |text: &str| step::write_if_changed(&self.ptx, text.as_bytes());
        let (Some(named), Some(oldest), Some(parse)) = (isa_of(&text), oldest_isa(self.virtual_arch), &self.parse)
        else {
            return write(&text);
        };
        let mut version = oldest.min(named);
        loop {
            write(&with_isa(&text, version))?;
            match parse.run() {
                Ok(_) => return Ok(()),
                Err(Error::Compile { output, .. }) if version < named => {
                    let needed = needed_isa(&output).filter(|needed| *needed > version && *needed < named);
                    version = needed.unwrap_or(named);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// PTX and cubins of a module.
#[derive(Debug)]
pub(crate) struct Images {
    /// See [`toolkit`].
    toolkit: PathBuf,
    steps: Vec<Image>,
}

impl Images {
    /// Writes the translation unit to `dir` and lays out the compiler runs there.
    pub fn prepare(unit: &Unit, dir: &Path, nvcc: &Nvcc, salt: &str, effort: Effort) -> Result<Self, Error> {
        let source = dir.join(format!("{}.cuda.cu", unit.name));
        step::write_if_changed(&source, generate::translation_unit(unit).as_bytes())?;
        let inputs = unit.inputs()?;
        let release = effort == Effort::Release;
        let assembles = release || (effort == Effort::Dev && (unit.reports_usage || !unit.large));
        let fast = effort == Effort::Check && nvcc.release >= FAST_COMPILE;
        let file = |end: String| dir.join(format!("{}.{end}", unit.name));
        let text = |path: &Path| path.display().to_string();
        let ptxas = nvcc.path.with_file_name("ptxas");
        let made = if release { unit.architectures.len() } else { 1 };
        let steps = unit.architectures.iter().take(made).map(|&arch| {
            // Builds of all kinds share this folder, and none is to undo another's work.
            let stem = if fast { format!("compute_{arch}.fast") } else { format!("compute_{arch}") };
            let (compiled, ptx) = (file(format!("{stem}.nvcc.ptx")), file(format!("{stem}.ptx")));
            let depfile = file(format!("{stem}.d"));
            let mut command =
                vec![text(&nvcc.path), "-ptx".into(), "-std=c++17".into(), format!("-arch=compute_{arch}")];
            command.extend(fast.then(|| "--Ofast-compile=max".to_owned()));
            command.extend(unit.nvcc_include_args());
            command.extend(["-MMD".into(), "-MF".into(), text(&depfile), "-o".into(), text(&compiled), text(&source)]);
            let compile = Step {
                what: format!("compiling device module {:?} to PTX for compute_{arch}", unit.name),
                command,
                salt: salt.to_owned(),
                output: compiled,
                inputs: inputs.clone(),
                depfile: Some(depfile),
            };
            let real = if release { arch } else { arch.max(DEV_ARCHITECTURE) };
            let cubin =
                file(if real == arch { format!("sm_{real}.cubin") } else { format!("compute_{arch}.sm_{real}.cubin") });
            let mut command = vec![text(&nvcc.path), "-cubin".into(), format!("-arch=sm_{real}"), "-Xptxas=-v".into()];
            command.extend(["-o".into(), text(&cubin), text(&ptx)]);
            let what = format!("assembling the PTX of device module {:?} for sm_{real}", unit.name);
            let assemble = Step { salt: salt.to_owned(), ..Step::after(what, command, &ptx, cubin) };
            let parse = is_program(&ptxas).then(|| {
                // For a virtual architecture it generates no code, and so takes little time.
                let command = vec![text(&ptxas), format!("-arch=compute_{arch}"), text(&ptx)];
                let what = format!("parsing the PTX of device module {:?} for compute_{arch}", unit.name);
                Step { salt: salt.to_owned(), ..Step::after(what, command, &ptx, ptx.clone()) }
            });
            Image { virtual_arch: arch, compile, ptx, parse, assemble: assembles.then_some((real, assemble)) }
        });
        Ok(Self { toolkit: toolkit(nvcc), steps: steps.collect() })
    }

    /// Returns one job for each architecture.
    pub fn jobs(&self) -> impl Iterator<Item = Job<'_>> {
        self.steps.iter().map(|image| -> Job<'_> {
            Box::new(move || {
                image.compile.run()?;
                image.name_version()?;
                image.assemble.as_ref().map_or(Ok(()), |(_, assemble)| assemble.run().map(drop))
            })
        })
    }

    /// Returns the results: PTX without duplicates, the cubins, and the usage of all functions in
    /// these.
    #[allow(clippy::type_complexity, reason = "taken apart where it is called")]
    pub fn collect(&self) -> Result<(Vec<(u32, PathBuf)>, Vec<(u32, PathBuf)>, Vec<FunctionUsage>), Error> {
        let (mut ptx, mut cubins, mut functions) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = String::new();
        for Image { virtual_arch: arch, ptx: file, assemble, .. } in &self.steps {
            let text = std::fs::read_to_string(file).map_err(Error::file(file))?;
            let text = without_target(&text);
            if text != last {
                ptx.push((*arch, file.clone()));
                last = text;
            }
            if let Some((real, assemble)) = assemble {
                cubins.push((*real, assemble.output.clone()));
                functions.extend(usage::parse(*real, &assemble.log()?));
            }
        }
        Ok((ptx, cubins, functions))
    }

    /// Returns the files that the PTX was made from, without the CUDA toolkit's.
    pub fn dependencies(&self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = Vec::new();
        for Image { compile, .. } in &self.steps {
            paths.extend(compile.dependencies()?);
        }
        paths.retain(|path| !path.starts_with(&self.toolkit));
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    /// Returns what the compilers remarked, without repeating what they say for every architecture.
    pub fn warnings(&self) -> Result<Vec<String>, Error> {
        let mut lines: Vec<String> = Vec::new();
        for Image { compile, assemble, .. } in &self.steps {
            let log = compile.log()?;
            let remarks = assemble.as_ref().map_or(Ok(String::new()), |(_, assemble)| assemble.log())?;
            let remarks = remarks.lines().filter(|line| line.contains("warning"));
            for line in log.lines().chain(remarks).filter(|line| !line.trim().is_empty()) {
                if !lines.iter().any(|known| known == line) {
                    lines.push(line.to_owned());
                }
            }
        }
        Ok(lines)
    }
}

/// Returns the oldest version of PTX that has a target of an architecture, but none that drivers of
/// CUDA 12.5 do not need: 8.5, which they take (PTX ISA, "Release Notes"). `None` of an
/// architecture that is newer than this list.
fn oldest_isa(arch: u32) -> Option<(u32, u32)> {
    match arch {
        ..100 => Some((8, 5)),
        100 | 101 => Some((8, 6)),
        120 => Some((8, 7)),
        103 | 121 => Some((8, 8)),
        _ => None,
    }
}

/// Returns the version in `9.0`, and what follows it.
fn parse_isa(text: &str) -> Option<((u32, u32), &str)> {
    let (major, rest) = text.split_once('.')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (minor, rest) = rest.split_at(end);
    Some(((major.parse().ok()?, minor.parse().ok()?), rest))
}

/// Returns the line of PTX that says of which version it is, and that version.
fn isa_line(ptx: &str) -> Option<(&str, (u32, u32))> {
    let (line, version) = ptx.lines().find_map(|line| Some((line, line.trim().strip_prefix(".version ")?)))?;
    Some((line, parse_isa(version.trim())?.0))
}

/// Returns the version that PTX says it is of.
fn isa_of(ptx: &str) -> Option<(u32, u32)> {
    isa_line(ptx).map(|(_, version)| version)
}

/// Returns PTX that says it is of a version.
fn with_isa(ptx: &str, (major, minor): (u32, u32)) -> String {
    match isa_line(ptx) {
        Some((line, version)) if version != (major, minor) => {
            ptx.replacen(line, &format!(".version {major}.{minor}"), 1)
        }
        _ => ptx.to_owned(),
    }
}

/// Returns the newest version that the assembler's errors name, in the form `Feature '...' requires
/// PTX ISA .version 8.7 or later`.
fn needed_isa(log: &str) -> Option<(u32, u32)> {
    let named = log.split("requires PTX ISA .version ").skip(1);
    named.filter_map(|text| parse_isa(text).map(|(version, _)| version)).max()
}

/// Registers that a thread of relocatable code has at most: as many as the threads of a block of
/// 1024 have, since kernels cannot be linked with a function that needs more than they may have
/// themselves.
const RELOCATABLE_REGISTERS: u32 = 64;

/// Relocatable code of a module: cubins for all its architectures and PTX for newer GPUs, in one
/// file.
#[derive(Debug)]
pub(crate) struct FatBinary {
    /// See [`toolkit`].
    toolkit: PathBuf,
    step: Step,
}

impl FatBinary {
    /// Writes the translation unit to `dir` and lays out the compiler run there.
    pub fn prepare(unit: &Unit, dir: &Path, nvcc: &Nvcc, salt: &str, release: bool) -> Result<Self, Error> {
        let source = dir.join(format!("{}.cuda.cu", unit.name));
        step::write_if_changed(&source, generate::translation_unit(unit).as_bytes())?;
        // Builds of both kinds share the folder, and neither is to undo the other's work.
        let dir = dir.join(if release { "release" } else { "dev" });
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let output = dir.join(format!("{}.fatbin", unit.name));
        let depfile = dir.join(format!("{}.d", unit.name));
        let text = |path: &Path| path.display().to_string();
        let mut command = vec![text(&nvcc.path), "-fatbin".into(), "-rdc=true".into(), "-std=c++17".into()];
        command.push(format!("-maxrregcount={RELOCATABLE_REGISTERS}"));
        command.extend(targets(&unit.architectures, release).into_iter().flat_map(|code| ["-gencode".into(), code]));
        command.extend(unit.nvcc_include_args());
        command.extend(["-MMD".into(), "-MF".into(), text(&depfile), "-o".into(), text(&output), text(&source)]);
        let step = Step {
            what: format!("compiling the relocatable device code {:?}", unit.name),
            command,
            salt: salt.to_owned(),
            output,
            inputs: unit.inputs()?,
            depfile: Some(depfile),
        };
        Ok(Self { toolkit: toolkit(nvcc), step })
    }

    /// Returns the compilation as a job.
    pub fn job(&self) -> Job<'_> {
        Box::new(|| self.step.run().map(drop))
    }

    /// Returns the file.
    pub fn image(&self) -> &Path {
        &self.step.output
    }

    /// Returns the files that it was made from, without the CUDA toolkit's.
    pub fn dependencies(&self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = self.step.dependencies()?;
        paths.retain(|path| !path.starts_with(&self.toolkit));
        Ok(paths)
    }

    /// Returns what the compiler warned of.
    pub fn warnings(&self) -> Result<Vec<String>, Error> {
        let log = self.step.log()?;
        let remarks = log.lines().filter(|line| line.contains("warning"));
        Ok(remarks.map(str::to_owned).collect())
    }
}

/// A module as relocatable code, linked for real architectures without any limit of registers: for
/// the report of what its kernels need.
#[derive(Debug)]
pub(crate) struct Linked {
    /// See [`toolkit`].
    toolkit: PathBuf,
    /// The architecture, the compilation and the link.
    steps: Vec<(u32, Step, Step)>,
}

impl Linked {
    /// Writes the translation unit to `dir` and lays out the runs there.
    pub fn prepare(unit: &Unit, dir: &Path, nvcc: &Nvcc, salt: &str, release: bool) -> Result<Self, Error> {
        let source = dir.join(format!("{}.cuda.cu", unit.name));
        step::write_if_changed(&source, generate::translation_unit(unit).as_bytes())?;
        let inputs = unit.inputs()?;
        let text = |path: &Path| path.display().to_string();
        let linker = nvcc.path.with_file_name("nvlink");
        let made: &[u32] = if release { &unit.architectures } else { &[DEV_ARCHITECTURE] };
        let steps = made.iter().map(|&arch| {
            let file = |end: &str| dir.join(format!("{}.linked.sm_{arch}.{end}", unit.name));
            let (object, depfile, output) = (file("o.cubin"), file("d"), file("cubin"));
            let mut command = vec![text(&nvcc.path), "-cubin".into(), "-rdc=true".into(), "-std=c++17".into()];
            command.push(format!("-arch=sm_{arch}"));
            command.extend(unit.nvcc_include_args());
            command.extend(["-MMD".into(), "-MF".into(), text(&depfile), "-o".into(), text(&object), text(&source)]);
            let compile = Step {
                what: format!("compiling device module {:?} to relocatable code for sm_{arch}", unit.name),
                command,
                salt: salt.to_owned(),
                output: object.clone(),
                inputs: inputs.clone(),
                depfile: Some(depfile),
            };
            let command =
                vec![text(&linker), format!("-arch=sm_{arch}"), "-v".into(), "-o".into(), text(&output), text(&object)];
            let what = format!("linking device module {:?} for sm_{arch}", unit.name);
            (arch, compile, Step { salt: salt.to_owned(), ..Step::after(what, command, &object, output) })
        });
        Ok(Self { toolkit: toolkit(nvcc), steps: steps.collect() })
    }

    /// Returns one job for each architecture.
    pub fn jobs(&self) -> impl Iterator<Item = Job<'_>> {
        self.steps.iter().map(|(_, compile, link)| -> Job<'_> {
            Box::new(move || {
                compile.run()?;
                link.run().map(drop)
            })
        })
    }

    /// Returns what all kernels use.
    pub fn usage(&self) -> Result<Vec<FunctionUsage>, Error> {
        let mut functions = Vec::new();
        for (arch, _, link) in &self.steps {
            functions.extend(usage::parse_linked(*arch, &link.log()?));
        }
        Ok(functions)
    }

    /// Returns the files that it was made from, without the CUDA toolkit's.
    pub fn dependencies(&self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = Vec::new();
        for (_, compile, _) in &self.steps {
            paths.extend(compile.dependencies()?);
        }
        paths.retain(|path| !path.starts_with(&self.toolkit));
        Ok(paths)
    }
}

/// Returns what a fat binary holds, as nvcc's `-gencode` takes it: a cubin for each architecture,
/// and PTX of the newest. (Beside PTX of an older one, nvJitLink 13.0 was seen to refuse the cubin
/// that a GPU of the same major version can run.) Other than release builds compile for the lowest
/// alone, as those of modules do.
fn targets(architectures: &[u32], release: bool) -> Vec<String> {
    let made = if release { architectures.len() } else { 1 };
    let code = |(index, arch): (usize, &u32)| {
        let real = if release { *arch } else { DEV_ARCHITECTURE.max(*arch) };
        if index + 1 == made {
            format!("arch=compute_{arch},code=[compute_{arch},sm_{real}]")
        } else {
            format!("arch=compute_{arch},code=sm_{real}")
        }
    };
    architectures.iter().take(made).enumerate().map(code).collect()
}

/// Returns the folder that nvcc's own headers are named under: as nvcc writes it, `..` included.
fn toolkit(nvcc: &Nvcc) -> PathBuf {
    nvcc.path.parent().unwrap_or(Path::new("")).join("..")
}

/// Returns PTX without its comments and its `.target` line.
fn without_target(ptx: &str) -> String {
    let kept = |line: &&str| !line.starts_with("//") && !line.starts_with(".target");
    ptx.lines().filter(kept).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tests::{TempDir, program};

    #[test]
    fn the_first_compiler_in_order_is_taken() {
        let dir = TempDir::new();
        let package = dir.path().join("workspace/examples/ring");
        let usual = dir.path().join("usual");
        let places: Vec<(Option<&str>, PathBuf)> = vec![
            (Some("NVCC"), dir.path().join("own/nvcc")),
            (Some("CUDA_HOME"), dir.path().join("home/bin/nvcc")),
            (Some("CUDA_PATH"), dir.path().join("path/bin/nvcc")),
            (Some("PATH"), dir.path().join("bin/nvcc")),
            (None, package.join(".toolchain/cuda/bin/nvcc")),
            (None, dir.path().join("workspace/.toolchain/cuda/bin/nvcc")),
            (None, usual.join("bin/nvcc")),
        ];
        let value = |variable: &str, path: &Path| match variable {
            "NVCC" => path.to_owned(),
            "PATH" => path.parent().unwrap().to_owned(),
            _ => path.parent().unwrap().parent().unwrap().to_owned(),
        };
        for (_, path) in &places {
            program(path, "");
        }
        // With the first `skipped` places gone, the next one is found; a variable that names a lost
        // folder is passed over.
        for skipped in 0..=places.len() {
            let env = |name: &str| {
                let rank = places.iter().position(|(variable, _)| *variable == Some(name))?;
                (name != "NVCC" || rank >= skipped).then(|| value(name, &places[rank].1).into_os_string())
            };
            let found = candidates(&package, &usual, &env).unwrap();
            assert_eq!(found.first(), places.get(skipped).map(|(_, path)| path));
            if let Some((_, path)) = places.get(skipped) {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    #[test]
    fn a_wrong_nvcc_is_an_error_and_an_unset_one_is_not() {
        let dir = TempDir::new();
        let not_executable = dir.path().join("nvcc");
        std::fs::write(&not_executable, "").unwrap();
        for path in [dir.path().join("absent"), not_executable, dir.path().to_owned()] {
            let env = |name: &str| (name == "NVCC").then(|| path.clone().into_os_string());
            assert!(matches!(candidates(dir.path(), dir.path(), &env), Err(Error::BadNvcc(named)) if named == path));
        }
        let empty = |name: &str| (name == "NVCC").then(OsString::new);
        assert!(candidates(dir.path(), dir.path(), &empty).unwrap().is_empty());
    }

    #[test]
    fn a_bare_name_in_nvcc_is_looked_up() {
        let dir = TempDir::new();
        let path = program(&dir.path().join("bin/nvcc-13"), "");
        let env = |name: &str| match name {
            "NVCC" => Some("nvcc-13".into()),
            "PATH" => Some(dir.path().join("bin").into_os_string()),
            _ => None,
        };
        assert_eq!(candidates(dir.path(), dir.path(), &env).unwrap(), [path]);
    }

    #[test]
    fn the_switch() {
        let dir = TempDir::new();
        let cargo = crate::tests::cargo_for(dir.path(), "crate");
        let nvcc = program(&dir.path().join("nvcc"), "#!/bin/sh\necho 'release 13.0, V13.0.88'\n");
        let with = |switch: &'static str| {
            let nvcc = nvcc.clone();
            move |name: &str| match name {
                "OXSHMEM_CUDA" => Some(switch.into()),
                "NVCC" => Some(nvcc.clone().into_os_string()),
                _ => None,
            }
        };
        assert_eq!(find(&cargo, &with("0")).unwrap(), Found::SwitchedOff);
        assert!(matches!(find(&cargo, &with("1")).unwrap(), Found::Compiler(found) if found.path == nvcc));
        assert!(matches!(find(&cargo, &with("")).unwrap(), Found::Compiler(_)));
        assert!(matches!(find(&cargo, &with("yes")), Err(Error::BadSwitch(value)) if value == "yes"));
    }

    #[test]
    fn a_compiler_that_is_too_old_is_passed_over_if_there_is_another() {
        let dir = TempDir::new();
        let old = program(&dir.path().join("old"), "#!/bin/sh\necho 'release 11.8, V11.8.89'\n");
        let new = program(&dir.path().join("new"), "#!/bin/sh\necho 'release 13.0, V13.0.88'\n");
        assert!(matches!(choose(vec![old.clone()], false), Err(Error::OldNvcc { found: (11, 8), .. })));
        assert!(matches!(choose(vec![old, new.clone()], false).unwrap(), Found::Compiler(nvcc) if nvcc.path == new));
        assert_eq!(choose(Vec::new(), false).unwrap(), Found::Nothing);
        assert!(matches!(choose(Vec::new(), true), Err(Error::NvccRequired)));
    }

    #[test]
    fn old_and_broken_compilers_are_named() {
        let dir = TempDir::new();
        let check = |script: &str| check_version(program(&dir.path().join("nvcc"), script));
        let old = check("#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.20'\n").unwrap_err();
        assert!(old.to_string().contains("CUDA 12.6, but device code is built for sm_100"), "{old}");
        let mute = check("#!/bin/sh\n").unwrap_err();
        assert!(mute.to_string().contains("no release number"), "{mute}");
        let broken = check("#!/bin/sh\necho lost library >&2\nexit 3\n").unwrap_err();
        assert!(broken.to_string().contains("lost library"), "{broken}");
    }

    #[test]
    fn releases() {
        assert_eq!(parse_release("Cuda compilation tools, release 13.0, V13.0.88"), Some((13, 0)));
        assert_eq!(parse_release("release 12.10"), Some((12, 10)));
        assert_eq!(parse_release("gcc 12"), None);
    }

    #[test]
    fn a_fat_binary_has_all_cubins_and_the_newest_ptx() {
        let release = targets(&ARCHITECTURES, true);
        assert_eq!(
            release,
            ["arch=compute_80,code=sm_80", "arch=compute_90,code=sm_90", "arch=compute_100,code=[compute_100,sm_100]"]
        );
        assert_eq!(targets(&ARCHITECTURES, false), ["arch=compute_80,code=[compute_80,sm_90]"]);
        assert_eq!(targets(&[100], false), ["arch=compute_100,code=[compute_100,sm_100]"]);
    }

    #[test]
    fn ptx_is_compared_without_its_target() {
        let low = "//\n// Generated\n.version 9.0\n.target sm_80\n.address_size 64\nret;\n";
        assert_eq!(without_target(low), without_target(&low.replace("sm_80", "sm_90")));
        assert_ne!(without_target(low), without_target(&low.replace("ret", "exit")));
    }

    #[test]
    fn only_the_runtime_or_a_foreign_crate_announces() {
        let dir = TempDir::new();
        let (workspace, registry) = (dir.path().join("workspace"), dir.path().join("registry/oxshmem-build"));
        std::fs::create_dir_all(&workspace).unwrap();
        std::fs::create_dir_all(&registry).unwrap();
        std::fs::write(registry.join(".cargo-ok"), "").unwrap();
        let sibling = crate::tests::cargo_for(dir.path(), "oxshmem-perftest");
        assert!(!announces(&sibling, &workspace));
        assert!(announces(&sibling, &registry));
        assert!(announces(&crate::tests::cargo_for(dir.path(), "oxshmem"), &workspace));
    }

    #[test]
    fn versions_of_ptx() {
        let ptx = |version: &str| format!("// made by nvcc\n.version {version}\n.target sm_90\n// .version 9.9\n");
        assert_eq!((isa_of(&ptx("9.0")), isa_of(&ptx("8.10"))), (Some((9, 0)), Some((8, 10))));
        assert_eq!(isa_of("no PTX\n"), None);
        assert_eq!(with_isa(&ptx("9.0"), (8, 5)), ptx("8.5"));
        assert_eq!(with_isa("no PTX\n", (8, 5)), "no PTX\n");
        let log = "\
ptxas a.ptx, line 26; error   : Feature 'one' requires PTX ISA .version 8.7 or later
ptxas a.ptx, line 48; error   : Feature 'two' requires PTX ISA .version 8.10 or later
ptxas a.ptx, line 50; error   : Feature 'three' requires PTX ISA .version 8.6 or later
";
        assert_eq!(needed_isa(log), Some((8, 10)), "minor versions are numbers");
        assert_eq!(needed_isa("ptxas fatal   : Ptx assembly aborted due to errors\n"), None);
    }

    /// PTX of an image, with an assembler that takes it from the version `needed` on, and names
    /// that version in its error or, without `named`, does not.
    fn named_version(compiled: &str, arch: u32, needed: u32, named: bool) -> Result<String, Error> {
        let dir = TempDir::new();
        let says = if named {
            format!("a.ptx, line 1; error : Feature 'x' requires PTX ISA .version 8.{needed} or later")
        } else {
            "error".to_owned()
        };
        // Of minor versions of 8, and all of later ones.
        let script = format!(
            "#!/bin/sh\nminor=$(sed -n 's/^.version 8.//p' \"$2\")\n\
             [ \"${{minor:-99}}\" -ge {needed} ] || {{ echo \"{says}\" >&2; exit 255; }}\n"
        );
        let ptxas = program(&dir.path().join("ptxas"), &script);
        let (source, ptx) = (dir.path().join("a.nvcc.ptx"), dir.path().join("a.ptx"));
        std::fs::write(&source, compiled).unwrap();
        let text = |path: &Path| path.display().to_string();
        let parse = vec![text(&ptxas), format!("-arch=compute_{arch}"), text(&ptx)];
        let parse = Step::after("parsing".to_owned(), parse, &ptx, ptx.clone());
        let compile = Step::after("compiling".to_owned(), Vec::new(), &source, source.clone());
        let image = Image { virtual_arch: arch, compile, ptx: ptx.clone(), parse: Some(parse), assemble: None };
        image.name_version()?;
        Ok(std::fs::read_to_string(ptx).unwrap())
    }

    #[test]
    fn ptx_names_the_oldest_version_that_has_its_target_and_its_features() {
        let ptx = |version: &str| format!(".version {version}\n.target sm_90\n");
        let made = |version: &str, arch: u32, needed: u32, named: bool| {
            named_version(&ptx(version), arch, needed, named).unwrap()
        };
        // By its target alone.
        assert_eq!(made("9.0", 90, 0, true), ptx("8.5"));
        assert_eq!(made("9.0", 100, 0, true), ptx("8.6"));
        assert_eq!(made("9.0", 120, 0, true), ptx("8.7"));
        assert_eq!(made("8.10", 103, 0, true), ptx("8.8"), "minor versions are numbers");
        // By a feature, whose version the assembler names or not.
        assert_eq!(made("9.0", 90, 7, true), ptx("8.7"));
        assert_eq!(made("9.0", 100, 8, true), ptx("8.8"));
        assert_eq!(made("9.0", 90, 7, false), ptx("9.0"));
        // What is old already stays, and so does what nothing is known of.
        assert_eq!(made("8.3", 90, 0, true), ptx("8.3"));
        assert_eq!(made("9.4", 130, 0, true), ptx("9.4"));
        assert_eq!(named_version("no PTX\n", 90, 0, true).unwrap(), "no PTX\n");
        // PTX that is wrong in every version.
        assert!(matches!(named_version(&ptx("8.9"), 90, 10, true), Err(Error::Compile { .. })));
    }
}
