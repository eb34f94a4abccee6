//! The control segment: what an HCA tells its peers about its queue pairs and keys, in a shared
//! file that peers map read-only.
//!
//! Each entry has a sequence counter, odd while the entry changes, and its own 64-byte line. A peer
//! that cached what an entry says needs one load to know that it still holds.

use super::memory::Mapping;
use crate::error::{Error, Result};
use crate::port::Gid;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The most QPs of one HCA.
pub(super) const MAX_QPS: usize = 1 << 14;
/// The most memory keys of one HCA.
pub(super) const MAX_MKEYS: usize = 1 << 16;
/// The first QP number; below are the special QPs.
pub(super) const FIRST_QPN: u32 = 0x40;
/// The first key index; 0x000001 holds `MLX5_INVALID_LKEY`.
pub(super) const FIRST_MKEY: u32 = 0x10;

const MAGIC: u64 = u64::from_le_bytes(*b"OXHCACTL");
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4096;

/// How often a reader retries an entry that changes. A writer holds it for nanoseconds; one that
/// died in between holds it forever.
const READ_ATTEMPTS: usize = 1 << 12;

/// The segment's size in bytes.
pub(super) const BYTES: usize = HEADER_BYTES + MAX_QPS * size_of::<QpEntry>() + MAX_MKEYS * size_of::<MkeyEntry>();

/// Returns whether an HCA may have a QP of this number.
pub(super) fn is_qpn(qpn: u32) -> bool {
    qpn.checked_sub(FIRST_QPN).is_some_and(|slot| (slot as usize) < MAX_QPS)
}

/// Rights, as bits.
pub(super) mod rights {
    pub const LOCAL_READ: u32 = 1;
    pub const LOCAL_WRITE: u32 = 2;
    pub const REMOTE_READ: u32 = 4;
    pub const REMOTE_WRITE: u32 = 8;
    pub const REMOTE_ATOMIC: u32 = 16;
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    dead: AtomicU32,
    gid_hi: AtomicU64,
    gid_lo: AtomicU64,
}

#[repr(C, align(64))]
pub(super) struct QpEntry {
    seq: AtomicU32,
    qpn: AtomicU32,
    state: AtomicU32,
    pd: AtomicU32,
    rights: AtomicU32,
    remote_qpn: AtomicU32,
    rcv_psn: AtomicU32,
    log_rra_max: AtomicU32,
    remote_hi: AtomicU64,
    remote_lo: AtomicU64,
}

/// The entry of a QP of an HCA whose segment is not here yet. Its counter is 0.
pub(super) static UNMET: QpEntry = QpEntry {
    seq: AtomicU32::new(0),
    qpn: AtomicU32::new(0),
    state: AtomicU32::new(0),
    pd: AtomicU32::new(0),
    rights: AtomicU32::new(0),
    remote_qpn: AtomicU32::new(0),
    rcv_psn: AtomicU32::new(0),
    log_rra_max: AtomicU32::new(0),
    remote_hi: AtomicU64::new(0),
    remote_lo: AtomicU64::new(0),
};

/// What a QP entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct QpFacts {
    /// 0 if there is no such QP.
    pub qpn: u32,
    pub state: u32,
    pub pd: u32,
    /// What the QP accepts from its peer.
    pub rights: u32,
    pub remote_qpn: u32,
    pub rcv_psn: u32,
    /// log2 of the reads and atomics that it serves at a time.
    pub log_rra_max: u32,
    pub remote_gid: Gid,
}

#[repr(C, align(64))]
pub(super) struct MkeyEntry {
    seq: AtomicU32,
    key: AtomicU32,
    pd: AtomicU32,
    rights: AtomicU32,
    umem: AtomicU32,
    qpn: AtomicU32,
    start: AtomicU64,
    len: AtomicU64,
    umem_offset: AtomicU64,
}

/// What a key entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MkeyFacts {
    /// The whole key; 0 if there is none.
    pub key: u32,
    pub pd: u32,
    pub rights: u32,
    pub umem: u32,
    /// QP that may use it, or `prm::mkey::ANY_QP`.
    pub qpn: u32,
    pub start: u64,
    pub len: u64,
    pub umem_offset: u64,
}

const _: () = assert!(size_of::<QpEntry>() == 64 && size_of::<MkeyEntry>() == 64);
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// Reads an entry between two equal, even values of its counter.
fn read_stable<T>(seq: &AtomicU32, read: impl Fn() -> T) -> Option<(u32, T)> {
    for _ in 0..READ_ATTEMPTS {
        let before = seq.load(Ordering::Acquire);
        if before & 1 == 0 {
            let value = read();
            fence(Ordering::Acquire);
            if seq.load(Ordering::Relaxed) == before {
                return Some((before, value));
            }
        }
        std::hint::spin_loop();
    }
    None
}

/// Changes an entry. There is one writer: the HCA that owns it, under its lock.
fn write_stable(seq: &AtomicU32, write: impl FnOnce()) {
    let before = seq.load(Ordering::Relaxed);
    seq.store(before.wrapping_add(1), Ordering::Relaxed);
    fence(Ordering::Release);
    write();
    seq.store(before.wrapping_add(2), Ordering::Release);
}

impl QpEntry {
    /// Returns the counter: equal to an earlier value if and only if nothing changed since.
    #[inline]
    pub(super) fn seq(&self) -> u32 {
        self.seq.load(Ordering::Acquire)
    }

    /// Reads it, with the counter. `None` if it never stands still.
    pub(super) fn read(&self) -> Option<(u32, QpFacts)> {
        let get = |word: &AtomicU32| word.load(Ordering::Relaxed);
        read_stable(&self.seq, || QpFacts {
            qpn: get(&self.qpn),
            state: get(&self.state),
            pd: get(&self.pd),
            rights: get(&self.rights),
            remote_qpn: get(&self.remote_qpn),
            rcv_psn: get(&self.rcv_psn),
            log_rra_max: get(&self.log_rra_max),
            remote_gid: Gid::from_halves(
                self.remote_hi.load(Ordering::Relaxed),
                self.remote_lo.load(Ordering::Relaxed),
            ),
        })
    }
}

impl MkeyEntry {
    /// Returns the counter: equal to an earlier value if and only if nothing changed since.
    #[inline]
    pub(super) fn seq(&self) -> u32 {
        self.seq.load(Ordering::Acquire)
    }

    /// Reads it, with the counter. `None` if it never stands still.
    pub(super) fn read(&self) -> Option<(u32, MkeyFacts)> {
        let get = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let get64 = |word: &AtomicU64| word.load(Ordering::Relaxed);
        read_stable(&self.seq, || MkeyFacts {
            key: get(&self.key),
            pd: get(&self.pd),
            rights: get(&self.rights),
            umem: get(&self.umem),
            qpn: get(&self.qpn),
            start: get64(&self.start),
            len: get64(&self.len),
            umem_offset: get64(&self.umem_offset),
        })
    }
}

/// A mapped segment, this HCA's or a peer's.
#[derive(Debug)]
pub(super) struct Segment {
    mapping: Mapping,
}

impl Segment {
    fn header(&self) -> &Header {
        // SAFETY: the mapping is at least `BYTES` long, page-aligned, and every field is an atomic,
        // for which any bytes are valid.
        unsafe { &*self.mapping.ptr().cast::<Header>() }
    }

    /// Maps a peer's segment, and checks that it is one and belongs to `gid`.
    pub(super) fn of_peer(fd: BorrowedFd<'_>, gid: Gid) -> Result<Self> {
        let segment = Self { mapping: Mapping::of_fd(fd, 0, BYTES, false)? };
        let header = segment.header();
        let (magic, version) = (header.magic.load(Ordering::Relaxed), header.version.load(Ordering::Relaxed));
        if magic != MAGIC || version != VERSION {
            return Err(Error::protocol(
                format!("control segment of HCA {gid}"),
                format!("magic {magic:#x} version {version}, expected {MAGIC:#x} version {VERSION}"),
            ));
        }
        let owner = Gid::from_halves(header.gid_hi.load(Ordering::Relaxed), header.gid_lo.load(Ordering::Relaxed));
        if owner != gid {
            return Err(Error::protocol(format!("control segment of HCA {gid}"), format!("it belongs to {owner}")));
        }
        Ok(segment)
    }

    /// Returns whether the owner said that it is dead.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.header().dead.load(Ordering::Relaxed) != 0
    }

    /// Returns the entry of QP `qpn`, if the number is in range.
    pub(super) fn qp(&self, qpn: u32) -> Option<&QpEntry> {
        let slot = qpn.checked_sub(FIRST_QPN)? as usize;
        // SAFETY: the slot is below MAX_QPS, so the entry lies within the mapping; atomics take any
        // bytes.
        (slot < MAX_QPS).then(|| unsafe { &*self.mapping.ptr().add(HEADER_BYTES).cast::<QpEntry>().add(slot) })
    }

    /// Returns the entry of the key with this index (its upper 24 bits), if the number is in range.
    pub(super) fn mkey(&self, index: u32) -> Option<&MkeyEntry> {
        let slot = index.checked_sub(FIRST_MKEY)? as usize;
        let at = HEADER_BYTES + MAX_QPS * size_of::<QpEntry>();
        // SAFETY: the slot is below MAX_MKEYS, so the entry lies within the mapping; atomics take
        // any bytes.
        (slot < MAX_MKEYS).then(|| unsafe { &*self.mapping.ptr().add(at).cast::<MkeyEntry>().add(slot) })
    }
}

/// This HCA's segment.
#[derive(Debug)]
pub(super) struct OwnSegment {
    segment: Segment,
    fd: OwnedFd,
}

impl OwnSegment {
    /// Creates it.
    pub(super) fn create(gid: Gid) -> Result<Self> {
        let os = |errno| Error::os("create the control segment of the software HCA", errno);
        let fd = rustix::fs::memfd_create("oxshmem-hca-control", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(os)?;
        rustix::fs::ftruncate(&fd, BYTES as u64).map_err(os)?;
        // Peers rely on the size.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(os)?;
        let segment = Segment { mapping: Mapping::of_fd(fd.as_fd(), 0, BYTES, true)? };
        let header = segment.header();
        let (hi, lo) = gid.halves();
        header.gid_hi.store(hi, Ordering::Relaxed);
        header.gid_lo.store(lo, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Self { segment, fd })
    }

    /// Returns the file that peers map.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Tells peers that nothing will be served any more.
    pub(super) fn set_dead(&self) {
        self.segment.header().dead.store(1, Ordering::Release);
    }

    /// Publishes the facts of QP `qpn`; all zeros remove it.
    pub(super) fn publish_qp(&self, qpn: u32, facts: &QpFacts) {
        let Some(entry) = self.segment.qp(qpn) else { return };
        let (hi, lo) = facts.remote_gid.halves();
        write_stable(&entry.seq, || {
            entry.qpn.store(facts.qpn, Ordering::Relaxed);
            entry.state.store(facts.state, Ordering::Relaxed);
            entry.pd.store(facts.pd, Ordering::Relaxed);
            entry.rights.store(facts.rights, Ordering::Relaxed);
            entry.remote_qpn.store(facts.remote_qpn, Ordering::Relaxed);
            entry.rcv_psn.store(facts.rcv_psn, Ordering::Relaxed);
            entry.log_rra_max.store(facts.log_rra_max, Ordering::Relaxed);
            entry.remote_hi.store(hi, Ordering::Relaxed);
            entry.remote_lo.store(lo, Ordering::Relaxed);
        });
    }

    /// Publishes the facts of the key with this index; all zeros remove it.
    pub(super) fn publish_mkey(&self, index: u32, facts: &MkeyFacts) {
        let Some(entry) = self.segment.mkey(index) else { return };
        write_stable(&entry.seq, || {
            entry.key.store(facts.key, Ordering::Relaxed);
            entry.pd.store(facts.pd, Ordering::Relaxed);
            entry.rights.store(facts.rights, Ordering::Relaxed);
            entry.umem.store(facts.umem, Ordering::Relaxed);
            entry.qpn.store(facts.qpn, Ordering::Relaxed);
            entry.start.store(facts.start, Ordering::Relaxed);
            entry.len.store(facts.len, Ordering::Relaxed);
            entry.umem_offset.store(facts.umem_offset, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_reads_what_the_owner_published() {
        let gid = Gid::from_halves(0xfe80 << 48, 7);
        let own = OwnSegment::create(gid).unwrap();
        let peer = Segment::of_peer(own.fd(), gid).unwrap();
        let entry = peer.qp(FIRST_QPN + 3).unwrap();
        let (before, facts) = entry.read().unwrap();
        assert_eq!(facts, QpFacts::default());
        let qpn = FIRST_QPN + 3;
        let facts =
            QpFacts { qpn, state: 3, pd: 9, rights: 4, remote_qpn: 5, rcv_psn: 1, log_rra_max: 2, remote_gid: gid };
        own.publish_qp(FIRST_QPN + 3, &facts);
        assert_ne!(entry.seq(), before);
        assert_eq!(entry.read().unwrap().1, facts);
        let key = MkeyFacts { key: 0x1234, start: 1, len: 2, umem_offset: 3, pd: 4, rights: 5, umem: 6, qpn: 7 };
        own.publish_mkey(FIRST_MKEY, &key);
        assert_eq!(peer.mkey(FIRST_MKEY).unwrap().read().unwrap().1, key);
        assert!(!peer.is_dead());
        own.set_dead();
        assert!(peer.is_dead());
    }

    #[test]
    fn numbers_out_of_range_have_no_entry() {
        let own = OwnSegment::create(Gid::default()).unwrap();
        let peer = Segment::of_peer(own.fd(), Gid::default()).unwrap();
        assert!(peer.qp(0).is_none() && peer.qp(FIRST_QPN + MAX_QPS as u32).is_none() && peer.qp(u32::MAX).is_none());
        assert!(peer.mkey(0).is_none() && peer.mkey(FIRST_MKEY + MAX_MKEYS as u32).is_none());
        assert!(Segment::of_peer(own.fd(), Gid::from_halves(1, 1)).is_err());
    }

    #[test]
    fn an_entry_that_never_settles_is_given_up() {
        let own = OwnSegment::create(Gid::default()).unwrap();
        let entry = own.segment.qp(FIRST_QPN).unwrap();
        entry.seq.store(1, Ordering::Relaxed);
        assert!(entry.read().is_none());
    }
}
