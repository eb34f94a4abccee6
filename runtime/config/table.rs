//! The table of variables, which drives parsing, the errors and `docs/environment.md`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use oxshmem_hca::topology::{DeviceChoice, MAX_CARDS};

use super::choices::{
    Atomics, Checks, Device, Doorbell, DoorbellRecord, Dumps, Flush, Hca, Launcher, Munge, Network, Profile, Rails,
    Registration, SoftEngine, Staging, Transport,
};
use super::error::Origin;
use super::size::ByteSize;
use super::value::{Choice, Limits, LogFilter, Value};
use crate::bootstrap::job::{JobId, Rendezvous};
use crate::team::choice::Collectives;

/// What every variable's name starts with.
///
/// ```
/// use oxshmem::config::{PREFIX, VARIABLES};
///
/// assert!(VARIABLES.iter().all(|variable| variable.name.starts_with(PREFIX)));
/// ```
pub const PREFIX: &str = "OXSHMEM_";

/// Collects values that the program decides; what it does not set comes from the environment if the
/// caller wants that, and otherwise from the table.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::ConfigBuilder;
///
/// let builder: ConfigBuilder = Config::builder().heap_max(64u64 << 20);
/// let config = builder.build()?;
/// # assert_eq!(config.heap_max().0, 64 << 20);
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ConfigBuilder {
    pub(super) config: Config,
    pub(super) vars: Vec<(OsString, OsString)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting<T> {
    value: T,
    origin: Origin,
}

/// One row of the table of variables.
///
/// ```
/// use oxshmem::config::VARIABLES;
///
/// let variable = VARIABLES.iter().find(|variable| variable.name == "OXSHMEM_DEVICE").unwrap();
/// println!("{}: {}", variable.name, variable.meaning);
/// ```
pub struct Variable {
    /// Full name.
    pub name: &'static str,
    /// What it does, in one paragraph of Markdown.
    pub meaning: &'static str,
    pub(super) limits: Limits,
    pub(super) parse: fn(&mut Config, &str) -> bool,
    pub(super) admit: fn(&Config, Limits) -> bool,
    pub(super) show: fn(&Config) -> String,
    pub(super) origin: fn(&Config) -> Origin,
    form: fn(Limits) -> String,
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).field("form", &self.form()).finish_non_exhaustive()
    }
}

impl Variable {
    /// Returns the accepted form and its limits, in words.
    ///
    /// ```
    /// use oxshmem::config::VARIABLES;
    ///
    /// let variable = VARIABLES.iter().find(|variable| variable.name == "OXSHMEM_DEVICE").unwrap();
    /// assert_eq!(variable.form(), "`auto`, `cpu` or `cuda`");
    /// ```
    pub fn form(&self) -> String {
        (self.form)(self.limits)
    }

    /// Returns the default, written as the variable's value would be; empty when there is none.
    ///
    /// ```
    /// use oxshmem::config::VARIABLES;
    ///
    /// let variable = VARIABLES.iter().find(|variable| variable.name == "OXSHMEM_DEVICE").unwrap();
    /// assert_eq!(variable.default(), "auto");
    /// ```
    pub fn default(&self) -> String {
        (self.show)(&Config::default())
    }
}

macro_rules! accessor {
    (copy $(#[doc = $doc:literal])+ $field:ident $ty:ty) => {
        $(#[doc = $doc])+
        ///
        /// ```
        #[doc = concat!("let value = oxshmem::Config::from_env()?.", stringify!($field), "();")]
        /// # drop(value);
        /// # Ok::<(), oxshmem::Error>(())
        /// ```
        pub fn $field(&self) -> $ty {
            self.$field.value
        }
    };
    (borrow $(#[doc = $doc:literal])+ $field:ident $ty:ty) => {
        $(#[doc = $doc])+
        ///
        /// ```
        /// let config = oxshmem::Config::from_env()?;
        #[doc = concat!("let value = config.", stringify!($field), "();")]
        /// # let _ = value;
        /// # Ok::<(), oxshmem::Error>(())
        /// ```
        pub fn $field(&self) -> &$ty {
            &self.$field.value
        }
    };
}

macro_rules! variables {
    ($($(#[doc = $doc:literal])+ $name:literal $access:ident $field:ident: $ty:ty = $default:expr, $limits:expr;)+) => {
        /// The configuration of one PE.
        ///
        /// Made by [`Config::from_env`], or by [`Config::builder`] when the program decides some
        /// values itself.
        ///
        /// # Threads and drop
        /// `Send` and `Sync`: plain data.
        ///
        /// ```
        /// use oxshmem::Config;
        ///
        /// let config = Config::builder().heap_max(64u64 << 20).env().build()?;
        /// assert_eq!(config.heap_max().0, 64 << 20);
        /// # Ok::<(), oxshmem::Error>(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config { $($field: Setting<$ty>,)+ }

        impl Default for Config {
            /// Returns every default of the table, whatever the environment says.
            fn default() -> Self {
                Self { $($field: Setting { value: $default, origin: Origin::Default },)+ }
            }
        }

        impl Config { $(accessor!($access $(#[doc = $doc])+ $field $ty);)+ }

        impl ConfigBuilder {
            $($(#[doc = $doc])+
            ///
            /// ```
            /// use oxshmem::Config;
            ///
            #[doc = concat!("let value = Config::default().", stringify!($field), "().to_owned();")]
            #[doc = concat!("let config = Config::builder().", stringify!($field), "(value.clone()).build()?;")]
            #[doc = concat!("assert_eq!(config.", stringify!($field), "().to_owned(), value);")]
            /// # Ok::<(), oxshmem::Error>(())
            /// ```
            pub fn $field(mut self, value: impl Into<$ty>) -> Self {
                self.config.$field = Setting { value: value.into(), origin: Origin::Builder };
                self
            })+
        }

        /// Every variable, in the order of the documentation.
        ///
        /// ```
        /// for variable in oxshmem::config::VARIABLES {
        ///     println!("{}: {}", variable.name, variable.form());
        /// }
        /// ```
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
    /// Where kernels run: `cuda` on an NVIDIA GPU, `cpu` on the SIMT executor, `auto` on the GPU if
    /// there is a usable one.
    "OXSHMEM_DEVICE" copy device: Device = Device::Auto, Limits::None;
    /// What executes work requests: `mlx5` is a ConnectX card, `soft` the software HCA, and `auto`
    /// the card if there is a usable one. `verbs` is any RDMA device through the kernel's verbs, to
    /// which the CPU proxy posts. `null` completes requests and moves nothing, which measures
    /// posting alone.
    "OXSHMEM_HCA" borrow hca: Hca = Hca::Auto, Limits::None;
    /// Which RDMA devices `mlx5` and `verbs` may use where `OXSHMEM_HCA` does not name one. A list
    /// allows its devices, and after `^` all others. A mapping names exactly the device of each PE,
    /// by the PE's number on its node or by the PCI address of its GPU; with `mlx5` it may join
    /// several by `+`. Without a mapping a PE uses the device nearest to its GPU or its CPUs, with
    /// `mlx5` possibly several (`OXSHMEM_HCA_DEVICES_PER_PE`), and PEs are spread over devices that
    /// are equally near.
    "OXSHMEM_HCA_DEVICES" borrow hca_devices: DeviceChoice = DeviceChoice::Any, Limits::None;
    /// How many RDMA devices a PE drives with `mlx5`; its QPs are spread over them. `auto` takes
    /// all that are equally near to its GPU below one PCIe switch and that no other PE has; a
    /// number takes that many, the nearest first. All PEs use as many as the PE with the fewest
    /// has, and never more than `OXSHMEM_QPS_PER_PEER`.
    "OXSHMEM_HCA_DEVICES_PER_PE" copy hca_devices_per_pe: Choice = Choice::Auto, Limits::Range(1, MAX_CARDS as u64);
    /// By which card a PE sends to PEs of other nodes. `direct`: its own card, whatever the rail of
    /// the peer's card. `push`: the card of its node that is on that rail, so that nothing goes
    /// from one rail to another; it takes a second QP for each to peers of other rails, and at most
    /// 8 cards. `auto` pushes where topology says that the cards of all these rails read the PEs'
    /// payloads where they are; where it does not say which is faster, each PE measures that at
    /// init for at most 2 s, and all PEs push, or none. All PEs need the same. See `hardware.md`.
    "OXSHMEM_RAILS" copy rails: Rails = Rails::Auto, Limits::None;
    /// A file that describes the machine in place of sysfs, where that hides how far GPUs and RDMA
    /// devices are from each other, as in virtual machines; `oxshmem-info topology` writes this
    /// machine's. PEs on the `cpu` device work as if each were on one of the GPUs that it
    /// describes, in turn, and the software HCA counts as the card that falls to the PE, so that
    /// `oxshmem-info routes` counts what goes across rails. See `hardware.md`.
    "OXSHMEM_TOPOLOGY" borrow topology: Option<PathBuf> = None, Limits::None;
    /// How peers are reached. `auto` decides for each peer. `p2p` allows load/store only, and a
    /// peer that cannot be reached that way is an error. `ibgda` and `ibrc` use the network for
    /// every other PE.
    "OXSHMEM_TRANSPORT" copy transport: Transport = Transport::Auto, Limits::None;
    /// A name that takes part in the identity of this PE's node: PEs with different names are as
    /// apart as on different machines, share no memory, and reach each other over the network
    /// alone. `oxrun --nodes` sets it to play several nodes on one machine.
    "OXSHMEM_NODE" borrow node: String = String::new(), Limits::None;
    /// The network interfaces, in the syntax of `NCCL_SOCKET_IFNAME`, whose addresses PEs of other
    /// nodes use: the first of them to reach this PE's software HCA, and all of them to join a job
    /// whose rendezvous this process starts, as with a unique id that it creates. A list of
    /// beginnings of names, and of ranges of addresses like `10.1.0.0/16`; after `=` the names are
    /// whole, and after `^` all others are used. Without it the software HCA has the address by
    /// which the rendezvous was reached, and the rendezvous up to 8 addresses, that of the default
    /// route first, those of bridges to containers last. The software HCA listens only if the job
    /// has several nodes.
    "OXSHMEM_INTERFACE" borrow interface: String = String::new(), Limits::None;
    /// What posts to PEs that `OXSHMEM_TRANSPORT=auto` does not reach by load and store: device
    /// code (`ibgda`) or the CPU proxy (`ibrc`). `auto` is `ibgda`, and `ibrc` where device code
    /// cannot post, as with `OXSHMEM_HCA=verbs`.
    "OXSHMEM_NETWORK" copy network: Network = Network::Auto, Limits::None;
    /// Never use load/store to another PE, even where it is possible.
    "OXSHMEM_DISABLE_P2P" copy disable_p2p: bool = false, Limits::None;
    /// Largest size of the symmetric heap of one PE. Address space of this size is reserved for
    /// each PE of the node; memory is taken chunk by chunk as the heap grows.
    "OXSHMEM_HEAP_MAX" copy heap_max: ByteSize = ByteSize(16 * GIB), Limits::Range(MIB, 512 * GIB);
    /// The step by which the heap grows; each step is registered with the HCA in one piece. It is
    /// at most `OXSHMEM_HEAP_MAX`, and is rounded up to the granularity of the device's memory (2M
    /// on GPUs).
    "OXSHMEM_HEAP_CHUNK" copy heap_chunk: ByteSize = ByteSize(64 * MIB), Limits::PowerOfTwo(MIB, TIB);
    /// Send-queue depth of a QP, in blocks of 64 bytes (with `OXSHMEM_HCA=verbs` in work requests,
    /// and a card that has less lowers it). `auto` takes 8192, or less (at least 512) to keep all
    /// queues of a PE within 64 MiB, and at most 2048 over the CPU proxy (`ibrc`).
    "OXSHMEM_QP_DEPTH" copy qp_depth: Choice = Choice::Auto, Limits::PowerOfTwo(256, 16384);
    /// QPs to each peer reached over the network; CTAs are spread over them.
    "OXSHMEM_QPS_PER_PEER" copy qps_per_peer: u32 = 4, Limits::Range(1, 64);
    /// What rings a card's doorbells where device code posts. With `gpu` device code does, which
    /// needs the card's registers mapped into its addresses. With `cpu` a thread of the CPU does,
    /// which watches words in host memory. With `auto` device code does where it can.
    "OXSHMEM_IBGDA_DOORBELL" copy ibgda_doorbell: Doorbell = Doorbell::Auto, Limits::None;
    /// Whether device code writes a doorbell record before it rings. `always`: every card takes
    /// that, and each doorbell costs a fence. `never`: the card goes by the doorbell alone, which
    /// ConnectX-8 and newer can (NCCL calls that a reliable doorbell); a card that cannot is an
    /// error. A card has a limited number of such queue pairs for all processes together (1024 on
    /// ConnectX-8), so this is not chosen by itself. See `hardware.md`.
    "OXSHMEM_IBGDA_DOORBELL_RECORD" copy ibgda_doorbell_record: DoorbellRecord = DoorbellRecord::Always, Limits::None;
    /// What does atomics on memory that this PE's GPU can load and store (its own and that of
    /// load/store peers). `card`: the target's card, so that all atomics on a word are atomic with
    /// each other. `gpu`: the GPU, which is faster; where a card's atomics are not atomic with
    /// those of GPUs (no current card's are), a word must then not be a target of both such PEs and
    /// PEs that are reached over the network, and the `cpu` device reports such words. `auto`
    /// chooses `card` for such cards, and `gpu` for the software HCA. See `semantics.md`.
    "OXSHMEM_ATOMICS" copy atomics: Atomics = Atomics::Auto, Limits::None;
    /// In which way GPU memory is registered with a ConnectX card first; the other ways follow if
    /// it fails. `dmabuf` and `auto`: as dma-buf with the addresses that the driver prefers.
    /// `dmabuf-pcie`: as dma-buf with addresses of the PCIe BAR, for GPUs that have another way to
    /// the CPU too (GH200, GB200); a card's PCIe connection of its own to the GPU ("data direct")
    /// is not used. `peermem`: by address, through the module nvidia_peermem, which maps pages of
    /// 2M where kernels before about 6.17 map dma-bufs in pages of 4K.
    "OXSHMEM_GPU_REGISTRATION" copy gpu_registration: Registration = Registration::Auto, Limits::None;
    /// How many descriptors fit the ring between device code and the CPU proxy (`ibrc`).
    "OXSHMEM_PROXY_RING" copy proxy_ring: u32 = 4096, Limits::PowerOfTwo(64, 65536);
    /// Which puts are staged, that is, copied to memory near the card that sends them before it
    /// reads them. `on` stages puts that are too long for the queue where device code posts
    /// (`ibgda`), and those of 64K and more where the CPU proxy does (`ibrc`); a size stages puts
    /// of at least that many bytes, and `off` none. `auto` is `on` where the card is on another
    /// NUMA node than the GPU, or has to fetch what is pushed from afar (`OXSHMEM_RAILS`), and
    /// `off` otherwise. See `hardware.md`.
    "OXSHMEM_STAGING" copy staging: Staging = Staging::Auto, Limits::Range(64, GIB);
    /// Bytes of the staging ring of a QP where device code posts (`ibgda`), in 32 slots. A QP whose
    /// card reads payloads where they are has none. `auto` takes 4M, or less (at least 64K) to keep
    /// all rings of a PE within 256 MiB.
    "OXSHMEM_STAGING_RING" copy staging_ring: Choice<ByteSize> = Choice::Auto, Limits::PowerOfTwo(2 * KIB, GIB);
    /// How many teams a PE can be in at the same time, including the four that exist
    /// forever. Each takes 66 KiB of the heap, and 33 KiB more for each further block of
    /// `OXSHMEM_COLLECTIVES_SMS`; each of these blocks, the first included, takes another 32 bytes
    /// for each PE, and 16 KiB in a job of more than two PEs; and where there are several, the team
    /// takes 10 KiB for each PE, at most 256 KiB.
    "OXSHMEM_MAX_TEAMS" copy max_teams: u32 = 32, Limits::Range(4, 256);
    /// Which algorithms collectives use instead of the library's choice. Each of `broadcast`,
    /// `collect`, `fcollect`, `alltoall`, `alltoalls`, `reduce` and `reducescatter` may have up to
    /// three of `packets`, `push`, `tree` and `relay` (broadcast and reduce), `oneshot` (reduce),
    /// `copy` (broadcast, fcollect and alltoall) and `levels`, each with the size up to which it is
    /// used; `library` leaves sizes to the library; see `teams.md`.
    "OXSHMEM_COLLECTIVES" borrow collectives: Collectives = Collectives::default(), Limits::None;
    /// A file with the algorithms that collectives on streams and from the host use, in teams of
    /// some numbers of nodes and PEs, which `oxshmem-tune` measures and writes, instead of the
    /// library's choice. All PEs must have files with the same content. `OXSHMEM_COLLECTIVES` goes
    /// before it. See `teams.md`.
    "OXSHMEM_TUNING" borrow tuning: Option<PathBuf> = None, Limits::None;
    /// The most multiprocessors of a GPU that a collective of the host or on a stream occupies, one
    /// block each; small collectives take fewer, except for `collect`. With 0 `copy` is the
    /// algorithm of `broadcast`, `fcollect` and `alltoall` (see `teams.md`), and other collectives
    /// have one block. The number is halved until the workspaces of `OXSHMEM_MAX_TEAMS` teams take
    /// at most an eighth of `OXSHMEM_HEAP_MAX`. On the `cpu` device it is the most blocks.
    "OXSHMEM_COLLECTIVES_SMS" copy collectives_sms: u32 = 72, Limits::Range(0, 128);
    /// Deadline of every wait for another PE, on the device and on the host; after it the operation
    /// ends with an error.
    "OXSHMEM_TIMEOUT" copy timeout: Duration = Duration::from_secs(30), Limits::Range(1_000, 24 * HOUR);
    /// Longest time that a kernel may run. After it the `cpu` device stops the kernel; a GPU
    /// cannot, so there the wait for the kernel ends with an error.
    "OXSHMEM_KERNEL_TIMEOUT" copy kernel_timeout: Duration = Duration::from_secs(600), Limits::Range(1_000, 24 * HOUR);
    /// How many threads execute a kernel on the `cpu` device.
    "OXSHMEM_CPU_WORKERS" copy cpu_workers: u32 = 1, Limits::Range(1, 64);
    /// Stack size of one GPU thread on the `cpu` device, rounded up to pages.
    "OXSHMEM_CPU_STACK" copy cpu_stack: ByteSize = ByteSize(64 * KIB), Limits::Range(16 * KIB, 64 * MIB);
    /// Entry of the port's GID table (PRM `ads.src_addr_index`, 8 bits); `auto` takes the first
    /// RoCE v2 entry with an IPv4 address, or else with a global IPv6 one, on InfiniBand the first
    /// with an FLID, or else entry 0.
    "OXSHMEM_IB_GID_INDEX" copy ib_gid_index: Choice = Choice::Auto, Limits::Range(0, 255);
    /// Entry of the port's partition key table (PRM `ads.pkey_index`, 16 bits).
    "OXSHMEM_IB_PKEY_INDEX" copy ib_pkey_index: u32 = 0, Limits::Range(0, 65535);
    /// InfiniBand service level, on RoCE the Ethernet priority in its low three bits (PRM `ads.sl`,
    /// 4 bits).
    "OXSHMEM_IB_SL" copy ib_sl: u32 = 0, Limits::Range(0, 15);
    /// Traffic class of the global route header, on RoCE the IP type of service (PRM `ads.tclass`,
    /// 8 bits).
    "OXSHMEM_IB_TRAFFIC_CLASS" copy ib_traffic_class: u32 = 0, Limits::Range(0, 255);
    /// Hop limit of the global route header (PRM `ads.hop_limit`, 8 bits).
    "OXSHMEM_IB_HOP_LIMIT" copy ib_hop_limit: u32 = 64, Limits::Range(1, 255);
    /// Time until a packet without acknowledgement is sent again, as an exponent: 4.096 us x 2^n
    /// (PRM `ads.ack_timeout`, 5 bits). 0, which means forever, is not accepted. A card may take up
    /// to four times as long; with the default a peer that is gone is reported after 4 to 17 s,
    /// which is before `OXSHMEM_TIMEOUT`.
    "OXSHMEM_IB_TIMEOUT" copy ib_timeout: u32 = 17, Limits::Range(1, 31);
    /// How often a packet is sent again before its work request fails (PRM `qpc.retry_count`, 3
    /// bits).
    "OXSHMEM_IB_RETRY_COUNT" copy ib_retry_count: u32 = 7, Limits::Range(0, 7);
    /// How often a request is sent again after a receiver-not-ready reply (PRM `qpc.rnr_retry`, 3
    /// bits; 7 means forever).
    "OXSHMEM_IB_RNR_RETRY" copy ib_rnr_retry: u32 = 6, Limits::Range(0, 7);
    /// How many reads and atomics may be in flight on one QP (PRM `qpc.log_sra_max` and
    /// `log_rra_max`); a card that has less lowers it.
    "OXSHMEM_IB_MAX_RD_ATOMIC" copy ib_max_rd_atomic: u32 = 16, Limits::PowerOfTwo(1, 128);
    /// Post signals, and the first request after a fence, with strong ordering (PRM `ctrl.fm` = 3),
    /// which waits for everything posted before: a round trip each. With `mlx5` this is done
    /// without being asked where a QP is found to place writes out of order and cannot be told not
    /// to. With `verbs`, which have no such requests, it is an error.
    "OXSHMEM_IB_STRONG_ORDERING" copy ib_strong_ordering: bool = false, Limits::None;
    /// Whether `quiet` and `barrier` read a byte through each QP that was written through, after
    /// what was written, and wait for it: a round trip more. A card may acknowledge a write before
    /// it is visible in the peer's memory; a PE that learns of it through another card, or by load
    /// and store from a PE of its node, could miss it. `auto` reads where that can be: with `mlx5`
    /// and `verbs`, if PEs drive several cards, push (`OXSHMEM_RAILS`), or reach each other by load
    /// and store.
    "OXSHMEM_IB_FLUSH" copy ib_flush: Flush = Flush::Auto, Limits::None;
    /// UDP source ports of RoCE v2, given to QPs in turn so that equal-cost paths share the load
    /// (PRM `ads.udp_sport`); empty: derived from the two QP numbers.
    "OXSHMEM_IB_UDP_SPORT" borrow ib_udp_sport: Vec<u32> = Vec::new(), Limits::Range(49152, 65535);
    /// Pairs of PEs that are treated as if their devices had no access to each other's memory, as
    /// in `0-1,2-3`; for tests.
    "OXSHMEM_P2P_FAULTS" borrow p2p_faults: String = String::new(), Limits::None;
    /// Faults that the software HCA produces on purpose, for tests; `hca/src/soft/faults.rs` has
    /// the grammar.
    "OXSHMEM_SOFT_FAULTS" borrow soft_faults: String = String::new(), Limits::None;
    /// What executes the software HCA's send queues: a `thread` of the CPU; a `kernel` of the
    /// device, for queues in GPU memory, which waits while the program's kernels leave it no room;
    /// or a thread that works by `copy`, which needs no room and is slower. `auto` is `thread` on
    /// the `cpu` device; on `cuda` it is the kernel, and copies while the kernel finds no room.
    /// Only `thread` produces faults.
    "OXSHMEM_SOFT_ENGINE" copy soft_engine: SoftEngine = SoftEngine::Auto, Limits::None;
    /// Print every command, doorbell, work request and completion of the software HCA on stderr.
    /// Its kernel prints only what it hands to the CPU.
    "OXSHMEM_SOFT_TRACE" copy soft_trace: bool = false, Limits::None;
    /// What `oxrun`, the tools, the performance tests, `liboxshmem`, and Rust programs that call
    /// `Config::init_log` log on stderr. Other programs decide by the `tracing` subscriber that
    /// they install.
    "OXSHMEM_LOG" borrow log: LogFilter = LogFilter("warn".into()), Limits::None;
    /// Write to stderr at the end of init how much memory this PE takes, by kind, in one line.
    "OXSHMEM_REPORT_MEMORY" copy report_memory: bool = false, Limits::None;
    /// Write to stderr at finalize which allocations of the symmetric heap were not freed, a line
    /// each, with the place in the program's source where each was made (for C programs its offset
    /// alone).
    "OXSHMEM_REPORT_LEAKS" copy report_leaks: bool = false, Limits::None;
    /// When a PE writes to stderr what it waits for, and the state of its queue pairs, teams and
    /// streams: at SIGUSR2 (`signal`), unless the program handles that itself; when a wait of the
    /// device API or for a kernel reaches its deadline (`deadline`), four times at most; when the
    /// job fails (`abort`). See `troubleshooting.md`.
    "OXSHMEM_DUMP" copy dump: Dumps = Dumps::ALL, Limits::None;
    /// What is checked while a job runs, for debugging. `calls`: all PEs make the same collective
    /// calls on the host. `buffers`: the source of a put over the network does not change before
    /// the put is complete; the software HCA's thread looks, for two milliseconds. `waits`: some PE
    /// goes on; on the `cpu` device, for the PEs of a node. What is found ends the call, or the
    /// job, with an error. See `debugging.md`.
    "OXSHMEM_CHECK" copy checks: Checks = Checks::NONE, Limits::None;
    /// What is recorded for profiling. `counters`: calls of device code, by peer and by team, where
    /// it was compiled with the macro `OXSHMEM_PROFILE`; and all counters go to a file at finalize.
    /// `trace`: each call of the host, and of such device code with its doorbells and completions;
    /// the newest go to a file at finalize, for Perfetto and `oxshmem-info trace`. `nvtx`: calls of
    /// the host as NVTX ranges, for Nsight Systems. See `profiling.md`.
    "OXSHMEM_PROFILE" copy profile: Profile = Profile::NONE, Limits::None;
    /// The folder that `OXSHMEM_PROFILE` has files written to, `counters-PE.json` and
    /// `trace-PE.json`. It is made if it is not there.
    "OXSHMEM_PROFILE_DIR" borrow profile_dir: PathBuf = PathBuf::from("oxshmem-profile"), Limits::None;
    /// How many records of device code (64 bytes each, in memory of the device) and of the host a
    /// PE keeps for `OXSHMEM_PROFILE=trace`. When there are more, the oldest give way, and are
    /// counted.
    "OXSHMEM_PROFILE_RECORDS" copy profile_records: u32 = 65536, Limits::PowerOfTwo(64, 4_194_304);
    /// Deadline of joining the job; after it the ranks that did not join are named. Also the limit
    /// on what PEs of a node pass to each other directly while memory is added.
    "OXSHMEM_BOOTSTRAP_TIMEOUT" copy bootstrap_timeout: Duration = Duration::from_secs(60), Limits::Range(100_000, 24 * HOUR);
    /// How long the host's calls in which PEs meet wait for the others: init once all have joined,
    /// allocation, free, the making and the end of teams and contexts, and finalize. After it the
    /// PEs that did not arrive are named. Without it the longer of `OXSHMEM_TIMEOUT` and
    /// `OXSHMEM_BOOTSTRAP_TIMEOUT`. A PE that dies ends the wait in any case.
    "OXSHMEM_MEETING_TIMEOUT" copy meeting_timeout: Option<Duration> = None, Limits::Range(100_000, 24 * HOUR);
    /// What started this process, where it was not `oxrun` or a unique id. `auto` takes the first
    /// launcher whose variables are set, in this order: `pmix`, `pmi` (PMI-2 or PMI-1 on `PMI_FD`),
    /// `torchrun`, `openmpi`, `slurm`; without any, or with `none`, the process is a job of one PE.
    /// A worker of torchrun that has `TORCHELASTIC_RUN_ID` is torchrun's, whatever started
    /// torchrun.
    "OXSHMEM_LAUNCHER" copy launcher: Launcher = Launcher::Auto, Limits::None;
    /// A file with 16 to 4096 secret bytes, of mode 0600, with the same content at all PEs. It
    /// keeps strangers out of jobs whose launcher gives the PEs no secret: `srun` without a PMI,
    /// torchrun, Open MPI's `mpirun`. Without it such a job uses munge (`OXSHMEM_MUNGE`). Other
    /// launchers carry a secret and ignore it.
    "OXSHMEM_SECRET_FILE" borrow secret_file: Option<PathBuf> = None, Limits::None;
    /// Whether munge carries the secret of a job whose launcher gives the PEs none, if there is no
    /// `OXSHMEM_SECRET_FILE`. `auto`: yes, where this node has `libmunge.so.2` and a running
    /// `munged`; where it has neither, the job admits processes of the same user on rank 0's node,
    /// and any process of its other nodes. `require`: yes, and a node without munge is an error.
    /// `off`: no. All nodes of a job have munge, or none: a mixture is an error, and so is a munge
    /// that does not work.
    "OXSHMEM_MUNGE" copy munge: Munge = Munge::Auto, Limits::None;
    /// Where the job's PEs meet. Set by the launcher.
    "OXSHMEM_RENDEZVOUS" borrow rendezvous: Option<Rendezvous> = None, Limits::None;
    /// This PE's number, below `OXSHMEM_NPES`. Set by the launcher.
    "OXSHMEM_RANK" copy rank: Option<u32> = None, Limits::Range(0, MAX_NPES as u64 - 1);
    /// PEs in the job. Set by the launcher.
    "OXSHMEM_NPES" copy npes: Option<u32> = None, Limits::Range(1, MAX_NPES as u64);
    /// The job's secret, which is never sent: a PE that does not prove that it knows it is refused.
    /// Set by the launcher.
    "OXSHMEM_JOB" copy job: Option<JobId> = None, Limits::None;
}

/// The most PEs that a job may have.
///
/// ```
/// use oxshmem::config::MAX_NPES;
/// use oxshmem::launch::{LaunchError, LaunchOptions, run};
///
/// let refused = run(&LaunchOptions::new(MAX_NPES + 1, "true"));
/// assert!(matches!(refused, Err(LaunchError::Npes(_))));
/// ```
pub const MAX_NPES: u32 = 4096;

/// The variables that only a launcher sets, so that one launcher started by another can drop them.
///
/// ```
/// use oxshmem::config::LAUNCHER_VARIABLES;
///
/// let mut command = std::process::Command::new("oxrun");
/// LAUNCHER_VARIABLES.iter().for_each(|name| {
///     command.env_remove(name);
/// });
/// ```
pub const LAUNCHER_VARIABLES: [&str; 4] = ["OXSHMEM_RENDEZVOUS", "OXSHMEM_RANK", "OXSHMEM_NPES", "OXSHMEM_JOB"];

/// Variables that build scripts read, and that may still be set when the program runs.
pub(super) const BUILD_VARIABLES: [&str; 1] = ["OXSHMEM_CUDA"];
