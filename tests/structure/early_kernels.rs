//! Each kernel of a module that says so begins by waiting for the grids that it follows: a GPU
//! would run it before they have ended otherwise.

use std::path::Path;
use std::process::Command;

/// The CUDA compiler; empty if there is none.
const NVCC: &str = env!("TESTS_NVCC");

/// What such a module says.
const SAYS: &str = "\nOXSHMEM_SYNCS_GRID_DEPENDENCY;\n";
/// What each of its kernels begins with.
const WAITS: &str = "oxshmem::port::grid_dependency_sync();";

/// Returns what follows the parenthesis that closes the one at the beginning of `text`.
fn after_parentheses(text: &str) -> Option<&str> {
    let mut depth = 0;
    let end = text.char_indices().find_map(|(at, character)| {
        depth += match character {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        (depth == 0).then_some(at + 1)
    })?;
    Some(&text[end..])
}

fn without_space(text: &str) -> &str {
    text.trim_start_matches(|character: char| character.is_whitespace() || character == '\\')
}

/// Returns the functions that a source defines by a macro, which are its kernels: what stands in
/// the macro's parentheses, and the body with all that follows.
fn kernels(source: &str) -> Vec<(&str, &str)> {
    let kernel = |(at, _)| {
        let text = &source[at..];
        let text = &text[text.find(|character: char| character != '_' && !character.is_ascii_alphanumeric())?..];
        let rest = text.starts_with('(').then(|| after_parentheses(text))??;
        let body = without_space(rest).strip_prefix('{')?;
        Some((&text[..text.len() - rest.len()], without_space(body)))
    };
    source.match_indices("OXSHMEM_").filter_map(kernel).collect()
}

#[test]
fn kernels_that_are_launched_early_wait_first() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device-kernels/kernels");
    let sources = std::fs::read_dir(folder).expect("the folder of kernels");
    let sources = sources.map(|entry| entry.expect("an entry of the folder of kernels").path());
    let mut seen = 0;
    for path in sources.filter(|path| path.extension().is_some_and(|ending| ending == "cu")) {
        let source = std::fs::read_to_string(&path).expect("a source of kernels");
        if !source.contains(SAYS) {
            assert!(!source.contains(WAITS), "{} does not say that its kernels wait", path.display());
            continue;
        }
        for (name, body) in kernels(&source) {
            assert!(body.starts_with(WAITS), "{}: the kernel of {name} does not begin with {WAITS}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} kernels were found");
}

#[test]
fn a_kernel_is_found_with_its_body() {
    let source = "OXSHMEM_SYNCS;\nOXSHMEM_KERNEL(one, int (*a)(int),\n int b) {\n  first();\n}\n\
        #define OXSHMEM_BY(name) \\\n  OXSHMEM_KERNEL(name, int a)\nOXSHMEM_BY(two) { \\\n  second(); \\\n}\n\
        OXSHMEM_SHARED(int, c);\n";
    let found = kernels(source);
    assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["(one, int (*a)(int),\n int b)", "(two)"]);
    assert!(found[0].1.starts_with("first();") && found[1].1.starts_with("second();"), "{found:?}");
}

/// Builds other than releases have no PTX for sm_90, so a module is compiled for it here.
#[test]
fn a_module_for_sm_90_says_that_its_kernels_wait() -> std::io::Result<()> {
    if NVCC.is_empty() {
        println!("skipped: built without a CUDA compiler");
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device-kernels");
    let ptx = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host_ops.compute_90.ptx");
    let mut nvcc = Command::new(NVCC);
    nvcc.args(["-std=c++17", "-ptx", "-arch=compute_90", "-DOXSHMEM_MODULE_NAME=host_ops", "-I"]);
    let output =
        nvcc.arg(folder.join("include")).arg(folder.join("kernels/host_ops.cu")).arg("-o").arg(&ptx).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ptx = std::fs::read_to_string(ptx)?;
    assert!(ptx.contains("oxshmem_syncs_grid_dependency"));
    assert_eq!(ptx.matches("griddepcontrol.wait").count(), ptx.matches(".entry ").count());
    Ok(())
}
