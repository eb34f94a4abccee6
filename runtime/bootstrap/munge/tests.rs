#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// A `munged` of this test's own, with a key of its own. Dropping it ends it.
pub struct Service {
    folder: PathBuf,
    munged: Child,
}

impl Service {
    /// Starts it, or says why not.
    pub fn start(name: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("oxshmem-munge-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = folder.join("key");
        std::fs::write(&key, [name.as_bytes(), &[7; 64]].concat()).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let option = |name: &str, file: &str| format!("--{name}={}", folder.join(file).display());
        let munged = Command::new("munged")
            .args(["--foreground", "--force", &option("key-file", "key"), &option("socket", "socket")])
            .args([option("pid-file", "pid"), option("seed-file", "seed"), option("log-file", "log")])
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let munged = match munged {
            Ok(munged) => munged,
            Err(error) => {
                std::fs::remove_dir_all(&folder).unwrap();
                println!("skipped: munged cannot be started: {error} (package munge)");
                return None;
            }
        };
        let service = Self { folder, munged };
        let until = Instant::now() + Duration::from_secs(30);
        while !service.socket().exists() {
            assert!(Instant::now() < until, "munged made no socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(service)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub fn client(&self) -> MungeClient {
        MungeClient::at(sys::LIBRARY, Some(&self.socket())).unwrap()
    }

    /// Runs a command of munge's as another user, with `input`. `None`, with the reason in the
    /// output, where this process may not.
    pub fn as_stranger<S: AsRef<OsStr>>(&self, arguments: &[S], input: &[u8]) -> Option<Output> {
        if this_user() != 0 {
            println!("skipped: only root can run a process of another user");
            return None;
        }
        let child = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args(arguments)
            .arg(format!("--socket={}", self.socket().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        Some(child.wait_with_output().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.munged.kill().unwrap();
        self.munged.wait().unwrap();
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[test]
fn the_binding_is_what_the_header_says() {
    if !Path::new("/usr/include/munge.h").exists() {
        return println!("skipped: munge.h is absent (Debian's libmunge-dev)");
    }
    let mut text = String::from("#include <munge.h>\n");
    for (c, rust) in [
        ("EMUNGE_SUCCESS", sys::SUCCESS),
        ("EMUNGE_CRED_INVALID", sys::INVALID),
        ("EMUNGE_CRED_EXPIRED", sys::EXPIRED),
        ("EMUNGE_CRED_REWOUND", sys::REWOUND),
        ("MUNGE_OPT_CIPHER_TYPE", sys::CIPHER),
        ("MUNGE_OPT_SOCKET", sys::SOCKET),
        ("MUNGE_OPT_UID_RESTRICTION", sys::UID_RESTRICTION),
        ("MUNGE_CIPHER_AES128", sys::AES128),
        ("(int)sizeof(munge_err_t)", 4),
        ("(int)sizeof(uid_t)", 4),
    ] {
        text += &format!("_Static_assert({c} == {rust}, \"{c} is not {rust}\");\n");
    }
    // Functions are compared by their types.
    text += "munge_err_t (*encode)(char **, munge_ctx_t, const void *, int) = munge_encode;
        munge_err_t (*decode)(const char *, munge_ctx_t, void **, int *, uid_t *, gid_t *) = munge_decode;
        munge_ctx_t (*create)(void) = munge_ctx_create;
        void (*destroy)(munge_ctx_t) = munge_ctx_destroy;
        const char *(*context_text)(munge_ctx_t) = munge_ctx_strerror;
        const char *(*error_text)(munge_err_t) = munge_strerror;
        munge_err_t (*get)(munge_ctx_t, int, ...) = munge_ctx_get;
        munge_err_t (*set)(munge_ctx_t, int, ...) = munge_ctx_set;\n";
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Werror", "-fsyntax-only", "-x", "c", "-"]);
    let mut compiler = compiler.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_machine_without_munge_has_none() {
    let Err(NoMunge::Absent(why)) = MungeClient::at("libmunge-absent.so.2", None) else { panic!("it is there") };
    assert!(why.starts_with("libmunge-absent.so.2 cannot be loaded: "), "{why}");
    let nowhere = Path::new("/no/such/munge.socket");
    match MungeClient::at(sys::LIBRARY, Some(nowhere)) {
        Err(NoMunge::Absent(why)) if why.contains("cannot be loaded") => println!("skipped in part: {why}"),
        Err(NoMunge::Absent(why)) => assert!(why.ends_with("there is no /no/such/munge.socket"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_munge_that_does_not_reply_is_broken() {
    let Some(service) = Service::start("broken") else { return };
    let socket = service.folder.join("dead");
    // The file of a socket stays when a process that is killed listened there.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let Err(NoMunge::Broken(why)) = MungeClient::at(sys::LIBRARY, Some(&socket)) else { panic!("it works") };
    assert!(why.contains("dead: munge_encode failed: "), "{why}");
}

#[test]
fn a_credential_is_opened_once_and_by_its_user_alone() {
    let Some(service) = Service::start("once") else { return };
    let munge = service.client();
    let payload: Vec<u8> = (0..=255).collect();
    let credential = munge.seal(&payload).unwrap();
    assert!(!credential.windows(4).any(|piece| piece == &payload[65..69]));
    let stranger = service.as_stranger(&["unmunge"], &credential);
    assert_eq!(munge.open(&credential).unwrap(), (this_user(), payload));
    let error = munge.open(&credential).unwrap_err();
    assert!(error.contains("munge_decode failed: ") && error.ends_with("(17)"), "{error}");
    if let Some(output) = stranger {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("Unauthorized credential"), "{output:?}");
    }
}

#[test]
fn what_is_altered_or_of_another_cluster_is_refused_with_the_remedy() {
    let (Some(service), Some(other)) = (Service::start("this"), Service::start("that")) else { return };
    let error = service.client().open(&other.client().seal(b"x").unwrap()).unwrap_err();
    assert!(error.contains("both nodes need the same key of munge"), "{error}");
    let munge = service.client();
    let credential = munge.seal(b"x").unwrap();
    for bad in [&b""[..], b"MUNGE:", b"\0", &credential[..credential.len() / 2], &[0xff; 300]] {
        assert!(munge.open(bad).is_err(), "{bad:?}");
    }
    assert_eq!(munge.open(&munge.seal(b"").unwrap()).unwrap(), (this_user(), Vec::new()));
}
