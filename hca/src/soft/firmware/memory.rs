//! Memory: registered ranges, and keys for them.

use super::checks::{Outcome, full, refuse};
use super::objects::Object;
use crate::error::{Error, Result};
use crate::prm::{self, CommandStatus, mkey};
use crate::provider::{Access, UmemSource};
use crate::soft::control::{MkeyFacts, rights};
use crate::soft::fabric::copier::Registered;
use crate::soft::fabric::shared::Export;
use crate::soft::firmware::checks::within;
use crate::soft::memory::PAGE;
use crate::soft::state::{Engine, MkeyState, UmemState};
use std::sync::{MutexGuard, PoisonError};

impl Engine {
    pub(super) fn create_mkey(&mut self, command: &mkey::CreateMkey, output: &mut [u8]) -> Outcome<Object> {
        const MKC: u32 = 0x80;
        let mkc = &command.mkc;
        if !command.mkey_umem_valid {
            return refuse(CommandStatus::BadParam, 0x61, "mkey_umem_valid must be set: keys translate through a umem");
        }
        if mkc.free || mkc.length64 {
            return refuse(CommandStatus::BadParam, MKC + 1, "free and length64 must be clear");
        }
        if mkc.access_mode_1_0 != mkey::ACCESS_MODE_MTT {
            let detail = format!("access_mode {} is not supported, only MTT (1)", mkc.access_mode_1_0);
            return refuse(CommandStatus::BadParam, MKC + 0x16, detail);
        }
        self.pd(mkc.pd)?;
        if mkc.qpn != mkey::ANY_QP && self.qps.get(mkc.qpn).is_none() {
            return refuse(CommandStatus::BadResource, MKC + 0x20, format!("mkc.qpn {:#x}: no such QP", mkc.qpn));
        }
        let umem = self.umem(command.mkey_umem_id, 0x320)?;
        if mkc.len == 0 {
            return refuse(CommandStatus::BadParam, MKC + 0xc0, "mkc.len is 0");
        }
        if mkc.start_addr.checked_add(mkc.len - 1).is_none() {
            return refuse(
                CommandStatus::BadParam,
                MKC + 0x80,
                "mkc.start_addr + mkc.len goes beyond the address space",
            );
        }
        let base = within(umem, command.mkey_umem_offset, mkc.len, 1, 0x340, "the key")?;
        let access = umem.access;
        for (wanted, allowed, bit, name) in [
            (mkc.lw, access.local_write, 0x14, "lw"),
            (mkc.rr, access.remote_read, 0x13, "rr"),
            (mkc.rw, access.remote_write, 0x12, "rw"),
            (mkc.a, access.remote_atomic, 0x11, "a"),
        ] {
            if wanted && !allowed {
                let detail = format!("mkc.{name}: the umem was registered without this right");
                return refuse(CommandStatus::BadParam, MKC + bit, detail);
            }
        }
        if (mkc.rr || mkc.rw || mkc.a) && !umem.shared {
            return refuse(
                CommandStatus::BadParam,
                MKC + 0x11,
                "remote rights on memory that peers cannot reach: register it by file descriptor (UmemSource::Fd)",
            );
        }
        let mut rights_bits = 0;
        for (set, right) in [
            (mkc.lr, rights::LOCAL_READ),
            (mkc.lw, rights::LOCAL_WRITE),
            (mkc.rr, rights::REMOTE_READ),
            (mkc.rw, rights::REMOTE_WRITE),
            (mkc.a, rights::REMOTE_ATOMIC),
        ] {
            rights_bits |= if set { right } else { 0 };
        }
        let facts = |index: u32| MkeyFacts {
            key: index << 8 | u32::from(mkc.mkey_7_0),
            pd: mkc.pd,
            rights: rights_bits,
            umem: command.mkey_umem_id,
            qpn: mkc.qpn,
            start: mkc.start_addr,
            len: mkc.len,
            umem_offset: command.mkey_umem_offset,
        };
        let index = self.mkeys.insert_with(|index| MkeyState { facts: facts(index), base });
        let index = index.ok_or_else(|| full("memory keys", self.mkeys.limit()))?;
        self.write_local_key(index, Some((&facts(index), base)));
        self.control.publish_mkey(index, &facts(index));
        self.key_epoch += 1;
        self.use_pd(mkc.pd, 1);
        self.use_umem(command.mkey_umem_id, 1);
        prm::encode_output(&mkey::CreateMkeyOut { mkey_index: index }, output);
        Ok(Object::Mkey(index))
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The conditions of [`crate::provider::Provider::reg_umem`].
    pub(in crate::soft) unsafe fn register(&mut self, source: UmemSource<'_>, access: Access) -> Result<u32> {
        if let Some(reason) = &self.dead {
            return Err(Error::Dead { device: format!("soft {}", self.gid), reason: reason.clone() });
        }
        let (addr, len) = source.range();
        if addr.is_null() || len == 0 {
            return Err(Error::argument(
                "umem",
                format!("{len} bytes at {addr:p}"),
                "must be mapped memory of at least a byte",
            ));
        }
        if addr.addr().checked_add(len).is_none() {
            return Err(Error::argument("umem", format!("{len} bytes at {addr:p}"), "goes beyond the address space"));
        }
        if self.next_umem > 0xff_ffff {
            return Err(Error::argument("umem", self.next_umem, "24-bit umem ids are used up; open the HCA anew"));
        }
        let shared = match source {
            UmemSource::Host { .. } if self.is_on_gpu() && !self.reaches_host() => {
                return Err(Error::argument(
                    "umem",
                    format!("{len} bytes at {addr:p}"),
                    "memory of the host is out of reach of the engine's kernel: register it by file descriptor (UmemSource::Fd)",
                ));
            }
            UmemSource::Host { .. } | UmemSource::Program { .. } => {
                if access.is_remote() {
                    return Err(Error::argument(
                        "access",
                        format!("{access:?}"),
                        "peers cannot reach private memory: register it by file descriptor (UmemSource::Fd)",
                    ));
                }
                false
            }
            UmemSource::Fd { fd, offset, .. } => {
                if !offset.is_multiple_of(PAGE) {
                    return Err(Error::argument(
                        "offset",
                        offset,
                        format!("must be a multiple of the page size, {PAGE}"),
                    ));
                }
                let size =
                    rustix::fs::fstat(fd).map_err(|errno| Error::os("look at the file of a umem", errno))?.st_size;
                let end = offset.checked_add(len as u64);
                // Descriptors of GPU memory have no size; the process that maps them checks it.
                let sized = !self.is_on_gpu();
                if sized && end.is_none_or(|end| end > u64::try_from(size).unwrap_or(0)) {
                    let value = format!("{len} bytes at offset {offset:#x}");
                    return Err(Error::argument("umem", value, format!("the file has {size} bytes")));
                }
                let fd = fd.try_clone_to_owned().map_err(|error| Error::os("duplicate the file of a umem", error))?;
                let announced = access.is_remote() && self.announces();
                self.server.export(self.next_umem, Export { fd, offset, len: len as u64, announced });
                if self.is_on_gpu() {
                    self.registered().insert(self.next_umem, (addr.addr() as u64, len as u64));
                }
                true
            }
        };
        let id = self.next_umem;
        self.next_umem += 1;
        self.umems.insert(id, UmemState { addr, len: len as u64, access, shared, users: 0 });
        if self.tracer.is_on() {
            self.tracer.line("umem", format_args!("registered id={id} len={len} shared={shared}"));
        }
        Ok(id)
    }

    /// Forgets memory.
    pub(in crate::soft) fn deregister(&mut self, id: u32) -> Result<()> {
        let users = self
            .umems
            .get(&id)
            .ok_or_else(|| Error::argument("umem_id", id, "no such umem; was it deregistered before?"))?
            .users;
        if users != 0 {
            return Err(Error::argument(
                "umem_id",
                id,
                format!("{users} keys or queues still use it; destroy them first"),
            ));
        }
        self.umems.remove(&id);
        // Waits for what is being executed for HCAs of other nodes.
        self.registered().remove(&id);
        self.server.forget(id);
        Ok(())
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
