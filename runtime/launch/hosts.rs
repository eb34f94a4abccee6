//! Which hosts run how many PEs of a job.

use std::str::FromStr;

use oxshmem_system::words::count32;

use super::error::LaunchError;

/// Hosts of a job, with the number of PEs that each takes: `a,b:4,[fe80::1]:2`, as
/// `oxrun --hosts` takes them.
///
/// A host without a number takes one PE if another host has a number. If none has, the PEs are
/// divided evenly. PEs are numbered host by host, in the order of the list.
///
/// ```
/// use oxshmem::launch::Hosts;
///
/// let hosts: Hosts = "a,b:4".parse()?;
/// assert_eq!(hosts.npes(), 5);
/// assert!("a,,b".parse::<Hosts>().is_err());
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(Vec<Host>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    name: String,
    slots: Option<u32>,
}

/// The PEs of one host: `count` of them, from rank `first` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    pub host: String,
    pub first: u32,
    pub count: u32,
}

impl Hosts {
    /// Returns how many PEs the hosts take, a host without a number being one.
    ///
    /// ```
    /// use oxshmem::launch::Hosts;
    ///
    /// assert_eq!("a,b".parse::<Hosts>()?.npes(), 2);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    #[must_use]
    pub fn npes(&self) -> u32 {
        self.0.iter().fold(0, |sum, host| sum.saturating_add(host.slots.unwrap_or(1)))
    }

    /// Divides `npes` PEs among the hosts; hosts without a PE are left out.
    pub(super) fn divide(&self, npes: u32) -> Result<Vec<Share>, LaunchError> {
        let numbered = self.0.iter().any(|host| host.slots.is_some());
        if numbered && npes > self.npes() {
            return Err(LaunchError::Slots { npes, slots: self.npes() });
        }
        let hosts = count32(self.0.len());
        let mut first = 0;
        let mut shares = Vec::new();
        for (host, at) in self.0.iter().zip(0..) {
            let wanted = if numbered { host.slots.unwrap_or(1) } else { npes / hosts + u32::from(at < npes % hosts) };
            let count = wanted.min(npes - first);
            if count > 0 {
                shares.push(Share { host: host.name.clone(), first, count });
            }
            first += count;
        }
        Ok(shares)
    }
}

impl FromStr for Hosts {
    type Err = LaunchError;

    fn from_str(text: &str) -> Result<Self, LaunchError> {
        let hosts: Option<Vec<Host>> = text.split(',').map(host).collect();
        hosts.map(Self).ok_or_else(|| LaunchError::Hosts(text.to_owned()))
    }
}

/// Reads `name`, `name:slots`, `[v6]` or `[v6]:slots`; `user@` may stand before the name.
fn host(text: &str) -> Option<Host> {
    let (name, slots) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) }),
        None => match text.split_once(':') {
            Some((name, slots)) => (name, Some(slots)),
            None => (text, None),
        },
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:@%".contains(c);
    // A name that begins with a dash would be an option of ssh.
    if name.is_empty() || name.starts_with('-') || !name.chars().all(allowed) {
        return None;
    }
    let slots = match slots {
        Some(slots) => Some(slots.parse().ok().filter(|slots| *slots > 0)?),
        None => None,
    };
    Some(Host { name: name.to_owned(), slots })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn divided(hosts: &str, npes: u32) -> Vec<(String, u32, u32)> {
        let shares = hosts.parse::<Hosts>().unwrap().divide(npes).unwrap();
        shares.into_iter().map(|share| (share.host, share.first, share.count)).collect()
    }

    #[test]
    fn slots_are_filled_in_order() {
        assert_eq!(divided("a,b:4", 5), [("a".into(), 0, 1), ("b".into(), 1, 4)]);
        assert_eq!(divided("a:2,b:4,c", 3), [("a".into(), 0, 2), ("b".into(), 2, 1)]);
    }

    #[test]
    fn without_numbers_the_pes_are_divided_evenly() {
        assert_eq!(divided("a,b,c", 8), [("a".into(), 0, 3), ("b".into(), 3, 3), ("c".into(), 6, 2)]);
        assert_eq!(divided("a,b,c", 2), [("a".into(), 0, 1), ("b".into(), 1, 1)]);
    }

    #[test]
    fn hosts_are_read_and_nonsense_is_refused() {
        assert_eq!(divided("me@node-1.example:1,[fe80::1%eth0]:2", 3)[1], ("fe80::1%eth0".into(), 1, 2));
        for text in [
            "",
            ",",
            "a,",
            "a:",
            "a:0",
            "a:-1",
            "a:x",
            ":4",
            "-oProxyCommand=x",
            "a b",
            "[fe80::1",
            "fe80::1",
            "a:4294967296",
        ] {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
        let refused = "a:2,b:2".parse::<Hosts>().unwrap().divide(5).unwrap_err().to_string();
        assert!(refused.contains("has 5 PEs") && refused.contains("take 4"), "{refused}");
    }
}
