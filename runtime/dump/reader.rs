//! Reads memory of the device for dumps, and gives up instead of waiting for a device that does not
//! respond.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use oxshmem_system::words::native;

use crate::device::{Copier, Device, DeviceError, HostMemory};

/// How long a read may take. Copies wait for no kernel.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// What is read at a time.
const BYTES: u64 = 16 << 10;

/// Reads memory of a PE's device while kernels run.
#[derive(Debug)]
pub(crate) struct Reader {
    // Dropped first: it ends the copies that use the memory.
    copier: Box<dyn Copier>,
    memory: Arc<dyn HostMemory>,
    /// A copy did not end, and may still write to the memory.
    stuck: bool,
}

impl Reader {
    /// Bytes of host memory that it takes.
    pub const BYTES: u64 = BYTES;

    pub fn new(device: &dyn Device) -> Result<Self, DeviceError> {
        let memory: Arc<dyn HostMemory> = Arc::from(device.host_memory(BYTES)?);
        Ok(Self { copier: device.copier(Arc::clone(&memory))?, memory, stuck: false })
    }

    /// Reads a value at a device address.
    ///
    /// # Errors
    /// The reason, in words, why it cannot be read.
    ///
    /// # Safety
    /// It is mapped device memory.
    pub unsafe fn read<T: Pod>(&mut self, from: u64) -> Result<T, String> {
        let mut value = T::zeroed();
        // SAFETY: the caller's promise.
        unsafe { self.copy(from, bytemuck::bytes_of_mut(&mut value)) }?;
        Ok(value)
    }

    /// Reads `count` values one after another.
    ///
    /// # Errors
    /// Fails like [`read`](Self::read).
    ///
    /// # Safety
    /// The same as for [`read`](Self::read).
    pub unsafe fn read_many<T: Pod>(&mut self, from: u64, count: usize) -> Result<Vec<T>, String> {
        let mut values = vec![T::zeroed(); count];
        // SAFETY: the caller's promise.
        unsafe { self.copy(from, bytemuck::cast_slice_mut(&mut values)) }?;
        Ok(values)
    }

    unsafe fn copy(&mut self, from: u64, to: &mut [u8]) -> Result<(), String> {
        for (piece, at) in to.chunks_mut(native(BYTES)).zip((from..).step_by(native(BYTES))) {
            if self.stuck {
                return Err("an earlier copy from the device has not ended".into());
            }
            // SAFETY: the caller's promise; a piece fits the memory, which no other copy uses.
            unsafe { self.copier.start(at, 0, piece.len(), 0) }.map_err(|error| error.to_string())?;
            self.wait()?;
            // SAFETY: the memory is as long, and no copy uses it now.
            unsafe { std::ptr::copy_nonoverlapping(self.memory.address(), piece.as_mut_ptr(), piece.len()) };
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut ended = Vec::new();
        loop {
            self.copier.poll(&mut ended);
            if let Some((_, outcome)) = ended.pop() {
                return outcome.map_err(|error| error.to_string());
            }
            if begun.elapsed() > PATIENCE {
                self.stuck = true;
                return Err(format!("the device did not copy it within {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
