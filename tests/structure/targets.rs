//! Programs without unit tests build no program of tests, which takes as long to compile and to
//! link as the program itself, and those with unit tests do.

use std::path::{Path, PathBuf};

use crate::metadata::packages;

/// Returns the sources of a target: all files below its folder, or its file alone where other
/// targets, of which `files` has the roots, are in the folder as well.
fn sources(file: &Path, files: &[PathBuf]) -> Vec<PathBuf> {
    let folder = file.parent().expect("a file is in a folder");
    if files.iter().any(|other| other != file && other.starts_with(folder)) {
        return vec![file.to_owned()];
    }
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("the folder of a target can be read").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn programs_of_tests_have_tests() {
    let packages = packages();
    assert!(packages.len() > 10, "only {} packages were found", packages.len());
    for package in &packages {
        let targets = package["targets"].as_array().expect("a package has targets");
        let files: Vec<PathBuf> =
            targets.iter().filter_map(|target| target["src_path"].as_str().map(PathBuf::from)).collect();
        for target in targets.iter().filter(|target| target["kind"][0] == "bin") {
            let file = Path::new(target["src_path"].as_str().expect("a target has a file"));
            let has_tests = sources(file, &files)
                .iter()
                .any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains("#[test]")));
            let name = target["name"].as_str().expect("a target has a name");
            assert_eq!(
                target["test"].as_bool(),
                Some(has_tests),
                "{name} of {}: `test = false` stands where a program has no unit tests, and only there",
                package["name"],
            );
        }
    }
}
