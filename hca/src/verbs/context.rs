//! Devices and ports.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::{LIDS, Result, VerbsError};
use super::library::Library;
use super::sys;
use crate::port::{DEFAULT_PKEY, Gid, LinkLayer, Mtu, PortInfo};
use crate::topology::TopologyError;

/// Returns the names of the devices that the verbs library can use, in its order.
///
/// # Errors
/// No library, no device, or none that the library has a driver for.
pub fn device_names() -> Result<Vec<String>> {
    Ok(DeviceList::get()?.iter().map(|(name, _)| name).collect())
}

/// The library's list of devices; they may be opened as long as it lives.
#[derive(Debug)]
pub(crate) struct DeviceList {
    library: &'static Library,
    list: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl DeviceList {
    pub(crate) fn get() -> Result<Self> {
        let library = Library::get()?;
        let mut count = 0;
        // SAFETY: `count` may be written.
        let list = unsafe { library.functions().ibv_get_device_list(&raw mut count) };
        let source = io::Error::last_os_error();
        let present = crate::topology::device_names();
        let none = || match present.is_empty() {
            true => TopologyError::NoDevice.into(),
            false => VerbsError::NoDriver { devices: present.join(", ") },
        };
        // Without the kernel's part the library fails with ENOSYS.
        let list = NonNull::new(list).ok_or_else(|| match source.raw_os_error() {
            Some(libc::ENOSYS) => none(),
            _ => VerbsError::call("ibv_get_device_list", "this machine", source),
        })?;
        let devices = Self { library, list, count: usize::try_from(count).unwrap_or(0) };
        if devices.count == 0 { Err(none()) } else { Ok(devices) }
    }

    /// Names, and devices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, *mut sys::ibv_device)> {
        (0..self.count).map(|i| {
            // SAFETY: the list has that many devices, and each has a name.
            unsafe {
                let device = *self.list.add(i).as_ptr();
                let name = CStr::from_ptr(self.library.functions().ibv_get_device_name(device));
                (name.to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl DeviceList {
    /// Returns the device of that name.
    pub(crate) fn find(&self, name: &str) -> Result<*mut sys::ibv_device> {
        self.iter().find(|(other, _)| other == name).map(|(_, device)| device).ok_or_else(|| {
            let present: Vec<_> = self.iter().map(|(name, _)| name).collect();
            VerbsError::NoSuchDevice { name: name.to_owned(), present: present.join(", ") }
        })
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// Returns why a device of the list could not be opened, `source` being what the library says.
    pub(crate) fn refusal(&self, name: &str, device: *mut sys::ibv_device, mut source: io::Error) -> VerbsError {
        // SAFETY: the device is of the list, which is alive; the name is a C string in the
        // structure.
        let node = unsafe { CStr::from_ptr((&raw const (*device).dev_name).cast()) };
        let node = format!("/dev/infiniband/{}", node.to_string_lossy());
        // Unless it is the user's right, the library looks for the node elsewhere, too, and says
        // how that ended.
        if source.kind() != io::ErrorKind::PermissionDenied
            && let Err(error) = std::fs::File::options().read(true).write(true).open(&node)
        {
            source = error;
        }
        VerbsError::DeviceNode { device: name.to_owned(), node, source }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is used no more.
        unsafe { self.library.functions().ibv_free_device_list(self.list.as_ptr()) }
    }
}

/// With what a device's atomics are atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomicity {
    /// It has none.
    None,
    /// With those that this device executes.
    Device,
    /// Also with those of CPUs and other devices.
    Global,
}

/// The `vendor_id` of Soft-RoCE (`RXE_VENDOR_ID` of the kernel's rdma_rxe); no vendor has it.
const SOFT_ROCE: u32 = 0xff_ffff;

/// Packets that a message on Soft-RoCE should have at most.
///
/// A queue pair counts a retry when it starts over, after a NAK or a timeout, and counts anew when
/// it gets on. To rdma_rxe (`rxe_comp.c`) it gets on with an acknowledgement, which it requests
/// with the last packet of a request and some sixty packets after its last request for one; a NAK
/// counts only where it acknowledges a whole request. Between a NAK and the next acknowledgement
/// other NAKs are ignored, too, so every loss there takes a timeout and a retry. With 2 % of the
/// packets lost, about half of the tries of a long write end before an acknowledgement, and now and
/// then as many in a row as there are retries: the queue pair fails although packets arrive. One
/// try in thirteen of a write of four packets ends so.
const SOFT_ROCE_PACKETS: u32 = 4;

/// What a device can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Ports.
    pub ports: u8,
    /// Work requests in a queue.
    pub queue_depth: u32,
    /// Completions in a queue.
    pub cq_depth: u32,
    /// Reads and atomics of others that a queue pair serves at a time.
    pub reads_served: u8,
    /// Reads and atomics that a queue pair has in flight.
    pub reads_in_flight: u8,
    /// 8-byte fetch-and-add and compare-and-swap.
    pub atomicity: Atomicity,
    /// Packets of a message beyond which retries may run out although the network works; nothing
    /// where length does not matter.
    pub packets_per_message: Option<u32>,
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    library: &'static Library,
    raw: NonNull<sys::ibv_context>,
    name: String,
    limits: Limits,
}

// SAFETY: the verbs library is thread-safe (its manual, `ibv_open_device` and the others): any
// thread may use a context.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name.
    ///
    /// # Errors
    /// No library, no such device, or one that this user may not open.
    pub fn open(name: &str) -> Result<Arc<Self>> {
        let devices = DeviceList::get()?;
        let device = devices.find(name)?;
        // SAFETY: the device is of the list, which is alive.
        let raw = unsafe { devices.library.functions().ibv_open_device(device) };
        match NonNull::new(raw) {
            Some(raw) => Self::adopt(devices.library, raw, name),
            None => Err(devices.refusal(name, device, io::Error::last_os_error())),
        }
    }

    /// Takes over a context that the library, or a driver's, has opened.
    pub(crate) fn adopt(library: &'static Library, raw: NonNull<sys::ibv_context>, name: &str) -> Result<Arc<Self>> {
        let mut context = Self {
            library,
            raw,
            name: name.to_owned(),
            limits: Limits {
                ports: 0,
                queue_depth: 0,
                cq_depth: 0,
                reads_served: 0,
                reads_in_flight: 0,
                atomicity: Atomicity::None,
                packets_per_message: None,
            },
        };
        context.limits = context.query()?;
        Ok(Arc::new(context))
    }

    fn query(&self) -> Result<Limits> {
        // SAFETY: the structure is plain data, for which zeros are a value.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is alive and the structure may be written.
        let status = unsafe { self.library.functions().ibv_query_device(self.raw.as_ptr(), &raw mut attributes) };
        self.check("ibv_query_device", status)?;
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        let byte = |value: i32| u8::try_from(value.clamp(0, 128)).unwrap_or(0);
        Ok(Limits {
            ports: attributes.phys_port_cnt,
            queue_depth: positive(attributes.max_qp_wr),
            cq_depth: positive(attributes.max_cqe),
            reads_served: byte(attributes.max_qp_rd_atom),
            reads_in_flight: byte(attributes.max_qp_init_rd_atom),
            atomicity: match attributes.atomic_cap {
                sys::IBV_ATOMIC_HCA => Atomicity::Device,
                sys::IBV_ATOMIC_GLOB => Atomicity::Global,
                _ => Atomicity::None,
            },
            packets_per_message: (attributes.vendor_id == SOFT_ROCE).then_some(SOFT_ROCE_PACKETS),
        })
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the device can do.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// Checks the status of a call that returns 0 or an errno.
    pub(crate) fn check(&self, call: &'static str, status: i32) -> Result<()> {
        match status {
            0 => Ok(()),
            // Some calls of old drivers return -1 and set errno.
            -1 => Err(VerbsError::call(call, &self.name, io::Error::last_os_error())),
            errno => Err(VerbsError::call(call, &self.name, io::Error::from_raw_os_error(errno.abs()))),
        }
    }

    /// Returns the answer of a call that returns a pointer, or null and sets errno.
    pub(crate) fn check_pointer<T>(&self, call: &'static str, pointer: *mut T) -> Result<NonNull<T>> {
        NonNull::new(pointer).ok_or_else(|| VerbsError::call(call, &self.name, io::Error::last_os_error()))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made of the context holds an `Arc` of it, so nothing is left.
        let status = unsafe { self.library.functions().ibv_close_device(self.raw.as_ptr()) };
        if let Err(error) = self.check("ibv_close_device", status) {
            tracing::warn!(%error, "an RDMA device could not be closed");
        }
    }
}

/// An active port of an open device, and the address that it is reached by.
#[derive(Debug, Clone)]
pub struct Port {
    /// The device.
    pub context: Arc<Context>,
    /// Its number, and the address that it is reached by.
    pub info: PortInfo,
    /// Bytes that a message should have at most: as many as the port takes, fewer where
    /// [`Limits::packets_per_message`] says so.
    pub max_message: u32,
}

/// An entry of a GID table.
struct GidEntry {
    gid: Gid,
    kind: u32,
}

impl Port {
    /// Looks at a port, at entry `pkey_index` of its partition key table, and at its GID table:
    /// entry `gid_index`, or without one the first RoCE v2 entry with an IPv4 address, else with a
    /// global one, on InfiniBand the first with an FLID, else the first.
    ///
    /// # Errors
    /// A port that does not exist, is not active or has no LID; an entry that cannot be used.
    pub fn query(context: &Arc<Context>, number: u8, gid_index: Option<u32>, pkey_index: u16) -> Result<Self> {
        let (device, ports) = (&context.name, context.limits.ports);
        if !(1..=ports).contains(&number) {
            return Err(VerbsError::NoSuchPort { device: device.clone(), port: number, ports });
        }
        // SAFETY: plain data, for which zeros are a value.
        let mut attributes: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is alive.
        let status = unsafe { sys::query_port(context.library.functions(), context.raw(), number, &mut attributes) };
        context.check("ibv_query_port", status)?;
        if attributes.state != sys::IBV_PORT_ACTIVE {
            let state = match attributes.state {
                sys::IBV_PORT_DOWN => "DOWN",
                sys::IBV_PORT_INIT => "INIT",
                sys::IBV_PORT_ARMED => "ARMED",
                _ => "in a passing state",
            };
            return Err(VerbsError::PortDown { device: device.clone(), port: number, state });
        }
        let link_layer =
            if attributes.link_layer == LINK_LAYER_ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let lid = attributes.lid;
        if link_layer == LinkLayer::InfiniBand && !LIDS.contains(&lid) {
            return Err(VerbsError::NoLid { device: device.clone(), port: number, lid });
        }
        let table = u32::try_from(attributes.gid_tbl_len).unwrap_or(0);
        let (gid_index, gid) = choose_gid(context, number, link_layer, table, gid_index)?;
        let pkey = check_pkey(context, number, link_layer, attributes.pkey_tbl_len, pkey_index)?;
        let info = PortInfo {
            number,
            link_layer,
            mtu: u8::try_from(attributes.active_mtu).ok().and_then(Mtu::from_u8).unwrap_or(Mtu::B1024),
            lid,
            pkey,
            gid_index,
            gid,
            grh_required: attributes.flags & QPF_GRH_REQUIRED != 0,
        };
        let reliable = context.limits.packets_per_message.map_or(u32::MAX, |packets| packets * info.mtu.bytes());
        Ok(Self { context: Arc::clone(context), info, max_message: attributes.max_msg_sz.min(reliable) })
    }
}

/// `IBV_LINK_LAYER_ETHERNET` and `IBV_QPF_GRH_REQUIRED`, of enumerations that the structures do not
/// name.
const LINK_LAYER_ETHERNET: u8 = 2;
const QPF_GRH_REQUIRED: u8 = 1;

fn choose_gid(context: &Context, port: u8, link_layer: LinkLayer, table: u32, asked: Option<u32>) -> Result<(u8, Gid)> {
    let entry = |index: u32| query_gid(context, port, index);
    let usable = |index: u32| {
        entry(index).is_some_and(|entry| match link_layer {
            LinkLayer::Ethernet => entry.kind == sys::IBV_GID_TYPE_ROCE_V2,
            LinkLayer::InfiniBand => true,
        })
    };
    // The field of a queue pair's address has 8 bits.
    let all = 0..table.min(256);
    let Some(index) = asked else {
        let chosen = match link_layer {
            LinkLayer::InfiniBand => {
                let routable = |index: &u32| entry(*index).is_some_and(|entry| entry.gid.flid().is_some());
                all.clone().find(routable).or_else(|| all.clone().find(|index| usable(*index)))
            }
            LinkLayer::Ethernet => {
                let ranked = |index| Some((rank(entry(index)?.gid)?, index));
                all.clone().filter(|index| usable(*index)).filter_map(ranked).min().map(|(_, index)| index)
            }
        };
        return chosen
            .and_then(|index| Some((u8::try_from(index).ok()?, entry(index)?.gid)))
            .ok_or_else(|| VerbsError::NoGid { device: context.name.clone(), port });
    };
    let fault = match entry(index) {
        Some(found) if usable(index) && all.contains(&index) => {
            if let Ok(index) = u8::try_from(index) {
                return Ok((index, found.gid));
            }
            "is beyond what a queue pair can name".to_owned()
        }
        Some(found) => format!("({}) is of RoCE v1, and RoCE v2 is needed", found.gid),
        None if index >= table => format!("does not exist (the table has {table})"),
        None => "is empty".to_owned(),
    };
    let usable: Vec<_> = all
        .filter(|index| usable(*index))
        .filter_map(|index| Some(format!("{index} ({})", entry(index)?.gid)))
        .collect();
    let usable = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
    Err(VerbsError::GidIndex { device: context.name.clone(), port, index, fault, usable })
}

/// Returns the partition key at an index. RoCE has the default partition alone.
fn check_pkey(context: &Context, port: u8, link_layer: LinkLayer, table: u16, index: u16) -> Result<u16> {
    let entry = |index: u16| match link_layer {
        LinkLayer::Ethernet => Ok(DEFAULT_PKEY),
        LinkLayer::InfiniBand => query_pkey(context, port, index),
    };
    let fault = if index >= table {
        format!("does not exist (the table has {table})")
    } else {
        match entry(index) {
            // Key 0 is of no partition (InfiniBand specification, section 10.9.1.2).
            Ok(key) if key & 0x7fff != 0 => return Ok(key),
            Ok(key) => format!("is empty ({key:#06x})"),
            Err(error) => format!("cannot be read ({error})"),
        }
    };
    let usable: Vec<String> = (0..table)
        .filter_map(|index| Some((index, entry(index).ok().filter(|key| key & 0x7fff != 0)?)))
        .map(|(index, key)| format!("{index} ({key:#06x})"))
        .collect();
    let usable = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
    Err(VerbsError::PkeyIndex { device: context.name.clone(), port, index, fault, usable })
}

fn query_pkey(context: &Context, port: u8, index: u16) -> io::Result<u16> {
    let mut key = 0;
    // SAFETY: the context is alive, and the key may be written.
    let status =
        unsafe { context.library.functions().ibv_query_pkey(context.raw(), port, i32::from(index), &raw mut key) };
    match status {
        0 => Ok(u16::from_be(key)),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// Returns an entry, unless it does not exist or is empty.
fn query_gid(context: &Context, port: u8, index: u32) -> Option<GidEntry> {
    // SAFETY: plain data, for which zeros are a value.
    let mut entry: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
    // SAFETY: the context is alive, and the structure may be written.
    let status = unsafe {
        context.library.functions()._ibv_query_gid_ex(
            context.raw(),
            u32::from(port),
            index,
            &raw mut entry,
            0,
            size_of::<sys::ibv_gid_entry>(),
        )
    };
    // SAFETY: any 16 bytes are a GID.
    let gid = Gid(unsafe { entry.gid.raw });
    (status == 0 && gid != Gid::default()).then_some(GidEntry { gid, kind: entry.gid_type })
}

/// Returns how good a RoCE address is, 0 being the best. Returns nothing for one that only
/// `OXSHMEM_IB_GID_INDEX` selects, since peers on other subnets cannot reply to it. Entries stand
/// in the order in which addresses were added, so the family decides: of ports with both all PEs
/// have to take the same, and IPv4 is what other libraries take too. An IPv4 address that a host
/// has given itself (169.254/16) comes last.
fn rank(gid: Gid) -> Option<u8> {
    match gid.ipv4() {
        Some(address) if address.is_link_local() => Some(2),
        Some(_) => Some(0),
        None if std::net::Ipv6Addr::from(gid.0).is_unicast_link_local() => None,
        None => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_chosen_before_others_and_link_local_ones_last_or_never() {
        let ranks = [
            ("fe80::1", None),
            ("::ffff:10.0.0.1", Some(0)),
            ("2001:db8::1", Some(1)),
            ("fd00::1", Some(1)),
            ("::ffff:169.254.3.4", Some(2)),
        ];
        for (gid, expected) in ranks {
            assert_eq!(gid.parse().map(rank), Ok(expected), "{gid}");
        }
    }
}
