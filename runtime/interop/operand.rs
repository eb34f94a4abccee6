//! Slices of cudarc as the local side of operations.
//!
//! An operation may be on another stream than the one that the slice belongs to. Then the
//! operation's stream waits for the slice's stream before, and the slice's stream, on which cudarc
//! frees the memory, waits for the operation after. The events that cudarc keeps of each slice
//! order the operation with uses on further streams.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut};

use super::context::failed;
use crate::Result;
use crate::host::issuer::sealed::Issuer;
use crate::host::sides::side::Sealed;
use crate::host::sides::{Destination, Hold, Local, LocalMut, Source};
use crate::slice::bytes_of;

/// A slice that an operation on `on` reads. Dropped when the operation has been queued.
struct Read<'a, T, S: DevicePtr<T>> {
    slice: &'a S,
    on: Arc<CudaStream>,
    element: PhantomData<fn() -> T>,
}

/// A slice that an operation on `on` writes. Dropped when the operation has been queued.
struct Written<'a, T, S: DevicePtrMut<T>> {
    slice: &'a mut S,
    on: Arc<CudaStream>,
    element: PhantomData<fn() -> T>,
}

impl<T, S: DevicePtr<T>> Drop for Read<'_, T, S> {
    fn drop(&mut self) {
        drop(self.slice.device_ptr(&self.on));
        let owner = self.slice.stream();
        follow(owner, &self.on);
    }
}

impl<T, S: DevicePtrMut<T>> Drop for Written<'_, T, S> {
    fn drop(&mut self) {
        drop(self.slice.device_ptr_mut(&self.on));
        let owner = self.slice.stream();
        follow(owner, &self.on);
    }
}

impl<T, S: DevicePtr<T>> fmt::Debug for Read<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("on", &self.on).finish_non_exhaustive()
    }
}

impl<T, S: DevicePtrMut<T>> fmt::Debug for Written<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written").field("on", &self.on).finish_non_exhaustive()
    }
}

/// Lets the slice's stream wait for what was queued on `on`.
fn follow(owner: &CudaStream, on: &CudaStream) {
    if owner.cu_stream() == on.cu_stream() {
        return;
    }
    if let Err(error) = owner.join(on) {
        // The memory may be freed next, so the operation must have ended.
        tracing::debug!(%error, "a stream of cudarc cannot wait for an operation, so the host does");
        on.context().record_err(on.synchronize());
    }
}

/// Returns the stream of the issuer's operations, which waits for what is on the slice's stream.
fn stream_after<I: Issuer + ?Sized>(issuer: &I, owner: &Arc<CudaStream>) -> Result<Arc<CudaStream>> {
    let gpu = issuer.issuing_pe().check_context(owner.context())?;
    let raw = issuer.issuing_stream()?.raw().unwrap_or(gpu.stream) as CUstream;
    // SAFETY: a stream of the context that was compared. The result lives no longer than the call
    // that borrows the issuer.
    let on = unsafe { owner.context().wrap_borrowed_stream(raw) };
    if raw != owner.cu_stream() {
        on.join(owner).map_err(|error| failed("a stream cannot wait for that of a slice of cudarc", error))?;
    }
    Ok(on)
}

fn read<'a, T: 'a, I: Issuer + ?Sized, S: DevicePtr<T>>(issuer: &I, slice: &'a S) -> Result<Local<'a>> {
    let on = stream_after(issuer, slice.stream())?;
    let (address, guard) = slice.device_ptr(&on);
    drop(guard);
    let bytes = bytes_of::<T>(slice.len());
    check(&on)?;
    Ok(Local::Device(address, bytes, Hold::new(Read { slice, on, element: PhantomData })))
}

fn write<'a, T: 'a, I: Issuer + ?Sized, S: DevicePtrMut<T>>(issuer: &I, slice: &'a mut S) -> Result<LocalMut<'a>> {
    let on = stream_after(issuer, slice.stream())?;
    let (address, guard) = slice.device_ptr_mut(&on);
    drop(guard);
    let bytes = bytes_of::<T>(slice.len());
    check(&on)?;
    Ok(LocalMut::Device(address, bytes, Hold::new(Written { slice, on, element: PhantomData })))
}

/// Returns the error of cudarc's calls that return none.
fn check(on: &CudaStream) -> Result<()> {
    on.context().check_err().map_err(|error| failed("a stream cannot wait for the uses of a slice of cudarc", error))
}

macro_rules! sources {
    ($($type:ty),*) => {
        $(
            impl<T> Sealed for $type {}
            impl<T: Pod, On: Issuer + ?Sized> Source<On> for $type {
                type Element = T;
                fn source<'a>(&'a self, on: &'a On) -> Result<Local<'a>> {
                    read::<T, _, _>(on, &**self)
                }
            }
        )*
    };
}
sources!(&CudaSlice<T>, &CudaView<'_, T>, &CudaViewMut<'_, T>);

macro_rules! destinations {
    ($($type:ty),*) => {
        $(
            impl<T> Sealed for $type {}
            impl<T: Pod, On: Issuer + ?Sized> Destination<On> for $type {
                type Element = T;
                fn destination<'a>(&'a mut self, on: &'a On) -> Result<LocalMut<'a>> {
                    write::<T, _, _>(on, &mut **self)
                }
            }
        )*
    };
}
destinations!(&mut CudaSlice<T>, &mut CudaViewMut<'_, T>);
