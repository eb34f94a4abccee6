//! Texts in the bootstrap's messages: lists of ranks, durations, texts that are cut to a limit.

use std::fmt;
use std::time::Duration;

/// Cuts `text` to at most `limit` bytes, at a character's end.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Ends a message about PEs that have been waited for in a call.
pub(super) const LONGER: &str = "; OXSHMEM_MEETING_TIMEOUT makes the wait longer";

/// Returns the list as `1, 3 and 5`; of a long list only the beginning.
pub(crate) fn list(ranks: &[u32]) -> String {
    const SHOWN: usize = 16;
    let text: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    match text.split_last() {
        _ if ranks.len() > SHOWN => format!("{} and {} more", text.join(", "), ranks.len() - SHOWN),
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => text.concat(),
    }
}

/// A duration as messages show it.
pub(super) struct Seconds(pub(super) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_millis() as f64 / 1000.0)
    }
}
