//! Offsets and widths of all fields beside those of public headers: each field is in at least two
//! of them, and all agree.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use super::layout::Layout;
use super::{caps, counter, cq, lag, mkey, pd, qp, qpc, uar};

/// Tables of fields: structure and name, bit offset, width, and the name there where it differs.
/// The first line of each names header and commit.
const TABLES: [(&str, &str); 6] = [
    ("rdma-core", include_str!("../../tests/data/rdma_core.txt")),
    ("UCX", include_str!("../../tests/data/ucx.txt")),
    ("DPDK", include_str!("../../tests/data/dpdk.txt")),
    ("Linux", include_str!("../../tests/data/linux.txt")),
    ("DOCA", include_str!("../../tests/data/doca.txt")),
    ("rdma-core's tests", include_str!("../../tests/data/rdma_core_tests.txt")),
];

/// Fields that one public source alone has. They are read and never set: on the first depends what
/// is said of a card, and on the second whether requests are ordered strongly.
const IN_ONE_SOURCE: [&str; 2] = ["cmd_hca_cap_2.log_max_send_dbr_less_qp_sq", "qpc.dp_ordering_0"];

/// What a header says of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    offset: usize,
    width: usize,
}

struct Source {
    name: &'static str,
    places: HashMap<&'static str, Place>,
}

fn number(text: &str) -> usize {
    usize::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

fn sources() -> Vec<Source> {
    let row = |line: &'static str| {
        let mut columns = line.split(' ');
        let name = columns.next().unwrap();
        let place = Place { offset: number(columns.next().unwrap()), width: number(columns.next().unwrap()) };
        (name, place)
    };
    let places = |text: &'static str| text.lines().filter(|line| !line.starts_with('#')).map(row).collect();
    TABLES.map(|(name, text)| Source { name, places: places(text) }).into()
}

/// What a run of [`Check::structure`] has found.
struct Check {
    sources: Vec<Source>,
    /// Fields with the names of the sources that have them.
    fields: Vec<(String, Vec<&'static str>)>,
}

impl Check {
    /// Compares every field of a structure with every source that has it.
    fn structure<L: Layout>(&mut self, structure: &str) {
        for (name, at, width) in L::FIELDS {
            // The headers' names, and where in their field ours begins.
            let (known, skip) = match *name {
                "mkc" => ("memory_key_mkey_entry", 0),
                "cqc" => ("cq_context", 0),
                "caps" => ("capability", 0),
                "c_eqn" => ("c_eqn_or_apu_element", 0),
                "rgid_hi" => ("rgid_rip", 0),
                "rgid_lo" => ("rgid_rip", 64),
                name => (name, 0),
            };
            let full = format!("{structure}.{known}");
            let mut found = Vec::new();
            for source in &self.sources {
                let Some(place) = source.places.get(full.as_str()) else { continue };
                found.push(source.name);
                match *name {
                    // The last 8 of 32 bits that Linux has named `c_eqn_or_apu_element` since.
                    "c_eqn" => assert_eq!(place.offset + place.width, at + width, "{full} in {}", source.name),
                    "rgid_hi" | "rgid_lo" => {
                        assert_eq!((place.offset + skip, place.width), (*at, 128), "{full} in {}", source.name);
                    }
                    _ => {
                        assert_eq!(place.offset, *at, "offset of {full} in {}", source.name);
                        // Structures within structures have no width here.
                        assert!(*width == 0 || place.width == *width, "width of {full} in {}", source.name);
                    }
                }
            }
            self.fields.push((format!("{structure}.{name}"), found));
        }
    }
}

fn check_all() -> Check {
    let mut check = Check { sources: sources(), fields: Vec::new() };
    check.structure::<pd::AllocPdOut>("alloc_pd_out");
    check.structure::<pd::DeallocPd>("dealloc_pd_in");
    check.structure::<uar::AllocUarOut>("alloc_uar_out");
    check.structure::<uar::DeallocUar>("dealloc_uar_in");
    check.structure::<mkey::MkeyContext>("mkc");
    check.structure::<mkey::CreateMkey>("create_mkey_in");
    check.structure::<mkey::CreateMkeyOut>("create_mkey_out");
    check.structure::<mkey::DestroyMkey>("destroy_mkey_in");
    check.structure::<cq::CqContext>("cqc");
    check.structure::<cq::CreateCq>("create_cq_in");
    check.structure::<cq::CreateCqOut>("create_cq_out");
    check.structure::<cq::QueryCq>("query_cq_in");
    check.structure::<cq::QueryCqOut>("query_cq_out");
    check.structure::<cq::DestroyCq>("destroy_cq_in");
    check.structure::<qpc::AddressPath>("ads");
    check.structure::<qpc::QpContext>("qpc");
    check.structure::<qp::CreateQp>("create_qp_in");
    check.structure::<qp::CreateQpOut>("create_qp_out");
    check.structure::<qp::Rst2InitQp>("rst2init_qp_in");
    check.structure::<qp::Init2RtrQp>("init2rtr_qp_in");
    check.structure::<qp::Rtr2RtsQp>("rtr2rts_qp_in");
    check.structure::<qp::ToErrQp>("2err_qp_in");
    check.structure::<qp::ToRstQp>("2rst_qp_in");
    check.structure::<qp::QueryQp>("query_qp_in");
    check.structure::<qp::QueryQpOut>("query_qp_out");
    check.structure::<qp::DestroyQp>("destroy_qp_in");
    check.structure::<caps::QueryHcaCap>("query_hca_cap_in");
    check.structure::<caps::GeneralCapsOut>("query_hca_cap_out");
    check.structure::<caps::GeneralCaps2Out>("query_hca_cap_out");
    check.structure::<caps::AtomicCapsOut>("query_hca_cap_out");
    check.structure::<caps::GeneralCaps>("cmd_hca_cap");
    check.structure::<caps::GeneralCaps2>("cmd_hca_cap_2");
    check.structure::<caps::AtomicCaps>("atomic_caps");
    check.structure::<caps::RoceCapsOut>("query_hca_cap_out");
    check.structure::<caps::RoceCaps>("roce_cap");
    check.structure::<lag::QueryLagOut>("query_lag_out");
    check.structure::<counter::AllocQCounterOut>("alloc_q_counter_out");
    check.structure::<counter::DeallocQCounter>("dealloc_q_counter_in");
    check.structure::<counter::QueryQCounter>("query_q_counter_in");
    check.structure::<counter::QueryQCounterOut>("query_q_counter_out");
    check
}

#[test]
fn every_field_is_where_two_public_headers_have_it() {
    let check = check_all();
    let mut few = Vec::new();
    for (field, sources) in &check.fields {
        if IN_ONE_SOURCE.contains(&field.as_str()) {
            assert_eq!(sources.len(), 1, "{field} is in {}: it is no exception any more", sources.join(", "));
        } else if sources.len() < 2 {
            few.push(format!("{field}: {}", sources.join(", ")));
        }
    }
    println!(
        "{} fields, each in at least two of {}; in one alone: {}",
        check.fields.len(),
        TABLES.map(|(name, _)| name).join(", "),
        IN_ONE_SOURCE.join(", ")
    );
    assert!(few.is_empty(), "checked against one source or none:\n{}", few.join("\n"));
}

#[test]
fn the_tables_name_their_headers_and_agree_wherever_they_meet() {
    for (name, text) in TABLES {
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("# ") && (first.contains(".h") || first.contains(".py")) && first.contains("(commit "),
            "{name}: {first}"
        );
    }
    let sources = sources();
    for (number, source) in sources.iter().enumerate() {
        for other in &sources[number + 1..] {
            for (field, place) in &source.places {
                let Some(theirs) = other.places.get(field).filter(|_| *field != "cqc.c_eqn_or_apu_element") else {
                    continue;
                };
                assert_eq!(place, theirs, "{field} in {} and {}", source.name, other.name);
            }
        }
    }
}

/// A table with one wrong offset fails the comparison: what each test above relies on.
#[test]
fn a_wrong_offset_in_a_source_is_noticed() {
    let mut check = Check { sources: sources(), fields: Vec::new() };
    if let Some(place) = check.sources[1].places.get_mut("qpc.remote_qpn") {
        place.offset += 1;
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check.structure::<qpc::QpContext>("qpc")));
    assert!(outcome.is_err());
}
