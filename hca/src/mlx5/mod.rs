//! ConnectX cards, through rdma-core's libmlx5.
//!
//! Commands go to the card's firmware as DevX carries them, the same bytes that the software HCA
//! executes. What the library does better is left to it: protection domains and memory regions are
//! those of verbs, since kernels register dma-bufs for verbs sooner than for DevX (5.12, 6.1), and
//! the hardware address of a peer is what the kernel resolves for an address handle.
//!
//! The libraries are loaded when they are first needed. Whatever can be done in more than one way
//! is tried in a fixed order, and each attempt is kept with its outcome
//! ([`Provider::attempts`](crate::provider::Provider::attempts)).

mod card;
mod error;
mod events;
mod library;
mod memory;
mod record;

pub use card::{Mlx5Hca, Mlx5Options};
pub use error::Mlx5Error;
pub use memory::Registration;

use crate::error::Result;
use crate::verbs::context::DeviceList;
use library::Library;

/// Loads both libraries and looks for every function that is needed.
///
/// # Errors
/// Which library is missing or too old.
pub fn check_libraries() -> Result<()> {
    crate::verbs::library::Library::get()?;
    Library::get()?;
    Ok(())
}

/// Returns the names of the ConnectX cards that the library drives, in its order.
///
/// # Errors
/// No library, no RDMA device, or none of this kind.
pub fn device_names() -> Result<Vec<String>> {
    let library = Library::get()?;
    let devices = DeviceList::get()?;
    // SAFETY: the devices are of the list, which is alive.
    let supported = |device| unsafe { library.functions().mlx5dv_is_supported(device) };
    let names: Vec<String> = devices.iter().filter(|(_, device)| supported(*device)).map(|(name, _)| name).collect();
    if names.is_empty() {
        let present: Vec<String> = devices.iter().map(|(name, _)| name).collect();
        return Err(Mlx5Error::NoCard { present: present.join(", ") }.into());
    }
    Ok(names)
}
