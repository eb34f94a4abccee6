//! Network interfaces of this machine, and the choice of one (`OXSHMEM_INTERFACE`).

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::BootstrapError;

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
}

/// Returns the addresses of all interfaces that are up, IPv4 first.
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
    found.sort_by_key(|interface| interface.address.is_ipv6());
    Ok(found)
}

/// Returns the address that `OXSHMEM_INTERFACE` chooses: of the interface of that name, or the
/// first within a range like `10.1.0.0/16`. `Err` says what is wrong, and what there is.
pub(crate) fn choose(wanted: &str, interfaces: &[Interface]) -> Result<IpAddr, String> {
    let all = || {
        let all: Vec<String> =
            interfaces.iter().map(|interface| format!("{} ({})", interface.name, interface.address)).collect();
        format!("this machine has {}", all.join(", "))
    };
    let found = match wanted.split_once('/') {
        Some((address, bits)) => {
            let range = address.parse::<IpAddr>().ok().zip(bits.parse::<u32>().ok());
            let range = range.filter(|(address, bits)| *bits <= if address.is_ipv4() { 32 } else { 128 });
            let Some((address, bits)) = range else {
                return Err(format!("'{wanted}' is neither an interface nor a range like 10.1.0.0/16 or fd00::/64"));
            };
            interfaces.iter().find(|interface| is_within(interface.address, address, bits))
        }
        None => {
            let mut named = interfaces.iter().filter(|interface| interface.name == wanted);
            named.clone().find(|interface| !interface.is_local()).or_else(|| named.next())
        }
    };
    found.map(|interface| interface.address).ok_or_else(|| format!("no interface fits '{wanted}'; {}", all()))
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

    fn some() -> Vec<Interface> {
        let interface = |name: &str, address: &str| Interface { name: name.into(), address: address.parse().unwrap() };
        vec![
            interface("lo", "127.0.0.1"),
            interface("eth0", "10.1.2.3"),
            interface("ib0", "fe80::1"),
            interface("ib0", "fd00:1::7"),
        ]
    }

    #[test]
    fn an_interface_is_chosen_by_its_name_or_its_range() {
        for (wanted, expected) in [
            ("eth0", "10.1.2.3"),
            ("ib0", "fd00:1::7"),
            ("lo", "127.0.0.1"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("0.0.0.0/0", "127.0.0.1"),
            ("fd00:1::/64", "fd00:1::7"),
            ("::/0", "fe80::1"),
        ] {
            assert_eq!(choose(wanted, &some()), Ok(expected.parse().unwrap()), "{wanted}");
        }
        for (wanted, text) in [
            ("eth1", "no interface fits 'eth1'; this machine has lo (127.0.0.1), eth0"),
            ("10.2.0.0/16", "no interface fits"),
            ("10.2.0.0/33", "is neither"),
            ("10.2/16", "is neither"),
            ("fd00::/129", "is neither"),
            ("fd00::/x", "is neither"),
        ] {
            assert!(choose(wanted, &some()).unwrap_err().contains(text), "{wanted}");
        }
    }

    #[test]
    fn this_machine_has_a_loopback_interface() {
        assert!(interfaces().unwrap().iter().any(|interface| interface.address.is_loopback()));
    }
}
