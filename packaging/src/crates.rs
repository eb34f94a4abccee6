//! The crates that packages are linked with, as cargo tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::error::Error;

/// One crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Crate {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: String,
    pub description: String,
    /// The SHA-256 of the package that cargo downloaded; none for crates of this workspace.
    pub checksum: Option<String>,
    /// Where its sources are.
    pub folder: PathBuf,
    /// What it is linked with directly: indices into the list, ascending.
    pub needs: Vec<usize>,
}

impl Crate {
    /// Returns whether the crate belongs to this workspace.
    pub fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// Returns the crates that `packages` are linked with on `target`, themselves among them, by name
/// and version. Build scripts, procedural macros and what they use are left out: none of it is in a
/// program.
pub(crate) fn linked(packages: &[String], target: &str) -> Result<Vec<Crate>, Error> {
    let text = cargo("metadata", &["--locked", "--format-version", "1", "--filter-platform", target])?;
    let metadata: Metadata =
        serde_json::from_str(&text).map_err(|error| Error::Output("metadata", error.to_string()))?;
    // The tree knows the features that these packages are built with; metadata unites those of all.
    let mut tree = vec!["--locked", "-e", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}"];
    tree.extend(["--target", target]);
    tree.extend(packages.iter().flat_map(|package| ["-p", package]));
    let names = names(&cargo("tree", &tree)?)?;

    let lock = metadata.workspace_root.join("Cargo.lock");
    let checksums = std::fs::read_to_string(&lock).map_err(|error| Error::File { path: lock, error })?;
    let checksums = checksums_of(&checksums);
    let mut chosen: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| names.contains(&(package.name.clone(), package.version.clone())))
        .collect();
    chosen.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let places: BTreeMap<&str, usize> =
        chosen.iter().enumerate().map(|(place, package)| (package.id.as_str(), place)).collect();
    chosen
        .iter()
        .map(|package| {
            let node = metadata.resolve.nodes.iter().find(|node| node.id == package.id);
            let needs = node.map_or(&[][..], |node| &node.dependencies);
            let needs: BTreeSet<usize> = needs.iter().filter_map(|id| places.get(id.as_str()).copied()).collect();
            let licence = package
                .license
                .clone()
                .ok_or_else(|| Error::NoLicence(package.name.clone(), package.version.clone()))?;
            Ok(Crate {
                checksum: package
                    .source
                    .as_ref()
                    .and_then(|_| checksums.get(&(package.name.clone(), package.version.clone())).cloned()),
                name: package.name.clone(),
                version: package.version.clone(),
                // An older way to write OR.
                licence: licence.replace('/', " OR ").replace("  ", " "),
                description: package.description.clone().unwrap_or_default().trim().replace('\n', " "),
                folder: package.manifest_path.parent().map(PathBuf::from).unwrap_or_default(),
                needs: needs.into_iter().collect(),
            })
        })
        .collect()
}

/// Returns the names and versions in what `cargo tree` printed: `NAME vVERSION (PATH)`.
fn names(tree: &str) -> Result<BTreeSet<(String, String)>, Error> {
    tree.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut words = line.split(' ');
            match (words.next(), words.next().and_then(|word| word.strip_prefix('v'))) {
                (Some(name), Some(version)) if version.starts_with(|first: char| first.is_ascii_digit()) => {
                    Ok((name.to_owned(), version.to_owned()))
                }
                _ => Err(Error::Output("tree", line.to_owned())),
            }
        })
        .collect()
}

/// Returns the checksums in `Cargo.lock`, by name and version.
fn checksums_of(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        block
            .lines()
            .find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned()))
    };
    lock.split("[[package]]")
        .filter_map(|block| Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?)))
        .collect()
}

fn cargo(command: &'static str, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .arg(command)
        .args(arguments)
        .output()
        .map_err(|error| Error::Cargo(command, error.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        return Err(Error::Cargo(command, text(&output.stderr)));
    }
    Ok(text(&output.stdout))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_and_build_tools_are_not() {
        let crates = linked(&["oxshmem".to_owned()], "x86_64-unknown-linux-gnu").unwrap();
        let find = |name: &str| crates.iter().find(|one| one.name == name);
        let ours = find("oxshmem").unwrap();
        assert!(ours.is_ours());
        let needs: Vec<&str> = ours.needs.iter().map(|place| crates[*place].name.as_str()).collect();
        assert!(needs.contains(&"oxshmem-hca") && needs.contains(&"rustix"), "{needs:?}");
        let rustix = find("rustix").unwrap();
        assert_eq!(rustix.checksum.as_ref().map(String::len), Some(64));
        assert!(rustix.licence.contains("Apache-2.0"));
        for tool in ["cc", "syn", "oxshmem-build", "proptest", "clap_derive", "oxshmem-tests"] {
            assert!(find(tool).is_none(), "{tool} is in no program");
        }
    }

    #[test]
    fn lines_that_are_no_crates_are_refused() {
        let listed = names("a v1.0.0\n\nb v0.2.1-rc.1 (/somewhere)\na v1.0.0\n").unwrap();
        assert_eq!(listed.len(), 2);
        assert!(names("alone").is_err() && names("no version").is_err());
    }

    #[test]
    fn a_package_that_does_not_exist_is_named() {
        let error = linked(&["oxshmem-nothing".to_owned()], "x86_64-unknown-linux-gnu").unwrap_err();
        assert!(error.to_string().contains("oxshmem-nothing"), "{error}");
    }
}
