//! Modules: C++ files with programs, compiled from the device headers, as they are or changed, and
//! loaded.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::interface::{Exports, Hooks, Program, VERSION};

/// Why a module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// A file cannot be read or written, or a program not be run.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The compiler or `patch` failed.
    #[error("{what} failed:\n{output}")]
    Failed {
        /// What was run.
        what: String,
        /// What it printed.
        output: String,
    },
    /// The library cannot be loaded.
    #[error("loading {path}: {error}")]
    Load {
        /// The library.
        path: PathBuf,
        /// Why.
        error: libloading::Error,
    },
    /// The module is of another version.
    #[error("{path} has version {found} of the interface, the explorer has {VERSION}")]
    Version {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// There is no such program.
    #[error("module {module} has no program {program}; it has {known}")]
    NoProgram {
        /// The module.
        module: String,
        /// The requested name.
        program: String,
        /// What there is.
        known: String,
    },
}

/// How a module is compiled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// The file in `programs/`, without `.cpp`.
    pub file: String,
    /// Macros, as `NAME=VALUE`.
    pub defines: Vec<String>,
    /// A patch of the headers, as a file in `mutants/` without `.patch`.
    pub patch: Option<String>,
}

impl Recipe {
    /// Returns a module of the headers as they are.
    #[must_use]
    pub fn plain(file: &str, defines: &[&str]) -> Self {
        Self { file: file.to_owned(), defines: defines.iter().map(|&d| d.to_owned()).collect(), patch: None }
    }

    /// Returns the same with a patch applied to the headers.
    #[must_use]
    pub fn patched(&self, patch: &str) -> Self {
        Self { patch: Some(patch.to_owned()), ..self.clone() }
    }

    /// Returns a short text that names it.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = self.file.clone();
        for define in &self.defines {
            let _ = write!(name, " {}", define.trim_start_matches("OXSHMEM_"));
        }
        if let Some(patch) = &self.patch {
            let _ = write!(name, " with {patch}");
        }
        name
    }
}

/// Returns the folder of this crate.
#[must_use]
pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the device headers: those of this repository, or those in the folder that
/// `OXSHMEM_EXPLORE_HEADERS` names.
fn headers() -> PathBuf {
    std::env::var_os("OXSHMEM_EXPLORE_HEADERS")
        .map_or_else(|| crate_folder().join("../device-kernels/include"), PathBuf::from)
}

/// Options of the compiler. Each mutant is a compilation, which takes longer than the search for
/// the mutant. Without optimisation a compilation takes half as long. The time of a step is the
/// explorer's, hardly the module's.
const OPTIONS: &[&str] = &["-std=c++17", "-O0", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions"];

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ModuleError {
    let what = what.into();
    move |error| ModuleError::Io { what, error }
}

/// Adds the names and contents of all files below `folder` to `hash`, in order of their names.
fn hash_folder(folder: &Path, hash: &mut DefaultHasher) -> Result<(), ModuleError> {
    let listing = std::fs::read_dir(folder).map_err(io(format!("listing {}", folder.display())))?;
    let mut paths: Vec<PathBuf> = listing.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_folder(&path, hash)?;
        } else {
            path.hash(hash);
            std::fs::read(&path).map_err(io(format!("reading {}", path.display())))?.hash(hash);
        }
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), ModuleError> {
    std::fs::create_dir_all(to).map_err(io(format!("creating {}", to.display())))?;
    for entry in std::fs::read_dir(from).map_err(io(format!("listing {}", from.display())))?.filter_map(Result::ok) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            std::fs::copy(&path, &target).map_err(io(format!("copying {}", path.display())))?;
        }
    }
    Ok(())
}

fn run(what: &str, command: &mut Command) -> Result<(), ModuleError> {
    let output = command.output().map_err(io(format!("running {what}")))?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(ModuleError::Failed { what: what.to_owned(), output: text })
}

/// Compiles a module, unless that was done before from the same sources, and returns the library's
/// path.
fn compile(recipe: &Recipe) -> Result<PathBuf, ModuleError> {
    let patch = recipe.patch.as_ref().map(|patch| crate_folder().join("mutants").join(format!("{patch}.patch")));
    let mut hash = DefaultHasher::new();
    (recipe, OPTIONS).hash(&mut hash);
    hash_folder(&headers(), &mut hash)?;
    hash_folder(&crate_folder().join("programs"), &mut hash)?;
    if let Some(patch) = &patch {
        std::fs::read(patch).map_err(io(format!("reading {}", patch.display())))?.hash(&mut hash);
    }
    let name = format!("{}-{:016x}", recipe.file, hash.finish());
    let cache = PathBuf::from(env!("OXSHMEM_EXPLORE_CACHE"));
    let library = cache.join(format!("{name}.so"));
    if library.exists() {
        return Ok(library);
    }
    std::fs::create_dir_all(&cache).map_err(io(format!("creating {}", cache.display())))?;
    let mut include = headers();
    // Several processes and threads may compile the same module at once, so each works in a place
    // of its own.
    static COMPILED: AtomicU64 = AtomicU64::new(0);
    let unique = format!("{name}.{}.{}", std::process::id(), COMPILED.fetch_add(1, Ordering::Relaxed));
    let scratch = cache.join(&unique);
    if let Some(patch) = &patch {
        include = scratch.join("include");
        copy_folder(&headers(), &include)?;
        run(
            &format!("patch ({})", patch.display()),
            Command::new("patch").args(["-p3", "--no-backup-if-mismatch", "-d"]).arg(&include).arg("-i").arg(patch),
        )?;
    }
    let unfinished = cache.join(format!("{unique}.so"));
    let mut compiler = Command::new(env!("OXSHMEM_EXPLORE_CXX"));
    compiler.args(OPTIONS);
    compiler.arg("-I").arg(&include).args(recipe.defines.iter().map(|define| format!("-D{define}")));
    compiler.arg(crate_folder().join("programs").join(format!("{}.cpp", recipe.file))).arg("-o").arg(&unfinished);
    run(&format!("compiling {}", recipe.name()), &mut compiler)?;
    std::fs::rename(&unfinished, &library).map_err(io(format!("renaming {}", unfinished.display())))?;
    if scratch.exists() {
        let _ = std::fs::remove_dir_all(&scratch);
    }
    Ok(library)
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    recipe: Recipe,
    path: PathBuf,
    exports: &'static Exports,
    _library: libloading::Library,
}

// SAFETY: what `exports` leads to is constant, and the functions may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Compiles and loads a module.
    ///
    /// # Errors
    /// The compiler, `patch` or the loader fails; see [`ModuleError`].
    pub(crate) fn new(recipe: &Recipe, hooks: &'static Hooks) -> Result<Arc<Self>, ModuleError> {
        let path = compile(recipe)?;
        let load = |error| ModuleError::Load { path: path.clone(), error };
        // SAFETY: the library was compiled above from our own sources, whose static constructors do
        // nothing.
        let library = unsafe { libloading::Library::new(&path) }.map_err(load)?;
        // SAFETY: module.h declares the symbol so.
        let open =
            unsafe { library.get::<unsafe extern "C" fn(*const Hooks) -> *const Exports>(b"oxshmem_explore_open") }
                .map_err(load)?;
        // SAFETY: the hooks are static; the function returns a static structure of the library,
        // which is loaded as long as `self`.
        let exports = unsafe { &*open(std::ptr::from_ref(hooks)) };
        if exports.version != VERSION {
            return Err(ModuleError::Version { path, found: exports.version });
        }
        Ok(Arc::new(Self { recipe: recipe.clone(), path, exports, _library: library }))
    }

    /// Returns how it was compiled.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Returns the library's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exports(&self) -> &'static Exports {
        self.exports
    }

    pub(crate) fn programs(&self) -> &'static [Program] {
        // SAFETY: the module says how many there are, and keeps them as long as it is loaded.
        unsafe { std::slice::from_raw_parts(self.exports.programs, self.exports.n_programs as usize) }
    }

    /// Returns the names of its programs.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.programs().iter().map(name_of).collect()
    }

    /// Returns the names of those that can be explored exhaustively.
    #[must_use]
    pub fn small_names(&self) -> Vec<String> {
        self.programs().iter().filter(|program| program.small != 0).map(name_of).collect()
    }

    pub(crate) fn find(&self, name: &str) -> Result<&'static Program, ModuleError> {
        self.programs().iter().find(|program| name_of(program) == name).ok_or_else(|| ModuleError::NoProgram {
            module: self.recipe.name(),
            program: name.to_owned(),
            known: self.names().join(", "),
        })
    }
}

/// Returns a program's name.
pub(crate) fn name_of(program: &Program) -> String {
    // SAFETY: names are string literals of the module.
    unsafe { CStr::from_ptr(program.name) }.to_string_lossy().into_owned()
}
