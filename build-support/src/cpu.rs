//! The CPU object of a module.

use std::hash::Hash;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cargo::Cargo;
use crate::cuda::Env;
use crate::generate::{self, Unit};
use crate::step::{self, Step};

/// Returns the directives to cargo: the variables that `cc` takes the toolchain from.
pub(crate) fn directives(cargo: &Cargo) -> Vec<String> {
    let mut lines = Vec::new();
    for name in ["CXX", "CXXFLAGS", "AR", "ARFLAGS", "OBJCOPY"] {
        lines.extend(variables(name, cargo).map(|name| format!("rerun-if-env-changed={name}")));
    }
    lines
}

/// Returns the variables that name a tool of the target, the first one that is set first.
fn variables(tool: &str, cargo: &Cargo) -> [String; 3] {
    let target = cargo.target.replace('-', "_");
    [format!("{tool}_{}", cargo.target), format!("{tool}_{target}"), tool.to_owned()]
}

/// The compilation of a module for the `cpu` device: compile, localise, archive.
#[derive(Debug)]
pub(crate) struct Object {
    compile: Step,
    /// Everything after the compilation, each step reading the output of the one before.
    finish: Vec<Step>,
}

/// The C++ toolchain.
#[derive(Debug)]
pub(crate) struct Toolchain {
    /// The compiler and the arguments that every compilation has.
    compiler: Vec<String>,
    /// What its `--version` printed.
    version: String,
    /// The archiver and its arguments.
    archiver: Vec<String>,
    /// Changes objects of the target.
    objcopy: String,
    /// The argument against a binding that GCC gives static members of templates, and that stays
    /// global whatever is asked of objcopy.
    not_unique: Option<String>,
}

impl Toolchain {
    /// Finds the compiler.
    pub fn find(cargo: &Cargo, env: Env<'_>) -> Result<Self, Error> {
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .cargo_metadata(false)
            .target(&cargo.target)
            .host(&cargo.host)
            .out_dir(&cargo.out_dir)
            .opt_level_str(optimisation(cargo))
            .debug(false)
            .warnings(true)
            .extra_warnings(true);
        let not_found = |error: cc::Error| Error::NoCxx(error.to_string());
        let compiler = build.try_get_compiler().map_err(not_found)?;
        let version = compiler
            .to_command()
            .arg("--version")
            .output()
            .map_err(|error| Error::NoCxx(format!("{}: {error}", compiler.path().display())))?;
        let archiver = step::words(&build.try_get_archiver().map_err(not_found)?);
        Ok(Self {
            version: String::from_utf8_lossy(&version.stdout).into_owned(),
            objcopy: variables("OBJCOPY", cargo)
                .iter()
                .filter_map(|name| env(name))
                .find(|value| !value.is_empty())
                .map(|value| value.to_string_lossy().into_owned())
                .unwrap_or_else(|| objcopy_beside(archiver.first().map_or("", String::as_str))),
            archiver,
            not_unique: (!compiler.is_like_clang()).then(|| "-fno-gnu-unique".to_owned()),
            compiler: step::words(&compiler.to_command()),
        })
    }

    /// Returns what tells its results from those of others.
    pub fn identity(&self) -> impl Hash + use<'_> {
        (&self.compiler, &self.version, &self.archiver, &self.objcopy)
    }
}

/// Returns how hard the compiler tries, as `-O` is told: in a dev build just so much that a
/// debugger shows code as it was written.
fn optimisation(cargo: &Cargo) -> &'static str {
    if cargo.release { "2" } else { "g" }
}

/// Returns the objcopy of the archiver's binutils: `aarch64-linux-gnu-objcopy` beside
/// `aarch64-linux-gnu-ar`, which knows other objects than the host's, and `llvm-objcopy-18` beside
/// `llvm-ar-18`. `gcc-ar-13` is a wrapper of GCC's, which has the objcopy of its binutils.
fn objcopy_beside(archiver: &str) -> String {
    let (folder, name) = archiver.rsplit_once('/').map_or(("", archiver), |(folder, name)| (folder, name));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let (stem, version) = match name.rsplit_once('-') {
        Some((stem, version)) if is_number(version) => (stem, format!("-{version}")),
        _ => (name, String::new()),
    };
    let objcopy = match stem.strip_suffix("-ar") {
        Some("gcc") => "objcopy".to_owned(),
        Some(prefix) => match prefix.strip_suffix("-gcc") {
            Some(prefix) => format!("{prefix}-objcopy"),
            None => format!("{prefix}-objcopy{version}"),
        },
        None => "objcopy".to_owned(),
    };
    // A folder of archivers alone has none.
    let beside = Path::new(folder).join(&objcopy);
    if !folder.is_empty() && beside.is_file() { beside.display().to_string() } else { objcopy }
}

impl Object {
    /// Writes the translation unit to `dir` and lays out the compiler runs there.
    pub fn prepare(unit: &Unit, dir: &Path, toolchain: &Toolchain) -> Result<Self, Error> {
        let compiler = toolchain.compiler.clone();
        let symbol = unit.symbol();

        let source = dir.join(format!("{}.cpu.cpp", unit.name));
        step::write_if_changed(&source, generate::translation_unit(unit).as_bytes())?;
        let file = |extension: &str| dir.join(format!("{}.cpu.{extension}", unit.name));
        let (object, merged, local) = (file("o"), file("merged.o"), file("local.o"));
        let archive = dir.join(format!("lib{symbol}.a"));
        let what = |action: &str| format!("{action} device module {:?} for the cpu device", unit.name);
        let text = |path: &Path| path.display().to_string();

        let mut command = compiler.clone();
        // nvcc knows `#pragma unroll`, and device code reads typed memory through 16-byte vectors.
        command.extend(
            [
                "-std=c++17",
                "-fexceptions",
                // A frame larger than a page must not jump over the guard page of a GPU thread's
                // stack.
                "-fstack-clash-protection",
                "-g1",
                "-fno-strict-aliasing",
                "-Wno-unknown-pragmas",
            ]
            .map(str::to_owned),
        );
        command.extend(toolchain.not_unique.clone());
        command.extend(unit.include_args());
        command.extend(["-MMD".to_owned(), "-MF".to_owned(), text(&file("d"))]);
        command.extend(["-c".to_owned(), text(&source), "-o".to_owned(), text(&object)]);
        let compile = Step {
            what: what("compiling"),
            command,
            salt: toolchain.version.clone(),
            output: object.clone(),
            inputs: unit.inputs()?,
            depfile: Some(file("d")),
        };

        // A module's symbols stay its own, as they do on a GPU. COMDAT groups have to go first: the
        // linker would keep one group of that name and drop the others, with the now local
        // functions that the others' modules call.
        let mut merge = compiler;
        merge.extend(["-r", "-nostdlib", "-Wl,--force-group-allocation", "-o"].map(str::to_owned));
        merge.extend([text(&merged), text(&object)]);
        let merge = Step::after(what("linking"), merge, &object, merged.clone());
        let localise =
            vec![toolchain.objcopy.clone(), format!("--keep-global-symbol={symbol}"), text(&merged), text(&local)];
        let localise = Step::after(what("localising symbols of"), localise, &merged, local.clone());
        let mut pack = toolchain.archiver.clone();
        pack.extend(["crs".to_owned(), text(&archive), text(&local)]);
        let pack = Step::after(what("archiving"), pack, &local, archive);
        Ok(Self { compile, finish: vec![merge, localise, pack] })
    }

    /// Runs the steps that are not up to date.
    pub fn build(&self) -> Result<(), Error> {
        self.compile.run()?;
        self.finish.iter().try_for_each(|step| step.run().map(drop))
    }

    /// Returns the static library.
    pub fn archive(&self) -> &Path {
        self.finish.last().map_or(Path::new(""), |step| &step.output)
    }

    /// Returns the files the object was made from, without system headers.
    pub fn dependencies(&self) -> Result<Vec<PathBuf>, Error> {
        self.compile.dependencies()
    }

    /// Returns what the compiler remarked.
    pub fn warnings(&self) -> Result<Vec<String>, Error> {
        Ok(self.compile.log()?.lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tests::{TempDir, cargo_for};

    #[test]
    fn release_builds_are_optimised_and_dev_builds_debuggable() {
        let dir = TempDir::new();
        let compiled = |release: bool| {
            let cargo = Cargo { release, ..cargo_for(dir.path(), "crate") };
            let toolchain = Toolchain::find(&cargo, &|_| None).unwrap();
            toolchain.compiler.into_iter().find(|word| word.starts_with("-O"))
        };
        assert_eq!(compiled(true).as_deref(), Some("-O2"));
        assert_eq!(compiled(false).as_deref(), Some("-Og"));
    }

    #[test]
    fn objcopy_is_the_archivers() {
        for (archiver, objcopy) in [
            ("ar", "objcopy"),
            ("gcc-ar", "objcopy"),
            ("gcc-ar-13", "objcopy"),
            ("/nonexistent/gcc-ar", "objcopy"),
            ("llvm-ar", "llvm-objcopy"),
            ("llvm-ar-18", "llvm-objcopy-18"),
            ("aarch64-linux-gnu-ar", "aarch64-linux-gnu-objcopy"),
            ("aarch64-linux-gnu-gcc-ar-13", "aarch64-linux-gnu-objcopy"),
            ("", "objcopy"),
        ] {
            assert_eq!(objcopy_beside(archiver), objcopy, "{archiver}");
        }
        let dir = TempDir::new();
        let beside = dir.path().join("x86_64-linux-gnu-objcopy");
        std::fs::write(&beside, "").unwrap();
        let archiver = dir.path().join("x86_64-linux-gnu-gcc-ar");
        assert_eq!(objcopy_beside(&archiver.display().to_string()), beside.display().to_string());
    }

    #[test]
    fn objcopy_can_be_named() {
        let dir = TempDir::new();
        let cargo = cargo_for(dir.path(), "crate");
        let target = cargo.target.replace('-', "_");
        let mut names = [format!("OBJCOPY_{}", cargo.target), format!("OBJCOPY_{target}"), "OBJCOPY".to_owned()];
        names.reverse();
        let watched = directives(&cargo);
        for set in 1..=names.len() {
            // The last one of those that are set is the most particular one.
            let env =
                |name: &str| names[..set].iter().any(|set| set == name).then(|| format!("named by {name}").into());
            let toolchain = Toolchain::find(&cargo, &env).unwrap();
            assert_eq!(toolchain.objcopy, format!("named by {}", names[set - 1]));
            assert!(watched.contains(&format!("rerun-if-env-changed={}", names[set - 1])), "{watched:?}");
        }
    }
}
