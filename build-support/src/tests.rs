//! Whole modules, compiled and linked. The device headers are replaced by a minimum that keeps
//! their contract: `module.h` defines the entry symbol.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cargo::Cargo;
use crate::{ARCHITECTURES, Artifacts, Error, Module};

/// A folder that is removed when dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("oxshmem-build-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Writes a script that can be executed. Another process makes the file, since one that this
/// process has open for writing would be held open by whatever another test forks at that moment,
/// and executing it then fails.
pub(crate) fn program(path: &Path, script: &str) -> PathBuf {
    let text = path.with_extension("text");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&text, script).unwrap();
    assert!(Command::new("install").args(["-m", "755"]).args([&text, path]).status().unwrap().success());
    path.to_owned()
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns what cargo would say for a package in `dir`.
pub(crate) fn cargo_for(dir: &Path, package: &str) -> Cargo {
    let out_dir = dir.join(format!("out-{package}"));
    std::fs::create_dir_all(&out_dir).unwrap();
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    Cargo {
        out_dir,
        manifest_dir: dir.to_owned(),
        package: package.to_owned(),
        version: "0.1.0".to_owned(),
        host: target.clone(),
        target,
        jobs: 2,
        release: true,
        has_gpu: true,
    }
}

const MODULE_H: &str = "
#define OXSHMEM_GLUE_(a, b) a##b
#define OXSHMEM_GLUE(a, b) OXSHMEM_GLUE_(a, b)
#ifndef __CUDACC__
extern \"C\" const void *OXSHMEM_GLUE(oxshmem_module_, OXSHMEM_MODULE_NAME)() { static int value; value = answer(); return &value; }
#endif
";

/// Returns a source whose entry gives a pointer to `value`. All that it defines has external
/// linkage, and an exception needs the C++ runtime.
fn source(value: i32) -> String {
    format!(
        "#include <oxshmem/port/port.h>
         template <class T> T twice(T v) {{ return v + v; }}
         int helper() {{ return Numbered<int>::id == 1 ? twice({value}) : -1; }}
         int answer() {{ try {{ throw helper(); }} catch (int v) {{ return v / 2; }} }}
        "
    )
}

/// Inline functions, static members of templates and what they hold: one of each module, as device
/// memory would be.
const PORT_H: &str = "#pragma once
inline int next_number() { static int last; return ++last; }
template <class T> struct Numbered { static inline const int id = next_number(); };
";

/// The Rust side that the runtime crate provides.
const RUNTIME: &str = r#"
    pub struct ModuleSource {
        pub name: &'static str,
        pub ptx: &'static [(u32, &'static str)],
        pub cubins: &'static [(u32, &'static [u8])],
        pub cpu: unsafe extern "C" fn() -> *const std::ffi::c_void,
    }
    impl ModuleSource {
        pub const unsafe fn from_build(
            name: &'static str,
            ptx: &'static [(u32, &'static str)],
            cubins: &'static [(u32, &'static [u8])],
            cpu: unsafe extern "C" fn() -> *const std::ffi::c_void,
        ) -> Self {
            Self { name, ptx, cubins, cpu }
        }
    }
    #[macro_export]
    macro_rules! include_module {
        ($vis:vis $ident:ident, $name:literal) => {
            $vis static $ident: $crate::ModuleSource = include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
        };
    }
"#;

/// A workspace of stub headers and the stub runtime.
struct Workspace {
    dir: TempDir,
}

impl Workspace {
    fn new() -> Self {
        let dir = TempDir::new();
        dir.write("include/oxshmem/port/module.h", MODULE_H);
        dir.write("include/oxshmem/port/port.h", PORT_H);
        Self { dir }
    }

    fn build(
        &self,
        module: &Module,
        package: &str,
        env: crate::cuda::Env<'_>,
    ) -> Result<(Artifacts, Vec<String>), Error> {
        module.compile_in(&cargo_for(self.dir.path(), package), &self.dir.path().join("include"), env)
    }

    fn build_cpu(&self, module: &Module, package: &str) -> Result<(Artifacts, Vec<String>), Error> {
        self.build(module, package, &no_cuda)
    }

    /// Runs rustc in the workspace, for the package whose `OUT_DIR` is given.
    fn rustc(&self, package: &str, arguments: &[&str]) {
        let out_dir = self.dir.path().join(format!("out-{package}"));
        let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition=2024", "-Dwarnings", "-Lcrates"])
            .arg(format!("-Lnative={}", out_dir.display()))
            .args(arguments)
            .env("OUT_DIR", &out_dir)
            .current_dir(self.dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(self.dir.path().join(program)).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&text));
    }
}

fn no_cuda(name: &str) -> Option<OsString> {
    (name == "OXSHMEM_CUDA").then(|| "0".into())
}

/// Returns the CUDA compiler that the build of this workspace would use. Says so if there is none.
fn real_nvcc() -> Option<OsString> {
    let cargo = cargo_for(&std::env::temp_dir(), "probe");
    let cargo = Cargo { manifest_dir: env!("CARGO_MANIFEST_DIR").into(), ..cargo };
    if let Ok(crate::cuda::Found::Compiler(nvcc)) = crate::cuda::find(&cargo, &|name| std::env::var_os(name)) {
        return Some(nvcc.path.into_os_string());
    }
    println!("skipped: there is no CUDA compiler (scripts/setup installs one)");
    None
}

/// Returns an environment that names a compiler, and has what that needs.
fn with_nvcc(nvcc: &OsString) -> impl Fn(&str) -> Option<OsString> {
    |name| if name == "NVCC" { Some(nvcc.clone()) } else { std::env::var_os(name).filter(|_| name == "PATH") }
}

#[test]
fn links_into_library_binary_and_test_of_several_packages() {
    let space = Workspace::new();
    for (file, value) in [("one.cu", 1), ("two.cu", 2), ("three.cu", 3)] {
        space.dir.write(file, &source(value));
    }
    // Two modules of one package and one of another, with the same function names; two have the
    // same module name.
    space.build_cpu(&Module::new("kernels").source("one.cu"), "low").unwrap();
    space.build_cpu(&Module::new("kernels").source("two.cu"), "high").unwrap();
    space.build_cpu(&Module::new("more").source("three.cu"), "high").unwrap();

    let read = "pub fn read(m: &oxshmem::ModuleSource) -> i32 { unsafe { *(m.cpu)().cast::<i32>() } }";
    space.dir.write("oxshmem.rs", &format!("{} extern crate self as oxshmem; {read}", RUNTIME));
    space.dir.write("low.rs", r#"oxshmem::include_module!(pub KERNELS, "kernels");"#);
    let check = r#"
        oxshmem::include_module!(pub KERNELS, "kernels");
        oxshmem::include_module!(pub MORE, "more");
        #[cfg_attr(test, test)]
        #[allow(dead_code)]
        fn main() {
            let read = oxshmem::read;
            assert_eq!((read(&low::KERNELS), read(&KERNELS), read(&MORE)), (1, 2, 3));
            assert_eq!((KERNELS.name, KERNELS.ptx.len()), ("kernels", 0));
            HIGH
        }
    "#;
    space.dir.write("high.rs", &check.replace("HIGH", ""));
    // A binary that includes the modules a second time, beside its library's.
    space.dir.write("bin.rs", &check.replace("HIGH", "assert_eq!(read(&high::KERNELS), 2);"));
    std::fs::create_dir_all(space.dir.path().join("crates")).unwrap();
    let rlib = ["--crate-type=rlib", "--out-dir=crates"];
    space.rustc("low", &[&rlib[..], &["oxshmem.rs"]].concat());
    space.rustc("low", &[&rlib[..], &["low.rs", "--extern=oxshmem"]].concat());
    let externs = ["--extern=oxshmem", "--extern=low"];
    space.rustc("high", &[&rlib[..], &["high.rs"], &externs].concat());
    space.rustc("high", &[&["--test", "high.rs", "-ounit"][..], &externs].concat());
    space.rustc("high", &[&["bin.rs", "-obin", "--extern=high"][..], &externs].concat());
    space.rustc("high", &[&["--test", "bin.rs", "-obintest", "--extern=high"][..], &externs].concat());
    space.run("unit", &[]);
    space.run("bin", &[]);
    space.run("bintest", &[]);
}

#[test]
fn several_sources_are_one_unit_and_macros_and_folders_reach_them() {
    let space = Workspace::new();
    space.dir.write("more/value.h", "constexpr int offset = OFFSET;\n");
    space.dir.write("a.cu", "#include <value.h>\nstatic int base() { return 40 + offset; }\n");
    space.dir.write("b.cu", "int answer() { return base(); }\n");
    let module = Module::new("pair").source("a.cu").source("b.cu").include("more").define("OFFSET", "2");
    let (artifacts, directives) = space.build_cpu(&module, "crate").unwrap();
    assert!(artifacts.cpu.is_file());
    for file in ["a.cu", "b.cu", "more/value.h"] {
        let line = format!("rerun-if-changed={}", space.dir.path().join(file).display());
        assert!(directives.contains(&line), "{line} is not in {directives:?}");
    }
    for name in ["NVCC", "CUDA_HOME", "CUDA_PATH", "OXSHMEM_CUDA"] {
        assert!(directives.contains(&format!("rerun-if-env-changed={name}")));
    }
    assert!(directives.iter().all(|line| !line.starts_with("warning=")), "{directives:?}");
}

#[test]
fn nothing_is_redone_until_an_input_changes() {
    let space = Workspace::new();
    space.dir.write("kernel.cu", "#include \"local.h\"\nint answer() { return LOCAL; }\n");
    space.dir.write("local.h", "#define LOCAL 1\n");
    let module = Module::new("kernels").source("kernel.cu");
    let build = |module: &Module| {
        let (artifacts, _) = space.build_cpu(module, "crate").unwrap();
        let object = artifacts.rust.with_file_name("kernels.cpu.o");
        // A mark that a new run of the compiler would wipe out.
        let fresh = !std::fs::read(&object).unwrap().ends_with(b"mark");
        if fresh {
            let mut bytes = std::fs::read(&object).unwrap();
            bytes.extend(b"mark");
            std::fs::write(&object, bytes).unwrap();
        }
        fresh
    };
    assert!(build(&module));
    assert!(!build(&module));
    space.dir.write("local.h", "#define LOCAL 2\n");
    assert!(build(&module));
    space.dir.write("include/oxshmem/unused.h", "// new\n");
    assert!(build(&module));
    assert!(build(&module.clone().define("EXTRA", "1")));
    assert!(build(&module));
    assert!(!build(&module));
}

#[test]
fn profiles_share_what_is_compiled_and_each_has_the_results() {
    let space = Workspace::new();
    space.dir.write("kernel.cu", "int answer() { return 1; }\n");
    let module = Module::new("kernels").source("kernel.cu");
    let build = |profile: &str| {
        let out_dir = space.dir.path().join(format!("target/{profile}/build/crate-0123/out"));
        std::fs::create_dir_all(&out_dir).unwrap();
        let cargo = Cargo { out_dir: out_dir.clone(), ..cargo_for(space.dir.path(), "crate") };
        let (artifacts, directives) = module.compile_in(&cargo, &space.dir.path().join("include"), &no_cuda).unwrap();
        assert!(artifacts.cpu.starts_with(&out_dir) && artifacts.cpu.is_file());
        assert!(artifacts.rust.starts_with(&out_dir) && artifacts.rust.is_file());
        assert!(!directives.iter().any(|line| line.contains("oxshmem-modules")), "{directives:?}");
        std::fs::read(artifacts.cpu).unwrap()
    };
    let debug = build("debug");
    let shared: Vec<_> = std::fs::read_dir(space.dir.path().join("target/oxshmem-modules")).unwrap().collect();
    assert_eq!(shared.len(), 1);
    // A mark that a new run of the compiler would wipe out.
    let archive = shared[0].as_ref().unwrap().path().join("liboxshmem_module_crate_0_1_0_kernels.a");
    let marked = [debug.as_slice(), b"mark"].concat();
    std::fs::write(archive, &marked).unwrap();
    assert_eq!(build("release"), marked);
    assert_eq!(build(&format!("{}-unknown-linux-gnu/release", std::env::consts::ARCH)), marked);
    space.dir.write("kernel.cu", "int answer() { return 2; }\n");
    assert_ne!(build("release"), marked);
}

#[test]
fn compiler_output_reaches_the_error_and_warnings_reach_cargo() {
    let space = Workspace::new();
    space.dir.write("bad.cu", "int answer() { return undeclared_name; }\n");
    let error = space.build_cpu(&Module::new("bad").source("bad.cu"), "crate").unwrap_err().to_string();
    assert!(error.contains("undeclared_name") && error.contains("bad.cu:1"), "{error}");
    assert!(error.contains("\"bad\" for the cpu device"), "{error}");

    space.dir.write("warn.cu", "int answer() { int idle; return 1; }\n");
    // The second time nothing is compiled, and the warning is still there.
    for _ in 0..2 {
        let (_, directives) = space.build_cpu(&Module::new("warn").source("warn.cu"), "crate").unwrap();
        assert!(directives.iter().any(|line| line.starts_with("warning=") && line.contains("idle")), "{directives:?}");
    }
}

#[test]
fn wrong_modules_are_refused() {
    let space = Workspace::new();
    space.dir.write("a.cu", "int answer() { return 1; }\n");
    for name in ["", "1st", "a-b", "a b", "ä"] {
        let error = space.build_cpu(&Module::new(name).source("a.cu"), "crate").unwrap_err();
        assert!(matches!(&error, Error::BadName(named) if named == name), "{error}");
    }
    assert!(matches!(space.build_cpu(&Module::new("a"), "crate"), Err(Error::NoSource(_))));
    let missing = space.build_cpu(&Module::new("a").source("b.cu"), "crate").unwrap_err().to_string();
    assert!(missing.contains("b.cu does not exist"), "{missing}");
    space.dir.write("a.cu", "");
    for wrong in [vec![70], vec![90, 80], vec![90, 90]] {
        let error =
            space.build_cpu(&Module::new("a").source("a.cu").architectures(wrong.clone()), "crate").unwrap_err();
        assert!(matches!(&error, Error::BadArchitectures { architectures, .. } if *architectures == wrong), "{error}");
    }
    for (name, value) in [("A", "1\n2"), ("A\nB", "1")] {
        let error = space.build_cpu(&Module::new("a").source("a.cu").define(name, value), "crate").unwrap_err();
        assert!(matches!(&error, Error::BadMacro { macro_name, .. } if macro_name == name), "{error}");
    }
    let module = Module::new("a").source("a.cu");
    let nowhere = module.compile_in(&cargo_for(space.dir.path(), "crate"), Path::new("/nonexistent"), &no_cuda);
    assert!(matches!(nowhere, Err(Error::MissingHeaders(_))));
}

#[test]
fn a_second_module_of_a_name_is_refused() {
    use crate::{Made, once};
    let fails = || Err::<(), _>(Error::NvccRequired);
    // One that failed may be tried again, and relocatable code is in another file.
    assert!(matches!(once("twin", Made::Module, fails), Err(Error::NvccRequired)));
    once("twin", Made::Module, || Ok(())).unwrap();
    once("twin", Made::Relocatable, || Ok(())).unwrap();
    let error = once("twin", Made::Module, || -> Result<(), _> { panic!("is made") }).unwrap_err().to_string();
    assert!(error.contains("two device modules named \"twin\""), "{error}");
}

#[test]
fn without_a_cuda_compiler_one_package_says_so() {
    let space = Workspace::new();
    space.dir.write("a.cu", "int answer() { return 1; }\n");
    let nothing = |_: &str| None;
    if !matches!(crate::cuda::find(&cargo_for(space.dir.path(), "probe"), &nothing), Ok(crate::cuda::Found::Nothing)) {
        println!("skipped: /usr/local/cuda has a CUDA compiler, which cannot be hidden");
        return;
    }
    let warnings = |module: &str, package: &str| {
        let (_, directives) = space.build(&Module::new(module).source("a.cu"), package, &nothing).unwrap();
        assert!(directives.iter().any(|line| line == "rerun-if-env-changed=PATH"), "{directives:?}");
        directives.iter().filter(|line| line.starts_with("warning=")).cloned().collect::<Vec<_>>()
    };
    let first = warnings("one", "oxshmem");
    assert_eq!(first.len(), 1);
    assert!(first[0].contains("without the `cuda` device"));
    assert!(warnings("one", "oxshmem-perftest").is_empty());
    let required = |name: &str| (name == "OXSHMEM_CUDA").then(|| "1".into());
    let error = space.build(&Module::new("one").source("a.cu"), "oxshmem", &required).unwrap_err();
    assert!(matches!(error, Error::NvccRequired), "{error}");
}

/// Stands in for nvcc: writes the requested outputs and what `ptxas -v` would print.
const FAKE_NVCC: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo 'release 13.0, V13.0.88'; exit; }
all=$*
while [ $# -gt 0 ]; do
    case $1 in
        -o) out=$2; shift ;;
        -MF) dep=$2; shift ;;
        -arch=*) arch=${1#*_} ;;
        *.cu | *.ptx) src=$1 ;;
    esac
    shift
done
grep -q broken "$(sed -n 's/#include "\(.*\)"/\1/p' "$src" 2>/dev/null)" 2>/dev/null && { echo "kernel.cu(1): error: broken" >&2; exit 2; }
[ -n "$dep" ] && echo "$out: $src" > "$dep"
case $out in
    *.ptx) body=low; [ "$arch" -ge 90 ] && body=high
        case $all in *--Ofast-compile=max*) body=fast ;; esac
        printf '.target sm_%s\n%s\n' "$arch" "$body" > "$out" ;;
    *.cubin)
        echo "$arch" > "$out"
        echo "ptxas info    : Compiling entry function 'ring' for 'sm_$arch'" >&2
        echo "ptxas info    : Function properties for ring" >&2
        echo "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" >&2
        echo "ptxas info    : Used 8 registers, used 0 barriers" >&2 ;;
    *.fatbin) echo "$all" > "$out" ;;
esac
"#;

#[test]
fn ptx_cubins_and_usage_come_out() {
    let space = Workspace::new();
    space.dir.write("a.cu", "int answer() { return 1; }\n");
    let nvcc = program(&space.dir.path().join("nvcc"), FAKE_NVCC);
    let env = |name: &str| (name == "NVCC").then(|| nvcc.clone().into_os_string());
    let (artifacts, directives) = space.build(&Module::new("kernels").source("a.cu"), "crate", &env).unwrap();
    // What compute_100 gives is the same as for compute_90, and left out.
    assert_eq!(artifacts.ptx.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [80, 90]);
    assert_eq!(artifacts.cubins.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [80, 90, 100]);
    assert_eq!(
        artifacts.usage.iter().map(|f| (f.arch, f.registers)).collect::<Vec<_>>(),
        [80, 90, 100].map(|a| (a, Some(8)))
    );
    assert!(directives.contains(&format!("rerun-if-changed={}", nvcc.display())));
    let rust = std::fs::read_to_string(&artifacts.rust).unwrap();
    assert!(
        rust.contains(
            r#"from_build("kernels", &[(80, include_str!("kernels.compute_80.ptx")), (90, include_str!("kernels.compute_90.ptx"))]"#
        ),
        "{rust}"
    );
    assert!(rust.contains(r#"], &[(80, include_bytes!("kernels.sm_80.cubin").as_slice()), (90, "#), "{rust}");
    let report = std::fs::read_to_string(artifacts.rust.with_file_name("kernels.usage.txt")).unwrap();
    assert_eq!(report.lines().count(), 4, "{report}");

    let one = Module::new("one").source("a.cu").architectures([90]);
    let (artifacts, _) = space.build(&one, "crate", &env).unwrap();
    assert_eq!(artifacts.ptx.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [90]);
    assert_eq!(artifacts.cubins.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [90]);

    space.dir.write("a.cu", "int answer() { return 1; } // broken\n");
    let error = space.build(&Module::new("kernels").source("a.cu"), "crate", &env).unwrap_err().to_string();
    assert!(error.contains("compute_80") && error.contains("kernel.cu(1): error: broken"), "{error}");
}

#[test]
fn only_release_builds_compile_for_every_architecture() {
    let space = Workspace::new();
    space.dir.write("a.cu", "int answer() { return 1; }\n");
    let nvcc = program(&space.dir.path().join("nvcc"), FAKE_NVCC);
    let env = |name: &str| (name == "NVCC").then(|| nvcc.clone().into_os_string());
    let cargo = Cargo { release: false, ..cargo_for(space.dir.path(), "crate") };
    let include = space.dir.path().join("include");
    for (architectures, ptx, cubin) in
        [(ARCHITECTURES.to_vec(), 80, 90), (vec![90, 100], 90, 90), (vec![100], 100, 100)]
    {
        let module = Module::new("kernels").source("a.cu").architectures(architectures);
        let (artifacts, _) = module.compile_in(&cargo, &include, &env).unwrap();
        assert_eq!(artifacts.ptx.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [ptx]);
        assert_eq!(artifacts.cubins.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [cubin]);
        assert_eq!(artifacts.usage.iter().map(|f| f.arch).collect::<Vec<_>>(), [cubin]);
    }
}

#[test]
fn without_a_gpu_a_dev_build_only_checks_device_code() {
    let space = Workspace::new();
    space.dir.write("a.cu", "int answer() { return 1; }\n");
    let nvcc = program(&space.dir.path().join("nvcc"), FAKE_NVCC);
    let env = |name: &str| (name == "NVCC").then(|| nvcc.clone().into_os_string());
    let required = |name: &str| if name == "OXSHMEM_CUDA" { Some("1".into()) } else { env(name) };
    let dev = Cargo { release: false, has_gpu: false, ..cargo_for(space.dir.path(), "crate") };
    let include = space.dir.path().join("include");
    let made = |module: &Module, cargo: &Cargo, env: crate::cuda::Env<'_>| {
        let (artifacts, _) = module.compile_in(cargo, &include, env).unwrap();
        assert_eq!(artifacts.cubins.len(), artifacts.usage.len());
        let (_, ptx) = &artifacts.ptx[0];
        let fast = std::fs::read_to_string(ptx).unwrap().ends_with("fast\n");
        (artifacts.ptx.len(), artifacts.cubins.len(), fast)
    };
    let module = Module::new("kernels").source("a.cu");
    assert_eq!(made(&module, &dev, &env), (1, 0, true));
    assert_eq!(made(&module, &dev, &required), (1, 1, false));
    assert_eq!(made(&module, &Cargo { has_gpu: true, ..dev.clone() }, &env), (1, 1, false));
    assert_eq!(made(&module.clone().reports_usage(), &dev, &env), (1, 1, false));
    assert_eq!(made(&module.clone().reports_usage(), &Cargo { release: true, ..dev.clone() }, &env), (2, 3, false));
    assert_eq!(made(&module, &dev, &env), (1, 0, true));
    // A large module is not assembled for a GPU either.
    assert_eq!(made(&module.clone().large(), &dev, &required), (1, 0, false));
    assert_eq!(made(&module.clone().large(), &Cargo { release: true, ..dev.clone() }, &env), (2, 3, false));
    // An older compiler lacks the option.
    let older = program(&space.dir.path().join("older"), &FAKE_NVCC.replace("release 13.0", "release 12.9"));
    let older = |name: &str| (name == "NVCC").then(|| older.clone().into_os_string());
    assert_eq!(made(&module, &dev, &older), (1, 0, false));
}

#[test]
fn sources_that_the_build_script_has_written_are_not_watched() {
    let space = Workspace::new();
    space.dir.write("value.h", "constexpr int value = 1;\n");
    let cargo = cargo_for(space.dir.path(), "crate");
    let written = cargo.out_dir.join("written.cu");
    std::fs::write(&written, "#include <value.h>\nint answer() { return value; }\n").unwrap();
    let module = Module::new("kernels").source(&written).include(space.dir.path());
    let (_, directives) = space.build_cpu(&module, "crate").unwrap();
    let watches = |path: &Path| directives.contains(&format!("rerun-if-changed={}", path.display()));
    assert!(watches(&space.dir.path().join("value.h")), "{directives:?}");
    assert!(!watches(&written), "{directives:?}");
}

#[test]
fn relocatable_code_is_one_file_and_empty_without_a_compiler() {
    let space = Workspace::new();
    space.dir.write("a.cu", "int answer() { return 1; }\n");
    let nvcc = program(&space.dir.path().join("nvcc"), FAKE_NVCC);
    let env = |name: &str| (name == "NVCC").then(|| nvcc.clone().into_os_string());
    let include = space.dir.path().join("include");
    let cargo = cargo_for(space.dir.path(), "crate");
    let build = |cargo: &Cargo, env: crate::cuda::Env<'_>| {
        let module = Module::new("library").source("a.cu").define("LINKED", "1");
        let (made, directives) = module.compile_relocatable_in(cargo, &include, env).unwrap();
        assert_eq!(made.image, cargo.out_dir.join("library.fatbin"));
        let source = space.dir.path().join("a.cu");
        assert!(directives.contains(&format!("rerun-if-changed={}", source.display())), "{directives:?}");
        assert!(directives.contains(&format!("rerun-if-changed={}", include.display())), "{directives:?}");
        (std::fs::read_to_string(&made.image).unwrap(), made.nvcc)
    };
    let (release, compiler) = build(&cargo, &env);
    assert_eq!(compiler.as_ref(), Some(&nvcc));
    let unit = std::fs::read_to_string(cargo.out_dir.join("library.cuda.cu")).unwrap();
    assert!(unit.contains("#define LINKED 1\n"), "{unit}");
    for part in ["-fatbin -rdc=true", "code=sm_80", "code=sm_90", "code=[compute_100,sm_100]"] {
        assert!(release.contains(part), "{part} is not in {release}");
    }
    let (dev, _) = build(&Cargo { release: false, ..cargo.clone() }, &env);
    assert!(dev.contains("code=[compute_80,sm_90]") && !dev.contains("sm_100"), "{dev}");
    assert_eq!(build(&cargo, &no_cuda), (String::new(), None));
}

#[test]
fn the_real_compiler_takes_inline_ptx() {
    let Some(nvcc) = real_nvcc() else { return };
    let space = Workspace::new();
    let kernel = r#"
        #ifdef __CUDACC__
        extern "C" __global__ void ring(unsigned *reg, unsigned value) {
            asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(reg), "r"(value) : "memory");
            asm volatile("fence.acq_rel.sys;" ::: "memory");
        #if __CUDA_ARCH__ >= 900
            asm volatile("fence.proxy.async;" ::: "memory");
        #endif
        }
        #else
        int answer() { return 1; }
        #endif
    "#;
    space.dir.write("mmio.cu", kernel);
    let env = with_nvcc(&nvcc);
    let (artifacts, directives) = space.build(&Module::new("mmio").source("mmio.cu"), "crate", &env).unwrap();
    assert_eq!(artifacts.ptx.iter().map(|(arch, _)| *arch).take(2).collect::<Vec<_>>(), [80, 90]);
    assert_eq!(artifacts.cubins.len(), 3);
    let text = std::fs::read_to_string(&artifacts.ptx[1].1).unwrap();
    assert!(text.contains("st.mmio.relaxed.sys") && text.contains("fence.proxy.async"), "{text}");
    assert!(artifacts.usage.iter().all(|f| f.name == "ring" && f.registers.is_some_and(|n| n > 0)));
    assert_eq!(artifacts.usage.len(), 3);
    assert!(directives.iter().all(|line| !line.starts_with("warning=")), "{directives:?}");

    // The compiler itself is watched; its headers need not be.
    let outside =
        |line: &&String| line.starts_with("rerun-if-changed=") && !line.contains(space.dir.path().to_str().unwrap());
    let watched: Vec<_> = directives.iter().filter(outside).collect();
    assert_eq!(watched, [&format!("rerun-if-changed={}", nvcc.display())]);

    space.dir.write("bad.cu", "#ifdef __CUDACC__\n__global__ void k() { lost(); }\n#else\nint answer();\n#endif\n");
    let error = space.build(&Module::new("bad").source("bad.cu"), "crate", &env).unwrap_err().to_string();
    assert!(error.contains("identifier \"lost\" is undefined"), "{error}");
}

/// The compiler makes 256-bit loads and stores for sm_100, which need a newer version of PTX than
/// the architecture does.
#[test]
fn wide_accesses_are_assembled() {
    let Some(nvcc) = real_nvcc() else { return };
    let space = Workspace::new();
    let kernel = r#"
        #ifdef __CUDACC__
        struct alignas(32) Wide { unsigned long long words[4]; };
        extern "C" __global__ void move(Wide *to, const Wide *from) { *to = *from; }
        #else
        int answer() { return 1; }
        #endif
    "#;
    space.dir.write("wide.cu", kernel);
    let env = with_nvcc(&nvcc);
    let module = Module::new("wide").source("wide.cu").architectures([90, 100]);
    let (artifacts, _) = space.build(&module, "crate", &env).unwrap();
    assert_eq!(artifacts.cubins.iter().map(|(arch, _)| *arch).collect::<Vec<_>>(), [90, 100]);
    let version = |index: usize| {
        let text = std::fs::read_to_string(&artifacts.ptx[index].1).unwrap();
        text.lines().find_map(|line| line.strip_prefix(".version ").map(str::to_owned))
    };
    assert_eq!((version(0).as_deref(), version(1).as_deref()), (Some("8.5"), Some("8.8")));
}

/// Inline PTX of a module may need a newer version. Where nothing is assembled it is found as well.
#[test]
fn ptx_names_the_version_that_inline_ptx_needs() {
    let Some(nvcc) = real_nvcc() else { return };
    let space = Workspace::new();
    let kernel = r#"
        #ifdef __CUDACC__
        extern "C" __global__ void spill(int *to) {
            asm volatile(".pragma \"enable_smem_spilling\";");
            *to = 1;
        }
        #else
        int answer() { return 1; }
        #endif
    "#;
    space.dir.write("spill.cu", kernel);
    let env = with_nvcc(&nvcc);
    let module = Module::new("spill").source("spill.cu").architectures([90]);
    let release = cargo_for(space.dir.path(), "crate");
    let check = Cargo { release: false, has_gpu: false, ..release.clone() };
    for (cargo, cubins) in [(release, 1), (check, 0)] {
        // The second time it is known from the first.
        for _ in 0..2 {
            let (artifacts, _) = module.compile_in(&cargo, &space.dir.path().join("include"), &env).unwrap();
            assert_eq!(artifacts.cubins.len(), cubins);
            let text = std::fs::read_to_string(&artifacts.ptx[0].1).unwrap();
            assert!(text.contains("\n.version 8.7\n"), "{text}");
        }
    }
}

/// nvcc takes macros and folders of its command line as lists with commas, and hands both to a
/// shell.
#[test]
fn macros_and_folders_with_commas_are_the_same_for_both_compilers() {
    let space = Workspace::new();
    let kernel = r#"
        #include <value.h>
        struct Dims { int x, y; };
        constexpr Dims dims = {DIMS};
        constexpr char text[] = TEXT;
        static_assert(dims.x == 4 && dims.y == 2 && PICK(7, 8) == 8 && offset == 1, "macros");
        static_assert(sizeof(text) == 10 && text[0] == '$' && text[5] == '\\' && text[6] == '`', "macros");
        #ifdef __CUDACC__
        extern "C" __global__ void pick(int *to) { *to = dims.y; }
        #else
        int answer() { return dims.y; }
        #endif
    "#;
    space.dir.write("a,b/kernel.cu", kernel);
    space.dir.write("a,b/more headers/value.h", "constexpr int offset = 1;\n");
    let module = Module::new("commas")
        .source("a,b/kernel.cu")
        .include("a,b/more headers")
        .define("DIMS", "4, 2")
        .define("PICK(a, b)", "b")
        .define("TEXT", r#""$HOME\\`\",""#)
        .architectures([90]);
    space.build_cpu(&module, "crate").unwrap();
    let Some(nvcc) = real_nvcc() else { return };
    let env = with_nvcc(&nvcc);
    let (artifacts, directives) = space.build(&module, "crate", &env).unwrap();
    assert_eq!(artifacts.cubins.len(), 1);
    let header = space.dir.path().join("a,b/more headers/value.h");
    assert!(directives.contains(&format!("rerun-if-changed={}", header.display())), "{directives:?}");
    // The compiler works in a folder with a comma, too.
    let cargo = cargo_for(&space.dir.path().join("a,b"), "crate");
    let module = Module::new("commas").source("plain.cu").architectures([90]);
    space.dir.write("a,b/plain.cu", "int answer() { return 1; }\n");
    let include = space.dir.path().join("a,b/include");
    for (file, text) in [("module.h", MODULE_H), ("port.h", PORT_H)] {
        space.dir.write(&format!("a,b/include/oxshmem/port/{file}"), text);
    }
    module.compile_in(&cargo, &include, &env).unwrap();
}
