//! Memory keys in the tables: those of this process, and translated keys of peers.

use super::slices::Published;
use crate::soft::control::{MkeyFacts, rights};
use crate::soft::state::{Engine, Qp, RemoteKey};
use crate::soft::tables::{self, Key, Tables};
use oxshmem_system::words::{count32, native};
use std::mem::offset_of;

impl Engine {
    /// Writes a key of this HCA to the tables, or takes it out.
    pub(in crate::soft) fn write_local_key(&mut self, index: u32, key: Option<(&MkeyFacts, *mut u8)>) {
        let entry = key.map_or_else(Key::default, |(facts, base)| Key {
            key: facts.key,
            peer: 0,
            pd: facts.pd,
            qpn: facts.qpn,
            rights: facts.rights & (rights::LOCAL_READ | rights::LOCAL_WRITE),
            reserved0: 0,
            start: facts.start,
            length: facts.len,
            base: base.addr() as u64,
            reserved1: [0; 2],
        });
        let at = offset_of!(Tables, local_keys) + native(tables::local_place(index)) * size_of::<Key>();
        self.with_gpu(|gpu| gpu.change(gpu.at(at), &entry));
    }

    /// Writes a peer's key to the tables, if it is not there.
    pub(in crate::soft) fn publish_remote_key(&mut self, qp: &Qp, key: &RemoteKey) {
        let Some(peer) = qp.remote.as_ref().map(|remote| remote.peer) else { return };
        let entry = Key {
            key: key.key,
            peer: count32(peer) + 1,
            pd: key.pd,
            qpn: key.qpn,
            rights: key.rights,
            reserved0: 0,
            start: key.start,
            length: key.len,
            base: key.base.addr() as u64,
            reserved1: [0; 2],
        };
        let place = tables::remote_place(count32(peer) + 1, key.key >> 8);
        let published = Published { peer, umem: key.umem, entry: key.entry, seq: key.seq, key: entry };
        self.with_gpu(|gpu| {
            let same = |old: &Published| (old.key, old.seq) == (entry, published.seq);
            if !gpu.published.get(&place).is_some_and(same) {
                let at = offset_of!(Tables, remote_keys) + place as usize * size_of::<Key>();
                gpu.change(gpu.at(at), &entry)?;
                gpu.published.insert(place, published);
            }
            Ok(())
        });
    }

    /// Takes out of the tables what peers have changed or withdrawn, and what belonged to peers
    /// that are gone.
    pub(in crate::soft) fn review_peers(&mut self) {
        let Some(gpu) = &self.gpu else { return };
        let gone: Vec<u32> = gpu
            .published
            .iter()
            .filter(|(_, key)| {
                let peer = &self.peers[key.peer];
                // SAFETY: the entry lies in the peer's control segment, which stays mapped as long
                // as the engine lives.
                !peer.is_alive() || peer.has_lost(key.umem) || unsafe { &*key.entry }.seq() != key.seq
            })
            .map(|(place, _)| *place)
            .collect();
        for place in gone {
            self.with_gpu(|gpu| {
                let at = offset_of!(Tables, remote_keys) + place as usize * size_of::<Key>();
                gpu.published.remove(&place);
                gpu.change(gpu.at(at), &Key::default())
            });
        }
        for place in 0..self.qps.places() {
            let qpn = self.qps.number(place);
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            if qp.handed.connected
                && let Some(remote) = &mut qp.remote
                // SAFETY: as above.
                && (!self.peers[remote.peer].is_alive() || unsafe { &*remote.entry }.seq() != remote.seq)
            {
                // The next WQE is the host's to judge.
                remote.seq = 1;
                self.write_constants(&mut qp);
            }
            self.qps.put_back(qpn, qp);
        }
    }
}
