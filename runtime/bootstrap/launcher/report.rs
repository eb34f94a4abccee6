//! What is seen of launchers, and what is chosen, for `oxshmem-info`.

use super::super::admission::Secrecy;
use super::environment::Environment;
use super::find::find;
use super::start::Start;
use crate::config::{Config, Launcher};

/// What is seen of launchers, and what is chosen.
#[derive(Debug, Clone)]
pub struct Report {
    /// By launcher, its variables that are set; secrets are masked.
    pub seen: Vec<(Launcher, Vec<(String, String)>)>,
    /// The launcher, or why it cannot be used.
    pub chosen: Result<Launcher, String>,
    /// Why it was chosen.
    pub why: String,
    /// How the PEs meet.
    pub meeting: String,
    /// Where the job's secret comes from.
    pub secret: String,
    /// This process's number on its node and how many there are, as the launcher says.
    pub local: Option<(u32, u32)>,
    /// Variables that are not believed, with the reason.
    pub ignored: Vec<String>,
}

/// What the names of a launcher's variables start with, or the whole name.
const PREFIXES: [(Launcher, &[&str]); 5] = [
    (Launcher::Pmix, &["PMIX_"]),
    (Launcher::Pmi, &["PMI_", "PMI2_", "MPI_LOCAL"]),
    (
        Launcher::Torchrun,
        &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_", "TORCHELASTIC_"],
    ),
    (Launcher::Openmpi, &["OMPI_COMM_WORLD_", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid"]),
    (
        Launcher::Slurm,
        &[
            "SLURM_JOB_ID",
            "SLURM_STEP",
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_NTASKS",
            "SLURMD_NODENAME",
        ],
    ),
];
/// Parts of names of variables whose values are secrets.
const SECRETS: [&str; 6] = ["SECRET", "COOKIE", "TOKEN", "KEY", "PASS", "CRED"];

impl Report {
    /// Looks at the variables of this process. Nothing is started, and nothing is connected but
    /// munge, where it would carry the secret.
    pub fn new(config: &Config, environment: &Environment) -> Self {
        let seen = PREFIXES.map(|(launcher, prefixes)| {
            let of_launcher = |name: &str| {
                prefixes.iter().any(|prefix| {
                    if prefix.ends_with("RANK") || prefix.ends_with("SIZE") {
                        name == *prefix
                    } else {
                        name.starts_with(prefix)
                    }
                })
            };
            let masked = |(name, value): (&str, &str)| {
                let secret = SECRETS.iter().any(|part| name.to_ascii_uppercase().contains(part));
                (name.to_owned(), if secret { "(masked)".to_owned() } else { value.to_owned() })
            };
            (launcher, environment.select(of_launcher).map(masked).collect())
        });
        let mut report = Self {
            seen: seen.to_vec(),
            chosen: Ok(Launcher::None),
            why: String::new(),
            meeting: String::new(),
            secret: String::new(),
            local: None,
            ignored: Vec::new(),
        };
        if let (Some(rendezvous), Some(rank), Some(npes)) = (config.rendezvous(), config.rank(), config.npes()) {
            report.why = format!("OXSHMEM_RANK={rank} OXSHMEM_NPES={npes}: oxrun, or a unique id");
            report.meeting = format!("at {rendezvous}");
            report.secret = "OXSHMEM_JOB, from oxrun or the unique id".to_owned();
            return report;
        }
        match find(environment, config.launcher()) {
            Ok(finding) => {
                let secret = match &finding.start {
                    Start::Alone => Ok("a job of one PE needs none".to_owned()),
                    Start::Pmix(_) => Ok("drawn by rank 0, which publishes it through PMIx".to_owned()),
                    Start::Pmi(_) => Ok("drawn by rank 0, which publishes it through PMI".to_owned()),
                    Start::Ports(_) => Secrecy::choose(config.secret_file().as_deref(), config.munge())
                        .map(|secrecy| secrecy.to_string()),
                };
                report.meeting = match &finding.start {
                    Start::Alone => "a job of one PE".to_owned(),
                    Start::Pmix(start) => {
                        format!("rank 0 of {} publishes the rendezvous through PMIx", start.namespace)
                    }
                    Start::Pmi(start) => {
                        format!("rank 0 publishes the rendezvous through PMI, on descriptor {}", start.fd)
                    }
                    Start::Ports(start) => {
                        let ports: Vec<_> = start.ports().iter().map(u16::to_string).collect();
                        format!("at {}, on the first free one of the ports {}", start.host, ports.join(", "))
                    }
                };
                report.local = finding.local.map(|local| (local.rank, local.size));
                report.why = finding.why;
                report.ignored = finding.ignored;
                report.chosen = secret.map(|secret| {
                    report.secret = secret;
                    finding.launcher
                });
            }
            Err(error) => report.chosen = Err(error.to_string()),
        }
        report
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_what_is_seen_and_masks_secrets() {
        let vars = [("PMIX_NAMESPACE", "job.7"), ("PMIX_RANK", "1"), ("PMIX_AUTH_TOKEN", "hush"), ("RANKS", "9")];
        let report = Report::new(&Config::default(), &vars.into_iter().collect());
        assert_eq!(report.chosen, Ok(Launcher::Pmix));
        let text = format!("{report:?}");
        assert!(text.contains("PMIX_AUTH_TOKEN") && !text.contains("hush") && !text.contains("RANKS"), "{text}");
        let report = Report::new(&Config::default(), &vars[1..].iter().copied().collect());
        assert!(report.chosen.is_err());
    }

    #[test]
    fn a_report_says_where_the_secret_comes_from() {
        let step = [
            ("SLURM_JOB_ID", "1"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
        ];
        let pmi = [("PMI_FD", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let off = ("OXSHMEM_MUNGE", "off");
        for (settings, vars, words) in [
            (vec![off], &step[..], "none (OXSHMEM_MUNGE=off here); any process of this user"),
            (vec![off, ("OXSHMEM_SECRET_FILE", "/a/file")], &step, "the file OXSHMEM_SECRET_FILE=/a/file"),
            (vec![], &pmi, "drawn by rank 0, which publishes it through PMI"),
            (vec![], &[], "a job of one PE needs none"),
        ] {
            let config = Config::from_vars(settings).unwrap();
            let report = Report::new(&config, &vars.iter().copied().collect());
            assert!(report.chosen.is_ok() && report.secret.contains(words), "{report:?}");
        }
    }
}
