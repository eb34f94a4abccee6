#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::{PmiStart, place};

/// Runs the client of a job of two against a launcher that says `said`, then closes or is silent.
fn against(said: &'static [u8], closes: bool) -> String {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let launcher = std::thread::spawn(move || {
        let _ = theirs.write_all(said);
        if closes {
            return;
        }
        // Until the client has given up.
        let mut rest = Vec::new();
        let _ = theirs.read_to_end(&mut rest);
    });
    let start = PmiStart { fd: ours.as_raw_fd(), rank: 1, npes: 2, job: "7".into(), one_node: true };
    let error = place(&start, Instant::now() + Duration::from_millis(300)).unwrap_err().to_string();
    drop(ours);
    launcher.join().unwrap();
    error
}

#[test]
fn what_is_not_pmi_is_named() {
    for (said, words) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "what came is not PMI: 'HTTP/1.1'"),
        (b"cmd=maxes rc=0\n", "the reply to init is 'maxes'"),
        (b"\xff\xfe\n", "what came is not PMI: '\\xff\\xfe\\n'"),
        (b"pmi_version=2\n", "what came is not PMI: 'pmi_version=2\\n'"),
        (b"cmd=response_to_init pmi_version=3 pmi_subversion=0 rc=0\n", "speaks version '3'"),
        (b"cmd=response_to_init pmi_version=2 rc=0\n999999cmd", "what came is not PMI: '999999cmd'"),
        (b"cmd=response_to_init pmi_version=2 rc=0\n    -1", "what came is not PMI: '    -1'"),
        (b"cmd=response_to_init pmi_version=2 rc=0\n8     cmd=x;y;", "what came is not PMI: 'y'"),
        (
            b"cmd=response_to_init pmi_version=2 rc=0\n45    cmd=fullinit-response;rc=1;errmsg=no such job",
            "fullinit was refused: no such job (rc=1)",
        ),
        (
            b"cmd=response_to_init pmi_version=2 rc=0\n37    cmd=fullinit-response;rc=0;rank=0;xx=",
            "the launcher says rank 0, and the environment 1",
        ),
        (b"cmd=response_to_init rc=-1\ncmd=response_to_init rc=-1 msg=no\n", "init was refused: no (rc=-1)"),
    ] {
        let error = against(said, false);
        assert!(error.starts_with("launcher pmi: PMI_FD=") && error.contains(words), "{error}");
        assert!(error.contains("PMI_RANK=1 PMI_SIZE=2"), "{error}");
    }
    let endless: &'static [u8] = vec![b'x'; 40_000].leak();
    assert!(against(endless, false).contains("what came is not PMI: 'xxx"));
}

#[test]
fn a_launcher_that_dies_or_is_silent_is_named() {
    for said in [
        &b""[..],
        b"cmd=respo",
        b"cmd=response_to_init pmi_version=2 rc=0\n",
        b"cmd=response_to_init pmi_version=1 rc=0\n",
    ] {
        let error = against(said, true);
        assert!(error.contains("the launcher closed the connection"), "{error}");
        let error = against(said, false);
        assert!(error.contains("no reply within OXSHMEM_BOOTSTRAP_TIMEOUT to "), "{error}");
    }
}

#[test]
fn a_descriptor_that_is_not_open_is_named() {
    let start = PmiStart { fd: 1_000_000, rank: 0, npes: 2, job: "0".into(), one_node: true };
    let error = place(&start, Instant::now() + Duration::from_secs(1)).unwrap_err().to_string();
    assert!(error.contains("PMI_FD=1000000") && error.contains("this descriptor is not open here"), "{error}");
}
