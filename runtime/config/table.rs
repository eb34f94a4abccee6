//! The table of variables, which drives parsing, the errors and `docs/environment.md`.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use oxshmem_hca::topology::{DeviceChoice, MAX_CARDS};

use super::choices::{Device, Doorbell, Hca, SoftEngine, Staging, Transport};
use super::error::Origin;
use super::size::ByteSize;
use super::value::{Choice, Limits, LogFilter, Value};
use crate::bootstrap::job::{JobId, Rendezvous};
use crate::team::choice::Collectives;

/// What every variable's name starts with.
pub const PREFIX: &str = "OXSHMEM_";

/// Collects values that the program decides; what it does not set comes from the environment, if asked for, else from the table.
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
pub(super) const BUILD_VARIABLES: [&str; 1] = ["OXSHMEM_CUDA"];
