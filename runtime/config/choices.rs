//! What is chosen by name: devices, HCAs, transports.

use std::fmt;

use oxshmem_hca::prm::qpc::SendDbrMode;
use oxshmem_hca::topology::{Card, Family};

use super::size::ByteSize;
use super::value::Value;

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
    ///
    /// ```
    /// use oxshmem::config::Device;
    ///
    /// assert_eq!("auto".parse(), Ok(Device::Auto));
    /// ```
    Device: "`auto`, `cpu` or `cuda`" {
        /// `cuda` where a usable GPU is found, else `cpu`.
        Auto = "auto",
        /// The SIMT executor.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }
}

choice! {
    /// What started this process.
    ///
    /// ```
    /// use oxshmem::config::Launcher;
    ///
    /// assert_eq!("slurm".parse(), Ok(Launcher::Slurm));
    /// ```
    Launcher: "`auto`, `pmix`, `pmi`, `torchrun`, `openmpi`, `slurm` or `none`" {
        /// The first whose variables are set.
        Auto = "auto",
        /// A launcher with PMIx, such as Open MPI's `mpirun` and `srun --mpi=pmix`.
        Pmix = "pmix",
        /// A launcher that speaks PMI-2 or PMI-1 on the descriptor `PMI_FD`, such as `mpiexec`.
        Pmi = "pmi",
        /// `torchrun`.
        Torchrun = "torchrun",
        /// Open MPI's `mpirun`, on one node.
        Openmpi = "openmpi",
        /// Slurm's `srun` without a PMI plugin.
        Slurm = "slurm",
        /// None: a job of one PE.
        None = "none",
    }
}

choice! {
    /// Whether munge carries the secret of a job whose launcher carries none.
    ///
    /// ```
    /// use oxshmem::config::Munge;
    ///
    /// assert_eq!("require".parse(), Ok(Munge::Require));
    /// ```
    Munge: "`auto`, `require` or `off`" {
        /// If this machine has it.
        Auto = "auto",
        /// If this machine does not have it, that is an error.
        Require = "require",
        /// No.
        Off = "off",
    }
}

/// Which HCA executes work requests.
///
/// ```
/// use oxshmem::config::Hca;
/// use oxshmem::{Config, config};
///
/// let config = Config::from_vars([("OXSHMEM_HCA", "soft")])?;
/// assert_eq!(*config.hca(), Hca::Soft);
/// # Ok::<(), config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hca {
    /// `mlx5` where a card is found that the device can post to, else `soft`.
    Auto,
    /// The software HCA.
    Soft,
    /// A ConnectX through rdma-core.
    Mlx5 {
        /// Which; without one, the nearest that has an active port, out of those in
        /// `OXSHMEM_HCA_DEVICES`.
        card: Option<Card>,
    },
    /// The software HCA as a card that completes everything and moves nothing: for measuring
    /// posting alone.
    Null,
    /// Any RDMA device, through the kernel's verbs.
    Verbs {
        /// Which; without one, the nearest that has an active port, out of those in
        /// `OXSHMEM_HCA_DEVICES`.
        card: Option<Card>,
    },
}

impl Hca {
    /// Returns the device that it names.
    ///
    /// ```
    /// use oxshmem::config::Hca;
    ///
    /// assert!(Hca::Soft.card().is_none());
    /// ```
    #[must_use]
    pub fn card(&self) -> Option<&Card> {
        match self {
            Self::Verbs { card } | Self::Mlx5 { card } => card.as_ref(),
            Self::Auto | Self::Soft | Self::Null => None,
        }
    }

    /// Returns what kind of device it wants.
    ///
    /// ```
    /// use oxshmem::config::Hca;
    ///
    /// // A ConnectX as `mlx5` needs another kind of device than `verbs`.
    /// let (mlx5, verbs) = (Hca::Mlx5 { card: None }, Hca::Verbs { card: None });
    /// assert_ne!(mlx5.family(), verbs.family());
    /// ```
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
    ///
    /// ```
    /// use oxshmem::config::SoftEngine;
    ///
    /// assert_eq!("auto".parse(), Ok(SoftEngine::Auto));
    /// ```
    SoftEngine: "`auto`, `thread`, `kernel` or `copy`" {
        /// On `cuda` a kernel, and copies by a thread of the CPU while the kernel finds no room;
        /// `thread` on `cpu`.
        Auto = "auto",
        /// A thread of the CPU, which checks every field, and misbehaves on demand.
        Thread = "thread",
        /// A kernel of the device alone.
        Kernel = "kernel",
        /// Copies by a thread of the CPU alone, except for atomics, which take a kernel.
        Copy = "copy",
    }
}

choice! {
    /// What posts work requests to PEs that are not reached by load and store.
    ///
    /// ```
    /// use oxshmem::config::Network;
    ///
    /// assert_eq!("ibrc".parse(), Ok(Network::Ibrc));
    /// ```
    Network: "`auto`, `ibgda` or `ibrc`" {
        /// Device code where it can, else the CPU proxy.
        Auto = "auto",
        /// Device code.
        Ibgda = "ibgda",
        /// The CPU proxy.
        Ibrc = "ibrc",
    }
}

choice! {
    /// What stores to a card's doorbell registers for device code.
    ///
    /// ```
    /// use oxshmem::config::Doorbell;
    ///
    /// assert_eq!("auto".parse(), Ok(Doorbell::Auto));
    /// ```
    Doorbell: "`auto`, `gpu` or `cpu`" {
        /// Device code where it reaches them, else a thread of the CPU.
        Auto = "auto",
        /// Device code.
        Gpu = "gpu",
        /// A thread of the CPU, which watches words that device code stores to in host memory.
        Cpu = "cpu",
    }
}

choice! {
    /// Whether device code writes a doorbell record before it rings.
    ///
    /// ```
    /// use oxshmem::config::DoorbellRecord;
    ///
    /// assert_eq!("never".parse(), Ok(DoorbellRecord::Never));
    /// ```
    DoorbellRecord: "`always` or `never`" {
        /// Writes it, which every card takes.
        Always = "always",
        /// Leaves it out, which some cards take (`send_dbr_mode` `NO_DBR_EXT`).
        Never = "never",
    }
}

impl DoorbellRecord {
    /// Returns the mode of queue pairs that are posted to so.
    pub(crate) const fn mode(self) -> SendDbrMode {
        match self {
            Self::Always => SendDbrMode::DbrValid,
            Self::Never => SendDbrMode::NoDbrExt,
        }
    }
}

choice! {
    /// In which way GPU memory is registered with a ConnectX card first.
    Registration: "`auto`, `dmabuf`, `dmabuf-pcie` or `peermem`" {
        /// Chooses `dmabuf`.
        Auto = "auto",
        /// A dma-buf.
        DmaBuf = "dmabuf",
        /// A dma-buf with addresses of the PCIe BAR.
        DmaBufPcie = "dmabuf-pcie",
        /// The address, through nvidia_peermem.
        Peermem = "peermem",
    }
}

choice! {
    /// What does atomics on memory that the GPU can load and store, where the card's are not atomic
    /// with the GPU's.
    Atomics: "`auto`, `gpu` or `card`" {
        /// Chooses `card`: no update is ever lost.
        Auto = "auto",
        /// The GPU. A word must not be a target of both GPUs and cards.
        Gpu = "gpu",
        /// The target's card.
        Card = "card",
    }
}

choice! {
    /// By which card a PE sends to PEs of other nodes.
    ///
    /// ```
    /// use oxshmem::Config;
    /// use oxshmem::config::Rails;
    ///
    /// let config = Config::from_vars([("OXSHMEM_RAILS", "push")])?;
    /// assert_eq!(config.rails(), Rails::Push);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    Rails: "`auto`, `direct` or `push`" {
        /// Chooses `push` where topology says that the cards of all rails read the PEs' payloads
        /// where they are, or where PEs measure at init that it is not slower; and `direct`
        /// otherwise.
        Auto = "auto",
        /// The sender's own card, whatever the rail.
        Direct = "direct",
        /// The card of the sender's node that is on the rail of the receiver's card.
        Push = "push",
    }
}

choice! {
    /// Whether quiet reads a byte through each queue pair that it has written through, so that
    /// every PE sees what was written, whichever way it learns of that.
    Flush: "`auto`, `always` or `never`" {
        /// Where a card does not say when its writes are visible, and another card's writes, or
        /// stores of PEs of a node, may tell of them.
        Auto = "auto",
        /// In any case.
        Always = "always",
        /// Nowhere.
        Never = "never",
    }
}

/// Which puts are staged: their source is copied to memory near the card first.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::{ByteSize, Staging};
///
/// let config = Config::from_vars([("OXSHMEM_STAGING", "64K")])?;
/// assert_eq!(config.staging(), Staging::From(ByteSize(64 << 10)));
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// Long ones, where the card is far from the GPU.
    Auto,
    /// Long ones, wherever the card is.
    On,
    /// None.
    Off,
    /// Puts of at least this many bytes.
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
    ///
    /// ```
    /// use oxshmem::config::Transport;
    ///
    /// assert_eq!("auto".parse(), Ok(Transport::Auto));
    /// ```
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

/// When a PE dumps what it waits for, by itself.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::Dumps;
///
/// let config = Config::from_vars([("OXSHMEM_DUMP", "signal,abort")])?;
/// assert_eq!(config.dump(), Dumps { signal: true, deadline: false, abort: true });
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dumps {
    /// At SIGUSR2.
    pub signal: bool,
    /// When a wait reaches its deadline.
    pub deadline: bool,
    /// When the job fails.
    pub abort: bool,
}

impl Dumps {
    /// Every occasion.
    ///
    /// ```
    /// use oxshmem::config::{Config, Dumps};
    ///
    /// assert_eq!(Config::default().dump(), Dumps::ALL);
    /// ```
    pub const ALL: Self = Self { signal: true, deadline: true, abort: true };
    /// No occasion: dumps are made when the program requests them alone.
    ///
    /// ```
    /// use oxshmem::config::Dumps;
    ///
    /// assert!(!Dumps::NONE.signal);
    /// ```
    pub const NONE: Self = Self { signal: false, deadline: false, abort: false };
}

impl Value for Dumps {
    const FORM: &'static str = "`none`, or a list of `signal`, `deadline` and `abort` separated by commas";
    fn parse(text: &str) -> Option<Self> {
        let mut dumps = Self::NONE;
        parse_list(
            text,
            &mut [("signal", &mut dumps.signal), ("deadline", &mut dumps.deadline), ("abort", &mut dumps.abort)],
        )?;
        Some(dumps)
    }
    fn show(&self) -> String {
        let Self { signal, deadline, abort } = *self;
        show_list(&[(signal, "signal"), (deadline, "deadline"), (abort, "abort")])
    }
}

/// What is recorded of a PE's calls; see `profiling.md`.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::Profile;
///
/// let config = Config::from_vars([("OXSHMEM_PROFILE", "counters,nvtx")])?;
/// assert_eq!(config.profile(), Profile { counters: true, trace: false, nvtx: true });
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Calls of device code are counted, and all counters are written to a file at finalize.
    pub counters: bool,
    /// Calls of the host and of device code are recorded, and written to a file at finalize.
    pub trace: bool,
    /// Calls of the host are NVTX ranges.
    pub nvtx: bool,
}

impl Profile {
    /// Nothing of it.
    ///
    /// ```
    /// use oxshmem::config::{Config, Profile};
    ///
    /// assert_eq!(Config::default().profile(), Profile::NONE);
    /// ```
    pub const NONE: Self = Self { counters: false, trace: false, nvtx: false };
}

impl Value for Profile {
    const FORM: &'static str = "`none`, or a list of `counters`, `trace` and `nvtx` separated by commas";
    fn parse(text: &str) -> Option<Self> {
        let mut profile = Self::NONE;
        parse_list(
            text,
            &mut [("counters", &mut profile.counters), ("trace", &mut profile.trace), ("nvtx", &mut profile.nvtx)],
        )?;
        Some(profile)
    }
    fn show(&self) -> String {
        let Self { counters, trace, nvtx } = *self;
        show_list(&[(counters, "counters"), (trace, "trace"), (nvtx, "nvtx")])
    }
}

/// What is checked while a job runs; see `debugging.md`.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::Checks;
///
/// let config = Config::from_vars([("OXSHMEM_CHECK", "buffers,waits")])?;
/// assert_eq!(config.checks(), Checks { calls: false, buffers: true, waits: true });
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// Collective calls of the host that differ between PEs.
    pub calls: bool,
    /// Buffers of puts that change before the put is complete.
    pub buffers: bool,
    /// Waits that nothing can satisfy.
    pub waits: bool,
}

impl Checks {
    /// Nothing.
    ///
    /// ```
    /// use oxshmem::config::{Checks, Config};
    ///
    /// assert_eq!(Config::default().checks(), Checks::NONE);
    /// ```
    pub const NONE: Self = Self { calls: false, buffers: false, waits: false };
}

impl Value for Checks {
    const FORM: &'static str = "`none`, or a list of `calls`, `buffers` and `waits` separated by commas";
    fn parse(text: &str) -> Option<Self> {
        let mut checks = Self::NONE;
        parse_list(
            text,
            &mut [("calls", &mut checks.calls), ("buffers", &mut checks.buffers), ("waits", &mut checks.waits)],
        )?;
        Some(checks)
    }
    fn show(&self) -> String {
        let Self { calls, buffers, waits } = *self;
        show_list(&[(calls, "calls"), (buffers, "buffers"), (waits, "waits")])
    }
}

/// Reads a list of names, or `none`, and sets what they name. `None` if a name is not among them.
fn parse_list(text: &str, names: &mut [(&str, &mut bool)]) -> Option<()> {
    if text == "none" {
        return Some(());
    }
    for item in text.split(',') {
        let (_, flag) = names.iter_mut().find(|(name, _)| *name == item)?;
        **flag = true;
    }
    Some(())
}

/// Writes a list as [`parse_list`] reads it.
fn show_list(items: &[(bool, &str)]) -> String {
    let items: Vec<&str> = items.iter().filter_map(|(is_on, name)| is_on.then_some(*name)).collect();
    if items.is_empty() { "none".into() } else { items.join(",") }
}
