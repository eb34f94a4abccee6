//! Commands and variables in Markdown: whether what they name exists.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use crate::markdown::Page;

/// What commands may name.
#[derive(Debug, Default)]
pub struct Known {
    /// Targets of the Makefile.
    pub targets: BTreeSet<String>,
    /// Files of the repository.
    pub files: BTreeSet<String>,
    /// Programs that the workspace builds.
    pub programs: BTreeSet<String>,
    /// Packages of the workspace.
    pub packages: BTreeSet<String>,
    /// Every word in the sources that begins with `OXSHMEM_`, and the like of tools that tests use.
    pub variables: BTreeSet<String>,
}

impl Known {
    /// Reads what there is from the tracked files and their texts.
    pub fn read(texts: &BTreeMap<String, String>) -> Self {
        let mut known = Self::default();
        let target = Regex::new(r"(?m)^([a-z-]+):").expect("valid");
        let name = Regex::new(r#"(?m)^name = "([^"]+)""#).expect("valid");
        let variable = Regex::new(r"\bOXSHMEM_[A-Z0-9_]+").expect("valid");
        for (path, text) in texts {
            known.files.insert(path.clone());
            if path == "Makefile" {
                known.targets.extend(target.captures_iter(text).map(|found| found[1].to_owned()));
            }
            if path.ends_with("Cargo.toml") {
                let names = || name.captures_iter(text).map(|found| found[1].to_owned());
                known.packages.extend(names().take(1));
                known.programs.extend(names());
            }
            let program = path.split_once("src/bin/").and_then(|(_, file)| file.strip_suffix(".rs"));
            known.programs.extend(program.map(str::to_owned));
            if !path.ends_with(".md") {
                known.variables.extend(variable.find_iter(text).map(|found| found.as_str().to_owned()));
            }
        }
        known
    }

    /// Returns what is wrong with the command `words`: a target, script, program or package that
    /// does not exist.
    fn problem(&self, words: &[&str]) -> Option<String> {
        let mut words = words.iter().copied();
        let first = words.by_ref().find(|word| !word.contains('='))?;
        let rest: Vec<&str> = words.collect();
        match first {
            "make" => {
                let target = rest.iter().find(|word| !word.contains('=') && !word.starts_with('-'))?;
                (!self.targets.contains(*target)).then(|| format!("make {target}: the Makefile has no such target"))
            }
            "cargo" => {
                let package = rest.iter().position(|word| matches!(*word, "-p" | "--package"))?;
                let package = rest.get(package + 1)?;
                (!self.packages.contains(*package)).then(|| format!("-p {package}: the workspace has no such package"))
            }
            "oxrun" | "oxshmem-info" => None,
            _ => {
                if let Some(script) =
                    first.strip_prefix("./").or(Some(first)).filter(|path| path.starts_with("scripts/"))
                {
                    return (!self.files.contains(script)).then(|| format!("{script}: there is no such script"));
                }
                let program = first.strip_prefix("target/release/").or_else(|| first.strip_prefix("target/debug/"));
                let program = program.or_else(|| first.starts_with("shmem_").then_some(first))?;
                if program.contains(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)))
                    || program.ends_with("_t")
                {
                    return None;
                }
                (!self.programs.contains(program))
                    .then(|| format!("{program}: no program of the workspace has this name"))
            }
        }
    }

    /// Returns what is wrong with the commands and variables of `pages`: one text for each.
    pub fn problems(&self, pages: &BTreeMap<String, Page>) -> Vec<String> {
        let variable = Regex::new(r"\bOXSHMEM_[A-Z0-9_]*[A-Z0-9]\b").expect("valid");
        let mut problems = Vec::new();
        for (path, page) in pages {
            let blocks =
                page.blocks.iter().filter(|block| is_shell(&block.info)).flat_map(|block| {
                    block.text.lines().enumerate().map(|(at, line)| (block.line + at, line.to_owned()))
                });
            let shell: Vec<(usize, String)> = blocks.chain(page.code.iter().cloned()).collect();
            for (line, text) in shell {
                let command = text.trim_start().trim_start_matches("$ ").split(" #").next().unwrap_or_default();
                for part in command.split(['|', ';', '&']) {
                    let words: Vec<&str> = part.split_whitespace().collect();
                    problems.extend(self.problem(&words).map(|problem| format!("{path}:{line}: {problem}")));
                }
                for name in variable.find_iter(&text).filter(|name| !self.variables.contains(name.as_str())) {
                    problems.push(format!("{path}:{line}: {}: nothing in the sources has this name", name.as_str()));
                }
            }
        }
        problems
    }
}

/// Returns whether a block's text is commands and what they print.
fn is_shell(info: &str) -> bool {
    matches!(info, "" | "console" | "sh" | "shell" | "bash")
}

/// The languages that a fenced block may name, and what checks each.
pub const LANGUAGES: &[&str] = &[
    // Run by `cargo test --doc` (tests/src/lib.rs), by examples/ring (README.md) or by
    // tests/your_own_crate.rs.
    "rust",    // Compiled for the `cpu` device by tests/pages.rs.
    "cpp",     // Built by tests/your_own_crate.rs.
    "toml",    // `Known::problems` looks its names up.
    "console", // What a program prints.
    "text",    // A drawing; its kind is checked below.
    "mermaid",
];

/// Returns what is wrong with the fenced blocks of `pages`: an unknown language, or a drawing of an
/// unknown kind.
pub fn odd_blocks(pages: &BTreeMap<String, Page>) -> Vec<String> {
    let mut odd = Vec::new();
    for (path, page) in pages {
        for block in page.blocks.iter().filter(|block| !block.info.is_empty()) {
            let language = block.info.split([',', ' ']).next().unwrap_or_default();
            if !LANGUAGES.contains(&language) {
                odd.push(format!("{path}:{}: a block in `{}`, which no test checks", block.line, block.info));
            }
            let kind = block.text.split_whitespace().next().unwrap_or_default();
            if language == "mermaid" && !["flowchart", "sequenceDiagram", "stateDiagram-v2"].contains(&kind) {
                odd.push(format!("{path}:{}: a drawing of the kind `{kind}`, which is not known", block.line));
            }
        }
    }
    odd
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let texts = [
            ("Makefile", "demo: setup\n"),
            ("Cargo.toml", "[package]\nname = \"oxshmem\"\n[[bin]]\nname = \"oxrun\"\n"),
            ("perftest/src/bin/shmem_put_bw.rs", "env(\"OXSHMEM_HCA\")"),
            ("scripts/test", "x"),
            ("docs/a.md", "OXSHMEM_ONLY_HERE"),
        ];
        Known::read(&texts.map(|(path, text)| (path.to_owned(), text.to_owned())).into())
    }

    fn problems(text: &str) -> Vec<String> {
        known().problems(&[("a.md".to_owned(), Page::parse(text))].into())
    }

    #[test]
    fn what_exists_passes() {
        let text = "`make demo`\n\n```console\n$ OXSHMEM_HCA=soft target/release/shmem_put_bw | head\n$ cargo run -p oxshmem\n$ scripts/test # all\n```\n\n    make demo\n";
        assert_eq!(problems(text), [] as [String; 0]);
    }

    #[test]
    fn what_does_not_exist_is_named_with_its_line() {
        let text = "`make gone`\n\n```console\n$ target/release/shmem_gone\n$ cargo test -p gone\n$ scripts/gone\n```\n\n`OXSHMEM_ONLY_HERE=1`\n";
        let found = problems(text);
        let lines: Vec<&str> = found.iter().filter_map(|text| text.split(':').nth(1)).collect();
        assert_eq!(lines, ["4", "5", "6", "1", "9"], "{found:?}");
    }

    #[test]
    fn odd_blocks_are_named() {
        let page = Page::parse("```python\nx\n```\n\n```mermaid\npie\n```\n\n```rust,no_run\nx\n```\n");
        assert_eq!(odd_blocks(&[("a.md".to_owned(), page)].into()).len(), 2);
    }
}
