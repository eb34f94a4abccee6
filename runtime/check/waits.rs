//! `OXSHMEM_CHECK=waits`: finds that no PE of the job goes on any more, long before deadlines.
//!
//! A thread of each PE looks ten times a second at what the PE has done since it last looked. The
//! PE stands still if its own thread waits in the same call, every thread of a running kernel does
//! nothing but to pause in a loop that waits, and no request moves. The threads tell each other
//! over datagrams. When all PEs have stood still for a second, what they wait for can come from
//! none of them, and the job is ended with an error that says what each waits for.
//!
//! Only the `cpu` device knows what the threads of kernels do, and datagrams stay on a node.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxshmem_hca::provider::{Counters, Provider};
use oxshmem_system::words::count32;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

use crate::bootstrap::Bootstrap;
use crate::device::cpu::{Activity, activity};
use crate::dump::scene::Scene;

/// The time between two looks.
const STEP: Duration = Duration::from_millis(100);
/// Looks at which all PEs must have stood still.
const LOOKS: u32 = 10;
/// The longest text that a PE tells others.
const MOST_TEXT: usize = 600;
/// Bytes of a message before the text: the rank, the epoch, and whether the PE stands still.
const HEAD: usize = 4 + 8 + 1;

/// The thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitCheck {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WaitCheck {
    /// Starts the thread.
    ///
    /// # Errors
    /// Why waits cannot be checked here, in one line.
    pub fn start(
        bootstrap: &Arc<Bootstrap>,
        scene: &Arc<Scene>,
        providers: Vec<Arc<dyn Provider>>,
        on_gpu: bool,
    ) -> Result<Self, String> {
        if on_gpu {
            return Err("what threads of kernels do is known on the cpu device alone; use OXSHMEM_DEVICE=cpu".into());
        }
        if bootstrap.node_peers().len() != bootstrap.size() as usize {
            return Err("PEs of several nodes are not checked; start all PEs on one node".into());
        }
        let post = Post::new(bootstrap).map_err(|error| format!("PEs cannot tell each other: {error}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            bootstrap: Arc::clone(bootstrap),
            scene: Arc::clone(scene),
            providers,
            post,
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("oxshmem-check".into()).spawn(move || watch.run());
        let thread = thread.map_err(|error| format!("the thread that checks waits cannot start: {error}"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for WaitCheck {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that checks waits panicked");
            }
        }
    }
}

/// What a PE has done so far.
#[derive(Debug, Clone, PartialEq)]
struct Standing {
    /// What its thread waits in, and since when; `None` while it does not wait.
    waits_since: Option<Instant>,
    activity: Activity,
    counters: Vec<Option<Counters>>,
}

impl Standing {
    /// Returns whether nothing has happened since an earlier look.
    fn is_still_since(&self, before: &Self) -> bool {
        let Activity { running, busy, quiet } = self.activity;
        let paused = running == 0 || quiet != before.activity.quiet;
        self.waits_since.is_some()
            && self.waits_since == before.waits_since
            && busy == before.activity.busy
            && running == before.activity.running
            && paused
            && self.counters == before.counters
    }
}

/// What a PE has said last.
#[derive(Debug, Clone, Default)]
struct Said {
    epoch: u64,
    /// Messages in sequence that said that it stands still, in the same epoch.
    looks: u32,
    text: String,
}

impl Said {
    /// Takes what a PE says now. An epoch ends when something happens.
    fn take(&mut self, epoch: u64, still: bool, text: &str) {
        self.looks = match still {
            true if self.epoch == epoch => self.looks.saturating_add(1),
            true => 1,
            false => 0,
        };
        self.epoch = epoch;
        text.clone_into(&mut self.text);
    }
}

/// Returns the error if all PEs have stood still for long enough.
fn verdict(said: &[Said]) -> Option<String> {
    said.iter().all(|said| said.looks >= LOOKS).then(|| {
        let each: Vec<String> = said.iter().enumerate().map(|(pe, said)| format!("PE {pe}: {}", said.text)).collect();
        format!(
            "OXSHMEM_CHECK=waits: nothing can satisfy what the PEs wait for, since none of them goes on: {}",
            each.join(" | ")
        )
    })
}

struct Watch {
    bootstrap: Arc<Bootstrap>,
    scene: Arc<Scene>,
    providers: Vec<Arc<dyn Provider>>,
    post: Post,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn run(self) {
        let (me, n_pes) = (self.bootstrap.rank() as usize, self.bootstrap.size() as usize);
        let mut said = vec![Said::default(); n_pes];
        let (mut before, mut epoch) = (self.look(), 0);
        while !self.stop.load(Ordering::Acquire) && self.bootstrap.failure().is_none() {
            std::thread::park_timeout(STEP);
            let now = self.look();
            let still = now.is_still_since(&before);
            epoch += u64::from(!still);
            before = now;
            let text = self.scene.host_lines().join("; ");
            said[me].take(epoch, still, &text);
            self.post.tell_all(me, epoch, still, &text);
            self.post.take(|pe, epoch, still, text| {
                if let Some(said) = said.get_mut(pe) {
                    said.take(epoch, still, text);
                }
            });
            // One of them says it for all.
            if me == 0
                && let Some(reason) = verdict(&said)
            {
                return self.bootstrap.abort(&reason);
            }
        }
    }

    fn look(&self) -> Standing {
        let counters = self.providers.iter().map(|provider| provider.counters()).collect();
        Standing { waits_since: self.scene.waits_since(), activity: activity(), counters }
    }
}

/// Datagrams between the PEs of a node, by names that the job alone has.
struct Post {
    socket: OwnedFd,
    peers: Vec<SocketAddrUnix>,
}

impl Post {
    fn new(bootstrap: &Bootstrap) -> io::Result<Self> {
        let name = |pe: u32| {
            let name = format!("oxshmem-check-{}-{pe}", bootstrap.job_name());
            Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        bind(&socket, &name(bootstrap.rank())?)?;
        let others = (0..bootstrap.size()).filter(|pe| *pe != bootstrap.rank());
        Ok(Self { socket, peers: others.map(name).collect::<io::Result<_>>()? })
    }

    /// Tells every other PE. One that has ended, or has not begun, does not get it.
    fn tell_all(&self, me: usize, epoch: u64, still: bool, text: &str) {
        let mut cut = text.len().min(MOST_TEXT);
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        let mut message = Vec::with_capacity(HEAD + cut);
        message.extend(count32(me).to_le_bytes());
        message.extend(epoch.to_le_bytes());
        message.push(u8::from(still));
        message.extend(&text.as_bytes()[..cut]);
        for peer in &self.peers {
            let _ = sendto(&self.socket, &message, SendFlags::empty(), peer);
        }
    }

    /// Calls `each` for the messages that have come.
    fn take(&self, mut each: impl FnMut(usize, u64, bool, &str)) {
        let mut buffer = [0u8; HEAD + MOST_TEXT];
        while let Ok((len, _)) = recv(self.socket.as_fd(), &mut buffer[..], RecvFlags::empty()) {
            let (Some(rank), Some(epoch)) = (buffer.first_chunk::<4>(), buffer[4..].first_chunk::<8>()) else { return };
            if len < HEAD {
                continue;
            }
            let text = String::from_utf8_lossy(&buffer[HEAD..len]);
            each(u32::from_le_bytes(*rank) as usize, u64::from_le_bytes(*epoch), buffer[HEAD - 1] != 0, &text);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn all_pes_have_to_stand_still_in_one_epoch() {
        let mut said = vec![Said::default(); 2];
        for look in 0..LOOKS {
            assert_eq!(verdict(&said), None, "{look}");
            said[0].take(3, true, "waits for a stream");
            said[1].take(7, look != 4, "joins");
        }
        assert_eq!(verdict(&said), None, "PE 1 has moved");
        (0..LOOKS).for_each(|_| said[1].take(8, true, "joins"));
        let text = verdict(&said).unwrap();
        assert!(text.contains("PE 0: waits for a stream | PE 1: joins"), "{text}");
        said[0].take(4, true, "");
        assert_eq!(verdict(&said), None, "PE 0 has moved between two looks");
    }

    #[test]
    fn a_kernel_that_works_does_not_stand_still() {
        let since = Some(Instant::now());
        let standing = |running, busy, quiet| Standing {
            waits_since: since,
            activity: Activity { running, busy, quiet },
            counters: vec![],
        };
        assert!(standing(1, 5, 11).is_still_since(&standing(1, 5, 10)));
        assert!(standing(0, 5, 10).is_still_since(&standing(0, 5, 10)), "no kernel runs");
        assert!(!standing(1, 5, 10).is_still_since(&standing(1, 5, 10)), "a thread computes");
        assert!(!standing(1, 6, 11).is_still_since(&standing(1, 5, 10)));
        assert!(!standing(1, 5, 11).is_still_since(&standing(0, 5, 10)), "a kernel began");
        let runs = Standing { waits_since: None, ..standing(0, 5, 10) };
        assert!(!runs.is_still_since(&runs), "the program computes");
    }
}
