//! The types that variables have, and their limits.

use std::fmt;
use std::time::Duration;

/// Limits of a variable's numbers, in its base unit: bytes for sizes, microseconds for durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limits {
    None,
    Range(u64, u64),
    PowerOfTwo(u64, u64),
}

impl Limits {
    pub(super) fn admit(self, number: u64) -> bool {
        match self {
            Self::None => true,
            Self::Range(min, max) => (min..=max).contains(&number),
            Self::PowerOfTwo(min, max) => number.is_power_of_two() && (min..=max).contains(&number),
        }
    }

    pub(super) fn describe(self, show: fn(u64) -> String) -> String {
        match self {
            Self::None => String::new(),
            Self::Range(min, max) => format!(", {} to {}", show(min), show(max)),
            Self::PowerOfTwo(min, max) => format!(", a power of two, {} to {}", show(min), show(max)),
        }
    }
}

/// A type that a variable can have.
pub(crate) trait Value: Clone {
    /// The form in words, without limits.
    const FORM: &'static str;
    fn parse(text: &str) -> Option<Self>;
    fn show(&self) -> String;
    /// Returns the numbers that limits apply to.
    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
    fn show_number(number: u64) -> String {
        number.to_string()
    }
}

impl Value for bool {
    const FORM: &'static str = "`0`, `1`, `true` or `false`";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "0" | "false" => Some(false),
            "1" | "true" => Some(true),
            _ => None,
        }
    }
    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Value for u32 {
    const FORM: &'static str = "an integer";
    fn parse(text: &str) -> Option<Self> {
        decimal(text)?.try_into().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn numbers(&self) -> Vec<u64> {
        vec![u64::from(*self)]
    }
}

impl Value for Duration {
    const FORM: &'static str = "a duration like `200us`, `500ms`, `30s`, `10min` or `1h`";
    fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let micros = match &text[digits.len()..] {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "min" => 60_000_000,
            "h" => 3_600_000_000,
            _ => return None,
        };
        decimal(digits)?.checked_mul(micros).map(Self::from_micros)
    }
    fn show(&self) -> String {
        Self::show_number(self.as_micros().try_into().unwrap_or(u64::MAX))
    }
    fn numbers(&self) -> Vec<u64> {
        vec![self.as_micros().try_into().unwrap_or(u64::MAX)]
    }
    fn show_number(number: u64) -> String {
        let units = [("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
        match units.iter().find(|(_, micros)| number != 0 && number.is_multiple_of(*micros)) {
            Some((unit, micros)) => format!("{}{unit}", number / micros),
            None => format!("{number}us"),
        }
    }
}

/// A type of numbers that the runtime can choose.
pub(super) trait Chosen: Value {
    /// The form in words of a variable that may be `auto`.
    const FORM_OR_AUTO: &'static str;
}

impl Chosen for u32 {
    const FORM_OR_AUTO: &'static str = "`auto` or an integer";
}

/// What the runtime chooses unless it is given: `auto` or a number, of bytes in `Choice<ByteSize>`.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::{ByteSize, Choice};
///
/// assert_eq!(Config::default().qp_depth(), Choice::Auto);
/// let config = Config::builder().qp_depth(1024).staging_ring(ByteSize(64 << 10)).build()?;
/// assert_eq!(config.qp_depth(), Choice::Given(1024));
/// assert_eq!(config.staging_ring(), Choice::Given(ByteSize(64 << 10)));
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<T = u32> {
    /// Returns the default as the variable's description states it.
    Auto,
    /// This number.
    Given(T),
}

impl<T> Choice<T> {
    /// Returns the number, if it is given.
    ///
    /// ```
    /// use oxshmem::config::Choice;
    ///
    /// assert_eq!(Choice::Given(4).given(), Some(4));
    /// assert_eq!(Choice::<u32>::Auto.given(), None);
    /// ```
    pub fn given(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Given(number) => Some(number),
        }
    }
}

impl<T> From<T> for Choice<T> {
    fn from(number: T) -> Self {
        Self::Given(number)
    }
}

impl<T: Chosen> Value for Choice<T> {
    const FORM: &'static str = T::FORM_OR_AUTO;
    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(Self::Auto) } else { T::parse(text).map(Self::Given) }
    }
    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Given(number) => number.show(),
        }
    }
    fn numbers(&self) -> Vec<u64> {
        match self {
            Self::Auto => Vec::new(),
            Self::Given(number) => number.numbers(),
        }
    }
    fn show_number(number: u64) -> String {
        T::show_number(number)
    }
}

impl Value for Vec<u32> {
    const FORM: &'static str = "a list of integers separated by commas, possibly empty";
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(Self::new()) } else { text.split(',').map(u32::parse).collect() }
    }
    fn show(&self) -> String {
        self.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
    fn numbers(&self) -> Vec<u64> {
        self.iter().map(|number| u64::from(*number)).collect()
    }
}

impl Value for String {
    const FORM: &'static str = "text";
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// Which log records are written: a level, or `target=level` items, separated by commas.
///
/// ```
/// use oxshmem::Config;
///
/// let config = Config::from_vars([("OXSHMEM_LOG", "warn,oxshmem=debug")])?;
/// assert_eq!(config.log().to_string(), "warn,oxshmem=debug");
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(pub(super) String);

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for LogFilter {
    const FORM: &'static str =
        "`off`, `error`, `warn`, `info`, `debug` or `trace`, or a list of `target=level` separated by commas";
    fn parse(text: &str) -> Option<Self> {
        let level = |text: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&text);
        let target = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c));
        let item = |text: &str| match text.split_once('=') {
            Some((path, name)) => target(path) && level(name),
            None => level(text),
        };
        text.split(',').all(item).then(|| Self(text.to_owned()))
    }
    fn show(&self) -> String {
        self.0.clone()
    }
}

impl<T: Value> Value for Option<T> {
    const FORM: &'static str = T::FORM;
    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }
    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
    fn numbers(&self) -> Vec<u64> {
        self.as_ref().map(T::numbers).unwrap_or_default()
    }
    fn show_number(number: u64) -> String {
        T::show_number(number)
    }
}

/// Returns the value of a string of decimal digits; neither sign nor blank is accepted.
pub(super) fn decimal(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}
