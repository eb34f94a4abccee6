//! What it takes to connect a PE to many others over a card, counted on the stand-in for rdma-core:
//! control path only, by one process, whose peers [`crate::mirror`] plays.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::mirror::{self, Played};

/// A job in which one PE exists.
#[derive(Debug, Clone)]
pub struct Simulated<'a> {
    /// The program `conformance-pe`.
    pub program: &'a Path,
    /// The library path with the stand-in's folder first.
    pub library_path: OsString,
    /// A file for the stand-in's report, written anew.
    pub report: &'a Path,
    /// PEs.
    pub pes: u32,
    /// `OXSHMEM_TRANSPORT`.
    pub transport: &'a str,
    /// How the stand-in misbehaves beside that.
    pub lies: &'a str,
    /// Further variables.
    pub variables: &'a [(&'a str, &'a str)],
}

/// What set-up of a PE took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    /// PEs of the job.
    pub pes: u32,
    /// Queue pairs of the PE.
    pub qps: u64,
    /// Commands for the card until it was open, and to give everything back.
    pub commands: u64,
    /// Bytes that the PE received from the rendezvous.
    pub received: u64,
    /// Bytes of memory that host and device share beside the heap: queues, landing slots, tables.
    pub memory: u64,
    /// Init, milliseconds.
    pub init_ms: f64,
    /// Finalize, milliseconds.
    pub finalize_ms: f64,
    /// Objects that were not given back.
    pub left: i64,
}

impl Simulated<'_> {
    /// Plays the job.
    ///
    /// # Panics
    /// See [`mirror::play`].
    #[must_use]
    pub fn play(&self) -> Played {
        // What is not there need not be removed.
        let _ = std::fs::remove_file(self.report);
        let mut program = Command::new(self.program);
        program.arg("set_up");
        let lies = format!("report:file={},{}", self.report.display(), self.lies);
        let mut variables = vec![
            ("LD_LIBRARY_PATH", self.library_path.clone()),
            ("RDMA_STAND_IN", lies.into()),
            ("OXSHMEM_HCA", "mlx5:mlx5_0".into()),
            ("OXSHMEM_DEVICE", "cpu".into()),
            ("OXSHMEM_TRANSPORT", self.transport.into()),
        ];
        variables.extend(self.variables.iter().map(|(name, value)| (*name, OsString::from(value))));
        mirror::play(program, self.pes, &variables)
    }

    /// Returns the number of that name in the stand-in's report.
    #[must_use]
    pub fn reported(&self, name: &str) -> Option<i64> {
        let report = std::fs::read_to_string(self.report).ok()?;
        let number = |item: &str| item.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
        report.split_whitespace().find_map(number)
    }

    /// Plays a job in which nothing fails, and returns what it took.
    ///
    /// # Panics
    /// Something fails.
    #[must_use]
    pub fn measure(&self) -> Taken {
        let played = self.play();
        let text = played.text();
        assert!(played.output.status.success(), "{} PEs: {}\n{text}", self.pes, played.output.status);
        let said = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        let counted = |name: &str| self.reported(name).and_then(|count| u64::try_from(count).ok());
        let taken = || {
            Some(Taken {
                pes: self.pes,
                qps: counted("qps")?,
                commands: counted("commands")?,
                received: played.received,
                memory: counted("umem_bytes")?,
                init_ms: said("init ms")?,
                finalize_ms: said("finalize ms")?,
                left: self.reported("live")?,
            })
        };
        taken().unwrap_or_else(|| panic!("{} PEs: a number is missing in\n{text}", self.pes))
    }
}

impl Taken {
    /// The columns of a table of these.
    pub const COLUMNS: &'static str =
        "| PEs | QPs | commands | received by the PE | GPU memory | init | finalize |\n|---|---|---|---|---|---|---|";
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pes, qps, commands, received, memory, init_ms, finalize_ms, .. } = self;
        let (kib, mib) = (*received as f64 / 1024.0, *memory as f64 / f64::from(1 << 20));
        write!(
            f,
            "| {pes} | {qps} | {commands} | {kib:.1} KiB | {mib:.1} MiB | {init_ms:.0} ms | {finalize_ms:.0} ms |"
        )
    }
}
