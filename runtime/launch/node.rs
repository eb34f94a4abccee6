//! `oxrun` on a host of a job that was started on another machine.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::LaunchError;
use super::job::{Place, keep_children, run_share};
use super::options::LaunchOptions;
use super::relay::{GREETING, Order, Orders, Start};

/// How long the launcher may take to say what to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts PEs as the launcher at the other end of standard input and output orders, and returns
/// when all of them have ended. `oxrun --hosts` runs this on each host, as `oxrun --node`.
#[doc(hidden)]
#[must_use]
pub fn serve_node() -> ExitCode {
    // The empty line ends one that the remote shell's own scripts may have begun.
    say(&[b"\n", GREETING].concat());
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("r {error}").as_bytes());
            ExitCode::from(error.exit_code())
        }
    }
}

/// Writes `line` to the launcher. If the launcher is gone there is nothing to be told, and its
/// silence is noticed elsewhere.
fn say(line: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(&[line, b"\n"].concat()).and_then(|()| out.flush());
}

fn serve() -> Result<(), LaunchError> {
    keep_children()?;
    let (start, orders) = start()?;
    let folder = start.folder.clone();
    std::env::set_current_dir(&folder)
        .map_err(LaunchError::system(format!("starting in the folder {} of the launcher", folder.display())))?;
    let place = Place {
        rendezvous: start.rendezvous,
        job: start.job,
        npes: start.npes,
        first: start.first,
        count: start.count,
    };
    let options = LaunchOptions {
        args: start.args,
        env: start.env,
        grace: start.grace,
        stdin: true,
        ..LaunchOptions::new(start.npes, start.program)
    };
    run_share(&options, place, orders)
}

/// Waits for the first order, and returns what came after it too.
fn start() -> Result<(Start, Orders), LaunchError> {
    let until = Instant::now() + PATIENCE;
    let failed = LaunchError::Node;
    let mut orders = Orders::default();
    let mut buffer = [0; 64 << 10];
    loop {
        match orders.next().map_err(|why| failed(format!("the launcher sent {why}")))? {
            Some(Order::Start(start)) => return Ok((*start, orders)),
            Some(order) => return Err(failed(format!("the launcher sent {order:?} before what to start"))),
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(format!("the launcher did not say what to start within {} s", PATIENCE.as_secs())));
        }
        let stdin = io::stdin();
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout));
        match ready {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(LaunchError::system("waiting for the launcher")(error)),
        }
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) => return Err(failed("the launcher has closed the connection".into())),
            Ok(read) => orders.push(&buffer[..read]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(LaunchError::system("reading from the launcher")(error)),
        }
    }
}
