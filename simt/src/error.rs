//! What can go wrong with a module, a launch and a running kernel.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// Why a module of device code was refused.
///
/// ```
/// use oxshmem_simt::ModuleError;
///
/// assert!(ModuleError::Null.to_string().contains("null pointer"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The module's entry function returned nothing.
    #[error("the module has no description: its entry function returned a null pointer")]
    Null,
    /// The module and the runtime disagree about the layout of device state.
    #[error(
        "the module was built for device ABI {module} ({module_bytes} bytes of state), this runtime has ABI {runtime} \
         ({runtime_bytes} bytes): rebuild the module with the headers of this runtime"
    )]
    AbiVersion {
        /// The module's ABI version.
        module: u32,
        /// The module's `sizeof(abi::State)`.
        module_bytes: u32,
        /// The runtime's ABI version.
        runtime: u32,
        /// The runtime's `sizeof(abi::State)`.
        runtime_bytes: u32,
    },
    /// The module and the executor disagree about the calls between them.
    #[error(
        "the module was built for version {module} of the cpu device, this runtime has version {runtime}: rebuild the module \
         with the headers of this runtime"
    )]
    CpuVersion {
        /// The module's version.
        module: u32,
        /// The runtime's version.
        runtime: u32,
    },
    /// No kernel has this name.
    #[error("the module has no kernel `{name}`; it has: {known}. Kernels are declared with OXSHMEM_KERNEL")]
    NoKernel {
        /// The requested name.
        name: String,
        /// The names there are, separated by commas.
        known: String,
    },
}

/// What a launch leaves room for, if it does.
struct Beside(u32);

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            blocks => write!(f, ", beside the {blocks} blocks of the software HCA's kernel, which they may wait for"),
        }
    }
}

/// Why a launch was refused. Nothing of it has run.
///
/// ```
/// use oxshmem_simt::LaunchError;
///
/// let error = LaunchError::Grid { kernel: "sum".into(), grid: [0, 1, 1] };
/// assert!(error.to_string().starts_with("kernel `sum`: a grid of [0, 1, 1] blocks"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A grid extent is 0, or the grid has 2^32 blocks or more.
    #[error(
        "kernel `{kernel}`: a grid of {grid:?} blocks; every extent must be at least 1 and the product less than 2^32"
    )]
    Grid {
        /// The kernel.
        kernel: String,
        /// The requested extents.
        grid: [u32; 3],
    },
    /// A grid extent beyond what the device takes.
    #[error("kernel `{kernel}`: a grid of {grid:?} blocks; this device takes at most {limit:?}")]
    GridLimit {
        /// The kernel.
        kernel: String,
        /// The requested extents.
        grid: [u32; 3],
        /// The most of each.
        limit: [u32; 3],
    },
    /// A block extent is 0, or the block is too large.
    #[error(
        "kernel `{kernel}`: a block of {block:?} threads; every extent must be at least 1 and the product at most {limit}"
    )]
    Block {
        /// The kernel.
        kernel: String,
        /// The requested extents.
        block: [u32; 3],
        /// The most threads of a block.
        limit: u32,
    },
    /// A cooperative launch of more threads than may be live together.
    #[error(
        "kernel `{kernel}`: a cooperative launch of {threads} threads, but at most {limit} can be live together on the cpu device; launch fewer \
         blocks and loop over the grid in the kernel"
    )]
    Threads {
        /// The kernel.
        kernel: String,
        /// Threads of the launch.
        threads: u64,
        /// The limit.
        limit: u64,
    },
    /// More blocks than can run at the same time.
    #[error(
        "kernel `{kernel}`: a cooperative launch of {blocks} blocks of {threads} threads, but at most {limit} of that shape run at the same \
         time ({per_sm} on each of {sms} SMs{}): launch fewer blocks, or use fewer threads, registers or shared memory in each",
        Beside(*beside)
    )]
    Cooperative {
        /// The kernel.
        kernel: String,
        /// Requested blocks.
        blocks: u64,
        /// Threads of each.
        threads: u32,
        /// The most blocks.
        limit: u64,
        /// Blocks of that shape that one SM holds.
        per_sm: u32,
        /// SMs of the GPU.
        sms: u32,
        /// Blocks of the software HCA's kernel that need room beside them; 0 if it does not run
        /// there.
        beside: u32,
    },
    /// Too much dynamic shared memory.
    #[error("kernel `{kernel}`: {bytes} bytes of dynamic shared memory, the limit is {limit} bytes a block")]
    Shared {
        /// The kernel.
        kernel: String,
        /// Requested bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The wrong number of arguments.
    #[error("kernel `{kernel}` takes {expected} arguments, {given} were given")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Parameters of the kernel.
        expected: usize,
        /// Arguments of the launch.
        given: usize,
    },
    /// An argument of the wrong size.
    #[error("kernel `{kernel}`: argument {index} (counted from 0) has {given} bytes, its parameter has {expected}")]
    ArgumentSize {
        /// The kernel.
        kernel: String,
        /// Position of the argument, from 0.
        index: usize,
        /// Bytes of the parameter.
        expected: usize,
        /// Bytes of the argument.
        given: usize,
    },
    /// The kernel is one of a PE that has been finalized.
    #[error("kernel `{kernel}` belongs to a PE that has been finalized; load its module again")]
    Stale {
        /// The kernel.
        kernel: String,
    },
    /// An option of the executor is out of range.
    #[error("executor option `{option}` is {value}; it must be {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A worker or the watchdog could not be started.
    #[error("cannot start a thread of the executor: {reason}")]
    Thread {
        /// What the system answered.
        reason: String,
    },
    /// The signal handlers that catch faults of device code could not be installed.
    #[error("cannot install the handler of signal {signal} for faults in device code: {reason}")]
    Signal {
        /// The signal's number.
        signal: i32,
        /// What the system answered.
        reason: String,
    },
}

/// Where in the grid a thread is.
///
/// ```
/// use oxshmem_simt::Position;
///
/// let position = Position { block: [1, 0, 0], thread: [31, 0, 0] };
/// assert_eq!(position.to_string(), "block (1,0,0), thread (31,0,0)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// blockIdx: x, y, z.
    pub block: [u32; 3],
    /// threadIdx: x, y, z.
    pub thread: [u32; 3],
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = self.thread;
        write!(f, "block ({bx},{by},{bz}), thread ({tx},{ty},{tz})")
    }
}

/// The error that ended a kernel.
///
/// ```
/// use oxshmem_simt::{KernelError, KernelErrorKind, Position};
///
/// let position = Position { block: [0; 3], thread: [0; 3] };
/// let error = KernelError { kernel: "sum".into(), position, kind: KernelErrorKind::StackOverflow { stack_bytes: 65536 } };
/// assert!(error.to_string().starts_with("kernel `sum`, block (0,0,0), thread (0,0,0): "));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("kernel `{kernel}`, {position}: {kind}")]
pub struct KernelError {
    /// The kernel's name.
    pub kernel: String,
    /// The thread that failed; for a deadlock the first one that waits, for a deadline one that was
    /// still running.
    pub position: Position,
    /// What happened.
    pub kind: KernelErrorKind,
}

/// What ended a kernel.
///
/// ```
/// use oxshmem_simt::KernelErrorKind;
///
/// assert!(KernelErrorKind::StackOverflow { stack_bytes: 65536 }.to_string().contains("65536"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelErrorKind {
    /// An access outside mapped memory, or against its protection (SIGSEGV, SIGBUS).
    #[error("{access} address {address:#x}, which is {reason} (at instruction {pc:#x}){note}")]
    BadAddress {
        /// `read of`, `write to` or, where the processor does not tell, `access to`.
        access: &'static str,
        /// The address.
        address: usize,
        /// Why the system refused it.
        reason: &'static str,
        /// The instruction that made the access.
        pc: usize,
        /// What the PE knows of the address, after a semicolon: where it is in a heap, if it is
        /// there. Empty if it knows nothing.
        note: String,
    },
    /// The stack of the thread was too small.
    #[error(
        "stack overflow: the thread needs more than its {stack_bytes} bytes of stack; raise OXSHMEM_CPU_STACK \
         (ExecutorOptions::stack_bytes)"
    )]
    StackOverflow {
        /// Usable bytes of the stack.
        stack_bytes: usize,
    },
    /// An integer division by zero, or one whose result does not fit (SIGFPE).
    #[error("arithmetic fault: integer division by zero or overflow in a division (at instruction {pc:#x})")]
    Arithmetic {
        /// The instruction.
        pc: usize,
    },
    /// An instruction the processor does not have; compilers also end unreachable code with one
    /// (SIGILL).
    #[error("illegal instruction (at {pc:#x})")]
    IllegalInstruction {
        /// The instruction.
        pc: usize,
    },
    /// A C++ exception left the kernel.
    #[error("exception: {what}")]
    Exception {
        /// The exception's text.
        what: String,
    },
    /// No thread of the block can ever run on.
    #[error("deadlock: all {live} live threads of the block wait: {waiting}")]
    Deadlock {
        /// Threads of the block that have not exited.
        live: u32,
        /// Which thread waits for what.
        waiting: String,
    },
    /// A warp operation that breaks the rules for masks.
    #[error("warp operation misused: {detail}")]
    WarpOperation {
        /// What is wrong.
        detail: String,
    },
    /// The kernel was still running at its deadline.
    #[error(
        "the kernel ran longer than its deadline of {deadline:?} and was stopped with {live} threads of this worker live; \
         {state}. Raise OXSHMEM_KERNEL_TIMEOUT (ExecutorOptions::deadline) if it is only slow"
    )]
    Deadline {
        /// The deadline.
        deadline: Duration,
        /// Threads that had not exited, on the worker that reports.
        live: u64,
        /// What the named thread was doing.
        state: String,
    },
    /// No memory for stacks.
    #[error("cannot map stacks for the kernel's threads: {reason}")]
    StackMemory {
        /// What the system answered.
        reason: String,
    },
    /// A defect of the executor itself.
    #[error("internal error of the cpu device: {what}")]
    Internal {
        /// The panic's text.
        what: String,
    },
}
