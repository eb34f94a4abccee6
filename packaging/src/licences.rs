//! The list of licences.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::crates::Crate;
use crate::error::Error;

/// How names of files with licences and notices begin, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// Returns the list: a table of the crates that are not of this project, then each text that their
/// packages contain, once, with the crates that have it.
pub(crate) fn list(crates: &[Crate]) -> Result<String, Error> {
    let others: Vec<&Crate> = crates.iter().filter(|one| !one.is_ours()).collect();
    let mut table = String::from(
        "OxSHMEM is licensed under Apache-2.0 or MIT, as its user chooses. Its programs and libraries are linked\n\
         with Rust's standard library (Apache-2.0 OR MIT) and with these crates:\n\n",
    );
    let width = others.iter().map(|one| one.name.len() + one.version.len() + 1).max().unwrap_or_default();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in others {
        let name = format!("{} {}", one.name, one.version);
        let files = files(&one.folder)?;
        let note = if files.is_empty() { " (the crate contains no text)" } else { "" };
        let _ = writeln!(table, "    {name:width$}  {}{note}", one.licence);
        for file in files {
            let bytes = std::fs::read(&file).map_err(|error| Error::File { path: file.clone(), error })?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim_end().to_owned();
            texts.entry(text).or_default().push(name.clone());
        }
    }
    // By the crates, not by the letters that texts begin with.
    let mut texts: Vec<(Vec<String>, String)> = texts.into_iter().map(|(text, names)| (names, text)).collect();
    texts.sort();
    for (mut names, text) in texts {
        names.dedup();
        let _ = write!(table, "\n{}\n{}\n\n{text}\n", "-".repeat(100), names.join(", "));
    }
    Ok(table)
}

/// Returns the files with licences in `folder`, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let wrong = |error| Error::File { path: folder.to_owned(), error };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let is_source = path.extension().is_some_and(|end| end == "rs");
        if path.is_file() && !is_source && NAMES.iter().any(|begin| name.starts_with(begin)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn one(name: &str, folder: &Path) -> Crate {
        Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: "MIT".to_owned(),
            description: String::new(),
            checksum: Some("0".repeat(64)),
            folder: folder.to_owned(),
            needs: Vec::new(),
        }
    }

    #[test]
    fn a_text_that_crates_share_is_there_once_and_one_without_a_text_is_marked() {
        let root = std::env::temp_dir().join(format!("oxshmem-licences-{}", std::process::id()));
        for (name, file) in [("a", "LICENSE-MIT"), ("b", "copying.txt"), ("c", "license.rs")] {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join(file), "Permission is granted\r\n").unwrap();
        }
        let crates = ["a", "b", "c"].map(|name| one(name, &root.join(name)));
        let list = list(&crates).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(list.matches("Permission is granted").count(), 1, "{list}");
        assert!(list.contains("\na 1.0.0, b 1.0.0\n"), "{list}");
        assert!(list.contains("    c 1.0.0  MIT (the crate contains no text)\n"), "{list}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = list(&[one("gone", Path::new("/nothing/here"))]).unwrap_err();
        assert!(error.to_string().contains("/nothing/here"), "{error}");
    }
}
