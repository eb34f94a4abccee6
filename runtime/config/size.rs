//! Numbers of bytes.

use std::fmt;

use super::value::{Value, decimal};

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

/// A number of bytes that the runtime chooses unless it is given: `auto` or a size.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::{ByteSize, SizeChoice};
///
/// assert_eq!(Config::default().staging_ring(), SizeChoice::Auto);
/// let config = Config::builder().staging_ring(ByteSize(64 << 10)).build()?;
/// assert_eq!(config.staging_ring(), SizeChoice::Given(ByteSize(64 << 10)));
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeChoice {
    /// Returns the default as the variable's description states it.
    Auto,
    /// This number of bytes.
    Given(ByteSize),
}

impl From<ByteSize> for SizeChoice {
    fn from(size: ByteSize) -> Self {
        Self::Given(size)
    }
}

impl Value for SizeChoice {
    const FORM: &'static str = "`auto` or a size like `4096`, `512K` or `64M`";
    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(Self::Auto) } else { ByteSize::parse(text).map(Self::Given) }
    }
    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Given(size) => size.to_string(),
        }
    }
    fn numbers(&self) -> Vec<u64> {
        match self {
            Self::Auto => Vec::new(),
            Self::Given(size) => vec![size.0],
        }
    }
    fn show_number(number: u64) -> String {
        ByteSize(number).to_string()
    }
}
