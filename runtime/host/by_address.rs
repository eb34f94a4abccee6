//! Operations that are given by addresses, bytes and numbers of types: for interfaces in other
//! languages, whose programs keep addresses rather than slices.

use oxshmem_system::words::{const32, native};

use super::issuer::begins;
use super::issuer::sealed::Issuer;
use super::operations::Operations;
use super::transfer;
use crate::Result;
use crate::abi::Type;
use crate::heap::LocalPlace;
use crate::heap::error::HeapError;
use crate::pe::Pe;
use crate::pe::parts::STAGING_BYTES;
use crate::profile::host::{Operation, Subject};
use crate::slice::Compare;

/// Most threads of a strided transfer.
const THREADS: u32 = 256;

/// A transfer of elements that lie strides apart, of which one side is symmetric.
///
/// ```
/// use oxshmem::by_address::StridedTransfer;
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let (every_second, data) = (pe.alloc::<u32>(6)?, [1u32, 2, 3]);
/// let transfer = StridedTransfer {
///     symmetric: every_second.address(),
///     symmetric_stride: 2,
///     local: data.as_ptr() as u64,
///     local_stride: 1,
///     n: 3,
///     element_bytes: 4,
///     pe: 0,
/// };
/// // SAFETY: `data` is three elements of four bytes.
/// unsafe { transfer.put(&pe) }?;
/// assert_eq!(pe.read(&every_second)?, [1, 0, 2, 0, 3, 0]);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StridedTransfer {
    /// The address of this PE's copy of the first element at `pe`.
    pub symmetric: u64,
    /// Elements from one to the next there, at least 1.
    pub symmetric_stride: usize,
    /// The address of the first element here: memory of the heap, the device or the host.
    pub local: u64,
    /// Elements from one to the next here, at least 1.
    pub local_stride: usize,
    /// How many elements.
    pub n: usize,
    /// Bytes of an element: 1, 2, 4, 8 or 16.
    pub element_bytes: usize,
    /// The PE that has the symmetric side.
    pub pe: usize,
}

/// Returns the bytes from the first to the end of the last of `n` elements.
fn span(n: usize, stride: usize, element_bytes: usize) -> usize {
    match n {
        0 => 0,
        n => (n - 1).saturating_mul(stride).saturating_add(1).saturating_mul(element_bytes),
    }
}

/// Refuses elements that are not aligned to their size, for which a GPU ends its context.
fn check_aligned(address: u64, element_bytes: usize) -> Result<(), HeapError> {
    if address.is_multiple_of(element_bytes as u64) {
        return Ok(());
    }
    Err(HeapError::Misaligned { address, element_bytes })
}

impl StridedTransfer {
    /// Copies from here to the symmetric side. On a stream the local side is memory that the device
    /// can read.
    ///
    /// # Errors
    /// A stride of 0, another size of an element, memory that is not allocated or that the device
    /// cannot access, or what the issuer reports.
    ///
    /// # Safety
    /// `local` names that many readable elements until the operation has ended: when the call on a
    /// [`Pe`] has returned without an error, or the stream's work has ended. After an error it may
    /// go on until [`Pe::synchronize`] has returned, and not with
    /// [`DeviceError::StillRunning`](crate::device::DeviceError::StillRunning).
    ///
    /// See [`StridedTransfer`] for an example.
    pub unsafe fn put<I: Operations>(&self, issuer: &I) -> Result<()> {
        let (own, symmetric, local_bytes) = self.check(issuer)?;
        if self.n == 0 {
            return Ok(());
        }
        if is_direct::<I>(own, self.local, local_bytes)? {
            let args = (symmetric, self.local, self.symmetric_stride(), self.local_stride());
            return self.queue(issuer, "oxshmem_host_iput", args, self.n);
        }
        // SAFETY: the caller's promise; the call ends before it does.
        let bytes = unsafe { transfer::host_bytes(self.local, local_bytes) };
        // A stride before the only element may be any number.
        let step = self.local_stride.saturating_mul(self.element_bytes);
        let per_piece = STAGING_BYTES / self.element_bytes;
        let mut done = 0;
        while done < self.n {
            let n = per_piece.min(self.n - done);
            let elements = (done..done + n).flat_map(|i| &bytes[i * step..][..self.element_bytes]);
            own.stage(&elements.copied().collect::<Vec<u8>>())?;
            let to = symmetric + (done * self.symmetric_stride * self.element_bytes) as u64;
            let args = (to, own.staging_address()?, self.symmetric_stride(), 1);
            self.queue(issuer, "oxshmem_host_iput", args, n)?;
            done += n;
        }
        Ok(())
    }

    /// Copies from the symmetric side to here. On a stream the local side is memory that the device
    /// can write.
    ///
    /// # Errors
    /// Fails like [`put`](Self::put).
    ///
    /// # Safety
    /// The same as for [`put`](Self::put), but the elements at `local` must be writable.
    ///
    /// ```
    /// use oxshmem::by_address::StridedTransfer;
    ///
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (source, mut here) = (pe.alloc::<u16>(3)?, [9u16; 5]);
    /// let transfer = StridedTransfer {
    ///     symmetric: source.address(),
    ///     symmetric_stride: 1,
    ///     local: here.as_mut_ptr() as u64,
    ///     local_stride: 2,
    ///     n: 3,
    ///     element_bytes: 2,
    ///     pe: 0,
    /// };
    /// // SAFETY: `here` has five elements of two bytes, of which three are written.
    /// unsafe { transfer.get(&pe) }?;
    /// assert_eq!(here, [0, 9, 0, 9, 0]);
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn get<I: Operations>(&self, issuer: &I) -> Result<()> {
        let (own, symmetric, local_bytes) = self.check(issuer)?;
        if self.n == 0 {
            return Ok(());
        }
        if is_direct::<I>(own, self.local, local_bytes)? {
            let args = (self.local, symmetric, self.local_stride(), self.symmetric_stride());
            return self.queue(issuer, "oxshmem_host_iget", args, self.n);
        }
        // SAFETY: the caller's promise; the call ends before it does.
        let bytes = unsafe { transfer::host_bytes_mut(self.local, local_bytes) };
        // A stride before the only element may be any number.
        let step = self.local_stride.saturating_mul(self.element_bytes);
        let per_piece = STAGING_BYTES / self.element_bytes;
        let mut done = 0;
        while done < self.n {
            let n = per_piece.min(self.n - done);
            let from = symmetric + (done * self.symmetric_stride * self.element_bytes) as u64;
            let args = (own.staging_address()?, from, 1, self.symmetric_stride());
            self.queue(issuer, "oxshmem_host_iget", args, n)?;
            let mut piece = vec![0; n * self.element_bytes];
            own.unstage(&mut piece)?;
            for (i, element) in piece.chunks_exact(self.element_bytes).enumerate() {
                bytes[(done + i) * step..][..self.element_bytes].copy_from_slice(element);
            }
            done += n;
        }
        Ok(())
    }

    /// Returns the PE, the symmetric side's address, and the bytes of the local side.
    fn check<'a, I: Operations>(&self, issuer: &'a I) -> Result<(&'a Pe, u64, usize)> {
        let own = issuer.issuing_pe();
        let strides = [self.symmetric_stride, self.local_stride];
        if strides.contains(&0) || ![1, 2, 4, 8, 16].contains(&self.element_bytes) {
            let (stride, bytes) = (strides.into_iter().min().unwrap_or(0), self.element_bytes);
            return Err(HeapError::Strided { stride, element_bytes: bytes }.into());
        }
        if self.n != 0 {
            check_aligned(self.symmetric, self.element_bytes)?;
            check_aligned(self.local, self.element_bytes)?;
        }
        let spans = strides.map(|stride| span(self.n, stride, self.element_bytes));
        let symmetric = own.view_at::<u8>(self.symmetric, spans[0]).resolve(own.id())?.0;
        Ok((own, symmetric, spans[1]))
    }

    fn symmetric_stride(&self) -> i64 {
        super::collectives::stride(self.symmetric_stride)
    }

    fn local_stride(&self) -> i64 {
        super::collectives::stride(self.local_stride)
    }

    fn queue<I: Operations>(&self, issuer: &I, name: &str, args: (u64, u64, i64, i64), n: usize) -> Result<()> {
        let own = issuer.issuing_pe();
        let element_bytes = u32::try_from(self.element_bytes).unwrap_or(u32::MAX);
        let operation = if name == "oxshmem_host_iput" { Operation::Iput } else { Operation::Iget };
        let bytes = (n * self.element_bytes) as u64;
        let _call = begins(issuer, operation, Subject::Peer(self.pe), bytes);
        let args = (args.0, args.1, args.2, args.3, n as u64, element_bytes, own.peer(self.pe));
        let threads = u32::try_from(n.next_multiple_of(32)).unwrap_or(THREADS).min(THREADS);
        // SAFETY: the caller of `put` and `get` has promised the local side, or it is the staging
        // buffer; the kernel checks the other.
        unsafe { own.queue_host_kernel(issuer.issuing_stream()?, name, threads, args) }?;
        issuer.finish()
    }
}

/// Returns whether kernels use the local side as it is; other memory passes through the staging
/// buffer, which a stream has no use for.
fn is_direct<I: Operations>(own: &Pe, address: u64, bytes: usize) -> Result<bool> {
    let place = own.locate(address, bytes as u64)?;
    let accessible = own.device().is_accessible(address, bytes as u64);
    if place == LocalPlace::Heap || (accessible && (own.gpu().is_some() || !<I as Issuer>::WAITS)) {
        return Ok(true);
    }
    if <I as Issuer>::WAITS { Ok(false) } else { Err(HeapError::NotOnDevice { address, bytes }.into()) }
}

/// Stores the low `bytes` bytes (1, 2, 4 or 8) of `word` at `pe`. The value is taken when the call
/// is made, also on a stream.
///
/// # Errors
/// Memory that is not allocated, another number of bytes, an address that is not a multiple of it,
/// or what the issuer reports.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let cell = pe.alloc::<u32>(1)?;
/// let stream = pe.create_stream()?;
/// oxshmem::by_address::put_word(&pe.on(&stream), cell.address(), 7, 4, 0)?;
/// pe.on(&stream).synchronize()?;
/// assert_eq!(pe.read(&cell)?, [7]);
/// # pe.finalize()
/// # }
/// ```
pub fn put_word<I: Operations>(issuer: &I, address: u64, word: u64, bytes: usize, pe: usize) -> Result<()> {
    let own = issuer.issuing_pe();
    if ![1, 2, 4, 8].contains(&bytes) {
        return Err(HeapError::Word { bytes }.into());
    }
    check_aligned(address, bytes)?;
    let address = own.view_at::<u8>(address, bytes).resolve(own.id())?.0;
    let _call = begins(issuer, Operation::P, Subject::Peer(pe), bytes as u64);
    let stream = issuer.issuing_stream()?;
    if !own.queue_word(address, word, bytes as u64, pe, stream)? {
        let args = (address, word, u32::try_from(bytes).unwrap_or(u32::MAX), own.peer(pe));
        // SAFETY: the kernel checks the target itself.
        unsafe { own.queue_host_kernel(stream, "oxshmem_host_put_word", 1, args) }?;
    }
    issuer.finish()
}

/// What a wait for variables compares them with.
///
/// ```
/// use oxshmem::by_address::Wanted;
///
/// let one = Wanted::Same(1);
/// # let _ = one;
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Wanted {
    /// This value, as a word of the variables' type that is extended with zeros.
    Same(u64),
    /// The address of a value for each.
    Each(u64),
}

/// Variables of this PE that a wait is for.
///
/// ```
/// use oxshmem::by_address::Variables;
///
/// let unsigned_32 = 6;
/// let two = Variables { element: unsigned_32, address: 0x1000, n: 2, status: 0 };
/// # let _ = two;
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Variables {
    /// The number of their type, an integer of 2 to 8 bytes.
    pub element: u32,
    /// The address of the first.
    pub address: u64,
    /// How many there are.
    pub n: usize,
    /// The address of as many 32-bit integers; those variables are left out whose integer is not 0.
    /// 0: none is.
    pub status: u64,
}

/// Waits until each of the variables compares true.
///
/// # Errors
/// Variables that are not allocated, another type, addresses that the device cannot read or that
/// are not aligned to their elements, or what the issuer reports.
///
/// # Safety
/// `status`, and the values if each has one, name `n` readable elements until the wait has ended,
/// as [`StridedTransfer::put`] says of an operation.
///
/// ```
/// use oxshmem::Compare;
/// use oxshmem::by_address::{Variables, Wanted, wait_until_all};
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let flags = pe.alloc::<u32>(2)?;
/// let unsigned_32 = 6;
/// let variables = Variables { element: unsigned_32, address: flags.address(), n: 2, status: 0 };
/// // SAFETY: there is no status, and the value is the same for all.
/// unsafe { wait_until_all(&pe, &variables, Compare::Eq, Wanted::Same(0)) }?;
/// # pe.finalize()
/// # }
/// ```
pub unsafe fn wait_until_all<I: Operations>(
    issuer: &I,
    variables: &Variables,
    cmp: Compare,
    wanted: Wanted,
) -> Result<()> {
    let Variables { element, address: variables, n, status } = *variables;
    let own = issuer.issuing_pe();
    let bytes = [Type::Int16, Type::Uint16, Type::Int32, Type::Uint32, Type::Int64, Type::Uint64]
        .into_iter()
        .find(|known| *known as u32 == element)
        .map(|known| match known {
            Type::Int16 | Type::Uint16 => const { const32(2) },
            Type::Int32 | Type::Uint32 => 4,
            _ => 8,
        })
        .ok_or(HeapError::NoVariable { element })?;
    let variables = own.view_at::<u8>(variables, native(u64::from(bytes)).saturating_mul(n)).resolve(own.id())?.0;
    let (value, values) = match wanted {
        Wanted::Same(value) => (value, 0),
        Wanted::Each(values) => (0, values),
    };
    if n != 0 {
        check_aligned(variables, bytes as usize)?;
        check_aligned(status, 4)?;
        check_aligned(values, bytes as usize)?;
    }
    for (address, bytes) in [(status, 4), (values, bytes as usize)] {
        let known = own.locate(address, (bytes * n) as u64)? == LocalPlace::Heap;
        if address != 0 && n != 0 && !known && !own.device().is_accessible(address, (bytes * n) as u64) {
            return Err(HeapError::NotOnDevice { address, bytes: bytes * n }.into());
        }
    }
    let _call = begins(issuer, Operation::WaitUntil, Subject::Own, 0);
    let args = (variables, n as u64, status, cmp as i32, value, values, element);
    // SAFETY: the caller's promise; the variables are allocated.
    unsafe { own.queue_host_kernel(issuer.issuing_stream()?, "oxshmem_host_wait", 1, args) }?;
    issuer.finish()
}
