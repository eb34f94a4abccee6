//! How the two ends of a connection to the rendezvous learn that the other belongs to the job,
//! before either says anything else. Without sockets.
//!
//! | from | bytes | |
//! |---|---|---|
//! | connecting | 8 | magic `OXSB`, version, [`CHALLENGE`], 0: as a header begins |
//! | connecting | 32 | its nonce |
//! | accepting | 32 | its nonce, which never begins with the magic |
//! | connecting | 32 | its proof |
//! | accepting | 32 | its proof |
//!
//! This is the same in every version since 4: the accepting end ignores the version, and each end
//! learns from the first frame which version the other speaks. Until then a stranger has seen a
//! random number and nothing else. Version 3 had no challenge: its first frame has the job's secret
//! in it. So an older PE of the same job is told why it is refused, and a stranger is not.
//!
//! A hub whose job has an identity that strangers may know, beside its secret, also takes the
//! request of a PE for the secret (`handout.rs`), and tells a PE that gives the proof of the public
//! identity why that does not suffice.

use oxshmem_system::challenge::{self, BYTES, Nonces, Role};

use super::error::BootstrapError;
use super::frame::{HEADER_LEN, MAGIC, VERSION};
use super::job::{JobId, JobName};

/// What stands for the op in the first bytes of a connection. No frame has it.
const CHALLENGE: u8 = 0xff;
/// What stands for the op where a PE asks for the job's secret instead. No frame has it.
const REQUEST: u8 = 0xfe;
/// The first bytes of a connection, before the nonce.
const PREFIX: usize = 8;
/// Bytes that the connecting end sends first.
const OPENING: usize = PREFIX + BYTES;
/// Bytes of a job's public name.
const NAME: usize = 8;
/// Bytes of a request for the secret.
const ASKING: usize = OPENING + NAME + 4;
/// The newest version without a challenge.
const UNCHALLENGED: u16 = 3;
/// Bytes of the job's secret in a HELLO of version 3, after the header.
const OLD_SECRET: usize = 16;
/// What the proofs are for.
const CONTEXT: &[u8] = b"rendezvous";

/// Returns a nonce that cannot be taken for a frame.
///
/// # Errors
/// The system has no randomness to give.
pub fn nonce() -> Result<[u8; BYTES], BootstrapError> {
    loop {
        let nonce = challenge::nonce()
            .map_err(|error| BootstrapError::system("drawing a nonce")(std::io::Error::other(error)))?;
        if nonce[..MAGIC.len()] != MAGIC {
            return Ok(nonce);
        }
    }
}

/// Returns the first bytes of a connection.
fn prefix(op: u8) -> [u8; PREFIX] {
    let mut bytes = [0; PREFIX];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
    bytes[6] = op;
    bytes
}

/// Returns what a PE sends that asks for the secret of the job with this public name.
pub fn request(nonce: &[u8; BYTES], JobName(name): JobName, rank: u32) -> Vec<u8> {
    [&prefix(REQUEST)[..], nonce, &name, &rank.to_be_bytes()].concat()
}

/// What the accepting end does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for more bytes.
    More,
    /// Send these bytes, then wait for more.
    Send([u8; BYTES]),
    /// The other end belongs to the job. Send these bytes; the others are what it sent after its
    /// proof.
    Passed([u8; BYTES], Vec<u8>),
    /// The PE with this rank asks for the job's secret, and has drawn this nonce. Whether it is one
    /// is not known.
    Asked(u32, [u8; BYTES]),
}

/// Why the accepting end ends the connection: the end of the sentence "it ...".
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// A PE of the job that speaks a version without a challenge.
    #[error("speaks version {0} of the bootstrap protocol")]
    Old(u16),
    /// Not a PE.
    #[error("did not begin as a PE does")]
    Opening,
    /// It does not know the job's secret.
    #[error("gave a wrong proof: it belongs to another job, or to none")]
    Proof,
    /// It knows of the job what strangers may know, and not its secret.
    #[error("does not know the job's secret")]
    Bare,
}

/// The accepting end's side.
#[derive(Debug)]
pub struct Gate {
    job: JobId,
    nonce: [u8; BYTES],
    /// The identity of the job that strangers may know, if it has one beside its secret or instead.
    public: Option<JobId>,
    /// The other end has requested the secret, and has nothing more to say.
    asked: bool,
    /// Bytes that are not used yet: never more than one read beyond what is waited for.
    buffer: Vec<u8>,
    /// Both nonces, once the other end has sent its own.
    nonces: Option<Nonces>,
}

impl Gate {
    /// Returns the gate of one new connection; `nonce` is used for no other.
    pub fn new(job: JobId, nonce: [u8; BYTES]) -> Self {
        Self { job, nonce, public: None, asked: false, buffer: Vec::new(), nonces: None }
    }

    /// Says by which identity strangers may know the job.
    pub fn known_as(self, public: Option<JobId>) -> Self {
        Self { public, ..self }
    }

    /// Adds bytes that came.
    ///
    /// # Errors
    /// The other end does not belong to the job.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Step, Stranger> {
        if self.asked {
            return Err(Stranger::Opening);
        }
        self.buffer.extend_from_slice(bytes);
        let Some(nonces) = self.nonces else { return self.opening() };
        let Some(proof) = self.buffer.get(..BYTES) else { return Ok(Step::More) };
        let proves = |job: JobId| challenge::verify(&job.0, Role::Connecting, &nonces, CONTEXT, proof);
        if !proves(self.job) {
            return Err(if self.public.is_some_and(proves) { Stranger::Bare } else { Stranger::Proof });
        }
        let own = challenge::prove(&self.job.0, Role::Accepting, &nonces, CONTEXT);
        Ok(Step::Passed(own, self.buffer.split_off(BYTES)))
    }

    fn opening(&mut self) -> Result<Step, Stranger> {
        let seen = self.buffer.len().min(MAGIC.len());
        if self.buffer[..seen] != MAGIC[..seen] {
            return Err(Stranger::Opening);
        }
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(Step::More) };
        let version = u16::from_be_bytes([prefix[4], prefix[5]]);
        if version <= UNCHALLENGED {
            return self.old(version);
        }
        match (&prefix[6..], self.public) {
            ([CHALLENGE, 0], _) => {}
            ([REQUEST, 0], Some(public)) => return self.request(public.name()),
            _ => return Err(Stranger::Opening),
        }
        // The other end has nothing to prove before it has this end's nonce.
        let Some(theirs) = self.buffer[PREFIX..].first_chunk::<BYTES>() else { return Ok(Step::More) };
        if self.buffer.len() > OPENING {
            return Err(Stranger::Opening);
        }
        self.nonces = Some(Nonces { connecting: *theirs, accepting: self.nonce });
        self.buffer = Vec::new();
        Ok(Step::Send(self.nonce))
    }

    /// Takes a request for the secret.
    fn request(&mut self, JobName(name): JobName) -> Result<Step, Stranger> {
        if self.buffer.len() > ASKING {
            return Err(Stranger::Opening);
        }
        let Some(request) = self.buffer.first_chunk::<ASKING>() else { return Ok(Step::More) };
        let (nonce, rest) = request[PREFIX..].split_at(BYTES);
        let (theirs, rank) = rest.split_at(NAME);
        if theirs != name {
            return Err(Stranger::Opening);
        }
        let (Ok(nonce), Ok(rank)) = (nonce.try_into(), rank.try_into()) else { return Err(Stranger::Opening) };
        self.asked = true;
        Ok(Step::Asked(u32::from_be_bytes(rank), nonce))
    }

    /// Takes a HELLO of a version without a challenge.
    fn old(&self, version: u16) -> Result<Step, Stranger> {
        let Some(secret) = self.buffer.get(HEADER_LEN..HEADER_LEN + OLD_SECRET) else { return Ok(Step::More) };
        // All bytes are compared: a shorter time would tell where the first difference is.
        let differs = secret.iter().zip(self.job.0).fold(0, |differs, (theirs, own)| differs | (theirs ^ own));
        Err(if differs == 0 { Stranger::Old(version) } else { Stranger::Opening })
    }
}

/// The connecting end's side.
#[derive(Debug)]
pub struct Knock {
    job: JobId,
    nonce: [u8; BYTES],
}

impl Knock {
    /// Draws the nonce of one connection.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn new(job: JobId) -> Result<Self, BootstrapError> {
        Ok(Self { job, nonce: nonce()? })
    }

    /// Returns what is sent first.
    pub fn opening(&self) -> [u8; OPENING] {
        let mut bytes = [0; OPENING];
        bytes[..PREFIX].copy_from_slice(&prefix(CHALLENGE));
        bytes[PREFIX..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Returns the proof to send, and a function that tells whether the other end's is right.
    pub fn answer(&self, theirs: [u8; BYTES]) -> ([u8; BYTES], impl Fn(&[u8]) -> bool) {
        let nonces = Nonces { connecting: self.nonce, accepting: theirs };
        let job = self.job;
        let proof = challenge::prove(&job.0, Role::Connecting, &nonces, CONTEXT);
        (proof, move |theirs| challenge::verify(&job.0, Role::Accepting, &nonces, CONTEXT, theirs))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const JOB: JobId = JobId([7; 16]);

    /// Goes through the gate; bytes come in pieces of this length.
    fn pass(connecting: JobId, accepting: JobId, piece: usize, rest: &[u8]) -> Result<Vec<u8>, Stranger> {
        let (mut gate, knock) = (Gate::new(accepting, nonce().unwrap()), Knock::new(connecting).unwrap());
        let mut steps = |bytes: &[u8]| -> Result<Step, Stranger> {
            let mut last = Step::More;
            for bytes in bytes.chunks(piece) {
                assert_eq!(last, Step::More);
                last = gate.push(bytes)?;
            }
            Ok(last)
        };
        let Step::Send(theirs) = steps(&knock.opening())? else { panic!() };
        let (proof, is_right) = knock.answer(theirs);
        match steps(&[&proof[..], rest].concat())? {
            Step::Passed(theirs, rest) => {
                assert!(is_right(&theirs) && !is_right(&proof));
                Ok(rest)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn members_pass_and_strangers_do_not() {
        assert_eq!(pass(JOB, JOB, 100, b"HELLO"), Ok(b"HELLO".to_vec()));
        for piece in [1, 4, 31, 32] {
            assert_eq!(pass(JOB, JOB, piece, b""), Ok(Vec::new()));
        }
        assert_eq!(pass(JobId([8; 16]), JOB, 100, b""), Err(Stranger::Proof));
    }

    #[test]
    fn a_replayed_proof_is_wrong() {
        let knock = Knock::new(JOB).unwrap();
        let mut gate = Gate::new(JOB, nonce().unwrap());
        let Ok(Step::Send(theirs)) = gate.push(&knock.opening()) else { panic!() };
        let (proof, _) = knock.answer(theirs);
        assert!(matches!(gate.push(&proof), Ok(Step::Passed(..))));
        // All that the connecting end sent, once more.
        let mut gate = Gate::new(JOB, nonce().unwrap());
        assert!(matches!(gate.push(&knock.opening()), Ok(Step::Send(_))));
        assert_eq!(gate.push(&proof), Err(Stranger::Proof));
    }

    #[test]
    fn an_old_member_is_known_by_its_secret() {
        let hello = |secret: [u8; 16]| {
            let mut bytes = vec![0; HEADER_LEN];
            bytes[..6].copy_from_slice(b"OXSB\x00\x03");
            bytes.extend(secret);
            Gate::new(JOB, [0; BYTES]).push(&bytes)
        };
        assert_eq!(hello([7; 16]), Err(Stranger::Old(3)));
        assert_eq!(hello([6; 16]), Err(Stranger::Opening));
    }

    #[test]
    fn nothing_is_said_to_what_does_not_open_in_order() {
        let mut opening = Knock::new(JOB).unwrap().opening().to_vec();
        assert_eq!(Gate::new(JOB, [0; BYTES]).push(&opening[..39]), Ok(Step::More));
        opening.push(0);
        assert_eq!(Gate::new(JOB, [0; BYTES]).push(&opening), Err(Stranger::Opening));
        for (at, value) in [(0, b'G'), (6, 1), (7, 1)] {
            let mut opening = Knock::new(JOB).unwrap().opening();
            opening[at] = value;
            assert_eq!(Gate::new(JOB, [0; BYTES]).push(&opening), Err(Stranger::Opening));
        }
    }

    const PUBLIC: JobId = JobId([9; 16]);

    fn public_gate() -> Gate {
        Gate::new(JOB, nonce().unwrap()).known_as(Some(PUBLIC))
    }

    #[test]
    fn a_request_for_the_secret_is_taken_once_and_only_for_this_job() {
        let asking = request(&[5; BYTES], PUBLIC.name(), 3);
        for piece in [1, 8, 51, 52] {
            let mut gate = public_gate();
            let steps: Vec<_> = asking.chunks(piece).map(|bytes| gate.push(bytes).unwrap()).collect();
            let (last, before) = steps.split_last().unwrap();
            assert!(*last == Step::Asked(3, [5; BYTES]) && before.iter().all(|step| *step == Step::More));
            assert_eq!(gate.push(&[0]), Err(Stranger::Opening));
        }
        let longer = [&asking[..], &[0]].concat();
        let other = request(&[5; BYTES], JOB.name(), 3);
        for (mut gate, bytes) in [
            (public_gate(), longer),
            (public_gate(), other),
            // Nothing is handed out where the launcher carries the secret.
            (Gate::new(JOB, nonce().unwrap()), asking),
        ] {
            assert_eq!(gate.push(&bytes), Err(Stranger::Opening));
        }
    }

    #[test]
    fn a_pe_without_the_secret_is_known_by_what_is_public() {
        for (job, expected) in [(PUBLIC, Stranger::Bare), (JobId([8; 16]), Stranger::Proof)] {
            let (mut gate, knock) = (public_gate(), Knock::new(job).unwrap());
            let Ok(Step::Send(theirs)) = gate.push(&knock.opening()) else { panic!() };
            assert_eq!(gate.push(&knock.answer(theirs).0), Err(expected));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_pass(pieces in vec(vec(any::<u8>(), 0..80), 0..5), opened in any::<bool>()) {
            let mut gate = Gate::new(JOB, [1; BYTES]);
            if opened {
                gate.push(&Knock::new(JOB).unwrap().opening()).unwrap();
            }
            for piece in pieces {
                match gate.push(&piece) {
                    Ok(Step::Passed(..)) => panic!("{piece:?} passed"),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
