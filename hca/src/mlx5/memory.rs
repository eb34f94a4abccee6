//! Ways to register memory, and which of them work.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use super::error::Mlx5Error;
use super::record::Record;
use crate::provider::UmemSource;

/// A way to register memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// As dma-buf with addresses of the PCIe BAR.
    DmaBufPcie,
    /// As dma-buf with the addresses that the device prefers.
    DmaBuf,
    /// By its address: of memory of a device through a module of the kernel that knows it (nvidia_peermem).
    Address,
}

impl Way {
    const ALL: [Self; 3] = [Self::DmaBufPcie, Self::DmaBuf, Self::Address];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DmaBufPcie => "by dma-buf with PCIe mapping",
            Self::DmaBuf => "by dma-buf",
            Self::Address => "by address",
        })
    }
}

/// Memory in one of the ways.
pub(super) enum Given<'a> {
    /// A dma-buf that begins with the memory.
    DmaBuf(BorrowedFd<'a>),
    /// An address.
    Address(*mut u8),
}

/// What memory of devices is registered as, and the way that worked last.
#[derive(Debug)]
pub(super) struct Ladder {
    what: &'static str,
    best: AtomicU8,
}

impl Ladder {
    /// For memory that becomes `what`.
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, best: AtomicU8::new(Way::DmaBufPcie as u8) }
    }

    /// Tries one way after the other, beginning with the one that worked last. Memory of the host has only one.
    pub(super) fn climb<T, E: fmt::Display>(
        &self,
        record: &Record,
        device: &str,
        source: UmemSource<'_>,
        register: impl Fn(Given<'_>) -> Result<T, E>,
    ) -> Result<T, Mlx5Error> {
        let (addr, len) = source.range();
        let exporter = match source {
            UmemSource::Fd { device, .. } => device,
            UmemSource::Host { .. } => None,
        };
        let kind = if exporter.is_some() { "device" } else { "host" };
        let best = self.best.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for way in Way::ALL.into_iter().filter(|way| *way as u8 >= best) {
            let outcome = match (way, exporter) {
                (Way::Address, _) => register(Given::Address(addr)).map_err(|error| error.to_string()),
                (_, None) => continue,
                (way, Some(exporter)) => exporter
                    .dma_buf(addr.addr() as u64, len, way == Way::DmaBufPcie)
                    .and_then(|fd| register(Given::DmaBuf(fd.as_fd())).map_err(|error| error.to_string())),
            };
            let by = match (way, exporter) {
                (Way::Address, Some(_)) => "by address (nvidia_peermem)".to_owned(),
                (way, _) => way.to_string(),
            };
            let what = format!("{kind} memory as {} {by}", self.what);
            match outcome {
                Ok(registered) => {
                    record.add::<String>(&what, Ok("done".to_owned()));
                    if exporter.is_some() {
                        self.best.store(way as u8, Ordering::Relaxed);
                    }
                    return Ok(registered);
                }
                Err(reason) => {
                    record.add(&what, Err(&reason));
                    reasons.push(format!("{by}: {reason}"));
                }
            }
        }
        let reasons = reasons.join("; ");
        Err(Mlx5Error::Registration { device: device.to_owned(), kind, bytes: len, reasons })
    }
}
