//! Imports between the files of a crate form no cycle.
//!
//! File A imports file B if A's code, apart from what is compiled for tests only, names an item
//! that B defines:
//!
//! * by a `use` declaration, whether or not what it brings in is mentioned again (a trait may not
//!   be);
//! * by a path anywhere else, the tokens inside macro calls included, that begins with `crate`,
//!   `self`, `super`, a module or a name that a `use` declaration brought in.
//!
//! The crates are those of the workspace outside `tests/`; of each, its library and its programs.
//!
//! Re-exports are followed to the file that defines the item, so `use crate::heap::SymmetricHeap`
//! imports the file in which the `struct` is. A re-export (a `use` declaration with a visibility)
//! is a table of contents and no import, unless the file mentions the name elsewhere too. A `mod`
//! declaration and a module that is brought in by name are no imports: paths through the module
//! are. Method calls name no item and do not count; neither do items of other crates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree, Visibility};

use crate::metadata;

/// A module of a crate, in a file of its own or inline.
#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    /// Names of items that the module defines.
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths of the module's code outside `use` declarations.
    paths: BTreeSet<Vec<String>>,
}

/// One name that a `use` declaration brings in; `*` stands for all.
struct Use {
    name: String,
    path: Vec<String>,
    is_reexport: bool,
}

/// What a path leads to.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item, by the file that defines it.
    Item(usize),
}

/// A crate, module by module. The first module is the root.
#[derive(Default)]
struct Crate {
    modules: Vec<Module>,
    files: Vec<PathBuf>,
    /// Macros by example, which have no place among the modules, by the file that defines them.
    macros: HashMap<String, usize>,
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut found = Self::default();
        let folder = root.parent().expect("a file is in a folder").to_owned();
        found.read_file(root, &folder, None);
        found
    }

    /// Reads a file that is a module, whose own modules are in `folder`.
    fn read_file(&mut self, path: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.files.push(path.to_owned());
        let file = self.files.len() - 1;
        self.read_module(parsed.items, file, folder, parent)
    }

    fn read_module(&mut self, items: Vec<Item>, file: usize, folder: &Path, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        let id = self.modules.len() - 1;
        for item in items {
            if is_for_tests(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let below = folder.join(&name);
                    let child = match module.content {
                        Some((_, items)) => self.read_module(items, file, &below, Some(id)),
                        None => {
                            let flat = folder.join(format!("{name}.rs"));
                            let path = if flat.exists() { flat } else { below.join("mod.rs") };
                            self.read_file(&path, &below, Some(id))
                        }
                    };
                    self.modules[id].children.insert(name, child);
                }
                Item::Use(item) => {
                    let is_reexport = !matches!(item.vis, Visibility::Inherited);
                    let mut leaves = Vec::new();
                    leaves_of(&item.tree, &mut Vec::new(), &mut leaves);
                    let uses = leaves.into_iter().map(|(name, path)| Use { name, path, is_reexport });
                    self.modules[id].uses.extend(uses);
                }
                Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        self.macros.insert(name.to_string(), file);
                    }
                    paths_of(item.to_token_stream(), &mut self.modules[id].paths);
                }
                item => {
                    self.modules[id].items.extend(name_of(&item));
                    paths_of(item.to_token_stream(), &mut self.modules[id].paths);
                }
            }
        }
        id
    }

    /// Finds a name in a module. `seen` has the modules and names that were looked up on the way
    /// here.
    fn find(&self, module: usize, name: &str, seen: &mut BTreeSet<(usize, String)>) -> Option<Target> {
        let here = &self.modules[module];
        if let Some(child) = here.children.get(name) {
            return Some(Target::Module(*child));
        }
        if here.items.contains(name) {
            return Some(Target::Item(here.file));
        }
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        if let Some(item) = here.uses.iter().find(|item| item.name == name)
            && let Some(found) = self.resolve(module, &item.path, seen)
        {
            return Some(found);
        }
        here.uses.iter().filter(|item| item.name == "*").find_map(|glob| {
            match self.resolve(module, &glob.path, seen)? {
                Target::Module(other) => self.find(other, name, seen),
                Target::Item(_) => None,
            }
        })
    }

    /// Follows a path that stands in a module to the item or module that it names, if that is in
    /// this crate.
    fn resolve(&self, module: usize, path: &[String], seen: &mut BTreeSet<(usize, String)>) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(module),
            "super" => Target::Module(self.modules[module].parent?),
            name => self.find(module, name, seen)?,
        };
        for name in rest {
            let Target::Module(module) = at else { break };
            at = match name.as_str() {
                "super" => Target::Module(self.modules[module].parent?),
                name => match self.find(module, name, seen) {
                    Some(found) => found,
                    None => Target::Item(*self.macros.get(name)?),
                },
            };
        }
        Some(at)
    }

    /// Returns the files that each file imports.
    fn imports(&self) -> Vec<BTreeSet<usize>> {
        let mut imports = vec![BTreeSet::new(); self.files.len()];
        for (id, module) in self.modules.iter().enumerate() {
            let declared =
                module.uses.iter().filter(|item| !item.is_reexport && item.name != "*").map(|item| &item.path);
            for path in declared.chain(&module.paths) {
                if let Some(Target::Item(file)) = self.resolve(id, path, &mut BTreeSet::new())
                    && file != module.file
                {
                    imports[module.file].insert(file);
                }
            }
        }
        imports
    }

    /// Returns the sets of files that import each other, directly or through others.
    fn cycles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reached: Vec<BTreeSet<usize>> = (0..imports.len()).map(|file| reached_from(&imports, file)).collect();
        let mut sets = BTreeSet::new();
        for (file, others) in reached.iter().enumerate() {
            let set: Vec<usize> = others.iter().copied().filter(|other| reached[*other].contains(&file)).collect();
            sets.extend((!set.is_empty()).then_some(set));
        }
        let edges = |set: Vec<usize>| {
            let within = |file: &usize| {
                imports[*file]
                    .iter()
                    .filter(|other| set.contains(other))
                    .map(|other| (*file, *other))
                    .collect::<Vec<_>>()
            };
            let name = |file: usize| self.files[file].display().to_string();
            set.iter().flat_map(within).map(|(from, to)| format!("{} -> {}", name(from), name(to))).collect()
        };
        sets.into_iter().map(edges).collect()
    }
}

/// Returns the files that can be reached from one by one import or more.
fn reached_from(imports: &[BTreeSet<usize>], file: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<usize> = imports[file].iter().copied().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(&imports[next]);
        }
    }
    reached
}

/// Returns whether the item is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.to_token_stream().to_string().replace(' ', "").starts_with("#[cfg(test"))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Lists the names that a `use` declaration brings in, each with its path.
fn leaves_of(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            leaves_of(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves_of(tree, prefix, leaves)),
        UseTree::Glob(_) => leaves.push(("*".to_owned(), prefix.clone())),
        UseTree::Name(name) if name.ident == "self" => {
            leaves.extend(prefix.last().map(|last| (last.clone(), prefix.clone())))
        }
        UseTree::Name(name) => leaves.push((name.ident.to_string(), [&prefix[..], &[name.ident.to_string()]].concat())),
        UseTree::Rename(rename) if rename.ident == "self" => leaves.push((rename.rename.to_string(), prefix.clone())),
        UseTree::Rename(rename) => {
            leaves.push((rename.rename.to_string(), [&prefix[..], &[rename.ident.to_string()]].concat()));
        }
    }
}

/// Collects the paths in tokens: names that `::` joins, and single names, except for those of
/// fields and methods.
fn paths_of(tokens: TokenStream, paths: &mut BTreeSet<Vec<String>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is =
        |i: usize, wanted: char| matches!(tokens.get(i), Some(TokenTree::Punct(found)) if found.as_char() == wanted);
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            TokenTree::Group(group) => paths_of(group.stream(), paths),
            TokenTree::Ident(first) => {
                // `..name` follows two points, `.name` one.
                let is_member = i >= 1 && is(i - 1, '.') && !(i >= 2 && is(i - 2, '.'));
                let is_absolute = i >= 2 && is(i - 1, ':') && is(i - 2, ':');
                let mut path = vec![first.to_string()];
                while is(i + 1, ':') && is(i + 2, ':') {
                    let Some(TokenTree::Ident(next)) = tokens.get(i + 3) else { break };
                    path.push(next.to_string());
                    i += 3;
                }
                if !is_member && !is_absolute {
                    paths.insert(path);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        i += 1;
    }
}

/// Returns the packages of the product with the root files of their libraries and programs.
fn packages() -> BTreeMap<String, Vec<PathBuf>> {
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let roots = |package: &serde_json::Value| {
        let is_product = |target: &&serde_json::Value| {
            list(&target["kind"])
                .iter()
                .any(|kind| ["lib", "rlib", "cdylib", "staticlib", "bin"].contains(&text(kind).as_str()))
        };
        list(&package["targets"]).iter().filter(is_product).map(|target| text(&target["src_path"]).into()).collect()
    };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = metadata::packages();
    let product = packages.iter().filter(|package| !Path::new(&text(&package["manifest_path"])).starts_with(tests));
    product.map(|package| (text(&package["name"]), roots(package))).collect()
}

#[test]
fn imports_form_no_cycle() {
    let mut cycles = Vec::new();
    let packages = packages();
    assert!(packages.contains_key("oxshmem") && packages.contains_key("oxshmem-hca"), "found only {packages:?}");
    for (package, roots) in packages {
        assert!(!roots.is_empty(), "{package} has neither a library nor a program");
        for root in roots {
            cycles.extend(Crate::read(&root).cycles());
        }
    }
    let text: Vec<String> = cycles.iter().map(|edges| edges.join("\n")).collect();
    assert!(cycles.is_empty(), "{} sets of files import each other:\n{}", cycles.len(), text.join("\n\n"));
}

/// Writes the files of a crate to a folder and returns the imports that close cycles, file names
/// alone.
fn cycles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let folder = std::env::temp_dir().join(format!("oxshmem-structure-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("inner")).expect("a folder for a made-up crate");
    for (name, text) in files {
        std::fs::write(folder.join(name), text).expect("a file of a made-up crate");
    }
    let cycles = Crate::read(&folder.join("lib.rs")).cycles();
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    let prefix = format!("{}/", folder.display());
    cycles.into_iter().map(|edges| edges.into_iter().map(|edge| edge.replace(&prefix, "")).collect()).collect()
}

#[test]
fn what_counts_as_an_import() {
    let lib = "mod a; mod b; mod inner;";
    let inner = "mod c; pub use c::C; pub(crate) fn helper() {}";
    let none: [Vec<String>; 0] = [];
    // A table of contents is none, and neither is what is compiled for tests only.
    let c = "pub struct C; #[cfg(test)] mod tests { use super::super::helper; }";
    assert_eq!(
        cycles_of(&[
            ("lib.rs", lib),
            ("a.rs", "use crate::inner::C;"),
            ("b.rs", ""),
            ("inner/mod.rs", inner),
            ("inner/c.rs", c)
        ]),
        none
    );
    // A re-export that the file itself uses is one.
    let inner = "mod c; pub use c::C; pub(crate) fn helper() -> C { C }";
    let c = "pub struct C; fn f() { super::helper(); }";
    let edges = ["inner/mod.rs -> inner/c.rs", "inner/c.rs -> inner/mod.rs"].map(str::to_owned).to_vec();
    assert_eq!(
        cycles_of(&[("lib.rs", lib), ("a.rs", ""), ("b.rs", ""), ("inner/mod.rs", inner), ("inner/c.rs", c)]),
        [edges]
    );
    // Through re-exports, modules that are brought in by name, and macro calls.
    let a = "use crate::inner; pub struct A; fn f() -> inner::C { inner::C }";
    let c = "pub struct C; fn f() { println!(\"{:?}\", crate::b::make()); }";
    let b = "pub(crate) use crate::a::A; pub fn make() -> A { A }";
    let found = cycles_of(&[
        ("lib.rs", lib),
        ("a.rs", a),
        ("b.rs", b),
        ("inner/mod.rs", "pub mod c; pub use c::C;"),
        ("inner/c.rs", c),
    ]);
    let edges = ["a.rs -> inner/c.rs", "b.rs -> a.rs", "inner/c.rs -> b.rs"].map(str::to_owned).to_vec();
    assert_eq!(found, [edges]);
}
