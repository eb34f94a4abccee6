//! Sessions with made-up connections and times.

use super::super::frame::{Decoder, MAX_GREETING};
use super::*;

const JOB: JobName = JobName([7; 8]);
const TIMEOUT: Duration = Duration::from_secs(20);
const MEETING: Duration = Duration::from_secs(60);

fn arrival(rank: u32, key: &[u8], size: u32, index: u32) -> Arrival {
    Arrival { key: key.to_vec(), label: "split".into(), size, index, data: vec![rank as u8] }
}

/// Connection k is rank k's.
struct Job {
    session: Session,
    now: Duration,
}

impl Job {
    fn new(npes: Option<u32>) -> Self {
        Self { session: Session::new(JOB, npes), now: Duration::from_secs(1000) }
    }

    fn joined(npes: u32) -> Self {
        let mut job = Self::new(Some(npes));
        for rank in 0..npes {
            job.join(rank, npes);
        }
        job.sent();
        job
    }

    fn hello(&mut self, connection: Connection, rank: u32, npes: u32, generation: u32, id: JobName) {
        self.session.opened(self.now, connection);
        let peer = Peer { pid: 100 + rank, host: "h".into(), node: "n".into() };
        let message = Message::Hello(Hello { job: id, npes, timeout: TIMEOUT, meeting: MEETING, peer });
        self.session.frame(self.now, connection, Frame { generation, rank, sequence: 0, message });
    }

    fn join(&mut self, rank: u32, npes: u32) {
        self.hello(u64::from(rank), rank, npes, 0, JOB);
    }

    fn says(&mut self, rank: u32, sequence: u64, message: Message) {
        let generation = self.session.generation;
        self.session.frame(self.now, u64::from(rank), Frame { generation, rank, sequence, message });
    }

    fn barrier(&mut self, rank: u32, sequence: u64, label: &str) {
        self.says(rank, sequence, Message::Barrier { label: label.into() });
    }

    /// Enters a gather and contributes the rank.
    fn group(&mut self, rank: u32, key: &[u8], size: u32, index: u32) {
        self.says(rank, 0, Message::Group(arrival(rank, key, size, index)));
    }

    /// Returns what was sent since the last call.
    fn sent(&mut self) -> Vec<(Connection, Message)> {
        let mut sent = Vec::new();
        for action in self.session.take_actions() {
            if let Action::Send(connection, bytes) = action {
                let mut decoder = Decoder::new(1 << 20);
                decoder.push(&bytes);
                sent.push((connection, decoder.next_frame().unwrap().unwrap().message));
            }
        }
        sent
    }

    /// Returns the failure, which each of `ranks` must have been told.
    fn failed(&mut self, ranks: &[u32]) -> Failure {
        let failure = self.session.failure().unwrap().clone();
        let sent = self.sent();
        for rank in ranks {
            assert!(sent.contains(&(u64::from(*rank), Message::Failed(failure.clone()))), "{rank} {sent:?}");
        }
        failure
    }

    fn refused(&mut self, connection: Connection) -> String {
        match self.sent().pop().unwrap() {
            (to, Message::Refused { reason }) if to == connection => reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn everybody_joins_exchanges_and_leaves() {
    let mut job = Job::new(None);
    job.join(1, 2);
    assert_eq!(job.sent(), vec![(1, Message::Accepted(Way::DIRECT))]);
    job.join(0, 2);
    let sent = job.sent();
    let Message::Welcome { peers } = &sent[1].1 else { panic!("{sent:?}") };
    assert_eq!(peers.iter().map(|peer| peer.pid).collect::<Vec<_>>(), [100, 101]);
    job.says(1, 1, Message::Allgather { label: "x".into(), data: b"one".to_vec() });
    assert_eq!(job.sent(), vec![]);
    job.says(0, 1, Message::Allgather { label: "x".into(), data: vec![] });
    let gathered = Message::Gathered { parts: vec![vec![], b"one".to_vec()] };
    assert_eq!(job.sent(), vec![(0, gathered.clone()), (1, gathered)]);
    job.barrier(0, 2, "y");
    job.barrier(1, 2, "y");
    assert_eq!(job.sent(), vec![(0, Message::Released), (1, Message::Released)]);
    job.says(0, 3, Message::Goodbye);
    job.says(1, 3, Message::Goodbye);
    assert_eq!(job.sent(), vec![(0, Message::Farewell), (1, Message::Farewell)]);
    job.session.broken(0, "closed");
    job.session.exited(1, "exited with status 0");
    assert_eq!(job.session.failure(), None);
    assert_eq!(job.session.deadline(), None);
}

#[test]
fn every_rank_gets_its_own_column_of_an_alltoall() {
    let mut job = Job::new(Some(2));
    (0..2).for_each(|rank| job.join(rank, 2));
    job.sent();
    let row = |data: &[u8]| Message::Alltoall { label: "x".into(), data: data.to_vec() };
    job.says(0, 1, row(b"aabb"));
    job.says(1, 1, row(b"ccdd"));
    let column = |first: &[u8], second: &[u8]| Message::Gathered { parts: vec![first.to_vec(), second.to_vec()] };
    assert_eq!(job.sent(), vec![(0, column(b"aa", b"cc")), (1, column(b"bb", b"dd"))]);
    job.says(0, 2, row(b""));
    job.says(1, 2, row(b""));
    assert_eq!(job.sent(), vec![(0, column(b"", b"")), (1, column(b"", b""))]);
}

#[test]
fn rows_of_an_alltoall_that_cannot_be_cut_fail_the_job() {
    for (rows, rank) in [([&b"ab"[..], b"abcd"], 1), ([b"abc", b"abc"], 0)] {
        let mut job = Job::new(Some(2));
        (0..2).for_each(|rank| job.join(rank, 2));
        job.sent();
        for (rank, row) in (0..).zip(rows) {
            job.says(rank, 1, Message::Alltoall { label: "x".into(), data: row.to_vec() });
        }
        let failure = job.failed(&[0, 1]);
        assert_eq!(failure.ranks, [rank]);
        assert!(failure.message.contains(&format!("PE {rank} contributed ")), "{failure}");
    }
}

#[test]
fn a_second_generation_may_have_another_size_and_refuses_the_first() {
    let mut job = Job::new(None);
    job.join(0, 1);
    job.says(0, 1, Message::Goodbye);
    job.sent();
    job.hello(10, 0, 2, 1, JOB);
    let reason = job.refused(10);
    assert!(reason.contains("for the 1. time") && reason.contains("for the 2."), "{reason}");
    job.hello(11, 0, 2, 2, JOB);
    job.hello(12, 1, 2, 0, JOB);
    let sent = job.sent();
    assert!(sent.iter().any(|(to, message)| *to == 12 && message.op() == Op::Welcome), "{sent:?}");
    // A late frame of the first generation, on a connection of the second.
    job.session.frame(job.now, 11, Frame { generation: 1, rank: 0, sequence: 1, message: Message::Goodbye });
    let failure = job.session.failure().unwrap();
    assert!(failure.message.contains("generation 2") && failure.message.contains("generation 1"), "{failure}");
}

#[test]
fn ranks_that_do_not_join_are_named() {
    let mut job = Job::new(Some(4));
    job.join(0, 4);
    job.now += Duration::from_secs(10);
    job.join(2, 4);
    assert_eq!(job.session.deadline(), Some(Duration::from_secs(1020)));
    job.session.tick(Duration::from_secs(1019));
    assert_eq!(job.session.failure(), None);
    job.session.tick(Duration::from_secs(1020));
    let failure = job.failed(&[0, 2]);
    assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Missing, &[1, 3][..]));
    assert_eq!(failure.message, "PEs 1 and 3 of 4 did not join the job within 20 s");
    job.hello(9, 1, 4, 0, JOB);
    assert_eq!(job.sent(), vec![(9, Message::Failed(failure))]);
}

#[test]
fn ranks_that_do_not_arrive_are_named_with_the_collective() {
    let mut job = Job::joined(3);
    job.barrier(1, 1, "start");
    // Longer than for joining.
    job.session.tick(job.now + TIMEOUT);
    assert_eq!(job.session.failure(), None);
    job.session.tick(job.now + MEETING);
    let failure = job.failed(&[0, 1, 2]);
    assert_eq!(failure.ranks, [0, 2]);
    assert_eq!(
        failure.message,
        "PEs 0 and 2 of 3 did not arrive within 60 s at barrier 1 (start), which PE 1 entered first; OXSHMEM_MEETING_TIMEOUT makes the wait longer"
    );
}

#[test]
fn a_death_is_told_to_all_at_once() {
    let mut job = Job::joined(3);
    job.barrier(0, 1, "start");
    job.session.broken(2, "closed its connection without finalize");
    let failure = job.failed(&[0, 1]);
    assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Lost, &[2][..]));
    assert_eq!(failure.message, "PE 2 (process 102 on h) died: it closed its connection without finalize");
    job.session.broken(1, "closed its connection");
    assert_eq!(job.session.failure(), Some(&failure));
}

#[test]
fn the_launcher_knows_how_a_process_ended() {
    let mut job = Job::joined(2);
    job.session.exited(1, "was killed by SIGKILL");
    assert_eq!(job.session.failure(), None);
    job.session.broken(1, "closed its connection");
    assert!(job.failed(&[0]).message.ends_with("died: it was killed by SIGKILL"));

    for exit_first in [true, false] {
        let mut job = Job::new(Some(2));
        if exit_first {
            job.session.exited(1, "exited with status 0");
            assert_eq!(job.session.failure(), None);
        }
        job.join(0, 2);
        if !exit_first {
            job.session.exited(1, "exited with status 0");
        }
        assert_eq!(job.failed(&[0]).message, "PE 1 exited with status 0 before it joined the job");
    }
}

#[test]
fn disagreements_name_both_sides() {
    let mut job = Job::joined(2);
    job.barrier(0, 1, "a");
    job.barrier(1, 1, "b");
    let failure = job.failed(&[0, 1]);
    assert_eq!(failure.ranks, [0, 1]);
    assert_eq!(failure.message, "PEs disagree: PE 0 entered barrier 1 (a), PE 1 entered barrier 1 (b)");

    let mut job = Job::joined(2);
    job.barrier(1, 1, "a");
    job.says(0, 1, Message::Goodbye);
    assert_eq!(
        job.failed(&[0, 1]).message,
        "PEs disagree: PE 1 entered barrier 1 (a), PE 0 entered finalize (collective 1)"
    );

    let mut job = Job::joined(2);
    job.barrier(0, 1, "a");
    job.says(1, 2, Message::Barrier { label: "a".into() });
    assert!(job.failed(&[0, 1]).message.contains("barrier 1 (a), PE 1 entered barrier 2 (a)"));

    let mut job = Job::joined(2);
    job.barrier(0, 5, "a");
    assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered barrier 5 (a), the job is at collective 1");

    let mut job = Job::joined(2);
    job.barrier(0, 1, "a");
    job.barrier(0, 1, "a");
    assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered barrier 1 (a) while it is in barrier 1 (a)");

    let mut job = Job::joined(2);
    job.says(1, 0, Message::Released);
    assert!(job.failed(&[0, 1]).message.contains("only the rendezvous sends"));

    let mut job = Job::new(Some(2));
    job.join(0, 2);
    job.barrier(0, 1, "a");
    assert!(job.failed(&[0]).message.contains("before every PE had joined"));
}

#[test]
fn some_ranks_gather_while_others_do_something_else() {
    let mut job = Job::joined(4);
    job.barrier(0, 1, "all");
    job.group(3, b"a", 2, 1);
    job.group(1, b"b", 1, 0);
    let alone = Message::Grouped { parts: vec![(1, vec![1])] };
    assert_eq!(job.sent(), vec![(1, alone)]);
    // Numbers in the gather are not ranks.
    job.group(2, b"a", 2, 0);
    let gathered = Message::Grouped { parts: vec![(2, vec![2]), (3, vec![3])] };
    assert_eq!(job.sent(), vec![(2, gathered.clone()), (3, gathered.clone())]);
    // Again, with the same key.
    job.group(2, b"a", 2, 0);
    job.group(3, b"a", 2, 1);
    assert_eq!(job.sent(), vec![(2, gathered.clone()), (3, gathered)]);
    for rank in 1..4 {
        job.barrier(rank, 1, "all");
    }
    assert_eq!(job.sent().len(), 4);
    assert_eq!((job.session.groups().0, job.session.deadline()), (0, None));
}

#[test]
fn members_that_do_not_arrive_are_named_and_the_job_goes_on() {
    let mut job = Job::joined(4);
    job.group(3, b"a", 3, 2);
    job.now += Duration::from_secs(10);
    job.group(1, b"a", 3, 0);
    assert_eq!(job.session.deadline(), Some(Duration::from_secs(1060)));
    job.session.tick(Duration::from_secs(1060));
    let message = "member 1 of 3 did not arrive within 60 s at split, which PE 3 entered first; \
                   OXSHMEM_MEETING_TIMEOUT makes the wait longer";
    let failure = Failure::new(FailureKind::Missing, vec![1], message.into());
    let told = Message::Disbanded(failure);
    assert_eq!(job.sent(), vec![(1, told.clone()), (3, told.clone())]);
    // The late one is told at once, and is the last.
    job.now = Duration::from_secs(1061);
    job.group(2, b"a", 3, 1);
    assert_eq!(job.sent(), vec![(2, told)]);
    assert_eq!((job.session.deadline(), job.session.failure()), (None, None));
    // Another attempt works.
    for rank in 1..4 {
        job.group(rank, b"a", 3, rank - 1);
    }
    assert_eq!(job.sent().len(), 3);
}

#[test]
fn members_that_disagree_are_told_and_those_that_follow_too() {
    // The members that come, in this order, with which size and number, and what all are told.
    for (arrivals, words) in [
        ([(0, 3, 0), (1, 2, 1), (2, 3, 2)], "PEs disagree: PE 0 says that split has 3 members, PE 1 says 2"),
        ([(2, 3, 1), (0, 3, 1), (1, 3, 0)], "PE 2 and PE 0 both enter split as member 1 of 3"),
        ([(1, 3, 3), (0, 3, 0), (2, 3, 2)], "PE 1 enters split as member 3; its members are 0 to 2"),
        ([(1, 5, 3), (0, 3, 0), (2, 3, 2)], "PE 1 says that split has 5 members, in a job of 4"),
        ([(1, 0, 0), (0, 3, 0), (2, 3, 2)], "PE 1 says that split has 0 members, in a job of 4"),
    ] {
        let mut job = Job::joined(4);
        for (rank, size, index) in arrivals {
            job.group(rank, b"a", size, index);
        }
        let mut told: Vec<u64> = Vec::new();
        for (to, message) in job.sent() {
            let Message::Disbanded(failure) = message else { continue };
            assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Mismatch, words));
            told.push(to);
        }
        told.sort_unstable();
        assert_eq!((&told[..], job.session.failure()), (&[0, 1, 2][..], None), "{words}");
    }
    let mut job = Job::joined(2);
    job.group(0, b"a", 2, 0);
    job.says(1, 0, Message::Group(Arrival { label: "destroy".into(), ..arrival(1, b"a", 2, 1) }));
    let Some((1, Message::Disbanded(failure))) = job.sent().pop() else { panic!() };
    assert_eq!(failure.message, "PEs disagree: PE 0 entered split, PE 1 entered destroy");
}

#[test]
fn gathers_do_not_outlive_the_job_and_no_rank_is_in_two_places() {
    let mut job = Job::joined(3);
    job.group(0, b"a", 2, 0);
    job.session.broken(2, "closed its connection");
    job.failed(&[0, 1]);
    assert_eq!(job.session.groups().0, 0);

    let mut job = Job::joined(2);
    job.group(0, b"a", 2, 0);
    job.group(0, b"b", 2, 0);
    assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered split while it is in split");

    let mut job = Job::joined(2);
    job.group(0, b"a", 2, 0);
    job.says(0, 1, Message::Goodbye);
    assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered finalize (collective 1) while it is in split");

    let mut job = Job::joined(2);
    job.barrier(0, 1, "x");
    job.group(0, b"a", 2, 0);
    assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered split while it is in barrier 1 (x)");

    let mut job = Job::new(Some(2));
    job.join(0, 2);
    job.group(0, b"a", 1, 0);
    assert_eq!(job.failed(&[0]).message, "PE 0 entered split before every PE had joined");
}

#[test]
fn gathers_that_failed_are_forgotten() {
    let mut job = Job::joined(4);
    for round in 0..3 * MAX_NPES {
        job.group(0, &round.to_be_bytes(), 3, 0);
        job.group(1, &round.to_be_bytes(), 2, 0);
        assert!(job.session.groups().1 <= MAX_NPES as usize);
    }
    job.session.tick(job.now + MEETING);
    assert_eq!((job.session.groups().1, job.session.deadline()), (0, None));
}

#[test]
fn a_status_reaches_all_and_a_reason_is_none() {
    for (status, reason) in [(Some(-3), "enough"), (None, "exit status 0: child ended early")] {
        let mut job = Job::joined(2);
        job.says(1, 0, Message::Abort { status, reason: reason.into() });
        assert_eq!(job.failed(&[0, 1]).exit_status(), status);
    }
}

#[test]
fn an_abort_reaches_all() {
    let mut job = Job::joined(2);
    job.says(1, 0, Message::Abort { status: None, reason: "out of cheese".into() });
    let failure = job.failed(&[0, 1]);
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Aborted, "PE 1 aborted the job: out of cheese"));
}

#[test]
fn wrong_greetings_are_refused_and_the_job_goes_on() {
    let mut job = Job::new(Some(2));
    job.join(0, 2);
    job.sent();
    job.hello(10, 1, 2, 0, JobName([9; 8]));
    let reason = job.refused(10);
    assert!(reason.contains("of job 0707070707070707") && reason.contains("not of job 0909090909090909"), "{reason}");
    job.hello(11, 1, 3, 0, JOB);
    assert_eq!(job.refused(11), "PE 1 says that the job has 3 PEs, the launcher says 2");
    job.hello(12, 2, 2, 0, JOB);
    assert_eq!(job.refused(12), "rank 2 in a job of 2 PEs: ranks are 0 to 1");
    job.hello(13, 0, 2, 0, JOB);
    assert_eq!(job.refused(13), "rank 0 is taken by process 100 on h, and process 100 on h claims it too");
    job.hello(14, 1, 2, 7, JOB);
    assert!(job.refused(14).contains("for the 7. time"));
    job.session.opened(job.now, 15);
    job.session.frame(job.now, 15, Frame { generation: 1, rank: 1, sequence: 1, message: Message::Goodbye });
    assert!(job.refused(15).contains("before HELLO"));
    job.session.opened(job.now, 16);
    job.session.garbage(16, &FrameError::Version(9));
    // What speaks another version can read the refusal.
    let actions = job.session.take_actions();
    let [Action::Send(16, refusal), Action::Close(16)] = &actions[..] else { panic!("{actions:?}") };
    let mut refusal = refusal.to_vec();
    assert_eq!(refusal[4..6], 9u16.to_be_bytes());
    refusal[4..6].copy_from_slice(&VERSION.to_be_bytes());
    let mut decoder = Decoder::new(MAX_GREETING);
    decoder.push(&refusal);
    let Message::Refused { reason } = decoder.next_frame().unwrap().unwrap().message else { panic!("{refusal:?}") };
    assert!(reason.contains("version 9") && reason.contains("this side has version"), "{reason}");
    job.session.opened(job.now, 17);
    job.session.garbage(17, &FrameError::Magic(b"GET ".to_vec()));
    assert_eq!(job.session.take_actions(), vec![Action::Close(17)]);
    job.session.opened(job.now, 18);
    job.session.tick(job.now + HELLO_DEADLINE);
    assert_eq!(job.session.take_actions(), vec![Action::Close(18)]);
    job.join(1, 2);
    assert!(job.sent().iter().any(|(to, message)| *to == 0 && message.op() == Op::Welcome));

    let mut job = Job::new(None);
    job.join(0, 2);
    job.sent();
    job.hello(9, 1, 3, 0, JOB);
    assert_eq!(job.refused(9), "PE 1 says that the job has 3 PEs, PE 0 says 2");
    let mut job = Job::new(None);
    job.hello(9, 0, MAX_NPES + 1, 0, JOB);
    assert!(job.refused(9).contains("1 to 4096"));
}

#[test]
fn a_member_that_sends_garbage_ends_the_job() {
    let mut job = Job::joined(2);
    job.session.garbage(1, &FrameError::Op(99));
    assert!(job.failed(&[0]).message.contains("op 99 does not exist"));
}

#[test]
fn connections_that_say_nothing_make_room_for_others() {
    let mut job = Job::new(Some(2));
    let begin = job.now;
    for connection in 5..8 {
        job.session.opened(job.now, connection);
    }
    job.join(0, 2);
    let dispensable = |job: &Job| job.session.dispensable(job.now).collect::<Vec<_>>();
    assert_eq!((dispensable(&job), job.session.next_dispensable()), (vec![], Some(begin + CROWDED_DEADLINE)));
    // What is done goes first, and waits no longer.
    job.session.stranger(6, &Stranger::Opening);
    assert_eq!((dispensable(&job), job.session.strangers()), (vec![6], 3));
    job.now += CROWDED_DEADLINE;
    job.session.opened(job.now, 8);
    assert_eq!((dispensable(&job), job.session.strangers()), (vec![6, 5, 7], 4));
    (5..9).for_each(|connection| job.session.broken(connection, "had said too little when others came"));
    assert_eq!((dispensable(&job), job.session.strangers()), (vec![], 0));
    assert_eq!((job.session.failure(), job.session.next_dispensable()), (None, None));
}

#[test]
fn the_log_tells_of_the_first_strangers() {
    let mut job = Job::new(Some(2));
    for connection in 0..100 {
        job.session.opened(job.now, connection);
        match connection % 2 {
            0 => job.session.broken(connection, "closed its connection"),
            _ => job.session.stranger(connection, &Stranger::Opening),
        }
        assert_eq!(job.session.told, TOLD.min(connection as u32 + 1));
    }
}

/// A PE that asks for the secret gets the reply and the end of its connection, with no word in the
/// log; a PE of a later program gets the end alone.
#[test]
fn a_secret_is_for_pes_of_the_same_program() {
    let closed = vec![Action::Close(7)];
    let asks = |job: &mut Job, rank, reply| {
        let strangers = job.session.strangers();
        job.session.opened(job.now, 7);
        job.session.asked(7, rank, reply);
        let actions = job.session.take_actions();
        job.session.broken(7, "closed its connection");
        assert_eq!(job.session.strangers(), strangers);
        actions
    };
    let mut job = Job { session: Session::new(JOB, Some(2)).of_one_program(), now: Duration::ZERO };
    let reply = Action::Send(7, Arc::from(*b"secret"));
    assert_eq!(asks(&mut job, 1, Ok(b"secret".to_vec())), [reply, Action::Close(7)]);
    assert!(matches!(&asks(&mut job, 1, Err("munge is gone".into()))[..], [Action::Send(7, _), Action::Close(7)]));
    job.join(0, 2);
    job.join(1, 2);
    job.says(0, 1, Message::Goodbye);
    job.says(1, 1, Message::Goodbye);
    job.sent();
    assert_eq!(asks(&mut job, 1, Ok(b"secret".to_vec())), closed);
    // After a failure, a rank that was there has ended, and its next process is another program's.
    let mut job = Job { session: Session::new(JOB, Some(2)).of_one_program(), now: Duration::ZERO };
    job.join(0, 2);
    job.join(1, 2);
    job.says(1, 0, Message::Abort { status: None, reason: "enough".into() });
    job.sent();
    assert_eq!(asks(&mut job, 1, Ok(b"secret".to_vec())), closed);
}
