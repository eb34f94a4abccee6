//! The model of what collectives cost, beside what is counted when they run.

use oxshmem_tests::costs::{self, Counted};
use oxshmem_tests::{Job, Transport, stdout};

/// Counts with `n` PEs, and compares with the model.
fn agrees(transport: Transport, n: u32) {
    let job = Job::new(env!("CARGO_BIN_EXE_conformance-pe"), "costs", n).transport(transport);
    let outcome = job.passes();
    let counted = |rank: usize| -> Vec<Counted> {
        stdout(&outcome, rank)
            .lines()
            .filter(|line| line.starts_with("counted"))
            .map(|line| line.parse().expect("a line"))
            .collect()
    };
    let all: Vec<Vec<Counted>> = (0..n as usize).map(counted).collect();
    assert_eq!(all[0].len(), costs::all().count() * costs::SIZES.len());
    let mut wrong = String::new();
    for (index, first) in all[0].iter().enumerate() {
        let Counted { call, algorithm, bytes, near, .. } = *first;
        // An algorithm that cannot be used gives way to push.
        let model = costs::cost((call, algorithm), near, n.into(), bytes)
            .or_else(|| costs::cost((call, oxshmem::abi::Algorithm::Push), near, n.into(), bytes))
            .expect("push is always possible");
        let messages: u64 = all.iter().map(|pe| pe[index].messages).sum();
        let rounds = all.iter().map(|pe| pe[index].rounds).max().unwrap_or_default();
        if (messages, rounds) != (model.messages, model.rounds) {
            wrong += &format!(
                "{call:?} by {algorithm:?}, {bytes} bytes, near {near}: {messages} / {rounds} were counted, the model says {model}\n"
            );
        }
    }
    assert!(wrong.is_empty(), "{n} PEs over {}:\n{wrong}", transport.name());
}

macro_rules! jobs {
    ($($name:ident: $transport:ident, $n:literal;)*) => {
        $(
            #[test]
            fn $name() {
                agrees(Transport::$transport, $n);
            }
        )*
    };
}

jobs! {
    p2p_2: P2p, 2;
    p2p_3: P2p, 3;
    p2p_4: P2p, 4;
    p2p_5: P2p, 5;
    p2p_6: P2p, 6;
    p2p_7: P2p, 7;
    p2p_8: P2p, 8;
    ibgda_2: Ibgda, 2;
    ibgda_3: Ibgda, 3;
    ibgda_4: Ibgda, 4;
    ibgda_5: Ibgda, 5;
    ibgda_6: Ibgda, 6;
    ibgda_7: Ibgda, 7;
    ibgda_8: Ibgda, 8;
    ibrc_3: Ibrc, 3;
}

#[test]
fn the_documentation_has_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/teams.md");
    let text = std::fs::read_to_string(path).expect("docs/teams.md");
    assert_eq!(
        costs::with_tables(&text).as_ref(),
        Ok(&text),
        "run `cargo bench -p oxshmem-tests --bench costs -- --write docs/teams.md`"
    );
}
