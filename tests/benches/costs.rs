//! What collectives cost for 2 to 1024 PEs, by the model that `tests/costs.rs` checks: prints the
//! tables, or with `--write FILE` puts them into a document.

use std::process::ExitCode;

use oxshmem_tests::costs;

fn main() -> ExitCode {
    // cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let written = match &args[..] {
        [] => {
            for bytes in [8, 1024, 65536] {
                print!("{}", costs::tables(bytes));
            }
            Ok(())
        }
        // Relative to the workspace, whatever folder cargo has chosen.
        [option, file] if option == "--write" => {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
            std::fs::read_to_string(&path)
                .map_err(|error| error.to_string())
                .and_then(|text| costs::with_tables(&text))
                .and_then(|text| std::fs::write(&path, text).map_err(|error| error.to_string()))
                .map_err(|error| format!("{}: {error}", path.display()))
        }
        _ => Err("usage: costs [--write FILE]".to_owned()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
