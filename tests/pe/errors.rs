//! Errors in kernels: each is reported with what and where, and the PE goes on.

use oxshmem::device::DeviceError;
use oxshmem::device::cpu::KernelErrorKind;
use oxshmem::{DeviceFault, Error, FaultKind, LaunchConfig, Operations};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(ERRORS, "errors");

/// Calls of `one_call` in `kernels/errors.cu`, and the operation that the error names.
const CALLS: &[(u32, &str)] = &[
    (0, "put"),
    (1, "get"),
    (2, "p"),
    (3, "g"),
    (4, "iput"),
    (5, "iget"),
    (6, "atomic"),
    (7, "signal_op"),
    (8, "put_signal"),
    (11, "atomic"),
    (12, "put"),
    (14, "atomic"),
];
const PUT: u32 = 0;
const GET: u32 = 1;
const IPUT: u32 = 4;
const IGET: u32 = 5;
const FETCH_ADD: u32 = 6;
const SIGNAL: u32 = 7;
const PUT_SIGNAL_AT: u32 = 9;
const WAIT: u32 = 10;
const ATOMIC32: u32 = 11;
const TEST: u32 = 13;
const PUT_N: u32 = 15;
const GET_NBI_N: u32 = 16;
const PUT_SIGNAL_N: u32 = 17;
const WAIT_N: u32 = 18;
const SIGNAL_WAIT: u32 = 23;
const TEST_ALL: u32 = 24;
const TEST_ANY_VECTOR: u32 = 25;
const TEST_SOME: u32 = 26;
const P: u32 = 2;
const G: u32 = 3;
const P32: u32 = 19;
const G16: u32 = 20;
const P_CONVERTED: u32 = 21;
const ATOMICS_CONVERTED: u32 = 22;

/// Good values of `extra`.
const SIGNAL_SET: i64 = 9;

/// Threads of the launches, and which of them errs: thread 5 of block 1.
const BLOCKS: u32 = 2;
const THREADS: u32 = 40;
const WHO: u32 = THREADS + 5;

/// A rig, and memory with known content around what the calls may touch.
struct Bench {
    rig: Rig,
    memory: oxshmem::SymmetricSlice<u64>,
    ring: oxshmem::SymmetricSlice<u64>,
    launches: u64,
}

const UNTOUCHED: u64 = 0x5555_aaaa_5555_aaaa;

impl Bench {
    fn new() -> oxshmem::Result<Self> {
        let rig = Rig::new(&ERRORS)?;
        let memory = rig.filled(&[UNTOUCHED; 64])?;
        let ring = rig.pe.alloc((BLOCKS * THREADS) as usize)?;
        rig.pe.barrier_all()?;
        Ok(Self { rig, memory, ring, launches: 0 })
    }

    /// The fault of one call by thread `WHO`; nothing else has happened, and the next launch works.
    fn fault(&mut self, call: u32, at: u64, pe: i32, extra: i64) -> DeviceFault {
        let signal = self.memory.address() + 256;
        let args = (call, at, pe, extra, signal, WHO);
        let Err(error) = self.rig.run_linear("one_call", BLOCKS, THREADS, args) else {
            panic!("call {call} at {at:#x} to PE {pe} with {extra} was not refused")
        };
        let Error::Fault(fault) = error else { panic!("call {call}: {error:?}") };
        let fault = *fault;
        assert_eq!((fault.block, fault.thread), ([1, 0, 0], [5, 0, 0]), "{fault}");
        assert_eq!(fault.me, self.rig.me() as i32);
        self.goes_on();
        fault
    }

    /// A launch after an error is not affected by it, and refused calls have touched nothing.
    fn goes_on(&mut self) {
        self.launches += 1;
        let args = (&self.ring, self.launches * 1000, self.rig.report());
        self.rig.run_linear("still_works", BLOCKS, THREADS, args).expect("the launch after an error");
        let memory = self.rig.pe.read(self.memory.view(..64)).unwrap();
        assert!(memory.iter().all(|word| *word == UNTOUCHED), "a refused call has changed memory: {memory:x?}");
    }
}

pub fn refused(_: &[String]) -> Outcome {
    let mut bench = Bench::new()?;
    let n = bench.rig.n_pes() as i32;
    let me = bench.rig.me() as i32;
    let good = bench.memory.address();

    for &(call, operation) in CALLS {
        // PEs that do not exist.
        for pe in [-1, n, 1000, i32::MIN] {
            let fault = bench.fault(call, good, pe, SIGNAL_SET);
            assert_eq!(fault.kind, FaultKind::PeOutOfRange { pe, last: n - 1 }, "{fault}");
            assert_eq!(fault.operation, operation);
            assert!(fault.to_string().contains(&format!("PE {pe} does not exist")), "{fault}");
        }
    }

    // Addresses outside the heap, to every PE.
    let range = bench.rig.pe.alloc::<u64>(2)?;
    bench.rig.run_linear("heap_range", 1, 1, (&range,))?;
    let [base, bytes] = bench.rig.pe.read(range.view(..2))?[..] else { unreachable!() };
    let on_the_host = Box::new(0u64);
    for pe in 0..n {
        for at in [16, base - 16, base + bytes, &raw const *on_the_host as u64, u64::MAX - 31] {
            for &(call, operation) in CALLS {
                let fault = bench.fault(call, at, pe, SIGNAL_SET);
                let FaultKind::AddressOutsideHeap { address, bytes, pe: named } = fault.kind else { panic!("{fault}") };
                assert_eq!((address, named, fault.operation), (at, pe, operation), "{fault}");
                assert!(bytes > 0 && bytes <= 16 * 8, "{fault}");
            }
        }
        // A range that begins inside and ends outside.
        for call in [PUT, GET] {
            let fault = bench.fault(call, base + bytes - 8, pe, 0);
            assert_eq!(
                fault.kind,
                FaultKind::AddressOutsideHeap { address: base + bytes - 8, bytes: 16, pe },
                "{fault}"
            );
        }
        // Two elements, of which the second is outside.
        let fault = bench.fault(IPUT, base + bytes - 64, pe, 9);
        assert!(matches!(fault.kind, FaultKind::AddressOutsideHeap { .. }), "{fault}");
        // A stride whose extent does not fit 64 bits.
        for (call, stride) in [(IPUT, i64::MAX), (IPUT, 1 << 61), (IGET, i64::MAX / 8), (IPUT, (1 << 61) + 1)] {
            let fault = bench.fault(call, good, pe, stride);
            assert!(
                matches!(fault.kind, FaultKind::AddressOutsideHeap { .. } | FaultKind::BadArgument { .. }),
                "{stride}: {fault}"
            );
        }
        // Numbers of elements whose bytes do not fit the heap, or 64 bits.
        for call in [PUT_N, GET_NBI_N, PUT_SIGNAL_N] {
            for n in [bytes.cast_signed(), (1 << 61) + 1, -1] {
                let fault = bench.fault(call, good, pe, n);
                assert!(
                    matches!(fault.kind, FaultKind::AddressOutsideHeap { address, .. } if address == good),
                    "{n}: {fault}"
                );
            }
        }
        // Operands that are not aligned.
        for (call, at, operand) in
            [(FETCH_ADD, good + 4, 8), (ATOMIC32, good + 2, 4), (SIGNAL, good + 1, 8), (PUT_SIGNAL_AT, good + 4, 8)]
        {
            let fault = bench.fault(call, at, pe, SIGNAL_SET);
            assert_eq!(fault.kind, FaultKind::Unaligned { address: at, bytes: operand, pe }, "{fault}");
        }
        // Scalars, where that is checked: a GPU ends the kernel.
        if bench.rig.pe.device_name() == "cpu" {
            for (call, at, operand) in [
                (P, good + 4, 8),
                (P, good + 1, 8),
                (G, good + 2, 8),
                (P32, good + 2, 4),
                (G16, good + 1, 2),
                (P_CONVERTED, good + 4, 8),
                (ATOMICS_CONVERTED, good + 4, 8),
            ] {
                let fault = bench.fault(call, at, pe, 0);
                assert_eq!(fault.kind, FaultKind::Unaligned { address: at, bytes: operand, pe }, "{fault}");
            }
        }
        // Strides and signal operators.
        for (call, value) in
            [(IPUT, 0), (IPUT, -1), (IGET, 0), (IGET, i64::MIN), (SIGNAL, 0), (SIGNAL, 11), (PUT_SIGNAL_AT, 8)]
        {
            let fault = bench.fault(call, good, pe, value);
            let FaultKind::BadArgument { value: named, pe: to, .. } = fault.kind else { panic!("{fault}") };
            assert_eq!((named, to), (value, pe), "{fault}");
        }
    }
    // Waits: for variables that no peer can write, and with comparisons that are none.
    for (call, operation) in [
        (WAIT, "wait_until"),
        (TEST, "wait_until"),
        (SIGNAL_WAIT, "signal_wait_until"),
        (TEST_ALL, "wait_until"),
        (TEST_ANY_VECTOR, "wait_until"),
        (TEST_SOME, "wait_until"),
    ] {
        for at in [16, base + bytes] {
            let fault = bench.fault(call, at, me, 0);
            assert_eq!(
                (fault.operation, fault.kind),
                (operation, FaultKind::AddressOutsideHeap { address: at, bytes: 8, pe: me })
            );
        }
        let fault = bench.fault(call, good + 4, me, 0);
        assert_eq!(fault.kind, FaultKind::Unaligned { address: good + 4, bytes: 8, pe: me });
        let fault = bench.fault(call, good, me, 6);
        assert!(matches!(fault.kind, FaultKind::BadArgument { value: 6, .. }), "{fault}");
    }
    let fault = bench.fault(WAIT_N, good, me, (1 << 61) + 1);
    assert!(matches!(fault.kind, FaultKind::AddressOutsideHeap { .. }), "{fault}");

    // The first of two errors.
    let error = bench.rig.run_linear("two_errors", 1, 1, (good,)).unwrap_err();
    assert!(
        matches!(&error, Error::Fault(fault) if matches!(fault.kind, FaultKind::PeOutOfRange { pe: -7, .. })),
        "{error}"
    );
    bench.goes_on();
    bench.rig.pe.synchronize()?;

    let (zeros, signal) = (bench.rig.pe.alloc::<u64>(4)?, bench.rig.pe.alloc::<u64>(1)?);
    bench.rig.run_linear("zero_elements", 1, 1, (&zeros, &signal, bench.rig.report()))?;
    assert_eq!(bench.rig.pe.read(zeros.view(..4))?, [0; 4]);
    bench.rig.pe.write(&signal, &[0])?;
    bench.rig.pe.barrier_all()?;
    bench.rig.run_linear("zero_elements", 1, 1, (0_u64, &signal, bench.rig.report()))?;

    launches(&bench.rig)?;
    bench.rig.pe.barrier_all()?;
    let memory = bench.rig.pe.read(bench.memory.view(..64))?;
    assert!(memory.iter().all(|word| *word == UNTOUCHED), "a peer's refused call has changed memory");
    bench.rig.finish()
}

/// Launches that cannot be, and kernels that are not there.
fn launches(rig: &Rig) -> Outcome {
    let text = rig.function("no_such_kernel").unwrap_err().to_string();
    assert!(text.contains("no_such_kernel") && text.contains("heap_range"), "{text}");
    for (config, part) in [
        (LaunchConfig::linear(0, 1), "grid"),
        (LaunchConfig::linear(1, 0), "block"),
        (LaunchConfig::linear(1, 1025), "1024"),
        (LaunchConfig { shared_bytes: 1 << 30, ..LaunchConfig::linear(1, 1) }, "shared"),
    ] {
        let text = rig.run("heap_range", config, (rig.report(),)).unwrap_err().to_string();
        assert!(text.contains(part), "{config:?}: {text}");
    }
    let text = rig.run_linear("heap_range", 1, 1, ()).unwrap_err().to_string();
    assert!(text.contains("takes 1 arguments, 0 were given"), "{text}");
    let text = rig.run_linear("heap_range", 1, 1, (1u8,)).unwrap_err().to_string();
    assert!(text.contains("argument 0"), "{text}");
    Ok(())
}

/// Waits end at their deadline, with an error that says what was waited for. Run with a short
/// `OXSHMEM_TIMEOUT`.
pub fn timeouts(_: &[String]) -> Outcome {
    let mut bench = Bench::new()?;
    let me = bench.rig.me() as i32;
    let limit = bench.rig.pe.config().timeout().as_millis() as u64;
    let range = bench.rig.pe.alloc::<u64>(2)?;
    bench.rig.run_linear("heap_range", 1, 1, (&range,))?;
    let base = bench.rig.pe.read(&range)?[0];
    let operations = ["wait_until", "wait_until", "wait_until", "wait_until", "signal_wait_until", "barrier", "sync"];
    for (form, operation) in operations.into_iter().enumerate() {
        let variables = bench.rig.pe.alloc::<u64>(4)?;
        let collective = form >= 5;
        if collective && (me != 0 || bench.rig.n_pes() == 1) {
            continue;
        }
        let args = (form as u32, &variables, WHO);
        let error = bench.rig.run_linear("endless_wait", BLOCKS, THREADS, args).unwrap_err();
        let Error::Fault(fault) = error else { panic!("{operation}: {error:?}") };
        assert_eq!((fault.operation, fault.block, fault.thread), (operation, [1, 0, 0], [5, 0, 0]), "{fault}");
        let FaultKind::Timeout { timeout_ms, address, pe, heap_offset, unmet, .. } = fault.kind else {
            panic!("{fault}")
        };
        assert_eq!(timeout_ms, limit);
        let expected =
            [("equal to", 9, 1), ("other than", 0, 1), ("above", 0, 4), ("equal to", 9, 4), ("at least", 1, 1)];
        let seen = unmet.map(|unmet| (unmet.seen, unmet.bytes, (unmet.comparison, unmet.wanted, unmet.variables)));
        assert_eq!(seen, expected.get(form).map(|expected| (0, 8, *expected)), "{fault}");
        if !collective {
            let offset = variables.address() - base;
            assert_eq!(heap_offset, Some(offset));
            let text = fault.to_string();
            assert!(text.contains(&format!("heap offset {offset:#x}")) && !text.contains("for PE"), "{fault}");
        }
        assert!(fault.to_string().contains("OXSHMEM_TIMEOUT"), "{fault}");
        if collective {
            assert!(pe > 0 && (pe as usize) < bench.rig.n_pes(), "the PE that did not come: {fault}");
        } else {
            assert_eq!((address, pe), (variables.address(), me), "{fault}");
        }
        if !collective {
            bench.goes_on();
        }
    }
    let variables = bench.rig.pe.alloc::<u64>(4)?;
    let error = bench.rig.run_linear("many_endless_waits", 3, 64, (&variables,)).unwrap_err();
    assert!(matches!(&error, Error::Fault(fault) if matches!(fault.kind, FaultKind::Timeout { .. })), "{error}");
    // A call of the host waits no longer.
    let signal = bench.rig.pe.alloc::<u64>(1)?;
    let error = bench.rig.pe.signal_wait_until(signal.signal(0), oxshmem::Compare::Eq, 1).unwrap_err();
    assert!(matches!(&error, Error::Fault(fault) if fault.operation == "signal_wait_until"), "{error}");
    bench.goes_on();
    bench.rig.finish()
}

/// A store to a part of a peer's heap that nothing is allocated in: where it has memory, and where
/// it has not grown to yet. The error says so.
pub fn beyond(_: &[String]) -> Outcome {
    let rig = Rig::new(&ERRORS)?;
    let last = rig.filled(&[UNTOUCHED; 64])?;
    let range = rig.pe.alloc::<u64>(2)?;
    rig.run_linear("heap_range", 1, 1, (&range,))?;
    let [base, bytes] = rig.pe.read(&range)?[..] else { unreachable!() };
    let offset = bytes - 4096;
    if rig.me() != 0 {
        // PE 0 alone errs, and ends the job, once all are here. Its end may reach the others in
        // either barrier.
        let error = rig.pe.barrier_all().and_then(|()| rig.pe.barrier_all()).unwrap_err();
        assert!(error.to_string().contains("the test is over"), "{error}");
        return Ok(());
    }
    rig.pe.barrier_all()?;
    let peer = 1 % rig.n_pes();
    let args = (P, base + offset, peer as i32, 0i64, last.address(), 0u32);
    let error = rig.run_linear("one_call", 1, 1, args).and_then(|()| rig.pe.quiet()).unwrap_err();
    let text = error.to_string();
    let nearest = range.address() - base;
    for part in [
        format!("heap offset {offset:#x} is not allocated"),
        "the heap has grown to".to_owned(),
        format!("the allocation nearest to it is [{nearest:#x}, {:#x})", nearest + 16),
        format!("PE {peer}"),
        "Pe::alloc".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    // The connection to the peer may be lost.
    rig.pe.abort("the test is over");
    Ok(())
}

/// Kernels that crash.
pub fn crashes(_: &[String]) -> Outcome {
    let mut bench = Bench::new()?;
    let range = bench.rig.pe.alloc::<u64>(2)?;
    bench.rig.run_linear("heap_range", 1, 1, (&range,))?;
    let [base, bytes] = bench.rig.pe.read(range.view(..2))?[..] else { unreachable!() };
    for (form, at) in [(0u32, 8), (0, base + bytes - 8), (1, 0), (2, 0), (3, bench.ring.address())] {
        let error = bench.rig.run_linear("crash", BLOCKS, THREADS, (form, at, WHO)).unwrap_err();
        let Error::Device(DeviceError::Kernel(error)) = error else { panic!("form {form}: {error:?}") };
        assert_eq!(error.kernel, "crash");
        let is_right = match (&error.kind, form) {
            (KernelErrorKind::BadAddress { address, .. }, 0) => *address as u64 == at,
            (KernelErrorKind::Exception { what }, 1) => what.contains("thrown by the test"),
            (KernelErrorKind::Deadlock { .. }, 2) | (KernelErrorKind::Arithmetic { .. }, 3) => true,
            _ => false,
        };
        assert!(is_right, "form {form}: {error}");
        assert_eq!(error.position.block, [1, 0, 0], "{error}");
        if form != 2 {
            assert_eq!(error.position.thread, [5, 0, 0], "{error}");
        }
        bench.goes_on();
    }
    // An error that a crash takes the place of is the next wait's.
    let (absent, grid) = (bench.rig.n_pes() as i32, LaunchConfig::linear(BLOCKS, THREADS));
    let (good, signal) = (bench.memory.address(), bench.memory.address() + 256);
    // SAFETY: the kernels' types; the calls are refused, and the crash is what this is about.
    unsafe {
        let call = bench.rig.function("one_call")?;
        call.launch(&bench.rig.pe, grid, (P, good, absent, SIGNAL_SET, signal, WHO))?;
        bench.rig.function("crash")?.launch(&bench.rig.pe, grid, (1u32, 0u64, WHO))?;
    }
    let error = bench.rig.pe.synchronize().unwrap_err();
    assert!(matches!(error, Error::Device(DeviceError::Kernel(_))), "{error}");
    let Err(Error::Fault(fault)) = bench.rig.pe.synchronize() else { panic!("the error was lost") };
    assert!(matches!(fault.kind, FaultKind::PeOutOfRange { pe, .. } if pe == absent), "{fault}");
    bench.rig.pe.synchronize()?;
    bench.goes_on();
    bench.rig.pe.barrier_all()?;
    bench.rig.finish()
}
