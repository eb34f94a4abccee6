//! Network interfaces of this machine, and the choice among them (`OXSHMEM_INTERFACE`).

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::BootstrapError;

/// Addresses for documentation, to which only the default route leads.
const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// Any port: nothing is sent to it.
const SOME_PORT: u16 = 9;
/// What the names of interfaces begin with that lead to containers and virtual machines of this
/// machine, and nowhere else.
const INSIDE: [&str; 8] = ["docker", "br-", "virbr", "veth", "cni", "podman", "lxcbr", "lxdbr"];

/// An address of an interface that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    pub address: IpAddr,
}

impl Interface {
    /// Returns whether other machines cannot use the address, or only with an interface of theirs.
    pub(crate) fn is_local(&self) -> bool {
        self.address.is_loopback()
            || match self.address {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            }
    }

    /// Returns whether only containers and virtual machines of this machine use it.
    fn is_inside(&self) -> bool {
        INSIDE.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

/// Returns the address of this machine that packets to `other` come from.
pub(crate) fn towards(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // This only looks up a route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((other, SOME_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns the addresses of all interfaces that are up, in the order of [`sort`].
pub(crate) fn interfaces() -> Result<Vec<Interface>, BootstrapError> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the result, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(BootstrapError::system("listing the network interfaces")(std::io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: getifaddrs made a list of valid entries that ends with null; each address is null or
    // has the length that its family says.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: as above.
        let address: IpAddr = match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: as above; the entry need not be aligned for this type.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into()
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                Ipv6Addr::from(address.sin6_addr.s6_addr).into()
            }
            _ => continue,
        };
        // SAFETY: getifaddrs gives each entry a name that ends with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        found.push(Interface { name, address });
    }
    // SAFETY: the list is the one that getifaddrs made, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    sort(&mut found, OUTSIDE.into_iter().find_map(towards));
    Ok(found)
}

/// Sorts addresses by how likely other machines reach them: first `default`, to which the default
/// route leads, IPv4 before IPv6, and those inside this machine last.
fn sort(interfaces: &mut [Interface], default: Option<IpAddr>) {
    interfaces.sort_by_key(|interface| {
        (interface.is_inside(), Some(interface.address) != default, interface.address.is_ipv6())
    });
}

/// One item of `OXSHMEM_INTERFACE`.
enum Item<'a> {
    Name(&'a str),
    Range(IpAddr, u32),
}

impl<'a> Item<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let Some((address, bits)) = text.split_once('/') else { return Ok(Self::Name(text)) };
        let range = address.parse::<IpAddr>().ok().zip(bits.parse::<u32>().ok());
        range
            .filter(|(address, bits)| *bits <= if address.is_ipv4() { 32 } else { 128 })
            .map(|(address, bits)| Self::Range(address, bits))
            .ok_or_else(|| format!("'{text}' is neither an interface nor a range like 10.1.0.0/16 or fd00::/64"))
    }

    /// Returns whether the item is the interface's whole name.
    fn names(&self, interface: &Interface) -> bool {
        matches!(self, Self::Name(name) if interface.name == *name)
    }

    fn fits(&self, interface: &Interface, exact: bool) -> bool {
        match self {
            Self::Name(_) if exact => self.names(interface),
            Self::Name(prefix) => interface.name.starts_with(prefix),
            Self::Range(address, bits) => is_within(interface.address, *address, *bits),
        }
    }
}

/// Returns the interfaces that `wanted` allows, at least one: a value of `OXSHMEM_INTERFACE` in the
/// syntax of `NCCL_SOCKET_IFNAME`: a list of prefixes of names, and of ranges of addresses like
/// `10.1.0.0/16`. After `=` the names are whole, and after `^` the list is of those that are left
/// out. First come interfaces that it names in whole, and then those that other machines can use.
///
/// # Errors
/// It is no such list, or no interface fits; in words.
pub(crate) fn fitting<'a>(wanted: &str, interfaces: &'a [Interface]) -> Result<Vec<&'a Interface>, String> {
    let (list, excludes) = wanted.strip_prefix('^').map_or((wanted, false), |list| (list, true));
    let (list, exact) = list.strip_prefix('=').map_or((list, false), |list| (list, true));
    let items = list.split(',').filter(|item| !item.is_empty()).map(Item::parse).collect::<Result<Vec<_>, _>>()?;
    if items.is_empty() {
        return Err(format!("'{wanted}' names no interface; write names or ranges, as in eth0,10.1.0.0/16"));
    }
    let fits = |interface: &&Interface| items.iter().any(|item| item.fits(interface, exact)) != excludes;
    let mut found: Vec<&Interface> = interfaces.iter().filter(fits).collect();
    if found.is_empty() {
        let all: Vec<String> =
            interfaces.iter().map(|interface| format!("{} ({})", interface.name, interface.address)).collect();
        return Err(format!("no interface fits '{wanted}'; this machine has {}", all.join(", ")));
    }
    found.sort_by_key(|interface| (!items.iter().any(|item| item.names(interface)), interface.is_local()));
    Ok(found)
}

/// Returns the address that `OXSHMEM_INTERFACE` chooses: the first of [`fitting`].
///
/// # Errors
/// Those of [`fitting`].
pub(crate) fn choose(wanted: &str, interfaces: &[Interface]) -> Result<IpAddr, String> {
    let found = fitting(wanted, interfaces)?;
    Ok(found[0].address)
}

fn is_within(address: IpAddr, range: IpAddr, bits: u32) -> bool {
    match (address, range) {
        (IpAddr::V4(a), IpAddr::V4(b)) => bits == 0 || (a.to_bits() ^ b.to_bits()) >> (32 - bits) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => bits == 0 || (a.to_bits() ^ b.to_bits()) >> (128 - bits) == 0,
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        Interface { name: name.into(), address: address.parse().unwrap() }
    }

    fn some() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("eth01", "10.9.0.1"),
            interface("eth0", "10.1.2.3"),
            interface("ib0", "fe80::1"),
            interface("ib0", "fd00:1::7"),
        ]
    }

    #[test]
    fn an_interface_is_chosen_by_its_name_or_its_range() {
        for (wanted, expected) in [
            ("eth0", "10.1.2.3"),
            ("=eth0", "10.1.2.3"),
            ("eth", "10.9.0.1"),
            ("ib0", "fd00:1::7"),
            ("lo", "127.0.0.1"),
            ("eth7,ib", "fd00:1::7"),
            ("lo,eth0", "10.1.2.3"),
            ("^lo,eth01", "10.1.2.3"),
            ("^=eth0,lo", "10.9.0.1"),
            ("^docker0,lo", "10.9.0.1"),
            ("^10.0.0.0/8", "fd00:1::7"),
            ("10.1.0.0/16,eth", "10.9.0.1"),
            ("10.1.0.0/16", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("0.0.0.0/0", "10.9.0.1"),
            ("127.0.0.0/8", "127.0.0.1"),
            ("fd00:1::/64", "fd00:1::7"),
            ("::/0", "fd00:1::7"),
        ] {
            assert_eq!(choose(wanted, &some()), Ok(expected.parse().unwrap()), "{wanted}");
        }
        for (wanted, text) in [
            ("eth1", "no interface fits 'eth1'; this machine has lo (127.0.0.1), eth01"),
            ("=eth", "no interface fits '=eth'"),
            ("^lo,eth,ib", "no interface fits '^lo,eth,ib'"),
            ("^", "'^' names no interface"),
            ("=,", "'=,' names no interface"),
            ("10.2.0.0/16", "no interface fits"),
            ("10.2.0.0/33", "is neither"),
            ("eth0,10.2/16", "'10.2/16' is neither"),
            ("fd00::/129", "is neither"),
            ("fd00::/x", "is neither"),
        ] {
            assert!(choose(wanted, &some()).unwrap_err().contains(text), "{wanted}");
        }
    }

    #[test]
    fn the_way_to_this_machine_starts_here() {
        assert_eq!(towards(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn the_default_route_comes_first_and_bridges_last() {
        let mut all = vec![
            interface("docker0", "172.17.0.1"),
            interface("eth6", "fd00::6"),
            interface("roce0", "10.0.0.1"),
            interface("bond0", "192.168.1.1"),
            interface("br-12ab", "172.18.0.1"),
        ];
        sort(&mut all, Some("192.168.1.1".parse().unwrap()));
        let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["bond0", "roce0", "eth6", "docker0", "br-12ab"]);
    }

    #[test]
    fn this_machine_has_a_loopback_interface() {
        assert!(interfaces().unwrap().iter().any(|interface| interface.address.is_loopback()));
    }
}
