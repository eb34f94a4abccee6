//! How a job whose launcher carries no secret gets one by munge: PE 0's hub draws it, and hands it
//! to each PE in a credential that only PEs of its own user can open. Each PE asks for it on a
//! connection of its own, before it joins.
//!
//! | from | bytes | |
//! |---|---|---|
//! | PE | 8 | magic `OXSB`, version, [`REQUEST`](super::gate), 0: as a header begins |
//! | PE | 32 | its nonce |
//! | PE | 8 | the job's public name |
//! | PE | 4 | its rank |
//! | hub | 4 | 0, what follows ([`CREDENTIAL`], [`FILE`] or [`NONE`]), and the credential's length |
//! | hub | | the credential |
//!
//! The credential has four parts in it: [`PURPOSE`], the job's public identity, the PE's nonce and
//! the secret. The PE takes it only if munge says that its own user made it, and if the identity
//! and the nonce are its own. So a stranger's rendezvous, which cannot make one, is noticed; a
//! recorded credential fits no other request; and a stranger that passes it on learns no secret.
//! A hub that has none to hand out says so, and the PE ends with an error: it never goes on
//! without.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxshmem_system::challenge::{self, BYTES};

use super::error::BootstrapError;
use super::gate::{nonce, request};
use super::job::JobId;
use super::munge::{Credentials, LONGEST, this_user};
use super::pauses::Pauses;
use super::peer::Peer;
use super::resolve::Names;
use super::stream::Channel;
use super::wire::{Wire, WireError, write_all};

/// What the credential is for.
const PURPOSE: &[u8; 16] = b"oxshmem secret 1";
/// Bytes of the job's identity.
const IDENTITY: usize = 16;
/// Bytes in a credential.
const PAYLOAD: usize = PURPOSE.len() + IDENTITY + BYTES + BYTES;
/// Bytes of a reply before the credential.
const HEAD: usize = 4;
/// A credential follows.
const CREDENTIAL: u8 = 0;
/// The hub reads the secret from a file.
const FILE: u8 = 1;
/// The hub has no secret.
const NONE: u8 = 2;

/// How long the hub may take to reply. `munged` takes less than a millisecond, and its library
/// gives it up after a few seconds.
const REPLY: Duration = Duration::from_secs(20);

/// The hub's side: a secret that it hands to PEs of its own user.
#[derive(Debug)]
pub struct Handout {
    credentials: Arc<dyn Credentials>,
    public: JobId,
    secret: [u8; BYTES],
}

impl Handout {
    /// Draws the secret of the job that `public` identifies, a value that strangers may know.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn new(credentials: Arc<dyn Credentials>, public: JobId) -> Result<Self, BootstrapError> {
        let secret = challenge::random()
            .map_err(|error| BootstrapError::system("drawing the job's secret")(io::Error::other(error)))?;
        Ok(Self { credentials, public, secret })
    }

    /// Returns the identity that PEs with the secret use.
    pub fn job(&self) -> JobId {
        self.public.keyed(&self.secret)
    }

    /// Returns the reply to a PE that has drawn `nonce`.
    ///
    /// # Errors
    /// Munge fails; what is wrong, and what to do.
    pub fn reply(&self, nonce: &[u8; BYTES]) -> Result<Vec<u8>, String> {
        let payload = [&PURPOSE[..], &self.public.to_bytes(), nonce, &self.secret].concat();
        let credential = self.credentials.seal(&payload)?;
        let length = u16::try_from(credential.len()).ok().filter(|length| usize::from(*length) <= LONGEST);
        let length = length.ok_or_else(|| {
            format!("munge made a credential of {} bytes, the limit is {LONGEST}; please report it", credential.len())
        })?;
        let [high, low] = length.to_be_bytes();
        Ok([&[0, CREDENTIAL, high, low][..], &credential].concat())
    }
}

/// Returns the reply of a hub that has no secret to hand out: it reads one from a file, or has
/// none.
pub fn without(has_file: bool) -> [u8; HEAD] {
    [0, if has_file { FILE } else { NONE }, 0, 0]
}

/// Returns the identity that PEs with the secret use, from a credential.
///
/// # Errors
/// Why the credential is not from a hub of this job and this user, as the end of the sentence "it
/// ...".
fn take(credentials: &dyn Credentials, public: JobId, nonce: &[u8; BYTES], credential: &[u8]) -> Result<JobId, String> {
    let opened = credentials.open(credential);
    let (user, payload) = opened.map_err(|why| format!("sent a credential that this user cannot open: {why}"))?;
    if user != this_user() {
        return Err(format!("is of user {user}, this PE of user {}", this_user()));
    }
    let payload: &[u8; PAYLOAD] =
        payload.as_slice().try_into().map_err(|_| format!("sent a credential with {} bytes", payload.len()))?;
    let (purpose, rest) = payload.split_at(PURPOSE.len());
    let (identity, rest) = rest.split_at(IDENTITY);
    let (theirs, secret) = rest.split_at(BYTES);
    if purpose != PURPOSE {
        return Err("sent a credential that is for something else".to_owned());
    }
    if identity != public.to_bytes() {
        return Err("sent a credential of another job".to_owned());
    }
    if theirs != nonce {
        return Err("sent a credential that was made for another request".to_owned());
    }
    Ok(public.keyed(secret))
}

/// A PE's side: it looks for the hub and asks for the secret.
#[derive(Debug)]
pub struct Request<'a> {
    pub rank: u32,
    /// PE 0's node, for messages.
    pub host: &'a str,
    pub public: JobId,
    /// Where its hub may be.
    pub addresses: &'a [String],
    pub credentials: &'a dyn Credentials,
}

/// What a hub sent.
enum Reply {
    Credential(Vec<u8>),
    File,
    None,
}

impl Request<'_> {
    /// Makes attempts until one succeeds or the deadline passes. Returns the identity that PEs with
    /// the secret use, and the hub's address.
    ///
    /// # Errors
    /// No hub replies before the deadline, of which `timeout` is left for messages; or one does
    /// that has no secret to hand out, or is not this user's.
    pub fn make(&self, timeout: Duration, deadline: Instant) -> Result<(JobId, String), BootstrapError> {
        let mut reason = None;
        let mut names = Names::default();
        let mut pauses = Pauses::of(self.rank);
        loop {
            for address in self.addresses {
                match self.ask(&mut names, address, deadline)? {
                    Ok(job) => return Ok((job, address.clone())),
                    // An attempt that the deadline cut short says less than one before it.
                    Err(_) if reason.is_some() && Instant::now() >= deadline => {}
                    Err(why) => reason = Some(format!("{address}: {why}")),
                }
            }
            let Some(pause) = pauses.next(deadline.saturating_duration_since(Instant::now())) else {
                return Err(BootstrapError::Unreachable {
                    rank: self.rank,
                    address: self.addresses.join(","),
                    timeout,
                    reason: reason.unwrap_or_default(),
                });
            };
            std::thread::sleep(pause);
        }
    }

    /// Makes one attempt at one address; returns the identity, or why another attempt may succeed.
    fn ask(
        &self,
        names: &mut Names,
        address: &str,
        deadline: Instant,
    ) -> Result<Result<JobId, String>, BootstrapError> {
        let nonce = nonce()?;
        let reply = match names.connect(address, deadline) {
            // No later attempt of this process succeeds either.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                return Err(BootstrapError::system(format!("connecting to the rendezvous at {address}"))(error));
            }
            Err(error) => return Ok(Err(error.to_string())),
            Ok(stream) => {
                let mut wire = Wire::new(Channel::Tcp(stream));
                self.exchange(&mut wire, &nonce, deadline.min(Instant::now() + REPLY))
            }
        };
        let here = Peer::this().host;
        let refused = |reason| BootstrapError::Refused { rank: self.rank, address: address.to_owned(), reason };
        let host = self.host;
        match reply {
            Ok(Reply::Credential(credential)) => {
                take(self.credentials, self.public, &nonce, &credential).map(Ok).map_err(|why| {
                    refused(format!(
                        "it {why}; another user's program listens there, or PE 0's node {host} and {here} do not have the \
                         same users"
                    ))
                })
            }
            Ok(Reply::File) => Err(refused(format!(
                "PE 0 on {host} reads the job's secret from OXSHMEM_SECRET_FILE, and this PE on {here} has munge and no \
                 file; set OXSHMEM_SECRET_FILE for all PEs, or for none"
            ))),
            Ok(Reply::None) => Err(refused(format!(
                "PE 0 on {host} does not use munge, and this PE on {here} does; run munge on {host} too, or set \
                 OXSHMEM_SECRET_FILE or OXSHMEM_MUNGE=off for all PEs"
            ))),
            Err(WireError::Refused(reason)) => Err(refused(reason)),
            // Of another job, or of none, or at its end: this job's may be there soon.
            Err(WireError::Closed) => Ok(Err("it closed the connection instead of sending a secret".to_owned())),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn exchange(&self, wire: &mut Wire, nonce: &[u8; BYTES], until: Instant) -> Result<Reply, WireError> {
        write_all(&wire.stream, &request(nonce, self.public.name(), self.rank), until)?;
        let [zero, kind, high, low] = wire.read_exact::<HEAD>(until)?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        match (zero, kind) {
            (0, CREDENTIAL) if (1..=LONGEST).contains(&length) => {
                let mut credential = vec![0; length];
                wire.fill(&mut credential, until)?;
                Ok(Reply::Credential(credential))
            }
            (0, FILE) => Ok(Reply::File),
            (0, NONE) => Ok(Reply::None),
            _ => Err(io::Error::other("what it sent is no reply to a request for the secret").into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::admission::Admission;
    use super::super::hub::{Hub, HubOptions};
    use super::super::munge::tests::Service;
    use super::*;

    const PUBLIC: JobId = JobId([3; 16]);
    const NONCE: [u8; BYTES] = [5; BYTES];

    /// Munge as this user sees it, without a service: a credential is the user and the payload.
    #[derive(Debug)]
    struct Plain(u32);

    impl Credentials for Plain {
        fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, String> {
            Ok([&self.0.to_be_bytes()[..], payload].concat())
        }

        fn open(&self, credential: &[u8]) -> Result<(u32, Vec<u8>), String> {
            let (user, payload) = credential.split_first_chunk().ok_or("Invalid credential")?;
            Ok((u32::from_be_bytes(*user), payload.to_vec()))
        }
    }

    /// Seals nothing.
    #[derive(Debug)]
    struct Mute;

    impl Credentials for Mute {
        fn seal(&self, _payload: &[u8]) -> Result<Vec<u8>, String> {
            Err("munged is gone".to_owned())
        }

        fn open(&self, _credential: &[u8]) -> Result<(u32, Vec<u8>), String> {
            Err("munged is gone".to_owned())
        }
    }

    fn plain() -> Arc<dyn Credentials> {
        Arc::new(Plain(this_user()))
    }

    /// Returns the credential of a reply.
    fn credential(handout: &Handout, nonce: &[u8; BYTES]) -> Vec<u8> {
        handout.reply(nonce).unwrap().split_off(HEAD)
    }

    #[test]
    fn a_secret_is_taken_from_this_user_for_this_job_and_request_alone() {
        let handout = Handout::new(plain(), PUBLIC).unwrap();
        let taken = |public, nonce, credential: &[u8]| take(&*plain(), public, nonce, credential);
        let good = credential(&handout, &NONCE);
        assert_eq!(taken(PUBLIC, &NONCE, &good), Ok(handout.job()));
        assert!(handout.job() != PUBLIC && handout.job() != Handout::new(plain(), PUBLIC).unwrap().job());
        let stranger = Handout::new(Arc::new(Plain(this_user() + 1)), PUBLIC).unwrap();
        let mut purpose = good.clone();
        purpose[4] ^= 1;
        for (public, credential, words) in [
            (PUBLIC, credential(&stranger, &NONCE), format!("is of user {}, this PE of user", this_user() + 1)),
            (PUBLIC, credential(&handout, &[6; BYTES]), "was made for another request".to_owned()),
            (JobId([4; 16]), good.clone(), "of another job".to_owned()),
            (PUBLIC, purpose, "is for something else".to_owned()),
            (PUBLIC, good[..good.len() - 1].to_vec(), "with 95 bytes".to_owned()),
            (PUBLIC, vec![1], "that this user cannot open: Invalid credential".to_owned()),
        ] {
            let error = taken(public, &NONCE, &credential).unwrap_err();
            assert!(error.contains(&words), "{error}");
        }
    }

    fn hub(handout: Option<Arc<Handout>>, admission: Admission) -> Hub {
        let job = handout.as_ref().map_or(PUBLIC, |handout| handout.job());
        let options =
            HubOptions { public: Some(PUBLIC), handout, ..HubOptions::new(([127, 0, 0, 1], 0).into(), job, Some(1)) };
        Hub::start_for(options, admission).unwrap()
    }

    fn asks(hub: &Hub, credentials: &dyn Credentials, public: JobId) -> Result<(JobId, String), BootstrapError> {
        let addresses = [hub.address().to_string()];
        let request = Request { rank: 3, host: "n1", public, addresses: &addresses, credentials };
        let patience = Duration::from_millis(300);
        request.make(patience, Instant::now() + patience)
    }

    #[test]
    fn a_hub_hands_its_secret_to_pes_that_ask() {
        let handout = Arc::new(Handout::new(plain(), PUBLIC).unwrap());
        let hub = hub(Some(Arc::clone(&handout)), Admission::Secret);
        for _ in 0..3 {
            assert_eq!(asks(&hub, &*plain(), PUBLIC).unwrap(), (handout.job(), hub.address().to_string()));
        }
        // Another job's PEs go on looking.
        let error = asks(&hub, &*plain(), JobId([4; 16])).unwrap_err();
        assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn a_pe_with_munge_never_goes_on_without() {
        let handout = |credentials: Arc<dyn Credentials>| Some(Arc::new(Handout::new(credentials, PUBLIC).unwrap()));
        let open = Admission::SameUser { nodes: None, without: String::new() };
        for (hub, words) in [
            (hub(None, open), "PE 0 on n1 does not use munge, and this PE on"),
            (hub(None, Admission::Secret), "PE 0 on n1 reads the job's secret from OXSHMEM_SECRET_FILE, and"),
            (
                hub(handout(Arc::new(Mute)), Admission::Secret),
                "cannot hand out the job's secret: munge does not seal it: munged is gone",
            ),
            (
                hub(handout(Arc::new(Plain(this_user() + 1))), Admission::Secret),
                "another user's program listens there, or PE 0's node n1 and",
            ),
        ] {
            let error = asks(&hub, &*plain(), PUBLIC).unwrap_err();
            assert!(matches!(error, BootstrapError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_stranger_that_passes_on_a_credential_is_of_no_use() {
        let Some(service) = Service::start("handout") else { return };
        let munge = service.client();
        let handout = Handout::new(Arc::new(service.client()), PUBLIC).unwrap();
        let first = credential(&handout, &NONCE);
        assert_eq!(take(&munge, PUBLIC, &NONCE, &first), Ok(handout.job()));
        let error = take(&munge, PUBLIC, &NONCE, &first).unwrap_err();
        assert!(error.contains("cannot open: munge_decode failed"), "{error}");
        // What a stranger seals for this user is the stranger's.
        let restricted = format!("--restrict-uid={}", this_user());
        if let Some(output) = service.as_stranger(&["munge", &restricted], &[0; PAYLOAD]) {
            assert!(output.status.success(), "{output:?}");
            let error = take(&munge, PUBLIC, &NONCE, output.stdout.trim_ascii()).unwrap_err();
            assert_eq!(error, format!("is of user 65534, this PE of user {}", this_user()));
        }
    }
}
