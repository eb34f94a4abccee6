//! The repository's own text.
#![allow(clippy::unwrap_used)]

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

use oxshmem_prose::commands::{Known, odd_blocks};
use oxshmem_prose::idioms::{Allowed, check, imperatives};
use oxshmem_prose::markdown::{Page, broken_links, unknown_files};
use oxshmem_prose::tree::{self, Language};
use oxshmem_prose::width::{long_code, long_markdown};
use oxshmem_prose::wrap::wrap;

const ALLOWED: &str = include_str!("../allowed.txt");

#[test]
fn the_text_is_plain_english() {
    let allowed = Allowed::parse(ALLOWED).unwrap();
    let mut findings = Vec::new();
    let mut read = 0;
    for path in tree::files().unwrap() {
        let Some(language) = Language::of(&path) else { continue };
        read += 1;
        findings.extend(check(&path, language, &tree::read(&path).unwrap(), &allowed));
    }
    assert!(read > 500, "only {read} files were read");
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        lines.is_empty(),
        "{} idioms that read as translated; rewrite the sentence, or add a legitimate use to tests/prose/allowed.txt:\n{}",
        lines.len(),
        lines.join("\n")
    );
    let unused = allowed.unused();
    assert!(unused.is_empty(), "lines {unused:?} of tests/prose/allowed.txt are not needed any more: delete them");
}

#[test]
fn documentation_of_functions_is_in_the_third_person() {
    let mut findings = Vec::new();
    for path in tree::files().unwrap() {
        if Language::of(&path) == Some(Language::Rust) {
            findings.extend(imperatives(&path, &tree::read(&path).unwrap()));
        }
    }
    none(&findings.iter().map(ToString::to_string).collect::<Vec<_>>());
}

/// Returns every Markdown page by its path.
fn pages() -> BTreeMap<String, Page> {
    let files = tree::files().unwrap();
    let pages = files.into_iter().filter(|path| path.ends_with(".md"));
    let pages: BTreeMap<String, Page> =
        pages.map(|path| (path.clone(), Page::parse(&tree::read(&path).unwrap()))).collect();
    assert!(pages.len() > 15, "only {} pages were read", pages.len());
    pages
}

#[track_caller]
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let root = tree::root();
    none(&broken_links(&pages(), |path: &Path| root.join(path).exists()));
}

#[test]
fn files_that_pages_name_exist() {
    // Files that commands write, files of a page's own example, and files of other projects.
    const ELSEWHERE: [&str; 11] = [
        "results/",
        "summary.md",
        "PATH-STEP.jsonl",
        "experiment.jsonl",
        "kernels/sum.cu",
        "mlx5dv.h",
        "src/uct/ib/mlx5/dv/ib_mlx5_dv.c",
        "src/uct/ib/mlx5/rc/rc_mlx5_devx.c",
        "src/modules/transport/ibgda/ibgda.cpp",
        "drivers/common/mlx5/mlx5_devx_cmds.c",
        "drivers/infiniband/hw/mlx5/qp.c",
    ];
    let mut unknown = unknown_files(&pages(), &tree::files().unwrap());
    let elsewhere = |problem: &String| ELSEWHERE.iter().any(|name| problem.contains(&format!("`{name}`")));
    for name in ELSEWHERE {
        assert!(unknown.iter().any(|problem| problem.contains(&format!("`{name}`"))), "{name} is not needed any more");
    }
    unknown.retain(|problem| !elsewhere(problem));
    none(&unknown);
}

#[test]
fn commands_and_variables_that_pages_name_exist() {
    let files = tree::files().unwrap();
    let texts = files.into_iter().map(|path| (path.clone(), tree::read(&path).unwrap())).collect();
    none(&Known::read(&texts).problems(&pages()));
}

#[test]
fn every_code_block_is_of_a_language_that_a_test_checks() {
    none(&odd_blocks(&pages()));
}

#[test]
fn lines_are_not_too_long() {
    let mut long = Vec::new();
    for path in tree::files().unwrap() {
        let Some(language) = Language::of(&path) else { continue };
        let text = tree::read(&path).unwrap();
        if language == Language::Markdown {
            let lines = long_markdown(&text).into_iter();
            long.extend(lines.map(|(line, width)| format!("{path}:{line}: {width} columns of text")));
        }
    }
    none(&long);
}

/// Returns the files of `long-lines.txt` with the number of long lines that each may have.
fn allowed_long_lines() -> BTreeMap<&'static str, usize> {
    let lines = include_str!("../long-lines.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &'static str| {
        let mut parts = line.splitn(3, ": ");
        let (path, number, reason) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        assert!(!reason.is_empty(), "{line}: there is no reason");
        (path, number.parse().unwrap())
    };
    lines.map(parse).collect()
}

#[test]
fn lines_of_code_are_not_too_long() {
    let mut allowed = allowed_long_lines();
    let mut problems = Vec::new();
    for path in tree::files().unwrap() {
        let Some(language) = Language::of(&path) else { continue };
        let long = long_code(language, &tree::read(&path).unwrap());
        let expected = allowed.remove(path.as_str()).unwrap_or(0);
        match long.len().cmp(&expected) {
            Ordering::Greater => {
                problems.extend(long.iter().map(|(line, width)| format!("{path}:{line}: {width} columns of code")));
            }
            Ordering::Less => {
                let has = long.len();
                problems.push(format!("{path} has {has} long lines, and long-lines.txt allows {expected}: lower that"));
            }
            Ordering::Equal => {}
        }
    }
    problems.extend(allowed.into_keys().map(|path| format!("{path} does not exist: long-lines.txt names it")));
    none(&problems);
}

#[test]
fn paragraphs_are_folded() {
    let folded = |path: &String| {
        let source = tree::read(path).unwrap();
        Language::of(path).is_none_or(|language| wrap(language, &source) == source)
    };
    let long: Vec<String> = tree::files().unwrap().into_iter().filter(|path| !folded(path)).collect();
    assert!(long.is_empty(), "comments or paragraphs of more than 100 columns, which `make fmt` folds, in {long:?}");
}
