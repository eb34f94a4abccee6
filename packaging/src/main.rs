//! Lists the crates that OxSHMEM's programs and libraries are linked with: a bill of materials in
//! CycloneDX's form, and a list of licences with their texts. `scripts/package` runs it.

mod bill;
mod crates;
mod error;
mod licences;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use error::Error;

/// Writes sbom.cdx.json, a bill of materials in CycloneDX's form, and THIRD-PARTY-LICENSES.txt, the
/// licences of all crates that the packages are linked with.
#[derive(Debug, Parser)]
#[command(name = "oxshmem-packaging", version)]
struct Arguments {
    /// The folder to write in.
    folder: PathBuf,
    /// The packages whose programs and libraries are shipped.
    #[arg(short, long = "package", value_name = "NAME", required = true)]
    packages: Vec<String>,
    /// The triple that they are compiled for.
    #[arg(long)]
    target: String,
    /// The time of the bill of materials, such as 2026-01-31T12:00:00Z.
    #[arg(long)]
    time: String,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("oxshmem-packaging: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let crates = crates::linked(&arguments.packages, &arguments.target)?;
    let bill = bill::bill(&crates, &arguments.time);
    write(arguments.folder.join("sbom.cdx.json"), &format!("{bill:#}\n"))?;
    write(arguments.folder.join("THIRD-PARTY-LICENSES.txt"), &licences::list(&crates)?)?;
    println!("{} crates, {} of them from elsewhere", crates.len(), crates.iter().filter(|one| !one.is_ours()).count());
    Ok(())
}

fn write(path: PathBuf, text: &str) -> Result<(), Error> {
    std::fs::write(&path, text).map_err(|error| Error::File { path, error })
}
