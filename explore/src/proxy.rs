//! The IBRC proxy as an actor: the `proxy` crate's own ring reader, of which each access is a step.

use crate::interface::ProxyPlace;
use crate::world::World;

/// A proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub place: ProxyPlace,
}

impl Proxy {
    pub fn new(place: ProxyPlace) -> Self {
        Self { place }
    }
}

/// What the proxy's thread does.
pub(crate) fn run(_world: *mut World, _thread: usize, _proxy: usize) {}
