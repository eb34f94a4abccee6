//! The slab: one piece of memory per PE for everything that host and device share beside the heap,
//! so that it is one umem and one memory region for each card. It is memory of the device, unless a
//! card that has to read its queues there cannot.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytemuck::Pod;

use crate::abi::LINE_BYTES;
use crate::device::{AddressSpace, Device, DeviceError, HostMemory, Memory};
use crate::memory::{MemoryBytes, MemoryKind, MemoryUse};

/// Lays the parts of a slab out, one after another.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    end: u64,
    memory: MemoryUse,
}

/// An offset in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offset(pub u64);

impl Layout {
    /// Reserves room for `count` items of `bytes` bytes, beginning on a line of its own, for a use
    /// of this kind.
    pub(crate) fn array(&mut self, kind: MemoryKind, count: u64, bytes: u64) -> Offset {
        let offset = self.end.next_multiple_of(LINE_BYTES);
        self.memory.add(MemoryKind::Tables, MemoryBytes::device(offset - self.end));
        self.memory.add(kind, MemoryBytes::device(count * bytes));
        self.end = offset + count * bytes;
        Offset(offset)
    }

    /// Returns whether a slab has as many bytes as this layout takes.
    pub(crate) fn fits(&self, slab: &Slab) -> bool {
        self.end.next_multiple_of(slab.device().granularity()) == slab.bytes()
    }

    /// Returns the bytes that are laid out.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }
}

/// Memory that kernels reach, at an address that does not change.
#[derive(Debug)]
pub(crate) struct Slab {
    device: Arc<dyn Device>,
    place: Place,
    bytes: u64,
    memory: MemoryUse,
}

#[derive(Debug)]
enum Place {
    Device { space: Box<dyn AddressSpace>, memory: Memory },
    Host(Box<dyn HostMemory>),
}

impl Slab {
    /// Allocates zeroed memory for everything in `layout`: of the device, or of the host.
    pub(crate) fn new(device: Arc<dyn Device>, layout: &Layout, on_host: bool) -> Result<Self, DeviceError> {
        let bytes = layout.end.next_multiple_of(device.granularity());
        let place = if on_host {
            Place::Host(device.host_memory(bytes)?)
        } else {
            let memory = device.allocate(bytes)?;
            let space = device.reserve(bytes, 1)?;
            space.map_own(&memory, 0, bytes)?;
            Place::Device { space, memory }
        };
        let mut memory = MemoryUse::default();
        let left = MemoryBytes::device(bytes - layout.end);
        for (kind, part) in layout.memory.iter().chain([(MemoryKind::Tables, left)]) {
            memory.add(kind, if on_host { MemoryBytes::host(part.device) } else { part });
        }
        Ok(Self { device, place, bytes, memory })
    }

    fn base(&self) -> u64 {
        match &self.place {
            Place::Device { space, .. } => space.base(),
            Place::Host(memory) => memory.address() as u64,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns its bytes by what they are for.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        self.memory
    }

    pub(crate) fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    /// Returns the descriptor of the memory, if it is the device's.
    pub(crate) fn memory(&self) -> Option<BorrowedFd<'_>> {
        match &self.place {
            Place::Device { memory, .. } => Some(memory.as_fd()),
            Place::Host(_) => None,
        }
    }

    /// Returns the device address of a part.
    pub(crate) fn address(&self, at: Offset) -> u64 {
        self.base() + at.0
    }

    /// Writes `value` at `at + index * size_of::<T>()`.
    pub(crate) fn write<T: Pod>(&self, at: Offset, index: u64, value: &T) -> Result<(), DeviceError> {
        let offset = at.0 + index * size_of::<T>() as u64;
        assert!(offset + size_of::<T>() as u64 <= self.bytes, "slab write past its end");
        // SAFETY: the range is inside the slab, which is mapped while `self` lives.
        unsafe { self.device.write(self.base() + offset, bytemuck::bytes_of(value)) }
    }

    /// Writes `values` one after another from `at`, at once.
    pub(crate) fn write_all<T: Pod>(&self, at: Offset, values: &[T]) -> Result<(), DeviceError> {
        assert!(at.0 + size_of_val(values) as u64 <= self.bytes, "slab write past its end");
        // SAFETY: as in `write`.
        unsafe { self.device.write(self.address(at), bytemuck::cast_slice(values)) }
    }

    /// Writes `values` one after another from `at + index * size_of::<T>()`, at once.
    pub(crate) fn write_from<T: Pod>(&self, at: Offset, index: u64, values: &[T]) -> Result<(), DeviceError> {
        self.write_all(Offset(at.0 + index * size_of::<T>() as u64), values)
    }

    /// Reads what [`write`](Self::write) writes.
    pub(crate) fn read<T: Pod>(&self, at: Offset, index: u64) -> Result<T, DeviceError> {
        let offset = at.0 + index * size_of::<T>() as u64;
        assert!(offset + size_of::<T>() as u64 <= self.bytes, "slab read past its end");
        let mut value = T::zeroed();
        // SAFETY: as in `write`.
        unsafe { self.device.read(self.base() + offset, bytemuck::bytes_of_mut(&mut value)) }?;
        Ok(value)
    }

    /// Reads `count` values one after another, from `at + index * size_of::<T>()` on.
    pub(crate) fn read_many<T: Pod>(&self, at: Offset, index: u64, count: usize) -> Result<Vec<T>, DeviceError> {
        let offset = at.0 + index * size_of::<T>() as u64;
        assert!(offset + (count * size_of::<T>()) as u64 <= self.bytes, "slab read past its end");
        let mut values = vec![T::zeroed(); count];
        // SAFETY: as in `write`.
        unsafe { self.device.read(self.base() + offset, bytemuck::cast_slice_mut(&mut values)) }?;
        Ok(values)
    }

    /// Sets all bytes to zero.
    pub(crate) fn clear(&self) -> Result<(), DeviceError> {
        self.fill(Offset(0), self.bytes, 0)
    }

    /// Sets `bytes` bytes to `value`.
    pub(crate) fn fill(&self, at: Offset, bytes: u64, value: u8) -> Result<(), DeviceError> {
        assert!(at.0 + bytes <= self.bytes, "slab fill past its end");
        // SAFETY: the range is inside the slab.
        unsafe { self.device.fill(self.address(at), value, bytes) }
    }
}
