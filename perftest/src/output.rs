//! Standard output: a reader that goes away ends a program quietly, and what cannot be written for
//! another reason is an error.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::error::Error;

/// Writes a line to standard output, where it is seen at once.
///
/// # Errors
/// [`Error::Closed`] if the reader has closed its end of a pipe; otherwise the line cannot be
/// written, because the disk is full, for example.
pub fn line(text: fmt::Arguments<'_>) -> Result<(), Error> {
    write(&mut io::stdout(), format_args!("{text}\n"))
}

/// Writes text to standard output, where it is seen at once.
///
/// # Errors
/// Fails like [`line()`].
pub fn text(text: fmt::Arguments<'_>) -> Result<(), Error> {
    write(&mut io::stdout(), text)
}

/// Columns that a line of a table or of help has at most: what a terminal shows if its user has
/// changed nothing.
pub const WIDTH: usize = 80;

/// Folds each line of `text` at blanks, so that it fits [`WIDTH`]; lines that this adds begin with
/// `prefix`. A word that is longer has a line of its own.
pub fn folded(text: &str, prefix: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut current = String::new();
        for word in line.split(' ') {
            if !current.is_empty() && current.chars().count() + 1 + word.chars().count() > WIDTH {
                lines.push(std::mem::replace(&mut current, format!("{prefix}  ")));
            } else if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
        }
        lines.push(current);
    }
    lines.join("\n")
}

fn write(to: &mut impl Write, text: fmt::Arguments<'_>) -> Result<(), Error> {
    to.write_fmt(text).and_then(|()| to.flush()).map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::Output { path: PathBuf::from("standard output"), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Refusing(io::ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn long_lines_are_folded_at_blanks() {
        let words = "word ".repeat(20);
        let text = folded(&format!("# {}\nshort", words.trim_end()), "# ");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines.iter().all(|line| line.len() <= WIDTH && !line.ends_with(' ')), "{text}");
        assert!(lines[1].starts_with("#   word") && lines[2] == "short", "{text}");
        assert_eq!(text.matches("word").count(), 20, "{text}");
    }

    #[test]
    fn a_closed_pipe_is_no_complaint_and_a_full_disk_is_one() {
        let closed = write(&mut Refusing(io::ErrorKind::BrokenPipe), format_args!("x"));
        assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
        let full = write(&mut Refusing(io::ErrorKind::StorageFull), format_args!("x"));
        let text = full.map_err(|error| error.to_string());
        assert!(matches!(&text, Err(text) if text.starts_with("cannot write standard output: ")), "{text:?}");
    }
}
