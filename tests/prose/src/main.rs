//! Folds long paragraphs of comments and Markdown in all tracked files: a part of `make fmt`.

use std::process::ExitCode;

use oxshmem_prose::tree::{self, Language};
use oxshmem_prose::wrap::wrap;

fn run() -> Result<(), String> {
    for path in tree::files()? {
        let Some(language) = Language::of(&path) else { continue };
        let source = tree::read(&path)?;
        let wrapped = wrap(language, &source);
        if wrapped != source {
            let failed = |error| format!("{path} cannot be written: {error}");
            std::fs::write(tree::root().join(&path), wrapped).map_err(failed)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("oxshmem-prose: {error}");
            ExitCode::FAILURE
        }
    }
}
