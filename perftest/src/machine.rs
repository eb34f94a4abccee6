//! The machine and the day that figures belong to.

use std::process::Command;
use std::time::SystemTime;

use cudarc::driver::result::device;
use oxshmem::config::Device;
use oxshmem::device::takes_gpu;

/// The GPUs that this process sees, in the driver's order: `CUDA_VISIBLE_DEVICES` says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    /// Model of the first.
    pub model: String,
    /// The driver's version.
    pub driver: String,
    /// How many.
    pub number: u32,
    /// Bytes of memory that are free on each; `None` where nvidia-smi does not say it, as of a part
    /// of a GPU.
    pub free: Vec<Option<u64>>,
}

/// What nvidia-smi says of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    uuid: String,
    driver: String,
    free: Option<u64>,
}

impl Said {
    /// The options of the query.
    const QUERY: [&'static str; 2] = ["--query-gpu=uuid,driver_version,memory.free", "--format=csv,noheader,nounits"];

    /// Parses what it prints for [`QUERY`](Self::QUERY).
    fn parse(text: &str) -> Vec<Self> {
        let line = |line: &str| {
            let [uuid, driver, free] = line.split(", ").collect::<Vec<_>>().try_into().ok()?;
            let mebibytes = free.trim().parse::<u64>().ok();
            let (uuid, driver) = (uuid.to_owned(), driver.to_owned());
            Some(Self { uuid, driver, free: mebibytes.map(|mebibytes| mebibytes << 20) })
        };
        text.lines().filter_map(line).collect()
    }

    /// Runs nvidia-smi, a program that comes with every driver.
    fn all() -> Vec<Self> {
        let output = Command::new("nvidia-smi").args(Self::QUERY).output().ok();
        let output = output.filter(|output| output.status.success());
        output.map_or_else(Vec::new, |output| Self::parse(&String::from_utf8_lossy(&output.stdout)))
    }
}

impl Gpus {
    /// Returns the GPUs that the driver shows this process, without a context on any of them;
    /// `None` if there are none. nvidia-smi, which sees all of the host, adds the driver's version
    /// and the free memory.
    pub fn find() -> Option<Self> {
        // The driver is initialised after this, if it can be used at all.
        if !takes_gpu(Device::Auto) {
            return None;
        }
        let seen = |index: i32| {
            let gpu = device::get(index).ok()?;
            Some((
                device::get_name(gpu).ok()?,
                uuid(device::get_uuid(gpu).ok()?.bytes.map(|byte| byte.to_ne_bytes()[0])),
            ))
        };
        let seen: Vec<(String, String)> = (0..device::get_count().ok()?).map_while(seen).collect();
        Self::of(&seen, &Said::all())
    }

    /// Returns the GPUs that are `seen`, by model and identifier, with what is `said` of them.
    fn of(seen: &[(String, String)], said: &[Said]) -> Option<Self> {
        let (model, _) = seen.first()?;
        let free = |uuid: &str| said.iter().find(|one| one.uuid == uuid).and_then(|one| one.free);
        Some(Self {
            model: model.clone(),
            driver: said.first().map_or_else(|| "unknown".to_owned(), |one| one.driver.clone()),
            number: u32::try_from(seen.len()).ok()?,
            free: seen.iter().map(|(_, uuid)| free(uuid)).collect(),
        })
    }

    /// Returns the bytes that are free on every one of the first `pes` GPUs, which that many PEs
    /// use; `None` if that is not known of any.
    pub fn least_free(&self, pes: u32) -> Option<u64> {
        self.free.iter().take(pes as usize).flatten().min().copied()
    }
}

/// Returns the identifier of a GPU as nvidia-smi writes it.
fn uuid(bytes: [u8; 16]) -> String {
    let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hexadecimal[part]);
    format!("GPU-{}", parts.join("-"))
}

/// Returns the year, the month and the day of a number of days since 1970-01-01: by Howard
/// Hinnant's "days from civil" algorithm, backwards.
fn date(days: u64) -> String {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    format!("{}-{month:02}-{day:02}", year_of_era + era * 400 + u64::from(month <= 2))
}

/// Returns the day, UTC, as in 2026-11-21.
pub fn today() -> String {
    date(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()) / 86_400)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, text) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_778, "2026-11-21")]
        {
            assert_eq!(date(days), text);
        }
    }

    const SAID: &str = "GPU-00000000-0000-0000-0000-000000000001, 580.95.05, 81000\nGPU-00000000-0000-0000-0000-000000000002, 580.95.05, \
                        12\nGPU-00000000-0000-0000-0000-000000000003, 580.95.05, [N/A]\n";

    fn gpu(last: u8) -> (String, String) {
        ("NVIDIA H200".to_owned(), uuid(std::array::from_fn(|at| if at == 15 { last } else { 0 })))
    }

    #[test]
    fn only_gpus_that_are_seen_count() {
        let gpus = |seen: &[u8]| {
            let seen: Vec<_> = seen.iter().map(|last| gpu(*last)).collect();
            Gpus::of(&seen, &Said::parse(SAID))
        };
        // The second of the host is full, and not seen.
        let found = gpus(&[3, 1]).unwrap();
        assert_eq!((found.number, found.driver.as_str(), found.model.as_str()), (2, "580.95.05", "NVIDIA H200"));
        assert_eq!(
            (found.free.clone(), found.least_free(2), found.least_free(1)),
            (vec![None, Some(81000 << 20)], Some(81000 << 20), None)
        );
        assert_eq!(gpus(&[1, 2]).unwrap().least_free(2), Some(12 << 20));
        // One that is seen and not used.
        assert_eq!(gpus(&[1, 2]).unwrap().least_free(1), Some(81000 << 20));
        assert_eq!(gpus(&[]), None);
        assert_eq!(Gpus::of(&[gpu(1)], &[]).unwrap().driver, "unknown");
    }

    #[test]
    fn what_the_tool_prints_is_read() {
        assert_eq!(
            Said::parse(SAID).iter().map(|one| one.free).collect::<Vec<_>>(),
            [Some(81000 << 20), Some(12 << 20), None]
        );
        assert_eq!(Said::parse("No devices were found\n"), []);
        let bytes = std::array::from_fn(|at| 0xa0 + at as u8);
        assert_eq!(uuid(bytes), "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    }
}
