//! A job of many PEs, one of which exists: a rendezvous that replies in the place of all others.
//!
//! What the PE contributes to a collective comes back to it from every rank, as if all of them were
//! like it, each on a machine of its own. So its queue pairs to a peer lead to themselves, and
//! set-up takes the way that it takes in a job of that size, with every byte that the PE would
//! receive there.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

use oxshmem_system::challenge::{BYTES, Nonces, Role, nonce, prove, verify};

const HEADER: usize = 28;
const MAGIC: [u8; 4] = *b"OXSB";
const VERSION: u16 = 7;
/// What stands for the op in the first bytes of a connection, before the challenge.
const CHALLENGE: u8 = 0xff;
/// Bytes of a job's secret.
const SECRET: usize = 16;
const HUB: u32 = u32::MAX;

/// Ops of the bootstrap's frames, as `runtime/bootstrap/frame.rs` numbers them.
mod op {
    pub const HELLO: u8 = 1;
    pub const ACCEPTED: u8 = 2;
    pub const WELCOME: u8 = 4;
    pub const ALLGATHER: u8 = 5;
    pub const GATHERED: u8 = 6;
    pub const BARRIER: u8 = 7;
    pub const RELEASED: u8 = 8;
    pub const GOODBYE: u8 = 9;
    pub const FAREWELL: u8 = 10;
    pub const ABORT: u8 = 11;
    pub const ALLTOALL: u8 = 16;
}

/// What a PE wrote, how it ended, and what it received.
#[derive(Debug)]
pub struct Played {
    /// The output of the PE's process.
    pub output: Output,
    /// Bytes that it received from the rendezvous, headers included.
    pub received: u64,
    /// The same by label of the collective, in order.
    pub by_label: Vec<(String, u64)>,
}

impl Played {
    /// Returns everything that the PE wrote.
    #[must_use]
    pub fn text(&self) -> String {
        [&self.output.stdout, &self.output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
    }
}

/// Runs a program as rank 0 of a job of `npes` PEs, with these variables, until it ends.
///
/// # Panics
/// The program cannot be started, or talks to the rendezvous in another way than PEs do.
#[must_use]
pub fn play(program: Command, npes: u32, variables: &[(&str, OsString)]) -> Played {
    play_otherwise(program, npes, variables, |_, _| None)
}

/// Plays a job whose other PEs contribute what `others` returns to the allgather with a label,
/// where the PE contributes these bytes; where it returns nothing, what [`play`] has them
/// contribute.
///
/// # Panics
/// See [`play`].
#[must_use]
pub fn play_otherwise(
    mut program: Command,
    npes: u32,
    variables: &[(&str, OsString)],
    others: impl Fn(&str, &[u8]) -> Option<Vec<u8>>,
) -> Played {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("a socket: {error}"));
    let address = listener.local_addr().unwrap_or_else(|error| panic!("a socket: {error}"));
    // Each job has its own, since PEs name their sockets after it.
    let drawn = nonce().unwrap_or_else(|error| panic!("a secret: {error}"));
    let secret: [u8; SECRET] = std::array::from_fn(|i| drawn[i]);
    program
        .env("OXSHMEM_RENDEZVOUS", address.to_string())
        .env("OXSHMEM_RANK", "0")
        .env("OXSHMEM_NPES", npes.to_string())
        .env("OXSHMEM_JOB", secret.map(|byte| format!("{byte:02x}")).concat())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = program.spawn().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let output = std::thread::spawn(move || child.wait_with_output());
    let (stream, _) = listener.accept().unwrap_or_else(|error| panic!("the PE did not connect: {error}"));
    let mut hub = Hub { stream, secret, npes, generation: 1, received: 0, by_label: Vec::new() };
    if hub.meet() {
        while hub.reply(&others) {}
    }
    let output = output.join().ok().and_then(Result::ok).unwrap_or_else(|| panic!("the PE's output is lost"));
    Played { output, received: hub.received, by_label: hub.by_label }
}

struct Hub {
    stream: TcpStream,
    secret: [u8; SECRET],
    npes: u32,
    generation: u32,
    received: u64,
    by_label: Vec<(String, u64)>,
}

/// Returns a field of bytes with its length before it.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Cuts a field with its length before it off.
fn cut<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (length, rest) = bytes.split_at(4);
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
    let (field, rest) = rest.split_at(length);
    *bytes = rest;
    field
}

impl Hub {
    /// Exchanges proofs that both ends know the job's secret. False: the PE is gone.
    fn meet(&mut self) -> bool {
        let mut opening = [0; 8 + BYTES];
        if self.stream.read_exact(&mut opening).is_err() {
            return false;
        }
        let (prefix, theirs) = opening.split_at(8);
        assert_eq!(prefix, [&MAGIC[..], &VERSION.to_be_bytes(), &[CHALLENGE, 0]].concat(), "not this protocol");
        let accepting = nonce().unwrap_or_else(|error| panic!("a nonce: {error}"));
        let nonces = Nonces { connecting: std::array::from_fn(|i| theirs[i]), accepting };
        let mut proof = [0; BYTES];
        if self.stream.write_all(&accepting).is_err() || self.stream.read_exact(&mut proof).is_err() {
            return false;
        }
        assert!(verify(&self.secret, Role::Connecting, &nonces, b"rendezvous", &proof), "the PE's proof is wrong");
        self.stream.write_all(&prove(&self.secret, Role::Accepting, &nonces, b"rendezvous")).is_ok()
    }

    /// Reads a frame and replies. False: the PE is gone, or leaves.
    fn reply(&mut self, others: impl Fn(&str, &[u8]) -> Option<Vec<u8>>) -> bool {
        let mut header = [0; HEADER];
        if self.stream.read_exact(&mut header).is_err() {
            return false;
        }
        assert_eq!((&header[..4], &header[4..6]), (&MAGIC[..], &VERSION.to_be_bytes()[..]), "not this protocol");
        let sequence = u64::from_be_bytes(std::array::from_fn(|i| header[16 + i]));
        let mut payload = vec![0; u32::from_be_bytes(std::array::from_fn(|i| header[24 + i])) as usize];
        if self.stream.read_exact(&mut payload).is_err() {
            return false;
        }
        let mut rest = payload.as_slice();
        match header[6] {
            op::HELLO => {
                // The job's name, PEs and two deadlines; then process, host and node.
                let peer = &payload[28..];
                let mut texts = &peer[4..];
                let (host, node) = (cut(&mut texts), cut(&mut texts));
                let of_rank = |rank: u32| match rank {
                    0 => peer.to_vec(),
                    _ => {
                        // The name has the length of the PE's own.
                        let mut name = format!("{rank:08}").into_bytes();
                        name.resize(node.len().max(8), b'.');
                        [&peer[..4], &sized(host), &sized(&name)].concat()
                    }
                };
                let peers: Vec<u8> = (0..self.npes).flat_map(of_rank).collect();
                // Straight to the hub, and no leader's address.
                let way = [&HUB.to_be_bytes()[..], &[0; 16]].concat();
                self.send(op::ACCEPTED, 0, &way, "hello");
                self.send(op::WELCOME, 0, &[&self.npes.to_be_bytes()[..], &peers].concat(), "welcome");
            }
            op::ALLGATHER => {
                let label = String::from_utf8_lossy(cut(&mut rest)).into_owned();
                let own = cut(&mut rest);
                let otherwise = others(&label, own);
                let of_rank = |rank: u32| match label.as_str() {
                    _ if rank > 0 && otherwise.is_some() => sized(otherwise.as_deref().unwrap_or_default()),
                    // It begins with the first PE of the machine, which each is on its own.
                    "reach of the devices" => sized(&[&rank.to_le_bytes(), &own[4..]].concat()),
                    _ => sized(own),
                };
                let parts: Vec<u8> = (0..self.npes).flat_map(of_rank).collect();
                self.send(op::GATHERED, sequence, &[&self.npes.to_be_bytes()[..], &parts].concat(), &label);
            }
            op::ALLTOALL => {
                let label = String::from_utf8_lossy(cut(&mut rest)).into_owned();
                let rows = cut(&mut rest);
                let parts: Vec<u8> = rows.chunks(rows.len() / self.npes as usize).flat_map(sized).collect();
                self.send(op::GATHERED, sequence, &[&self.npes.to_be_bytes()[..], &parts].concat(), &label);
            }
            op::BARRIER => self.send(op::RELEASED, sequence, &[], "barriers"),
            op::GOODBYE => {
                self.send(op::FAREWELL, sequence, &[], "farewell");
                return false;
            }
            op::ABORT => return false,
            other => panic!("a frame with op {other}, which no test of set-up needs"),
        }
        true
    }

    fn send(&mut self, op: u8, sequence: u64, payload: &[u8], label: &str) {
        let frame = [
            &MAGIC[..],
            &VERSION.to_be_bytes(),
            &[op, 0],
            &self.generation.to_be_bytes(),
            &HUB.to_be_bytes(),
            &sequence.to_be_bytes(),
            &(payload.len() as u32).to_be_bytes(),
            payload,
        ]
        .concat();
        self.received += frame.len() as u64;
        match self.by_label.iter_mut().find(|(known, _)| known == label) {
            Some((_, bytes)) => *bytes += frame.len() as u64,
            None => self.by_label.push((label.to_owned(), frame.len() as u64)),
        }
        // A PE that is gone is noticed by the next read.
        let _ = self.stream.write_all(&frame);
    }
}
