//! What a whole set-up says to a card, in words; `docs/notes/commands.md` compares it with what
//! others send.

use oxshmem_tests::set_up::Simulated;

use super::{PE, folder, libraries, library_path};

/// Fields whose values depend on the place of things, on numbers that the firmware gives, or on
/// addresses.
const GIVEN: [&str; 14] = [
    "umem_offset",
    "umem_id",
    "dbr_addr",
    "uar_page",
    "c_eqn",
    "cqn_snd",
    "cqn_rcv",
    "qpn",
    "pd",
    "rgid_lo",
    "rmac_47_32",
    "rmac_31_0",
    "rlid",
    "counter_set_id",
];

/// A field without the value, if that is given by others.
fn shown(field: &str) -> String {
    match field.split_once('=') {
        Some((name, _)) if GIVEN.iter().any(|given| name.ends_with(given)) => format!("{name}=*"),
        _ => field.to_owned(),
    }
}

/// What a PE with one queue pair to its one peer says, a line for each command and call.
fn said(name: &str, lies: &str) -> String {
    let report = folder().join(format!("commands-{name}"));
    let job = Simulated {
        program: &oxshmem_tests::program(PE),
        library_path: library_path(&libraries(&[])),
        report: &report,
        pes: 2,
        transport: "ibgda",
        lies,
        variables: &[
            ("OXSHMEM_LOG", "oxshmem_hca=trace"),
            ("OXSHMEM_QPS_PER_PEER", "1"),
            ("OXSHMEM_ATOMICS", "gpu"),
            ("OXSHMEM_IB_SL", "3"),
            ("OXSHMEM_IB_TRAFFIC_CLASS", "104"),
        ],
    };
    let played = job.play();
    let text = played.text();
    assert!(played.output.status.success(), "{text}");
    let command = |line: &str| {
        let (_, said) = line.split_once("oxshmem_hca::mlx5::card: ")?;
        let (command, _) = said.split_once(" -> ")?;
        Some(command.split(' ').map(shown).collect::<Vec<_>>().join(" "))
    };
    let call = |line: &str| Some(format!("({})", line.split_once("oxshmem_hca::mlx5::record: ")?.1));
    text.lines()
        .filter_map(|line| command(line).or_else(|| call(line)))
        .fold(String::new(), |all, line| all + &line + "\n")
}

#[test]
fn the_commands_of_a_set_up_are_those_that_were_reviewed() {
    let links = [
        ("ethernet", "", include_str!("commands-ethernet.txt")),
        ("infiniband", "port:infiniband=1", include_str!("commands-infiniband.txt")),
    ];
    for (name, lies, reviewed) in links {
        let said = said(name, lies);
        println!("{name}:\n{said}");
        assert_eq!(said, reviewed, "not what commands-{name}.txt has, which docs/notes/commands.md is about");
    }
}
