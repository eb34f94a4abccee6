//! Ways to register memory, and which of them work.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::Mlx5Error;
use super::record::Record;
use crate::provider::UmemSource;

/// A way to register memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// A dma-buf with the addresses that the device prefers.
    DmaBuf,
    /// A dma-buf with addresses of the PCIe BAR. On GH200 and GB200 it takes the way across the BAR
    /// in place of the one through the CPU's memory. A card's PCIe connection of its own to the GPU
    /// ("data direct") is used only by regions that are registered for it by `mlx5dv_reg_dmabuf_mr`
    /// with `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT` (rdma-core's manual page), which is not done
    /// here.
    DmaBufPcie,
    /// By its address, through a module of the kernel that knows it (nvidia_peermem).
    Address,
}

impl Registration {
    /// All, in the order in which they are tried: NCCL and UCX ask for a dma-buf without flags
    /// first.
    const ALL: [Self; 3] = [Self::DmaBuf, Self::DmaBufPcie, Self::Address];

    /// Returns all, `first` before the others.
    fn from(first: Self) -> [Self; 3] {
        let mut order = Self::ALL;
        let at = order.iter().position(|way| *way == first).unwrap_or(0);
        order[..=at].rotate_right(1);
        order
    }
}

impl fmt::Display for Registration {
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
    order: [Registration; 3],
    /// Place in the order.
    best: AtomicUsize,
}

impl Ladder {
    /// Creates the ladder for memory that becomes `what`, tried in the way `first` before others.
    pub(super) fn new(what: &'static str, first: Registration) -> Self {
        Self { what, order: Registration::from(first), best: AtomicUsize::new(0) }
    }

    /// Tries one way after the other, beginning with the one that worked last. Memory of the host
    /// has only one.
    pub(super) fn climb<T, E: fmt::Display>(
        &self,
        record: &Record,
        device: &str,
        source: UmemSource<'_>,
        register: impl Fn(Given<'_>) -> Result<T, E>,
    ) -> Result<T, Mlx5Error> {
        let (addr, len) = source.range();
        let exporter = match source {
            UmemSource::Fd { device, .. } | UmemSource::Program { device, .. } => device,
            UmemSource::Host { .. } => None,
        };
        let kind = if exporter.is_some() { "device" } else { "host" };
        let best = self.best.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for (place, way) in self.order.into_iter().enumerate().skip(if exporter.is_some() { best } else { 0 }) {
            let outcome = match (way, exporter) {
                (Registration::Address, _) => register(Given::Address(addr)).map_err(|error| error.to_string()),
                (_, None) => continue,
                (way, Some(exporter)) => exporter
                    .dma_buf(addr.addr() as u64, len, way == Registration::DmaBufPcie)
                    .and_then(|fd| register(Given::DmaBuf(fd.as_fd())).map_err(|error| error.to_string())),
            };
            let by = match (way, exporter) {
                (Registration::Address, Some(_)) => "by address (nvidia_peermem)".to_owned(),
                (way, _) => way.to_string(),
            };
            let what = format!("{kind} memory as {} {by}", self.what);
            match outcome {
                Ok(registered) => {
                    record.add::<String>(&what, Ok("done".to_owned()));
                    if exporter.is_some() {
                        self.best.store(place, Ordering::Relaxed);
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
        let hint = of_large_pages(self.what, rustix::param::page_size());
        Err(Mlx5Error::Registration { device: device.to_owned(), kind, bytes: len, reasons, hint })
    }
}

/// What memory of queues is registered as.
pub(super) const UMEM: &str = "umem";

/// Returns what a kernel with pages of `page_size` bytes may lack to register memory. Umems have
/// pages of 4 KiB, of which kernels with larger ones took none before commit 4fbc3a52cd4d
/// (`ib_umem_find_best_pgsz`).
fn of_large_pages(what: &str, page_size: usize) -> &'static str {
    if what != UMEM || page_size <= 4096 {
        return "";
    }
    "; this kernel's pages are larger than 4 KiB, and memory of queues then needs Linux 6.7, or a stable or vendor's kernel with its \
     \"RDMA/core: Fix umem iterator when PAGE_SIZE is greater then HCA pgsz\" (December 2023)"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_are_named_where_they_may_be_the_reason() {
        assert!(of_large_pages(UMEM, 65536).contains("needs Linux 6.7"));
        assert_eq!((of_large_pages(UMEM, 4096), of_large_pages("memory region", 65536)), ("", ""));
    }

    #[test]
    fn the_way_that_is_asked_for_comes_first() {
        use Registration::{Address, DmaBuf, DmaBufPcie};
        assert_eq!(Registration::from(DmaBuf), [DmaBuf, DmaBufPcie, Address]);
        assert_eq!(Registration::from(DmaBufPcie), [DmaBufPcie, DmaBuf, Address]);
        assert_eq!(Registration::from(Address), [Address, DmaBuf, DmaBufPcie]);
    }
}
