//! Man pages and shell completions of OxSHMEM's programs, made from their own arguments.
//!
//! Each program calls [`requested`] before it reads its command line. `PROGRAM --generate FOLDER`
//! then writes what a package installs in `/usr/share`: a man page of the program and of each of
//! its subcommands, and completions for bash, zsh and fish.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::Command;
use clap_complete::Shell;

/// The argument that programs are called with when a package is made.
pub const OPTION: &str = "--generate";

/// Writes the man pages and completions of `command` in `share`, and returns their files.
///
/// The folders in `share` are those of `/usr/share`. They are made where they are missing, and
/// older files are replaced.
///
/// # Errors
/// The error of the first folder or file that cannot be written, with its path.
///
/// # Examples
/// ```
/// let share = std::env::temp_dir().join(format!("oxshmem-manual-{}", std::process::id()));
/// let command = clap::Command::new("hello").about("Greets");
/// let files = oxshmem_manual::generate(command, &share)?;
/// assert_eq!(files[0], share.join("man/man1/hello.1"));
/// assert!(std::fs::read_to_string(&files[0])?.contains("Greets"));
/// # std::fs::remove_dir_all(&share)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn generate(command: Command, share: &Path) -> io::Result<Vec<PathBuf>> {
    let name = command.get_name().to_owned();
    let mut files = Vec::new();
    // `help` needs no page.
    let mut documented = command.clone().disable_help_subcommand(true);
    documented.build();
    let source = format!("{name} {}", command.get_version().unwrap_or_default());
    pages(&documented, &name, &source, &folder(share, "man/man1")?, &mut files)?;
    for (shell, place, file) in [
        (Shell::Bash, "bash-completion/completions", name.clone()),
        (Shell::Zsh, "zsh/site-functions", format!("_{name}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
        write(folder(share, place)?.join(file), &text, &mut files)?;
    }
    Ok(files)
}

/// Serves `PROGRAM --generate FOLDER`, and returns the exit status; returns `None` for any other
/// command line. `command` returns the program's definition.
///
/// # Examples
/// ```
/// let status = oxshmem_manual::requested(|| clap::Command::new("hello"));
/// assert!(status.is_none(), "the arguments of this process are others");
/// ```
pub fn requested(command: impl FnOnce() -> Command) -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == OPTION).then(|| serve(command(), &arguments.collect::<Vec<_>>()))
}

fn serve(command: Command, arguments: &[OsString]) -> ExitCode {
    let name = command.get_name().to_owned();
    let [share] = arguments else {
        eprintln!("{name}: {OPTION} has {} arguments, and takes 1: the folder to write in", arguments.len());
        return ExitCode::from(2);
    };
    match generate(command, Path::new(share)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {OPTION}: {error}; name a folder that can be written");
            ExitCode::FAILURE
        }
    }
}

/// Writes the page of `command`, which is called `name` and belongs to `source`, and of each
/// subcommand that is not hidden.
fn pages(command: &Command, name: &str, source: &str, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone().display_name(name.to_owned()))
        .title(name)
        .manual("OxSHMEM")
        .source(source)
        .render(&mut text)?;
    write(folder.join(format!("{name}.1")), &text, files)?;
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).try_for_each(|subcommand| {
        pages(subcommand, &format!("{name}-{}", subcommand.get_name()), source, folder, files)
    })
}

fn folder(share: &Path, place: &str) -> io::Result<PathBuf> {
    let folder = share.join(place);
    fs::create_dir_all(&folder).map_err(|error| about(&folder, &error))?;
    Ok(folder)
}

fn write(file: PathBuf, text: &[u8], files: &mut Vec<PathBuf>) -> io::Result<()> {
    fs::write(&file, text).map_err(|error| about(&file, &error))?;
    files.push(file);
    Ok(())
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Arg;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("oxshmem-manual-{name}-{}", std::process::id()))
    }

    fn program() -> Command {
        Command::new("tool")
            .version("1.2.3")
            .about("Does things")
            .arg(Arg::new("size").long("size").value_name("BYTES").help("How large"))
            .subcommand(Command::new("show").about("Shows").arg(Arg::new("all").long("all").help("Shows all")))
            .subcommand(Command::new("secret").hide(true))
    }

    #[test]
    fn a_program_has_pages_and_completions_of_what_is_not_hidden() {
        let share = scratch("pages");
        let files = generate(program(), &share).unwrap();
        let expected = [
            "man/man1/tool.1",
            "man/man1/tool-show.1",
            "bash-completion/completions/tool",
            "zsh/site-functions/_tool",
            "fish/vendor_completions.d/tool.fish",
        ];
        assert_eq!(files, expected.map(|file| share.join(file)));
        let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        assert!(
            texts[0].contains("\\-\\-size") && texts[0].contains("1.2.3") && texts[0].contains("tool\\-show(1)"),
            "{}",
            texts[0]
        );
        assert!(!texts[0].contains("secret"), "{}", texts[0]);
        assert!(texts[1].contains(r#".TH tool-show 1  "tool 1.2.3" OxSHMEM"#), "{}", texts[1]);
        assert!(texts[1].contains("tool\\-show") && texts[1].contains("\\-\\-all"), "{}", texts[1]);
        assert!(texts[2..].iter().all(|text| text.contains("size") && text.contains("show")));
        // Again, over what is there.
        assert_eq!(generate(program(), &share).unwrap(), files);
        assert_eq!(files.iter().map(|file| fs::read_to_string(file).unwrap()).collect::<Vec<_>>(), texts);
        fs::remove_dir_all(&share).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let file = scratch("file");
        fs::write(&file, "a file").unwrap();
        let error = generate(program(), &file).unwrap_err().to_string();
        assert!(error.contains(&format!("{}/man/man1", file.display())), "{error}");
        assert_eq!(serve(program(), &[file.clone().into()]), ExitCode::FAILURE);
        assert_eq!(serve(program(), &[]), ExitCode::from(2));
        fs::remove_file(&file).unwrap();
    }
}
