//! Every public item of the library has an example in its documentation, which `cargo test --doc`
//! runs.
//!
//! rustdoc counts examples on nightly toolchains alone. So this test reads the sources by their
//! lines, which rustfmt has laid out, and knows an item by its name: what a public module declares
//! or re-exports, what `lib.rs` re-exports, and the methods of these types. What is
//! `#[doc(hidden)]` is for the crates of this repository, and needs no example. What macros
//! generate is not seen.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the sources without their tests.
fn sources() -> Sources {
    fn visit(root: &Path, folder: &Path, found: &mut Sources) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(root, &path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let product = product.split("#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod tests {").next().unwrap();
                found.insert(path.strip_prefix(root).unwrap().to_owned(), product.lines().map(str::to_owned).collect());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime");
    let mut found = BTreeMap::new();
    visit(&root, &root, &mut found);
    found
}

/// Returns the name that a line declares as public, without indentation, and whether the line
/// declares a trait.
fn declared(line: &str) -> Option<(&str, bool)> {
    let mut rest = line.strip_prefix("pub ")?;
    for word in ["unsafe ", "const fn ", "const ", "static ", "fn ", "struct ", "enum ", "trait ", "type "] {
        if let Some(after) = rest.strip_prefix(word) {
            rest = after;
            if word != "unsafe " {
                return Some((name_at(rest)?, word == "trait "));
            }
        }
    }
    None
}

/// Returns the identifier that a text begins with.
fn name_at(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end != 0).then(|| &text[..end])
}

/// Returns the type that an `impl` line at the beginning of a line is for, and whether it
/// implements a trait.
fn implemented(line: &str) -> Option<(&str, bool)> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        None => rest,
        Some(generics) => {
            let mut depth = 1;
            let end = generics.find(|c| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0
            })?;
            &generics[end + 1..]
        }
    };
    let (of, is_trait) = match rest.split_once(" for ") {
        Some((_, of)) => (of, true),
        None => (rest, false),
    };
    let path = of.trim().split(['<', ' ', '{']).next()?;
    Some((path.rsplit("::").next()?, is_trait))
}

/// What precedes a line: whether its documentation has an example, and whether it is hidden.
#[derive(Default)]
struct Before {
    example: bool,
    hidden: bool,
}

impl Before {
    /// Takes a line of documentation or an attribute; `false` if it is neither.
    fn takes(&mut self, line: &str) -> bool {
        self.example |= line.starts_with("/// ```");
        self.hidden |= line == "#[doc(hidden)]";
        line.starts_with("///") || line.starts_with("#[")
    }
}

/// The sources, by their paths below `runtime/`, as lines.
type Sources = BTreeMap<PathBuf, Vec<String>>;

/// Adds the names that the public modules from `file` on make public.
fn public_names(sources: &Sources, file: &Path, names: &mut BTreeSet<String>) {
    let folder = if file == Path::new("lib.rs") { PathBuf::new() } else { file.with_extension("") };
    let folder = if file.ends_with("mod.rs") { file.parent().unwrap().to_owned() } else { folder };
    let mut before = Before::default();
    let lines = &sources[file];
    for (at, line) in lines.iter().enumerate() {
        if before.takes(line) {
            continue;
        }
        let hidden = std::mem::take(&mut before).hidden;
        if hidden {
            continue;
        }
        if let Some(module) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) {
            let beside = folder.join(module).with_extension("rs");
            let inside = folder.join(module).join("mod.rs");
            public_names(sources, if sources.contains_key(&beside) { &beside } else { &inside }, names);
        } else if let Some(first) = line.strip_prefix("pub use ") {
            let rest = lines[at + 1..].iter().map(String::as_str);
            let whole: String = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" ");
            let path = whole.split(';').next().unwrap();
            let listed = path.split_once('{').map_or(path.rsplit("::").next().unwrap(), |(_, list)| list);
            names.extend(listed.split(',').filter_map(|name| name_at(name.trim()).map(str::to_owned)));
        } else if file != Path::new("lib.rs")
            && let Some((name, _)) = declared(line)
        {
            names.insert(name.to_owned());
        }
    }
}

/// Public items without an example, each with its place.
fn without_example(sources: &Sources, names: &BTreeSet<String>) -> (usize, Vec<String>) {
    let (mut items, mut missing) = (0, Vec::new());
    for (file, lines) in sources {
        // A type of a private module may have the name of a public one: it is restricted, or a file
        // of its own declares it.
        let restricted = |name: &str| {
            let of = |word: &str| lines.iter().any(|line| line.contains(&format!(") {word} {name}")));
            of("struct") || of("enum")
        };
        let mut owner: Option<(String, bool)> = None;
        let mut hidden_types = BTreeSet::new();
        let mut before = Before::default();
        for (at, line) in lines.iter().enumerate() {
            let text = line.trim_start();
            if before.takes(text) {
                continue;
            }
            let Before { example, hidden } = std::mem::take(&mut before);
            if line == "}" {
                owner = None;
            }
            if let Some((of, is_trait)) = implemented(line) {
                let public = !is_trait && names.contains(of) && !hidden_types.contains(of) && !restricted(of);
                owner = public.then(|| (of.to_owned(), false));
            }
            let item = if let Some((name, is_trait)) = declared(line) {
                if hidden {
                    hidden_types.insert(name.to_owned());
                }
                owner = (is_trait && names.contains(name)).then(|| (name.to_owned(), true));
                names.contains(name).then(|| name.to_owned())
            } else if let (Some((owner, is_trait)), Some(member)) = (&owner, line.strip_prefix("    ")) {
                let public = if *is_trait { format!("pub {member}") } else { member.to_owned() };
                declared(&public).map(|(name, _)| format!("{owner}::{name}"))
            } else {
                None
            };
            if let Some(item) = item.filter(|_| !hidden) {
                items += 1;
                if !example {
                    missing.push(format!("runtime/{}:{}: {item}", file.display(), at + 1));
                }
            }
        }
    }
    (items, missing)
}

#[test]
fn every_public_item_has_an_example() {
    let mut sources = sources();
    let mut names = BTreeSet::new();
    public_names(&sources, Path::new("lib.rs"), &mut names);
    // Its module is hidden, and its names are those of other things.
    sources.retain(|file, _| !file.starts_with("abi"));
    // These are seen, through modules and re-exports, and the last one is private.
    for name in ["ConfigError", "SymmetricSlice", "LaunchConfig", "run"] {
        assert!(names.contains(name), "{name} is not among the public names: {names:?}");
    }
    assert!(!names.contains("SymmetricHeap"));
    let (items, missing) = without_example(&sources, &names);
    assert!(items > 200, "only {items} public items were seen");
    assert!(missing.is_empty(), "{} of {items} public items have no example:\n{}", missing.len(), missing.join("\n"));
}

#[test]
fn an_item_without_an_example_is_found() {
    let source = [
        "/// Text.",
        "///",
        "/// ```",
        "/// ```",
        "pub struct Good;",
        "",
        "impl Good {",
        "    /// Text.",
        "    pub fn bad(&self) {}",
        "",
        "    /// Text.",
        "    #[doc(hidden)]",
        "    pub fn hidden(&self) {}",
        "    fn private(&self) {}",
        "}",
        "",
        "pub struct Bad;",
    ];
    let sources = BTreeMap::from([(PathBuf::from("a.rs"), source.map(str::to_owned).to_vec())]);
    let names = ["Good", "Bad"].map(str::to_owned).into();
    assert_eq!(
        without_example(&sources, &names),
        (3, vec!["runtime/a.rs:9: Good::bad".into(), "runtime/a.rs:17: Bad".into()])
    );
}
