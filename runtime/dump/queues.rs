//! What a dump says of queue pairs that device code fills.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::reader::Reader;
use crate::abi::{self, BLOCK_BYTES};
use crate::fault::{self, DeviceFault};
use crate::slab::{Offset, Slab};

/// Queue pairs that are described in a dump; of the others only their number is.
const SHOWN: usize = 16;
/// Queue pairs that are looked at.
const LOOKED_AT: u64 = 1 << 14;

/// The place of a set of queue pairs, as device code knows them.
#[derive(Debug, Clone)]
pub(crate) struct QueuePlace {
    pub slab: Arc<Slab>,
    /// An array of [`abi::Qp`].
    pub at: Offset,
    /// Its entries, of which those without a queue pair are zero.
    pub entries: u64,
}

/// The sets of queue pairs of a PE: that of the default context, and those of contexts by number.
#[derive(Debug, Default)]
pub(crate) struct QueuePlaces(Mutex<BTreeMap<Option<u32>, QueuePlace>>);

impl QueuePlaces {
    fn change(&self, change: impl FnOnce(&mut BTreeMap<Option<u32>, QueuePlace>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Adds the default context's, or those of a set of contexts.
    pub fn add(&self, set: Option<u32>, place: QueuePlace) {
        self.change(|places| drop(places.insert(set, place)));
    }

    /// Forgets a set.
    pub fn remove(&self, set: u32) {
        self.change(|places| drop(places.remove(&Some(set))));
    }

    /// Describes all queue pairs that have work or are broken.
    pub fn describe(&self, reader: &mut Reader, state: &abi::State) -> Vec<String> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut lines, mut seen, mut busy, mut broken) = (Vec::new(), 0u64, 0u64, 0u64);
        for (set, QueuePlace { slab, at, entries }) in &places {
            let of = set.map_or_else(String::new, |set| format!(" of context set {set}"));
            for index in 0..(*entries).min(LOOKED_AT) {
                let from = slab.address(*at) + index * size_of::<abi::Qp>() as u64;
                // SAFETY: the slab holds the array, and is mapped while it is named here.
                let qp: abi::Qp = match unsafe { reader.read(from) } {
                    Ok(qp) => qp,
                    Err(why) => {
                        lines.push(format!("QPs{of}: not read: {why}"));
                        break;
                    }
                };
                if qp.wq == 0 {
                    continue;
                }
                seen += 1;
                let is_broken = qp.completed >= abi::BROKEN;
                broken += u64::from(is_broken);
                if let Some(line) = line(reader, &qp, state) {
                    busy += u64::from(!is_broken);
                    if lines.len() < SHOWN || is_broken && lines.len() < 2 * SHOWN {
                        lines.push(format!("QP {:#x} to PE {}{of}: {line}", qp.qpn, qp.pe));
                    }
                }
            }
        }
        if seen != 0 {
            lines.insert(0, format!("QPs: {seen}, of which {busy} have work and {broken} are broken"));
        }
        lines
    }
}

/// Describes a queue pair; `None` if it is idle.
fn line(reader: &mut Reader, qp: &abi::Qp, state: &abi::State) -> Option<String> {
    if qp.completed >= abi::BROKEN {
        let why = if qp.breakage.claimed == abi::ERROR_VALID {
            DeviceFault::decode(&qp.breakage.first, state).to_string()
        } else {
            "device code has not recorded why".to_owned()
        };
        return Some(format!("broken, {} blocks rung; first cause: {why}", qp.rung));
    }
    // The gate counts modulo a power of two.
    let since = |count: u64| (qp.gate >> abi::GATE_RESERVED_SHIFT).wrapping_sub(count) << abi::GATE_RESERVED_SHIFT;
    let open = since(qp.completed) >> abi::GATE_RESERVED_SHIFT;
    let posted = qp.completed + open;
    if open == 0 {
        return None;
    }
    let counts = format!("{posted} blocks posted, {} rung, {} known to be completed", qp.rung, qp.completed);
    match completed(reader, qp) {
        Ok(Hca::Completed(blocks)) if blocks >= posted => None,
        Ok(Hca::Completed(blocks)) => Some(format!("{counts}; the HCA has completed {blocks}")),
        Ok(Hca::Failed { syndrome }) => {
            let what = fault::syndrome(syndrome.into());
            Some(format!("{counts}; the HCA has completed a request with an error: {what}"))
        }
        Err(why) => Some(format!("{counts}; its completions are not read: {why}")),
    }
}

/// What the collapsed CQE says.
enum Hca {
    /// This number of blocks has completed.
    Completed(u64),
    Failed {
        syndrome: u8,
    },
}

/// Reads the collapsed CQE, and the request that it names, as `poll` in `detail/ibgda/complete.h`
/// does.
fn completed(reader: &mut Reader, qp: &abi::Qp) -> Result<Hca, String> {
    const INVALID: u8 = 0xf;
    const REQUEST_ERROR: u8 = 0xd;
    // SAFETY: the address is that of a queue in mapped memory, as the queue pair's record says.
    let cqe: [u8; 16] = unsafe { reader.read(qp.cqe + 48) }?;
    // Bytes 60 to 63: the counter (big-endian), a signature, the opcode. In an error CQE the
    // syndrome is byte 55.
    let (syndrome, tail) = (cqe[7], &cqe[12..]);
    match tail[3] >> 4 {
        INVALID => return Ok(Hca::Completed(qp.completed)),
        REQUEST_ERROR => return Ok(Hca::Failed { syndrome }),
        _ => {}
    }
    let counter = u16::from_be_bytes([tail[0], tail[1]]);
    let [low, high, ..] = qp.completed.to_le_bytes();
    let ahead = counter.wrapping_sub(u16::from_le_bytes([low, high])).cast_signed();
    let Ok(ahead) = u64::try_from(ahead) else { return Ok(Hca::Completed(qp.completed)) };
    let newest = qp.completed + ahead;
    let slot = newest & ((1 << qp.depth_log2) - 1);
    // SAFETY: as above.
    let control: [u8; 8] = unsafe { reader.read(qp.wq + slot * BLOCK_BYTES) }?;
    // The index of the request and its length in pieces of 16 bytes; if another request is there by
    // now, the length is not known.
    let is_same = control[1..3] == tail[..2];
    let pieces = u64::from(control[7] & 0x3f);
    Ok(Hca::Completed(newest + if is_same { pieces.div_ceil(4).max(1) } else { 1 }))
}
