//! Markdown pages: their headings, links and code blocks, and whether these lead anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A code block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line where its text begins, from 1.
    pub line: usize,
    /// What follows the fence, like `rust` or `console`; empty for an indented block.
    pub info: String,
    /// The text.
    pub text: String,
}

/// What a page has.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Page {
    /// The anchors of its headings.
    pub anchors: BTreeSet<String>,
    /// Links and images: line and destination.
    pub links: Vec<(usize, String)>,
    /// Code blocks.
    pub blocks: Vec<Block>,
    /// Code in backticks: line and text.
    pub code: Vec<(usize, String)>,
}

/// Returns the anchor that GitHub gives a heading: lower case, without punctuation, blanks as
/// hyphens.
pub fn anchor(heading: &str) -> String {
    heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

impl Page {
    /// Reads a page.
    pub fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let line_of = |offset: usize| text[..offset].matches('\n').count() + 1;
        let mut heading: Option<String> = None;
        let mut block: Option<Block> = None;
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let count = seen.entry(name.clone()).and_modify(|count| *count += 1).or_insert(0);
                    page.anchors.insert(if *count == 0 { name } else { format!("{name}-{count}") });
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line_of(range.start), dest_url.into_string()));
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let (line, info) = match kind {
                        CodeBlockKind::Fenced(info) => (line_of(range.start) + 1, info.into_string()),
                        CodeBlockKind::Indented => (line_of(range.start), String::new()),
                    };
                    block = Some(Block { line, info, text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Text(part) => {
                    if let Some(block) = &mut block {
                        block.text += &part;
                    } else if let Some(heading) = &mut heading {
                        *heading += &part;
                    }
                }
                Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        *heading += &part;
                    }
                    page.code.push((line_of(range.start), part.into_string()));
                }
                _ => {}
            }
        }
        page
    }
}

/// Returns `path` without `.` and `..`, or `None` if it leaves the root.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => result.push(name),
            Component::ParentDir if result.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(result)
}

/// Returns the links of `pages` (by path) that lead nowhere. `exists` says whether a path of the
/// tree exists, as a file or a folder.
pub fn broken_links(pages: &BTreeMap<String, Page>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, page) in pages {
        for (line, link) in &page.links {
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            let (file, fragment) = link.split_once('#').map_or((link.as_str(), None), |(f, a)| (f, Some(a)));
            let target = if file.is_empty() {
                Some(PathBuf::from(path))
            } else {
                normal(&Path::new(path).parent().unwrap_or(Path::new("")).join(file))
            };
            let Some(target) = target.filter(|target| exists(target)) else {
                broken.push(format!("{path}:{line}: {link}: there is no such file"));
                continue;
            };
            let Some(fragment) = fragment else { continue };
            match pages.get(target.to_string_lossy().as_ref()) {
                Some(page) if page.anchors.contains(fragment) => {}
                Some(_) => broken.push(format!("{path}:{line}: {link}: the page has no such heading")),
                None => broken.push(format!("{path}:{line}: {link}: only Markdown pages have anchors")),
            }
        }
    }
    broken
}

/// Returns the names of files in backticks that are no end of any path of the tree, like `qp.h` or
/// `detail/qp.h`.
pub fn unknown_files(pages: &BTreeMap<String, Page>, tree: &[String]) -> Vec<String> {
    const ENDS: [&str; 9] = [".rs", ".h", ".cu", ".cpp", ".c", ".md", ".patch", ".jsonl", ".toml"];
    let mut unknown = Vec::new();
    for (path, page) in pages {
        for (line, code) in &page.code {
            let is_file = ENDS.iter().any(|end| code.ends_with(end)) && !code.starts_with(['.', '<', '*']);
            let is_folder = code.ends_with('/') && code.contains(|c: char| c.is_alphanumeric());
            if !(is_file || is_folder) || code.contains(|c: char| " *<>$|~".contains(c)) || code.starts_with('/') {
                continue;
            }
            let name = code.trim_end_matches('/').trim_start_matches("./");
            let found = tree.iter().any(|file| {
                if is_folder {
                    file.starts_with(&format!("{name}/")) || file.contains(&format!("/{name}/"))
                } else {
                    file == name || file.ends_with(&format!("/{name}"))
                }
            });
            if !found {
                unknown.push(format!("{path}:{line}: `{code}`: no file of the repository has this name"));
            }
        }
    }
    unknown
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> BTreeMap<String, Page> {
        texts.iter().map(|(path, text)| ((*path).to_owned(), Page::parse(text))).collect()
    }

    #[test]
    fn pages_have_anchors_links_and_blocks() {
        let page = Page::parse(
            "# `make x`: A, b_c\n\nSee [this](a.md#x) and ![that](p.svg).\n\n```rust,no_run\nlet a;\n```\n\n## Same\n\n## Same\n\n    indented\n",
        );
        assert_eq!(page.anchors, ["make-x-a-b_c", "same", "same-1"].map(str::to_owned).into());
        assert_eq!(page.links, [(3, "a.md#x".to_owned()), (3, "p.svg".to_owned())]);
        assert_eq!(page.blocks.len(), 2);
        assert_eq!(page.blocks[0], Block { line: 6, info: "rust,no_run".to_owned(), text: "let a;\n".to_owned() });
        assert_eq!((page.blocks[1].line, page.blocks[1].info.as_str()), (13, ""));
        assert_eq!(page.code, [(1, "make x".to_owned())]);
    }

    #[test]
    fn broken_links_are_named() {
        let pages = pages(&[
            ("docs/a.md", "# A\n\n[ok](b.md#two-words) [up](../README.md) [self](#a) [web](https://example.org)\n"),
            ("docs/b.md", "# Two words\n\n[gone](c.md)\n[no anchor](a.md#b)\n[out](../../x)\n"),
            ("README.md", "[folder](docs)\n"),
        ]);
        let tree = ["docs/a.md", "docs/b.md", "README.md", "docs"];
        let broken = broken_links(&pages, |path| tree.iter().any(|known| Path::new(known) == path));
        let places: Vec<&str> = broken.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(places, ["docs/b.md:3", "docs/b.md:4", "docs/b.md:5"], "{broken:?}");
    }

    #[test]
    fn unknown_files_are_named() {
        let pages =
            pages(&[("a.md", "`qp.h` and `detail/qp.h`, `soft/`, `gone.rs`, `old/qp.h`, `*.rs`, `missing/`\n")]);
        let tree = ["x/detail/qp.h".to_owned(), "hca/src/soft/mod.rs".to_owned()];
        let unknown = unknown_files(&pages, &tree);
        assert_eq!(unknown.len(), 3, "{unknown:?}");
        assert!(
            unknown[0].contains("`gone.rs`") && unknown[1].contains("`old/qp.h`") && unknown[2].contains("`missing/`")
        );
    }
}
