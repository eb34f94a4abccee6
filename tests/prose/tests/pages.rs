//! What pages show exists: device code compiles, and errors are those of the sources.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use oxshmem_prose::extract::strings;
use oxshmem_prose::markdown::Page;
use oxshmem_prose::tree::{self, Language};

/// Compiles `source` for the `cpu` device, and returns what the compiler says if it fails.
fn compile(name: &str, source: &str) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("oxshmem-pages-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{name}.cu"));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-fsyntax-only", "-x", "c++"])
        .arg(format!("-I{}", tree::root().join("device-kernels/include").display()))
        .arg(&file)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    std::fs::remove_file(&file).unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn device_code_of_pages_compiles() {
    let mut blocks = Vec::new();
    for path in tree::files().unwrap().into_iter().filter(|path| path.ends_with(".md")) {
        let page = Page::parse(&tree::read(&path).unwrap());
        let cpp = page.blocks.into_iter().filter(|block| block.info == "cpp");
        blocks.extend(cpp.map(|block| (format!("{path}:{}", block.line), block.text)));
    }
    assert!(blocks.len() > 10, "only {} blocks were found", blocks.len());
    // Each worker takes every n-th block.
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let failures = std::thread::scope(|scope| {
        let blocks = &blocks;
        let compile_share = |worker: usize| {
            let share = blocks.iter().enumerate().skip(worker).step_by(workers);
            let failed = |(number, (place, text)): (usize, &(String, String))| {
                compile(&number.to_string(), text).err().map(|said| format!("{place}:\n{said}"))
            };
            share.filter_map(failed).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || compile_share(worker))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn device_code_that_is_wrong_does_not_compile() {
    let said = compile("wrong", "#include <oxshmem/rma.h>\nOXSHMEM_KERNEL(k, int *at) { oxshmem::gone(at); }\n");
    assert!(said.unwrap_err().contains("gone"));
}

/// Returns the parts of the error texts that stand in backticks in the headings of `page`.
fn errors_of(page: &str) -> Vec<Vec<String>> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    headings
        .map(|text| {
            let parts = text.split("...").map(str::trim).filter(|part| part.len() > 3);
            parts.map(str::to_owned).collect()
        })
        .collect()
}

#[test]
fn troubleshooting_has_errors_of_the_sources() {
    let mut texts = Vec::new();
    for path in tree::files().unwrap() {
        if path.starts_with("tests/") || !matches!(Language::of(&path), Some(Language::Rust | Language::Cpp)) {
            continue;
        }
        texts.extend(strings(&tree::read(&path).unwrap()));
    }
    let errors = errors_of(&tree::read("docs/troubleshooting.md").unwrap());
    assert!(errors.len() > 30, "only {} errors were found", errors.len());
    let is_known = |parts: &&Vec<String>| {
        texts.iter().any(|text| {
            let mut at = 0;
            parts.iter().all(|part| text[at..].find(part.as_str()).inspect(|found| at += found + part.len()).is_some())
        })
    };
    let unknown: Vec<_> = errors.iter().filter(|parts| parts.is_empty() || !is_known(parts)).collect();
    assert!(unknown.is_empty(), "no source has these texts: {unknown:#?}");
}
