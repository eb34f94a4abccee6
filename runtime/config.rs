//! Configuration: every `OXSHMEM_*` environment variable, parsed once into one typed [`Config`].
//!
//! One table ([`VARIABLES`]) drives parsing, the errors and `docs/environment.md`. A variable that starts with `OXSHMEM_`
//! and is not in the table is an error, so a typing mistake cannot silently leave a default in force.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use oxshmem_hca::topology::{Card, DeviceChoice, Family, MAX_CARDS};

use crate::bootstrap::{JobId, Rendezvous, UniqueId};
use crate::team::Collectives;

/// What every variable's name starts with.
pub const PREFIX: &str = "OXSHMEM_";

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An `OXSHMEM_*` variable that does not exist.
    #[error("{name} is not a variable of OxSHMEM{}; unset it (docs/environment.md lists them all)",
        suggestion.map(|known| format!(", did you mean {known}?")).unwrap_or_default())]
    Unknown {
        /// The name as found in the environment.
        name: String,
        /// The nearest known name, when one is near.
        suggestion: Option<&'static str>,
    },
    /// A value that cannot be read as the variable's type.
    #[error("{name}={value}: expected {form}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value, with what is not UTF-8 replaced.
        value: String,
        /// The expected form and its limits.
        form: String,
    },
    /// A value outside the variable's limits.
    #[error("{name}={value} ({origin}) is outside its limits: expected {form}")]
    OutOfRange {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
        /// Who gave it.
        origin: Origin,
        /// The expected form and its limits.
        form: String,
    },
    /// Variables that only make sense together, given in part.
    #[error(
        "{present} is set but {missing} is not: a launcher sets both; start the program with oxrun, or unset {present}"
    )]
    Incomplete {
        /// A variable that is set.
        present: &'static str,
        /// One that is absent.
        missing: &'static str,
    },
    /// Two values that contradict each other.
    #[error("{first} contradicts {second}: {rule}")]
    Contradiction {
        /// `NAME=value` of one.
        first: String,
        /// `NAME=value` of the other.
        second: String,
        /// What must hold.
        rule: &'static str,
    },
}

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The table's default.
    Default,
    /// The environment.
    Environment,
    /// The program, through [`ConfigBuilder`].
    Builder,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Environment => "from the environment",
            Self::Builder => "set by the program",
        })
    }
}

/// Limits of a variable's numbers, in its base unit: bytes for sizes, microseconds for durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limits {
    None,
    Range(u64, u64),
    PowerOfTwo(u64, u64),
}

impl Limits {
    fn admit(self, number: u64) -> bool {
        match self {
            Self::None => true,
            Self::Range(min, max) => (min..=max).contains(&number),
            Self::PowerOfTwo(min, max) => number.is_power_of_two() && (min..=max).contains(&number),
        }
    }

    fn describe(self, show: fn(u64) -> String) -> String {
        match self {
            Self::None => String::new(),
            Self::Range(min, max) => format!(", {} to {}", show(min), show(max)),
            Self::PowerOfTwo(min, max) => format!(", a power of two, {} to {}", show(min), show(max)),
        }
    }
}

/// A type that a variable can have.
trait Value: Clone {
    /// The form in words, without limits.
    const FORM: &'static str;
    fn parse(text: &str) -> Option<Self>;
    fn show(&self) -> String;
    /// The numbers that limits apply to.
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

/// A number of bytes.
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

/// A number that the runtime chooses unless it is given: `auto` or an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// As the variable's description says.
    Auto,
    /// This number.
    Given(u32),
}

impl Choice {
    /// The number, if it is given.
    pub fn given(self) -> Option<u32> {
        match self {
            Self::Auto => None,
            Self::Given(number) => Some(number),
        }
    }
}

impl From<u32> for Choice {
    fn from(number: u32) -> Self {
        Self::Given(number)
    }
}

impl Value for Choice {
    const FORM: &'static str = "`auto` or an integer";
    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(Self::Auto) } else { u32::parse(text).map(Self::Given) }
    }
    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".into(),
            Self::Given(number) => number.to_string(),
        }
    }
    fn numbers(&self) -> Vec<u64> {
        match self {
            Self::Auto => Vec::new(),
            Self::Given(number) => vec![u64::from(*number)],
        }
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

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

// The form says how many.
const _: () = assert!(MAX_CARDS == 4);

impl Value for DeviceChoice {
    const FORM: &'static str = "a list like `mlx5_0,mlx5_3/2` (device, or device and port), one of devices to leave out like `^mlx5_1`, or a mapping like \
        `0=mlx5_0,0000:1b:00.0=mlx5_1/1+mlx5_2` with up to 4 devices for each";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Collectives {
    const FORM: &'static str = "a list like `fcollect=push,broadcast=packets:4K/tree`: collectives `broadcast`, `collect`, `fcollect`, \
        `alltoall`, `alltoalls`, `reduce`, `reducescatter`; algorithms `packets`, `push`, and for `broadcast` and `reduce` `tree`, with \
        ascending sizes of which the last may be missing";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
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

impl Value for Rendezvous {
    const FORM: &'static str = "`host:port`, or several separated by commas, tried in turn";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for JobId {
    const FORM: &'static str = "32 hexadecimal digits";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// The value of a string of decimal digits; neither sign nor blank is accepted.
fn decimal(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

macro_rules! choice {
    ($(#[$attribute:meta])* $name:ident: $form:literal { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)+ })
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            /// Reads the name that `Display` writes.
            fn from_str(text: &str) -> std::result::Result<Self, String> {
                <Self as Value>::parse(text).ok_or_else(|| format!("'{text}': expected {}", $form.replace('`', "")))
            }
        }

        impl Value for $name {
            const FORM: &'static str = $form;
            fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    };
}

choice! {
    /// Where kernels run.
    Device: "`auto`, `cpu` or `cuda`" {
        /// `cuda` where a usable GPU is found, else `cpu`.
        Auto = "auto",
        /// The SIMT executor.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }
}

/// Which HCA executes work requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hca {
    /// `mlx5` where a card is found that the device can post to, else `soft`.
    Auto,
    /// The software HCA.
    Soft,
    /// A ConnectX through rdma-core.
    Mlx5 {
        /// Which; without one, the nearest that has an active port, out of those in `OXSHMEM_HCA_DEVICES`.
        card: Option<Card>,
    },
    /// The software HCA as a card that completes everything and moves nothing: for measuring posting alone.
    Null,
    /// Any RDMA device, through the kernel's verbs.
    Verbs {
        /// Which; without one, the nearest that has an active port, out of those in `OXSHMEM_HCA_DEVICES`.
        card: Option<Card>,
    },
}

impl Hca {
    /// The device that it names.
    #[must_use]
    pub fn card(&self) -> Option<&Card> {
        match self {
            Self::Verbs { card } | Self::Mlx5 { card } => card.as_ref(),
            Self::Auto | Self::Soft | Self::Null => None,
        }
    }

    /// What kind of device it wants.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Verbs { .. } => Family::Verbs,
            Self::Auto | Self::Soft | Self::Null | Self::Mlx5 { .. } => Family::Mlx5,
        }
    }
}

impl fmt::Display for Hca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Soft => f.write_str("soft"),
            Self::Null => f.write_str("null"),
            Self::Mlx5 { card: None } => f.write_str("mlx5"),
            Self::Mlx5 { card: Some(card) } => write!(f, "mlx5:{card}"),
            Self::Verbs { card: None } => f.write_str("verbs"),
            Self::Verbs { card: Some(card) } => write!(f, "verbs:{card}"),
        }
    }
}

impl std::str::FromStr for Hca {
    type Err = String;
    /// Reads the name that `Display` writes.
    fn from_str(text: &str) -> Result<Self, String> {
        <Self as Value>::parse(text).ok_or_else(|| format!("'{text}': expected {}", Self::FORM.replace('`', "")))
    }
}

impl Value for Hca {
    const FORM: &'static str = "`auto`, `soft`, `null`, `mlx5` or `verbs`, of which the last two may name a device, as in `mlx5:DEVICE` or `verbs:DEVICE/PORT`";
    fn parse(text: &str) -> Option<Self> {
        let card = |text: &str| match text.strip_prefix(':') {
            None => text.is_empty().then_some(None),
            Some(card) => card.parse().ok().map(Some),
        };
        match text {
            "auto" => Some(Self::Auto),
            "soft" => Some(Self::Soft),
            "null" => Some(Self::Null),
            _ => match text.strip_prefix("mlx5") {
                Some(rest) => card(rest).map(|card| Self::Mlx5 { card }),
                None => card(text.strip_prefix("verbs")?).map(|card| Self::Verbs { card }),
            },
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

choice! {
    /// What executes the software HCA's send queues.
    SoftEngine: "`auto`, `thread`, `kernel` or `copy`" {
        /// On `cuda` a kernel, and copies by a thread of the CPU while the kernel finds no room; `thread` on `cpu`.
        Auto = "auto",
        /// A thread of the CPU, which checks every field, and misbehaves on demand.
        Thread = "thread",
        /// A kernel of the device alone.
        Kernel = "kernel",
        /// Copies by a thread of the CPU alone, but for atomics, which take a kernel.
        Copy = "copy",
    }
}

choice! {
    /// Who stores to a card's doorbell registers for device code.
    Doorbell: "`auto`, `gpu` or `cpu`" {
        /// Device code where it reaches them, else a thread of the CPU.
        Auto = "auto",
        /// Device code.
        Gpu = "gpu",
        /// A thread of the CPU, which watches words that device code stores to in host memory.
        Cpu = "cpu",
    }
}

/// Which puts that the CPU proxy posts are staged: their source is copied to host memory first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// Large ones, where the card is far from the GPU.
    Auto,
    /// Large ones, wherever the card is.
    On,
    /// None.
    Off,
    /// Those of at least so many bytes.
    From(ByteSize),
}

impl fmt::Display for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::From(size) => write!(f, "{size}"),
        }
    }
}

impl Value for Staging {
    const FORM: &'static str = "`auto`, `on`, `off` or a size like `4096`, `512K` or `64M`";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "on" => Some(Self::On),
            "off" => Some(Self::Off),
            _ => ByteSize::parse(text).map(Self::From),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn numbers(&self) -> Vec<u64> {
        match self {
            Self::From(size) => vec![size.0],
            Self::Auto | Self::On | Self::Off => Vec::new(),
        }
    }
    fn show_number(number: u64) -> String {
        ByteSize(number).to_string()
    }
}

choice! {
    /// How peers are reached. Self is always local.
    Transport: "`auto`, `p2p`, `ibgda` or `ibrc`" {
        /// Per peer: load/store where the peer is reachable so, else the network.
        Auto = "auto",
        /// Load/store only; a peer that is not reachable so is an error.
        P2p = "p2p",
        /// The network for every peer, posted by the device.
        Ibgda = "ibgda",
        /// The network for every peer, posted by the CPU proxy.
        Ibrc = "ibrc",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting<T> {
    value: T,
    origin: Origin,
}

/// One row of the table of variables.
pub struct Variable {
    /// Full name.
    pub name: &'static str,
    /// What it does, in one paragraph of Markdown.
    pub meaning: &'static str,
    limits: Limits,
    parse: fn(&mut Config, &str) -> bool,
    admit: fn(&Config, Limits) -> bool,
    show: fn(&Config) -> String,
    origin: fn(&Config) -> Origin,
    form: fn(Limits) -> String,
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).field("form", &self.form()).finish_non_exhaustive()
    }
}

impl Variable {
    /// The accepted form and its limits, in words.
    pub fn form(&self) -> String {
        (self.form)(self.limits)
    }

    /// The default, written as the variable's value would be; empty when there is none.
    pub fn default(&self) -> String {
        (self.show)(&Config::default())
    }
}

macro_rules! accessor {
    (copy $(#[doc = $doc:literal])+ $field:ident $ty:ty) => {
        $(#[doc = $doc])+
        pub fn $field(&self) -> $ty {
            self.$field.value
        }
    };
    (borrow $(#[doc = $doc:literal])+ $field:ident $ty:ty) => {
        $(#[doc = $doc])+
        pub fn $field(&self) -> &$ty {
            &self.$field.value
        }
    };
}

macro_rules! variables {
    ($($(#[doc = $doc:literal])+ $name:literal $access:ident $field:ident: $ty:ty = $default:expr, $limits:expr;)+) => {
        /// The configuration of one PE.
        ///
        /// Made by [`Config::from_env`], or by [`Config::builder`] when the program decides some values itself.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config { $($field: Setting<$ty>,)+ }

        impl Default for Config {
            /// Every default of the table, whatever the environment says.
            fn default() -> Self {
                Self { $($field: Setting { value: $default, origin: Origin::Default },)+ }
            }
        }

        impl Config { $(accessor!($access $(#[doc = $doc])+ $field $ty);)+ }

        impl ConfigBuilder {
            $($(#[doc = $doc])+
            pub fn $field(mut self, value: impl Into<$ty>) -> Self {
                self.config.$field = Setting { value: value.into(), origin: Origin::Builder };
                self
            })+
        }

        /// Every variable, in the order of the documentation.
        pub static VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            meaning: concat!($($doc),+),
            limits: $limits,
            parse: |config, text| match <$ty as Value>::parse(text) {
                Some(value) => {
                    config.$field = Setting { value, origin: Origin::Environment };
                    true
                }
                None => false,
            },
            admit: |config, limits| Value::numbers(&config.$field.value).into_iter().all(|number| limits.admit(number)),
            show: |config| Value::show(&config.$field.value),
            origin: |config| config.$field.origin,
            form: |limits| format!("{}{}", <$ty as Value>::FORM, limits.describe(<$ty as Value>::show_number)),
        },)+];
    };
}

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

variables! {
    /// Where kernels run: `cuda` an NVIDIA GPU, `cpu` the SIMT executor, `auto` the GPU if there is a usable one.
    "OXSHMEM_DEVICE" copy device: Device = Device::Auto, Limits::None;
    /// What executes work requests: `mlx5` a ConnectX, `soft` the software HCA, `auto` the card if there is a usable one; `verbs` any RDMA device through the kernel's verbs, posted to by the CPU proxy; `null` completes them and moves nothing, which measures posting alone.
    "OXSHMEM_HCA" borrow hca: Hca = Hca::Auto, Limits::None;
    /// Which RDMA devices `mlx5` and `verbs` may use, where `OXSHMEM_HCA` does not name one: those of the list, or all but those after `^`; or exactly which device each PE uses, by the PE's number on its node or by the PCI address of its GPU, with `mlx5` also several joined by `+`. Without a mapping a PE uses the device nearest to its GPU or its CPUs, PEs being spread over those that are equally near, and with `mlx5` maybe more (`OXSHMEM_HCA_DEVICES_PER_PE`).
    "OXSHMEM_HCA_DEVICES" borrow hca_devices: DeviceChoice = DeviceChoice::Any, Limits::None;
    /// How many RDMA devices a PE drives with `mlx5`; its QPs are spread over them. `auto`: all that are equally near to its GPU below one PCIe switch and nobody else's; a number: so many, the nearest first. All PEs use as many as the PE with the fewest has, and never more than `OXSHMEM_QPS_PER_PEER`.
    "OXSHMEM_HCA_DEVICES_PER_PE" copy hca_devices_per_pe: Choice = Choice::Auto, Limits::Range(1, MAX_CARDS as u64);
    /// How peers are reached: `auto` decides per peer; `p2p` is load/store only, and a peer that cannot be reached so is an error; `ibgda` and `ibrc` use the network for every PE but oneself.
    "OXSHMEM_TRANSPORT" copy transport: Transport = Transport::Auto, Limits::None;
    /// Never use load/store to another PE, even where it is possible.
    "OXSHMEM_DISABLE_P2P" copy disable_p2p: bool = false, Limits::None;
    /// Largest size of the symmetric heap of one PE. Address space of this size is reserved for each PE of the node; memory is taken chunk by chunk as the heap grows.
    "OXSHMEM_HEAP_MAX" copy heap_max: ByteSize = ByteSize(16 * GIB), Limits::Range(MIB, 512 * GIB);
    /// By how much the heap grows, and what is registered with the HCA in one piece. At most `OXSHMEM_HEAP_MAX`. Rounded up to the granularity of the device's memory (2M on GPUs).
    "OXSHMEM_HEAP_CHUNK" copy heap_chunk: ByteSize = ByteSize(64 * MIB), Limits::PowerOfTwo(MIB, TIB);
    /// Send-queue depth of a QP, in blocks of 64 bytes (with `OXSHMEM_HCA=verbs` in work requests, and a card with less lowers it); `auto` takes 8192, or as much less (not below 1024) as keeps all queues of a PE within 64 MiB, and over the CPU proxy (`ibrc`) not more than 2048.
    "OXSHMEM_QP_DEPTH" copy qp_depth: Choice = Choice::Auto, Limits::PowerOfTwo(256, 16384);
    /// QPs to each peer reached over the network; CTAs are spread over them.
    "OXSHMEM_QPS_PER_PEER" copy qps_per_peer: u32 = 4, Limits::Range(1, 64);
    /// Who rings a card's doorbells where device code posts: `gpu` device code itself, which needs the card's registers in its addresses; `cpu` a thread of the CPU that watches words in host memory; `auto` device code where it can.
    "OXSHMEM_IBGDA_DOORBELL" copy ibgda_doorbell: Doorbell = Doorbell::Auto, Limits::None;
    /// Descriptors that fit the ring between device code and the CPU proxy (`ibrc`).
    "OXSHMEM_PROXY_RING" copy proxy_ring: u32 = 4096, Limits::PowerOfTwo(64, 65536);
    /// Which puts the CPU proxy (`ibrc`) stages, that is, copies to host memory before the card reads them: `on` those of 64K and more, a size those of so many bytes and more, `off` none; `auto` as `on` where the card is at another NUMA node than the GPU, otherwise none.
    "OXSHMEM_IBRC_STAGING" copy ibrc_staging: Staging = Staging::Auto, Limits::Range(64, GIB);
    /// Teams that a PE can be in at the same time, the world, shared and node teams included. Each takes about 66 KiB of the heap.
    "OXSHMEM_MAX_TEAMS" copy max_teams: u32 = 32, Limits::Range(3, 256);
    /// Which algorithms collectives use, in place of the library's choice: for some of `broadcast`, `collect`, `fcollect`, `alltoall`, `alltoalls`, `reduce` and `reducescatter` up to three of `packets`, `push` and (for broadcast and reduce) `tree`, each with the size up to which it is used; see `teams.md`.
    "OXSHMEM_COLLECTIVES" borrow collectives: Collectives = Collectives::default(), Limits::None;
    /// Deadline of every wait for another PE, on the device and on the host; after it the operation ends with an error.
    "OXSHMEM_TIMEOUT" copy timeout: Duration = Duration::from_secs(30), Limits::Range(1_000, 24 * HOUR);
    /// Longest time that a kernel may run. On the `cpu` device it is stopped then; on a GPU, where it cannot be stopped, waiting for it ends with an error.
    "OXSHMEM_KERNEL_TIMEOUT" copy kernel_timeout: Duration = Duration::from_secs(600), Limits::Range(1_000, 24 * HOUR);
    /// Threads that execute a kernel on the `cpu` device.
    "OXSHMEM_CPU_WORKERS" copy cpu_workers: u32 = 1, Limits::Range(1, 64);
    /// Stack of one GPU thread on the `cpu` device, rounded up to pages.
    "OXSHMEM_CPU_STACK" copy cpu_stack: ByteSize = ByteSize(64 * KIB), Limits::Range(16 * KIB, 64 * MIB);
    /// Entry of the port's GID table (PRM `ads.src_addr_index`, 8 bits); `auto` takes the first RoCE v2 entry with an IPv4 or global address, on InfiniBand the first with an FLID, or else entry 0.
    "OXSHMEM_IB_GID_INDEX" copy ib_gid_index: Choice = Choice::Auto, Limits::Range(0, 255);
    /// Entry of the port's partition key table (PRM `ads.pkey_index`, 16 bits).
    "OXSHMEM_IB_PKEY_INDEX" copy ib_pkey_index: u32 = 0, Limits::Range(0, 65535);
    /// InfiniBand service level, on RoCE the Ethernet priority in its low three bits (PRM `ads.sl`, 4 bits).
    "OXSHMEM_IB_SL" copy ib_sl: u32 = 0, Limits::Range(0, 15);
    /// Traffic class of the global route header, on RoCE the IP type of service (PRM `ads.tclass`, 8 bits).
    "OXSHMEM_IB_TRAFFIC_CLASS" copy ib_traffic_class: u32 = 0, Limits::Range(0, 255);
    /// Hop limit of the global route header (PRM `ads.hop_limit`, 8 bits).
    "OXSHMEM_IB_HOP_LIMIT" copy ib_hop_limit: u32 = 64, Limits::Range(1, 255);
    /// Time until a packet without acknowledgement is sent again, as an exponent: 4.096 us x 2^n (PRM `ads.ack_timeout`, 5 bits). 0, which means for ever, is not accepted.
    "OXSHMEM_IB_TIMEOUT" copy ib_timeout: u32 = 18, Limits::Range(1, 31);
    /// How often a packet is sent again before its work request fails (PRM `qpc.retry_count`, 3 bits).
    "OXSHMEM_IB_RETRY_COUNT" copy ib_retry_count: u32 = 7, Limits::Range(0, 7);
    /// How often a request is sent again after a receiver-not-ready answer (PRM `qpc.rnr_retry`, 3 bits; 7 means for ever).
    "OXSHMEM_IB_RNR_RETRY" copy ib_rnr_retry: u32 = 6, Limits::Range(0, 7);
    /// Reads and atomics in flight on one QP (PRM `qpc.log_sra_max` and `log_rra_max`); a card with less lowers it.
    "OXSHMEM_IB_MAX_RD_ATOMIC" copy ib_max_rd_atomic: u32 = 16, Limits::PowerOfTwo(1, 128);
    /// UDP source ports of RoCE v2, given to QPs in turn so that equal-cost paths share the load (PRM `ads.udp_sport`); empty: derived from the two QP numbers.
    "OXSHMEM_IB_UDP_SPORT" borrow ib_udp_sport: Vec<u32> = Vec::new(), Limits::Range(49152, 65535);
    /// Pairs of PEs that are treated as if their devices had no access to each other's memory, as in `0-1,2-3`; for tests.
    "OXSHMEM_P2P_FAULTS" borrow p2p_faults: String = String::new(), Limits::None;
    /// Faults that the software HCA produces on purpose, for tests; the grammar is the software HCA's.
    "OXSHMEM_SOFT_FAULTS" borrow soft_faults: String = String::new(), Limits::None;
    /// What executes the software HCA's send queues: a `thread` of the CPU; a `kernel` of the device, for queues in GPU memory, which waits while the program's kernels leave it no room; or a thread that works by `copy`, at any time and slower. `auto` is `thread` on the `cpu` device, and on `cuda` the kernel, and copies while that finds no room. Only `thread` produces faults.
    "OXSHMEM_SOFT_ENGINE" copy soft_engine: SoftEngine = SoftEngine::Auto, Limits::None;
    /// Print every command, doorbell, work request and completion of the software HCA on stderr; of its kernel only what that hands to the CPU.
    "OXSHMEM_SOFT_TRACE" copy soft_trace: bool = false, Limits::None;
    /// What is logged on stderr, by `oxrun`, the tools, the performance tests and `liboxshmem`, and by Rust programs that call `Config::init_log`; others choose with the `tracing` subscriber that they install.
    "OXSHMEM_LOG" borrow log: LogFilter = LogFilter("warn".into()), Limits::None;
    /// Deadline of joining the job and of each collective operation of the bootstrap; after it the ranks that did not arrive are named.
    "OXSHMEM_BOOTSTRAP_TIMEOUT" copy bootstrap_timeout: Duration = Duration::from_secs(60), Limits::Range(100_000, 24 * HOUR);
    /// Where the job's PEs meet. Set by the launcher.
    "OXSHMEM_RENDEZVOUS" borrow rendezvous: Option<Rendezvous> = None, Limits::None;
    /// This PE's number, below `OXSHMEM_NPES`. Set by the launcher.
    "OXSHMEM_RANK" copy rank: Option<u32> = None, Limits::Range(0, MAX_NPES as u64 - 1);
    /// PEs in the job. Set by the launcher.
    "OXSHMEM_NPES" copy npes: Option<u32> = None, Limits::Range(1, MAX_NPES as u64);
    /// The job's identity; a PE of another job is refused. Set by the launcher.
    "OXSHMEM_JOB" copy job: Option<JobId> = None, Limits::None;
}

/// The most PEs that a job may have.
pub const MAX_NPES: u32 = 1024;

/// The variables that only a launcher sets, so that one launcher started by another can drop them.
pub const LAUNCHER_VARIABLES: [&str; 4] = ["OXSHMEM_RENDEZVOUS", "OXSHMEM_RANK", "OXSHMEM_NPES", "OXSHMEM_JOB"];

/// Variables that build scripts read, and that may still be set when the program runs.
const BUILD_VARIABLES: [&str; 1] = ["OXSHMEM_CUDA"];

impl Config {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// The first variable that is unknown, malformed, out of range, or contradicts another.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads `vars` instead of the process's environment; names that do not start with `OXSHMEM_` are skipped.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_vars<K: Into<OsString>, V: Into<OsString>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        Self::builder().vars(vars).build()
    }

    /// A builder with every default and no environment; see [`ConfigBuilder::env`].
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder { config: Self::default(), vars: Vec::new() }
    }

    /// A builder that starts from this configuration, to change some of its values.
    pub fn to_builder(&self) -> ConfigBuilder {
        ConfigBuilder { config: self.clone(), vars: Vec::new() }
    }

    /// Every variable with its value, written as in the environment, and where the value came from.
    pub fn settings(&self) -> impl Iterator<Item = (&'static Variable, String, Origin)> {
        VARIABLES.iter().map(|variable| (variable, (variable.show)(self), (variable.origin)(self)))
    }

    /// Blocks in the send queue of each QP of a PE, in a job of `n_pes` PEs: a power of two, see `OXSHMEM_QP_DEPTH`.
    pub fn send_queue_depth(&self, n_pes: u32) -> u32 {
        const BLOCK_BYTES: u64 = 64;
        match self.qp_depth() {
            Choice::Given(depth) => depth,
            Choice::Auto => {
                let qps = u64::from(n_pes) * u64::from(self.qps_per_peer());
                let within = (64 * MIB / (qps.max(1) * BLOCK_BYTES)).clamp(1024, 8192);
                1 << within.ilog2()
            }
        }
    }

    /// Installs a `tracing` subscriber for the whole process that writes what `OXSHMEM_LOG` selects to stderr. If the program has installed
    /// a subscriber, that one stays.
    ///
    /// The library only emits events and never calls this: a program that wants to see them calls it once, before
    /// [`Pe::with_config`](crate::Pe::with_config), or installs a subscriber of its own.
    pub fn init_log(&self) {
        let filter = tracing_subscriber::EnvFilter::new(self.log().to_string());
        // An error means that the program has a subscriber: it decides what is logged.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .try_init();
    }

    fn check(&self) -> Result<(), ConfigError> {
        for variable in VARIABLES {
            if !(variable.admit)(self, variable.limits) {
                return Err(ConfigError::OutOfRange {
                    name: variable.name,
                    value: (variable.show)(self),
                    origin: (variable.origin)(self),
                    form: variable.form(),
                });
            }
        }
        if self.heap_chunk() > self.heap_max() {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_HEAP_CHUNK={}", self.heap_chunk()),
                second: format!("OXSHMEM_HEAP_MAX={}", self.heap_max()),
                rule: "a chunk is at most the whole heap",
            });
        }
        self.check_cards()?;
        let faulty = !self.soft_faults().is_empty();
        if let Hca::Mlx5 { .. } | Hca::Verbs { .. } = self.hca()
            && (faulty || self.soft_trace())
        {
            let (name, value) = match faulty {
                true => ("OXSHMEM_SOFT_FAULTS", self.soft_faults().as_str()),
                false => ("OXSHMEM_SOFT_TRACE", "1"),
            };
            return Err(ConfigError::Contradiction {
                first: format!("{name}={value}"),
                second: format!("OXSHMEM_HCA={}", self.hca()),
                rule: "only the software HCA does that; unset it, or use OXSHMEM_HCA=soft",
            });
        }
        if self.ibgda_doorbell() != Doorbell::Auto && matches!(self.hca(), Hca::Soft | Hca::Null | Hca::Verbs { .. }) {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_IBGDA_DOORBELL={}", self.ibgda_doorbell()),
                second: format!("OXSHMEM_HCA={}", self.hca()),
                rule: "it says how a ConnectX card is rung; unset it, or use OXSHMEM_HCA=mlx5",
            });
        }
        let launcher = [
            ("OXSHMEM_RENDEZVOUS", self.rendezvous().is_some()),
            ("OXSHMEM_RANK", self.rank().is_some()),
            ("OXSHMEM_NPES", self.npes().is_some()),
            ("OXSHMEM_JOB", self.job().is_some()),
        ];
        if let Some((present, _)) = launcher.iter().find(|(_, set)| *set)
            && let Some((missing, _)) = launcher.iter().find(|(_, set)| !*set)
        {
            return Err(ConfigError::Incomplete { present, missing });
        }
        if let (Some(rank), Some(npes)) = (self.rank(), self.npes())
            && rank >= npes
        {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_RANK={rank}"),
                second: format!("OXSHMEM_NPES={npes}"),
                rule: "ranks count from 0 and stay below the number of PEs",
            });
        }
        Ok(())
    }

    /// What is said of RDMA devices has to fit together.
    fn check_cards(&self) -> Result<(), ConfigError> {
        let unused = match self.hca() {
            Hca::Soft | Hca::Null => Some("the software HCA has no devices to choose from"),
            Hca::Mlx5 { card: Some(_) } | Hca::Verbs { card: Some(_) } => Some("name the device in one of them"),
            Hca::Auto | Hca::Mlx5 { card: None } | Hca::Verbs { card: None } => None,
        };
        let hca = || format!("OXSHMEM_HCA={}", self.hca());
        let devices = || format!("OXSHMEM_HCA_DEVICES={}", self.hca_devices());
        if let Some(rule) = unused.filter(|_| *self.hca_devices() != DeviceChoice::Any) {
            return Err(ConfigError::Contradiction { first: hca(), second: devices(), rule });
        }
        let qps = || format!("OXSHMEM_QPS_PER_PEER={}", self.qps_per_peer());
        let mapped = match self.hca_devices() {
            DeviceChoice::Mapping(items) => items.iter().map(|(_, cards)| cards.len() as u64).max(),
            DeviceChoice::Any | DeviceChoice::Only(_) | DeviceChoice::Except(_) => None,
        };
        if let Some(most) = mapped.filter(|most| *most > 1) {
            if matches!(self.hca(), Hca::Verbs { .. }) {
                let rule = "verbs drive one device per PE; name one for each, or use OXSHMEM_HCA=mlx5";
                return Err(ConfigError::Contradiction { first: devices(), second: hca(), rule });
            }
            if most > u64::from(self.qps_per_peer()) {
                let rule = "each device needs a QP to each peer; name fewer for each PE, or raise OXSHMEM_QPS_PER_PEER";
                return Err(ConfigError::Contradiction { first: devices(), second: qps(), rule });
            }
        }
        let Choice::Given(count) = self.hca_devices_per_pe() else { return Ok(()) };
        let contradicts = |second: String, rule| {
            let first = format!("OXSHMEM_HCA_DEVICES_PER_PE={count}");
            Err(ConfigError::Contradiction { first, second, rule })
        };
        if mapped.is_some() {
            return contradicts(devices(), "the mapping says how many devices each PE drives; unset one of them");
        }
        if count == 1 {
            return Ok(());
        }
        match self.hca() {
            Hca::Soft | Hca::Null => {
                return contradicts(hca(), "a PE drives one software HCA; unset it, or use OXSHMEM_HCA=mlx5");
            }
            Hca::Verbs { .. } => {
                return contradicts(hca(), "verbs drive one device per PE; unset it, or use OXSHMEM_HCA=mlx5");
            }
            Hca::Mlx5 { card: Some(_) } => {
                let rule = "a device that is named is the only one; unset it, or name several in OXSHMEM_HCA_DEVICES";
                return contradicts(hca(), rule);
            }
            Hca::Auto | Hca::Mlx5 { card: None } => {}
        }
        if count > self.qps_per_peer() {
            let rule = "each device needs a QP to each peer; lower it, or raise OXSHMEM_QPS_PER_PEER";
            return contradicts(qps(), rule);
        }
        Ok(())
    }
}

/// Collects values that the program decides; what it does not set comes from the environment, if asked for, else from the table.
#[derive(Debug, Clone)]
pub struct ConfigBuilder {
    config: Config,
    vars: Vec<(OsString, OsString)>,
}

impl ConfigBuilder {
    /// Takes what is not set here from the process's environment.
    pub fn env(self) -> Self {
        self.vars(std::env::vars_os())
    }

    /// Takes what is not set here from `vars`.
    pub fn vars<K: Into<OsString>, V: Into<OsString>>(mut self, vars: impl IntoIterator<Item = (K, V)>) -> Self {
        self.vars.extend(vars.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Joins the job of `id` as PE `rank` of `npes`, instead of the job that a launcher named.
    pub fn unique_id(self, id: &UniqueId, rank: u32, npes: u32) -> Self {
        self.rendezvous(id.rendezvous().clone()).job(id.job_id()).rank(rank).npes(npes)
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first variable that is unknown, malformed, out of range, or contradicts another.
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut config = self.config;
        for (name, value) in &self.vars {
            let Some(name) = own_name(name).filter(|name| !BUILD_VARIABLES.contains(&name.as_str())) else { continue };
            let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) else {
                let suggestion = nearest(&name);
                return Err(ConfigError::Unknown { name, suggestion });
            };
            if (variable.origin)(&config) == Origin::Builder {
                continue;
            }
            if !value.to_str().is_some_and(|text| (variable.parse)(&mut config, text)) {
                let value = value.to_string_lossy().into_owned();
                return Err(ConfigError::Malformed { name: variable.name, value, form: variable.form() });
            }
        }
        config.check()?;
        Ok(config)
    }
}

/// The name as text if it starts with our prefix, with what is not UTF-8 replaced so that it is reported as unknown.
fn own_name(name: &OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    name.starts_with(PREFIX).then(|| name.into_owned())
}

/// The known name that is fewest edits away, if that is near enough to be meant.
fn nearest(name: &str) -> Option<&'static str> {
    VARIABLES
        .iter()
        .map(|variable| (edit_distance(&name[PREFIX.len()..], &variable.name[PREFIX.len()..]), variable.name))
        .min()
        .filter(|(distance, known)| *distance <= 2.max((known.len() - PREFIX.len()) / 2))
        .map(|(_, known)| known)
}

/// Insertions, deletions and substitutions from `a` to `b` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn one(name: &str, value: &str) -> Result<Config, ConfigError> {
        Config::from_vars([(name, value)])
    }

    #[test]
    fn defaults_are_within_their_own_limits_and_parse_back() {
        let config = Config::from_vars::<&str, &str>([]).unwrap();
        assert_eq!(config, Config::default());
        for variable in VARIABLES {
            assert!(variable.name.starts_with(PREFIX));
            let text = variable.default();
            if !text.is_empty() {
                let mut parsed = Config::default();
                assert!((variable.parse)(&mut parsed, &text), "{}={text}", variable.name);
                assert_eq!((variable.show)(&parsed), text);
                assert_eq!((variable.origin)(&parsed), Origin::Environment);
            }
        }
    }

    #[test]
    fn values_reach_their_fields() {
        let config = Config::from_vars([
            ("OXSHMEM_DEVICE", "cpu"),
            ("OXSHMEM_TRANSPORT", "ibgda"),
            ("OXSHMEM_HEAP_MAX", "1G"),
            ("OXSHMEM_HEAP_CHUNK", "2097152"),
            ("OXSHMEM_TIMEOUT", "500ms"),
            ("OXSHMEM_KERNEL_TIMEOUT", "2min"),
            ("OXSHMEM_DISABLE_P2P", "true"),
            ("OXSHMEM_HCA", "verbs:mlx5_0/2"),
            ("OXSHMEM_IB_GID_INDEX", "3"),
            ("OXSHMEM_IB_UDP_SPORT", "49152,50000"),
            ("OXSHMEM_LOG", "info,oxshmem_hca=trace"),
            ("PATH", "/bin"),
        ])
        .unwrap();
        assert_eq!(config.device(), Device::Cpu);
        assert_eq!(config.transport(), Transport::Ibgda);
        assert_eq!(config.heap_max(), ByteSize(1 << 30));
        assert_eq!(config.heap_chunk(), ByteSize(2 << 20));
        assert_eq!(config.timeout(), Duration::from_millis(500));
        assert_eq!(config.kernel_timeout(), Duration::from_secs(120));
        assert!(config.disable_p2p());
        assert_eq!(config.ib_gid_index(), Choice::Given(3));
        assert_eq!(config.hca(), &Hca::Verbs { card: "mlx5_0/2".parse().ok() });
        assert_eq!(config.ib_udp_sport(), &[49152, 50000]);
        assert_eq!(config.log().to_string(), "info,oxshmem_hca=trace");
        let origins: Vec<_> = config.settings().filter(|(_, _, origin)| *origin == Origin::Environment).collect();
        assert_eq!(origins.len(), 11);
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known() {
        let error = one("OXSHMEM_QP_DEPHT", "128").unwrap_err();
        assert_eq!(
            error,
            ConfigError::Unknown { name: "OXSHMEM_QP_DEPHT".into(), suggestion: Some("OXSHMEM_QP_DEPTH") }
        );
        assert!(error.to_string().contains("did you mean OXSHMEM_QP_DEPTH?"), "{error}");
        let error = one("OXSHMEM_ZZZZZZZZZZZZ", "1").unwrap_err();
        assert_eq!(error, ConfigError::Unknown { name: "OXSHMEM_ZZZZZZZZZZZZ".into(), suggestion: None });
        assert!(matches!(one("OXSHMEM_", "1").unwrap_err(), ConfigError::Unknown { .. }));
        assert!(one("OXSHMEM_CUDA", "0").is_ok(), "a variable of the build");
    }

    #[test]
    fn malformed_values_name_the_value_and_the_form() {
        for (name, value, words) in [
            ("OXSHMEM_DEVICE", "gpu", "`auto`, `cpu` or `cuda`"),
            ("OXSHMEM_DEVICE", "", "`auto`"),
            ("OXSHMEM_HCA", "verbs:", "`verbs:DEVICE/PORT`"),
            ("OXSHMEM_HCA", "mlx5_0", "`mlx5:DEVICE`"),
            ("OXSHMEM_HCA_DEVICES", "mlx5_0,", "`mlx5_0,mlx5_3/2`"),
            ("OXSHMEM_HCA_DEVICES", "0=mlx5_0,0=mlx5_1", "a mapping like"),
            ("OXSHMEM_HCA_DEVICES", "0=a+b+c+d+e", "up to 4 devices for each"),
            ("OXSHMEM_HCA_DEVICES_PER_PE", "all", "`auto` or an integer, 1 to 4"),
            ("OXSHMEM_HCA", "verbs:mlx5_0/0", "`verbs:DEVICE/PORT`"),
            ("OXSHMEM_HCA", "verbs:mlx5_0/1/2", "`verbs:DEVICE/PORT`"),
            ("OXSHMEM_HCA", "verbs:../mlx5_0", "`verbs:DEVICE/PORT`"),
            ("OXSHMEM_QP_DEPTH", "-1", "a power of two, 256 to 16384"),
            ("OXSHMEM_QP_DEPTH", "0x100", "256 to 16384"),
            ("OXSHMEM_QP_DEPTH", "99999999999999999999", "256 to 16384"),
            ("OXSHMEM_HEAP_MAX", "1Q", "`64M`"),
            ("OXSHMEM_HEAP_MAX", "99999999T", "1M to 512G"),
            ("OXSHMEM_HEAP_MAX", "M", "1M to 512G"),
            ("OXSHMEM_TIMEOUT", "30", "`500ms`"),
            ("OXSHMEM_TIMEOUT", "1.5s", "1ms to 24h"),
            ("OXSHMEM_DISABLE_P2P", "yes", "`true`"),
            ("OXSHMEM_LOG", "verbose", "`debug`"),
            ("OXSHMEM_IB_UDP_SPORT", "50000,", "commas"),
            ("OXSHMEM_JOB", "zz", "32 hexadecimal digits"),
            ("OXSHMEM_COLLECTIVES", "fcollect=tree", "for `broadcast` and `reduce` `tree`"),
            ("OXSHMEM_RENDEZVOUS", "localhost", "host:port"),
            ("OXSHMEM_IBRC_STAGING", "yes", "`auto`, `on`, `off` or a size like"),
        ] {
            let error = one(name, value).unwrap_err();
            assert!(matches!(error, ConfigError::Malformed { .. }), "{name}={value}: {error}");
            let text = error.to_string();
            assert!(text.contains(&format!("{name}={value}:")) && text.contains(words), "{text}");
        }
        let value = OsString::from_vec(vec![0xff]);
        assert!(matches!(
            Config::from_vars([(OsString::from("OXSHMEM_HCA"), value)]).unwrap_err(),
            ConfigError::Malformed { .. }
        ));
    }

    #[test]
    fn send_queues_are_deep_while_they_fit() {
        let config = Config::builder().qps_per_peer(4u32).build().unwrap();
        let depths = [1, 2, 32, 33, 64, 128, 256, 512, 100_000].map(|n_pes| config.send_queue_depth(n_pes));
        assert_eq!(depths, [8192, 8192, 8192, 4096, 4096, 2048, 1024, 1024, 1024]);
        let given = config.to_builder().qp_depth(512u32).build().unwrap();
        assert_eq!(given.send_queue_depth(2), 512);
    }

    #[test]
    fn limits_hold_for_the_environment_and_for_the_program() {
        for (name, value) in [
            ("OXSHMEM_QP_DEPTH", "64"),
            ("OXSHMEM_QP_DEPTH", "65536"),
            ("OXSHMEM_QP_DEPTH", "1000"),
            ("OXSHMEM_QPS_PER_PEER", "0"),
            ("OXSHMEM_HCA_DEVICES_PER_PE", "0"),
            ("OXSHMEM_HCA_DEVICES_PER_PE", "5"),
            ("OXSHMEM_HEAP_CHUNK", "512K"),
            ("OXSHMEM_HEAP_CHUNK", "3M"),
            ("OXSHMEM_CPU_WORKERS", "65"),
            ("OXSHMEM_TIMEOUT", "0s"),
            ("OXSHMEM_IB_SL", "16"),
            ("OXSHMEM_IB_TIMEOUT", "0"),
            ("OXSHMEM_IB_UDP_SPORT", "50000,1"),
            ("OXSHMEM_IBRC_STAGING", "8"),
            ("OXSHMEM_IBRC_STAGING", "2G"),
        ] {
            let error = one(name, value).unwrap_err();
            assert!(matches!(error, ConfigError::OutOfRange { origin: Origin::Environment, .. }), "{error}");
            assert!(error.to_string().starts_with(&format!("{name}=")), "{error}");
        }
        let error = Config::builder().qp_depth(100u32).build().unwrap_err();
        assert!(matches!(error, ConfigError::OutOfRange { origin: Origin::Builder, .. }), "{error}");
    }

    #[test]
    fn contradictions_name_both_sides() {
        let error = Config::from_vars([("OXSHMEM_HEAP_MAX", "1M"), ("OXSHMEM_HEAP_CHUNK", "2M")]).unwrap_err();
        assert!(error.to_string().contains("OXSHMEM_HEAP_CHUNK=2M contradicts OXSHMEM_HEAP_MAX=1M"), "{error}");
        for (name, value, hca) in [
            ("OXSHMEM_SOFT_FAULTS", "visibility", "mlx5:mlx5_0"),
            ("OXSHMEM_SOFT_TRACE", "1", "verbs"),
            ("OXSHMEM_IBGDA_DOORBELL", "cpu", "soft"),
        ] {
            let error = Config::from_vars([(name, value), ("OXSHMEM_HCA", hca)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={value} contradicts OXSHMEM_HCA={hca}: ")), "{error}");
        }
        let error = one("OXSHMEM_RANK", "0").unwrap_err();
        assert_eq!(error, ConfigError::Incomplete { present: "OXSHMEM_RANK", missing: "OXSHMEM_RENDEZVOUS" });
        let error = Config::from_vars([
            ("OXSHMEM_RENDEZVOUS", "127.0.0.1:1"),
            ("OXSHMEM_RANK", "4"),
            ("OXSHMEM_NPES", "4"),
            ("OXSHMEM_JOB", "00112233445566778899aabbccddeeff"),
        ])
        .unwrap_err();
        assert!(matches!(error, ConfigError::Contradiction { .. }), "{error}");
    }

    #[test]
    fn choices_of_a_card_that_contradict_each_other_are_refused() {
        for (vars, words) in [
            ([("OXSHMEM_HCA", "mlx5:mlx5_0"), ("OXSHMEM_HCA_DEVICES", "mlx5_1")], "name the device in one of them"),
            ([("OXSHMEM_HCA", "soft"), ("OXSHMEM_HCA_DEVICES", "^mlx5_1")], "the software HCA has no devices"),
            ([("OXSHMEM_HCA", "verbs"), ("OXSHMEM_HCA_DEVICES", "0=a,1=a+b")], "verbs drive one device per PE"),
            ([("OXSHMEM_HCA_DEVICES", "0=a+b"), ("OXSHMEM_QPS_PER_PEER", "1")], "or raise OXSHMEM_QPS_PER_PEER"),
            (
                [("OXSHMEM_HCA_DEVICES_PER_PE", "1"), ("OXSHMEM_HCA_DEVICES", "0=a")],
                "the mapping says how many devices",
            ),
            (
                [("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "mlx5:a")],
                "or name several in OXSHMEM_HCA_DEVICES",
            ),
            ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "verbs")], "verbs drive one device per PE"),
            ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "verbs:a")], "verbs drive one device per PE"),
            ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "soft")], "a PE drives one software HCA"),
            ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "null")], "a PE drives one software HCA"),
            ([("OXSHMEM_HCA_DEVICES_PER_PE", "4"), ("OXSHMEM_QPS_PER_PEER", "3")], "or raise OXSHMEM_QPS_PER_PEER"),
        ] {
            let error = Config::from_vars(vars).unwrap_err();
            assert!(matches!(error, ConfigError::Contradiction { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(words) && vars.iter().all(|(name, _)| text.contains(name)), "{text}");
        }
        let mapped = Config::from_vars([("OXSHMEM_HCA", "mlx5"), ("OXSHMEM_HCA_DEVICES", "0=mlx5_0")]).unwrap();
        assert_eq!(mapped.hca_devices().to_string(), "0=mlx5_0");
        assert_eq!(mapped.hca(), &Hca::Mlx5 { card: None });
        for vars in [
            vec![("OXSHMEM_HCA", "mlx5"), ("OXSHMEM_HCA_DEVICES", "0=mlx5_0+mlx5_1,1=mlx5_2/1+mlx5_2/2")],
            vec![("OXSHMEM_HCA_DEVICES_PER_PE", "4"), ("OXSHMEM_HCA_DEVICES", "a,b,c,d")],
            vec![("OXSHMEM_HCA_DEVICES_PER_PE", "1"), ("OXSHMEM_HCA", "verbs:a")],
            vec![("OXSHMEM_HCA_DEVICES_PER_PE", "1"), ("OXSHMEM_HCA", "soft"), ("OXSHMEM_QPS_PER_PEER", "1")],
            vec![("OXSHMEM_HCA_DEVICES_PER_PE", "auto"), ("OXSHMEM_HCA", "null"), ("OXSHMEM_QPS_PER_PEER", "1")],
        ] {
            let config = Config::from_vars(vars.iter().copied());
            assert!(config.is_ok(), "{vars:?}: {config:?}");
        }
        assert_eq!(Config::default().hca_devices_per_pe(), Choice::Auto);
        assert_eq!(one("OXSHMEM_HCA_DEVICES_PER_PE", "2").unwrap().hca_devices_per_pe().given(), Some(2));
    }

    #[test]
    fn the_program_overrides_the_environment() {
        let vars = [("OXSHMEM_DEVICE", "cuda"), ("OXSHMEM_QP_DEPTH", "256")];
        let config = Config::builder().device(Device::Cpu).vars(vars).build().unwrap();
        assert_eq!((config.device(), config.qp_depth()), (Device::Cpu, Choice::Given(256)));
        let changed = config.to_builder().qp_depth(512u32).build().unwrap();
        assert_eq!((changed.device(), changed.qp_depth()), (Device::Cpu, Choice::Given(512)));
    }

    #[test]
    fn the_documentation_has_the_table() {
        let mut table = String::from("| variable | default | form | meaning |\n|---|---|---|---|\n");
        for variable in VARIABLES {
            let default = variable.default();
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            let form = variable.form();
            table += &format!("| `{}` | {default} | {form} | {} |\n", variable.name, variable.meaning.trim());
        }
        let page = include_str!("../docs/environment.md");
        assert!(page.contains(&table), "docs/environment.md must contain this table:\n\n{table}");
    }

    proptest! {
        #[test]
        fn sizes_parse_back(bytes in any::<u64>(), shift in 0u32..64) {
            let size = ByteSize(bytes >> shift << shift);
            prop_assert_eq!(<ByteSize as Value>::parse(&size.show()), Some(size));
        }

        #[test]
        fn durations_parse_back(micros in any::<u64>()) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(<Duration as Value>::parse(&duration.show()), Some(duration));
        }

        #[test]
        fn any_value_is_answered(index in 0..VARIABLES.len(), value in ".*") {
            let _ = one(VARIABLES[index].name, &value);
        }
    }
}
