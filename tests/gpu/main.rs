//! One PE of a test of the `cuda` device: `gpu-pe CASE`, started by `gpu.rs`, or by `oxrun` on a
//! machine with GPUs.

#![allow(clippy::unwrap_used)] // A failed case ends this process, which is how it reports.

mod graphs;
mod interop;
mod limits;
mod linked;
mod modules;
mod on_stand_in;
mod running;
mod streams;

use std::process::ExitCode;

use oxshmem::device::DeviceError;
use oxshmem::{Config, Error, Pe};

oxshmem::include_module!(GPU, "gpu");

/// What a case returns; an error or a panic fails the test, with its text.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A case and its name.
type Case = (&'static str, fn() -> Outcome);

const CASES: &[Case] = &[
    ("aborted", running::aborted),
    ("beside_cudarc", interop::beside_cudarc),
    ("callers_streams", streams::callers_streams),
    ("captured_on_stand_in", on_stand_in::captured),
    ("chunks", limits::chunks),
    ("copied_on_stand_in", on_stand_in::copied),
    ("cudarc_api", interop::cudarc_api),
    ("collectives_on_stand_in", on_stand_in::collectives),
    ("context_lost", running::context_lost),
    ("early_on_stand_in", on_stand_in::early),
    ("follows", streams::follows),
    ("graphs", graphs::graphs),
    ("held_on_stand_in", on_stand_in::held),
    ("killed", running::killed),
    ("launches", limits::launches),
    ("linked", linked::linked),
    ("linked_deadline", linked::linked_deadline),
    ("modules", modules::modules),
    ("out_of_memory", limits::out_of_memory),
    ("overdue", running::overdue),
    ("own_modules", streams::own_modules),
    ("probe", probe),
    ("queued_on_stand_in", on_stand_in::queued),
    ("rounds", running::rounds),
    ("rounds_on_stand_in", on_stand_in::rounds),
    ("sees_one_gpu", limits::sees_one_gpu),
    ("unanswered", running::unanswered),
    ("waits_on_stand_in", on_stand_in::waits),
    ("words_on_stand_in", on_stand_in::words),
];

/// The status with which `probe` says that there is no GPU.
const ABSENT: i32 = oxshmem_tests::ABSENT;

/// Joins a job on the GPU, whatever the environment says about the device.
fn init() -> oxshmem::Result<Pe> {
    init_with(Config::builder())
}

fn init_with(builder: oxshmem::config::ConfigBuilder) -> oxshmem::Result<Pe> {
    Pe::with_config(builder.env().device(oxshmem::config::Device::Cuda).build()?)
}

fn probe() -> Outcome {
    match init() {
        Ok(pe) => {
            println!("{:?}", pe.gpu());
            Ok(pe.finalize()?)
        }
        Err(Error::Device(error @ DeviceError::Unavailable { .. })) => {
            println!("{error}");
            std::process::exit(ABSENT);
        }
        Err(error) => Err(error.into()),
    }
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, case)) = CASES.iter().find(|(known, _)| *known == name) else {
        eprintln!("gpu-pe CASE; the cases: {:?}", CASES.iter().map(|(name, _)| name).collect::<Vec<_>>());
        return ExitCode::from(2);
    };
    if let Ok(config) = Config::from_env() {
        config.init_log();
    }
    match case() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
