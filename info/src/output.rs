//! What the program prints: text, or JSON.

use std::io::Write as _;

use serde::Serialize;

/// Prints a value as JSON or as text. Returns `false` if that is not possible, which it says; a
/// reader that closes its end of a pipe early has read what it wants.
#[must_use]
pub fn show(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> bool {
    print(&if json {
        serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    } else {
        text()
    })
}

/// Prints a text, as [`show`] does.
#[must_use]
pub fn print(text: &str) -> bool {
    let mut out = std::io::stdout();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("oxshmem-info: standard output cannot be written: {error}; make room, or write to another file");
            false
        }
        _ => true,
    }
}
