//! The tests: what each measures, and what it does unless it is told otherwise.

use clap::ValueEnum;

use crate::atomic::AtomicOp;

/// A performance test; one program each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Bench {
    PutBw,
    PBw,
    GetBw,
    GBw,
    PutLatency,
    PLatency,
    GLatency,
    AtomicBw,
    AtomicLatency,
    SignalPingPong,
    PutSignalPingPong,
}

/// Threads that call an operation together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Scope {
    Thread,
    Warp,
    Block,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Thread, Self::Warp, Self::Block];

    /// Returns the name on the command line and in kernels' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Warp => "warp",
            Self::Block => "block",
        }
    }
}

/// A selection of scopes, as on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Scopes {
    Thread,
    Warp,
    Block,
    All,
}

impl Scopes {
    /// Returns the scopes, where `all` are those that there are.
    pub fn of(self, all: &[Scope]) -> Vec<Scope> {
        match self {
            Self::Thread => vec![Scope::Thread],
            Self::Warp => vec![Scope::Warp],
            Self::Block => vec![Scope::Block],
            Self::All => all.to_vec(),
        }
    }
}

/// What a test does unless options say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Smallest message, bytes.
    pub min: u64,
    /// Largest message, bytes.
    pub max: u64,
    /// From one size to the next.
    pub factor: u64,
    /// Measured iterations.
    pub iters: u64,
    /// Iterations before those.
    pub warmup: u64,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Bench {
    /// Every test.
    pub const ALL: [Self; 11] = [
        Self::PutBw,
        Self::PBw,
        Self::GetBw,
        Self::GBw,
        Self::PutLatency,
        Self::PLatency,
        Self::GLatency,
        Self::AtomicBw,
        Self::AtomicLatency,
        Self::SignalPingPong,
        Self::PutSignalPingPong,
    ];

    /// Returns the program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::PutBw => "shmem_put_bw",
            Self::PBw => "shmem_p_bw",
            Self::GetBw => "shmem_get_bw",
            Self::GBw => "shmem_g_bw",
            Self::PutLatency => "shmem_put_latency",
            Self::PLatency => "shmem_p_latency",
            Self::GLatency => "shmem_g_latency",
            Self::AtomicBw => "shmem_atomic_bw",
            Self::AtomicLatency => "shmem_atomic_latency",
            Self::SignalPingPong => "shmem_signal_ping_pong",
            Self::PutSignalPingPong => "shmem_put_signal_ping_pong",
        }
    }

    /// Returns what it measures, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::PutBw => "Bandwidth of put_nbi from PE 0 to PE 1: all iterations in flight, then one quiet.",
            Self::PBw => {
                "Rate of p, one 8-byte value per call, from PE 0 to PE 1: all iterations in flight, then one quiet."
            }
            Self::GetBw => "Bandwidth of get_nbi by PE 0 from PE 1: all iterations in flight, then one quiet.",
            Self::GBw => "Rate of g, one 8-byte value per call, by PE 0 from PE 1.",
            Self::PutLatency => "Time of one put_nbi and quiet from PE 0 to PE 1.",
            Self::PLatency => "Time of a round: the threads of a CTA put an array with p, 8 bytes a call, then quiet.",
            Self::GLatency => "Time of a round: the threads of a CTA fetch an array with g, 8 bytes a call.",
            Self::AtomicBw => "Rate of 64-bit atomics by PE 0 on the memory of PE 1, each word changed by one thread.",
            Self::AtomicLatency => "Time of one 64-bit atomic and quiet by one thread of PE 0 on the memory of PE 1.",
            Self::SignalPingPong => "Round trip of a signal between PE 0 and PE 1.",
            Self::PutSignalPingPong => "Round trip of put_signal between PE 0 and PE 1.",
        }
    }

    /// Returns the scopes that it can run in.
    pub fn scopes(self) -> &'static [Scope] {
        match self {
            Self::PutBw | Self::GetBw | Self::PutLatency | Self::PutSignalPingPong => &Scope::ALL,
            _ => &[Scope::Thread],
        }
    }

    /// Returns whether it reports times of single iterations instead of rates.
    pub fn is_latency(self) -> bool {
        use Bench::{AtomicLatency, GLatency, PLatency, PutLatency, PutSignalPingPong, SignalPingPong};
        matches!(self, PutLatency | PLatency | GLatency | AtomicLatency | SignalPingPong | PutSignalPingPong)
    }

    /// Returns whether both PEs run its kernel.
    pub fn is_ping_pong(self) -> bool {
        matches!(self, Self::SignalPingPong | Self::PutSignalPingPong)
    }

    /// Returns whether it measures atomics.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicBw | Self::AtomicLatency)
    }

    /// Returns the one message size, for those that have no other.
    pub fn only_size(self) -> Option<u64> {
        matches!(self, Self::AtomicLatency | Self::SignalPingPong).then_some(8)
    }

    /// Returns what message sizes must be a multiple of.
    pub fn unit(self) -> u64 {
        match self {
            Self::PutBw | Self::GetBw | Self::PutLatency | Self::PutSignalPingPong => 1,
            _ => 8,
        }
    }

    /// Returns whether more than one CTA can run it.
    pub fn takes_ctas(self) -> bool {
        !self.is_latency()
    }

    /// Returns whether more than one thread per CTA does something in `scope`.
    pub fn takes_threads(self, scope: Scope) -> bool {
        match self {
            Self::PutLatency | Self::PutSignalPingPong => scope == Scope::Block,
            Self::AtomicLatency | Self::SignalPingPong => false,
            _ => true,
        }
    }

    /// Returns the atomic that is measured unless another is named.
    pub fn default_op(self) -> Option<AtomicOp> {
        self.is_atomic().then_some(AtomicOp::FetchInc)
    }

    /// Returns what it does on a device unless options say otherwise. The `cpu` device runs one GPU
    /// thread at a time per worker, so it gets fewer of them and smaller messages than a GPU.
    pub fn defaults(self, cpu: bool) -> Defaults {
        let of = |min, max, factor, iters, warmup, ctas, threads| Defaults {
            min,
            max,
            factor,
            iters,
            warmup,
            ctas,
            threads,
        };
        match (self, cpu) {
            (Self::PutBw | Self::GetBw, true) => of(64, 4 * MIB, 4, 500, 50, 4, 32),
            (Self::PutBw | Self::GetBw, false) => of(4, 32 * MIB, 2, 200, 20, 4, 1024),
            (Self::PBw, true) => of(KIB, 64 * KIB, 4, 1000, 100, 2, 128),
            (Self::PBw, false) => of(KIB, 64 * KIB, 2, 10, 10, 4, 1024),
            (Self::GBw, true) => of(KIB, 64 * KIB, 4, 200, 20, 2, 128),
            (Self::GBw, false) => of(KIB, 64 * KIB, 2, 100, 10, 8, 1024),
            (Self::PutLatency, true) => of(8, 64 * KIB, 4, 500, 50, 1, 32),
            (Self::PutLatency, false) => of(4, 64 * KIB, 2, 200, 20, 1, 1024),
            (Self::PLatency, true) => of(8, 64 * KIB, 4, 200, 20, 1, 128),
            (Self::GLatency, true) => of(8, 16 * KIB, 4, 200, 20, 1, 128),
            (Self::PLatency, false) => of(8, 64 * KIB, 2, 50, 5, 1, 512),
            (Self::GLatency, false) => of(8, 64 * KIB, 2, 200, 20, 1, 512),
            (Self::AtomicBw, true) => of(KIB, 16 * KIB, 4, 100, 10, 2, 128),
            (Self::AtomicBw, false) => of(KIB, 64 * KIB, 2, 10, 10, 4, 1024),
            (Self::AtomicLatency, _) => of(8, 8, 2, 500, 50, 1, 1),
            (Self::SignalPingPong, _) => of(8, 8, 2, 500, 50, 1, 1),
            (Self::PutSignalPingPong, true) => of(8, 64 * KIB, 8, 200, 20, 1, 32),
            (Self::PutSignalPingPong, false) => of(4, MIB, 2, 500, 50, 1, 1024),
        }
    }
}
