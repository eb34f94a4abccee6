#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::config::Munge;

/// Where Debian and others have the header.
const FOLDERS: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/pmix2/include", "/usr/lib/aarch64-linux-gnu/pmix2/include", "/usr/include"];

#[test]
fn the_binding_is_what_the_header_says() {
    let Some(folder) = FOLDERS.iter().find(|folder| Path::new(folder).join("pmix.h").exists()) else {
        return println!("skipped: pmix.h is absent (Debian's libpmix-dev)");
    };
    let mut text = String::from("#include <stddef.h>\n#include <string.h>\n#include <pmix.h>\n");
    for (c, rust) in [
        ("sizeof(pmix_proc_t)", size_of::<Proc>()),
        ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
        ("sizeof(pmix_value_t)", size_of::<Value>()),
        ("_Alignof(pmix_value_t)", align_of::<Value>()),
        ("offsetof(pmix_value_t, type)", offset_of!(Value, kind)),
        ("sizeof(((pmix_value_t *)0)->type)", size_of::<u16>()),
        ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
        ("sizeof(pmix_info_t)", size_of::<sys::Info>()),
        ("offsetof(pmix_info_t, flags)", offset_of!(sys::Info, flags)),
        ("offsetof(pmix_info_t, value)", offset_of!(sys::Info, value)),
        ("PMIX_MAX_NSLEN + 1", sys::NAMESPACE),
        ("PMIX_MAX_KEYLEN + 1", sys::KEY),
        ("PMIX_BOOL", sys::BOOL.into()),
        ("PMIX_STRING", sys::STRING.into()),
        ("PMIX_UINT32", sys::UINT32.into()),
        ("PMIX_GLOBAL", sys::GLOBAL.into()),
        ("(PMIX_RANK_WILDCARD)", sys::RANK_WILDCARD as usize),
        ("sizeof(pmix_scope_t)", 1),
        ("sizeof(pmix_status_t)", size_of::<c_int>()),
    ] {
        text += &format!("_Static_assert({c} == {rust}UL, \"{c} is not {rust}\");\n");
    }
    // Strings are compared by the compiler too, and functions by their types.
    for (name, value) in [
        ("PMIX_JOB_SIZE", sys::JOB_SIZE),
        ("PMIX_LOCAL_SIZE", sys::LOCAL_SIZE),
        ("PMIX_COLLECT_DATA", sys::COLLECT_DATA),
    ] {
        text += &format!("_Static_assert(__builtin_strcmp({name}, \"{value}\") == 0, \"{name}\");\n");
    }
    text += "pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = PMIx_Init;
        pmix_status_t (*finalize)(const pmix_info_t *, size_t) = PMIx_Finalize;
        pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *) = PMIx_Put;
        pmix_status_t (*commit)(void) = PMIx_Commit;
        pmix_status_t (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t) = PMIx_Fence;
        pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t,
            pmix_value_t **) = PMIx_Get;
        const char *(*text)(pmix_status_t) = PMIx_Error_string;\n";
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Werror", "-fsyntax-only", "-x", "c", "-I", folder, "-"]);
    let mut compiler = compiler.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn means() -> Means<'static> {
    let timeout = Duration::from_secs(5);
    Means { timeout, deadline: Instant::now() + timeout, secret_file: None, munge: Munge::Off }
}

#[test]
fn a_library_that_is_absent_is_named_with_the_remedy() {
    let start = PmixStart { namespace: "job.7".into(), rank: 1, without: None };
    let error = place_with("libpmix-absent.so.2", &start, &means()).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("launcher pmix: PMIX_NAMESPACE=job.7 is set, but libpmix-absent.so.2"), "{error}");
    assert!(error.contains("libpmix2") && error.contains("LD_LIBRARY_PATH"), "{error}");
}

#[test]
fn open_mpis_variables_suffice_on_one_node() {
    let vars = [
        ("PMIX_NAMESPACE", "job.7"),
        ("PMIX_RANK", "1"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let finding = find(&vars.into_iter().collect()).unwrap().unwrap();
    let Start::Pmix(start) = finding.start else { panic!("{finding:?}") };
    let place = place_with("libpmix-absent.so.2", &start, &means()).unwrap().unwrap();
    assert!(place.searching && (place.rank, place.npes) == (1, 2), "{place:?}");
}
