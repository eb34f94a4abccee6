//! What names a job: its identity, and where its PEs meet.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use oxshmem_system::challenge::derive;

/// A job's secret: 128 random bits. It is never sent: both ends of a connection prove to each other
/// that they know it. What is shown of a job, in messages for example, is its [`JobName`].
///
/// ```
/// use oxshmem::bootstrap::JobId;
///
/// let id: JobId = "00112233445566778899aabbccddeeff".parse()?;
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) [u8; 16]);

impl JobId {
    /// Returns the secret's bytes.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the job's public name, which follows from the secret and does not tell it.
    ///
    /// ```
    /// use oxshmem::bootstrap::JobId;
    ///
    /// let id: JobId = "00112233445566778899aabbccddeeff".parse()?;
    /// assert_eq!(id.name().to_string().len(), 16);
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn name(self) -> JobName {
        JobName(derive(&self.0, b"name of the job"))
    }

    /// Returns the secret of the job that `self` identifies in public, made with a key that only
    /// its PEs have.
    pub(super) fn keyed(self, key: &[u8]) -> Self {
        Self(derive(key, &[&b"secret of the job"[..], &self.0].concat()))
    }
}

/// A job's public name: all PEs of the job have the same, other jobs have others.
///
/// ```
/// use oxshmem::bootstrap::JobId;
///
/// let [one, other] = [JobId::random()?, JobId::random()?];
/// assert!(one.name() == one.name() && one.name() != other.name());
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobName(pub(super) [u8; 8]);

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobName({self})")
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId(of job {})", self.name())
    }
}

impl FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}': expected 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

/// Addresses of one hub, tried in turn: `host:port`, an IPv6 host in brackets.
///
/// ```
/// use oxshmem::bootstrap::Rendezvous;
///
/// let rendezvous: Rendezvous = "node1:4000,10.0.0.1:4000".parse()?;
/// assert_eq!(rendezvous.to_string(), "node1:4000,10.0.0.1:4000");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous(pub(super) Vec<String>);

impl Rendezvous {
    /// Returns the addresses, at least one.
    ///
    /// ```
    /// use oxshmem::bootstrap::Rendezvous;
    ///
    /// let rendezvous: Rendezvous = "node1:4000,10.0.0.1:4000".parse()?;
    /// assert_eq!(rendezvous.addresses().count(), 2);
    /// # Ok::<(), String>(())
    /// ```
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns whether only the hub's own machine can reach it.
    pub(super) fn is_local(&self) -> bool {
        let is_loopback = |address: &str| {
            address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
                || address.starts_with("localhost:")
        };
        self.addresses().all(is_loopback)
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl FromStr for Rendezvous {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let valid = |address: &str| {
            address.rsplit_once(':').is_some_and(|(host, port)| {
                let plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
                let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                let v6 = v6.is_some_and(|host| {
                    !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ":.%".contains(c))
                });
                (plain || v6)
                    && port.bytes().all(|b| b.is_ascii_digit())
                    && port.parse::<u16>().is_ok_and(|port| port != 0)
            })
        };
        if text.split(',').all(valid) {
            Ok(Self(text.split(',').map(str::to_owned).collect()))
        } else {
            Err(format!("'{text}': expected host:port, or several separated by commas"))
        }
    }
}
