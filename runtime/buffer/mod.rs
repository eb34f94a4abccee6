//! Memory of the program that is registered with the network's cards.

mod error;

use error::MOST;
pub use error::{BufferError, BufferInfo};

use crate::device::ProgramMemory;
use crate::transport::ChunkKeys;

/// A registered range, with what it takes.
#[derive(Debug)]
pub(crate) struct Registered {
    pub buffer: BufferInfo,
    /// By card; none without a network.
    pub keys: Vec<ChunkKeys>,
    /// Keeps the memory as the cards know it.
    pub _memory: ProgramMemory,
}

/// Memory of the program in the symmetric heap, with its keys by card.
#[derive(Debug)]
pub(crate) struct Symmetric {
    pub offset: u64,
    pub keys: Vec<ChunkKeys>,
}

/// The registered ranges of a PE. Places are those of the table that device code looks in.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Vec<Option<Registered>>);

impl Buffers {
    /// Returns the place for a range, which is free; why there is none, otherwise.
    pub(crate) fn place_for(&self, buffer: BufferInfo) -> Result<usize, BufferError> {
        if let Some(registered) = self.infos().into_iter().find(|other| other.overlaps(buffer)) {
            return Err(BufferError::Overlap { buffer, registered });
        }
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place < MOST { Ok(place) } else { Err(BufferError::TooMany { buffer }) }
    }

    /// Adds a range at the place that [`place_for`](Self::place_for) returned. Returns how many
    /// places there are.
    pub(crate) fn add(&mut self, place: usize, registered: Registered) -> usize {
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some(registered);
        self.0.len()
    }

    /// Returns the place of the range that begins at an address.
    pub(crate) fn find(&self, address: u64) -> Result<usize, BufferError> {
        let at = |registered: &Registered| registered.buffer.address == address;
        self.0.iter().position(|place| place.as_ref().is_some_and(at)).ok_or_else(|| {
            let nearest = self.infos().into_iter().min_by_key(|buffer| buffer.address.abs_diff(address));
            BufferError::Unknown { address, nearest }
        })
    }

    /// Returns the keys of the range at a place, by card.
    pub(crate) fn keys(&self, place: usize) -> &[ChunkKeys] {
        self.0[place].as_ref().map_or(&[], |registered| &registered.keys)
    }

    /// Takes the range at a place out.
    pub(crate) fn take(&mut self, place: usize) -> Option<Registered> {
        self.0[place].take()
    }

    /// Returns whether one of the ranges has all of `part`, which is not empty.
    pub(crate) fn contain(&self, part: BufferInfo) -> bool {
        let has = |whole: &BufferInfo| {
            let into = part.address.checked_sub(whole.address);
            into.is_some_and(|into| into < whole.bytes && part.bytes <= whole.bytes - into)
        };
        part.bytes != 0 && self.0.iter().flatten().any(|registered| has(&registered.buffer))
    }

    /// Returns the ranges, in the order of their places.
    pub(crate) fn infos(&self) -> Vec<BufferInfo> {
        self.0.iter().flatten().map(|registered| registered.buffer).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64) -> BufferInfo {
        BufferInfo { address, bytes }
    }

    fn add(buffers: &mut Buffers, buffer: BufferInfo) -> usize {
        let place = buffers.place_for(buffer).unwrap();
        let memory = ProgramMemory { on_device: false, _locked: None };
        buffers.add(place, Registered { buffer, keys: Vec::new(), _memory: memory })
    }

    #[test]
    fn places_are_used_again_and_end() {
        let mut buffers = Buffers::default();
        for i in 0..MOST as u64 {
            assert_eq!(add(&mut buffers, range(i * 16 + 16, 16)), i as usize + 1);
        }
        let more = range(1 << 20, 1);
        assert_eq!(buffers.place_for(more), Err(BufferError::TooMany { buffer: more }));
        let third = buffers.find(48).unwrap();
        assert_eq!((third, buffers.take(third).unwrap().buffer), (2, range(48, 16)));
        assert_eq!(buffers.place_for(more), Ok(2));
        assert_eq!(add(&mut buffers, more), MOST);
    }

    #[test]
    fn ranges_do_not_overlap() {
        let mut buffers = Buffers::default();
        add(&mut buffers, range(100, 50));
        for (address, bytes, fits) in
            [(50, 50, true), (50, 51, false), (149, 1, false), (150, 1, true), (90, 99, false)]
        {
            assert_eq!(buffers.place_for(range(address, bytes)).is_ok(), fits, "{bytes} at {address}");
        }
        let unknown = buffers.find(101).unwrap_err();
        assert_eq!(unknown.to_string(), "no registered buffer begins at 0x65; the nearest is 50 bytes at 0x64");
    }
}
