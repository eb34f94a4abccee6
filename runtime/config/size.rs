//! Numbers of bytes.

use std::fmt;

use super::value::{Chosen, Value, decimal};

/// A number of bytes.
///
/// ```
/// use oxshmem::config::ByteSize;
///
/// assert_eq!("512K".parse(), Ok(ByteSize(512 << 10)));
/// assert_eq!(ByteSize(1 << 30).to_string(), "1G");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl std::str::FromStr for ByteSize {
    type Err = String;
    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, String> {
        <Self as Value>::parse(text).ok_or_else(|| format!("'{text}': expected {}", Self::FORM.replace('`', "")))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
        match units.iter().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Value for ByteSize {
    const FORM: &'static str = "a size like `4096`, `512K`, `64M` or `1G`";
    fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            _ => return None,
        };
        decimal(digits)?.checked_mul(1 << shift).map(Self)
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn numbers(&self) -> Vec<u64> {
        vec![self.0]
    }
    fn show_number(number: u64) -> String {
        Self(number).to_string()
    }
}

impl Chosen for ByteSize {
    const FORM_OR_AUTO: &'static str = "`auto` or a size like `4096`, `512K` or `64M`";
}
