//! When Slurm will end the job that this process runs in.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time that is left: from SLURM_JOB_END_TIME, or else from squeue. None: there is no limit.
pub fn time_left() -> Result<Option<Duration>, String> {
    if let Some(end) = std::env::var("SLURM_JOB_END_TIME")
        .ok()
        .and_then(|end| end.parse::<u64>().ok())
    {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(Some(Duration::from_secs(end).saturating_sub(now)));
    }
    let Ok(job) = std::env::var("SLURM_JOB_ID") else {
        return Err("--time-limit slurm: this is no job of Slurm (SLURM_JOB_ID is not set); give a time".to_string());
    };
    let unknown =
        |why: String| format!("--time-limit slurm: the time that is left cannot be found out: {why}; give a time");
    let said = Command::new("squeue")
        .args(["-h", "-o", "%L", "-j", &job])
        .output()
        .map_err(|error| unknown(format!("squeue: {error}")))?;
    let text = String::from_utf8_lossy(&said.stdout);
    if text.trim() == "UNLIMITED" {
        return Ok(None);
    }
    parse(text.trim()).map(Some).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&said.stderr);
        unknown(format!("squeue says {:?}", format!("{}{}", text.trim(), errors.trim())))
    })
}

/// Reads `days-hours:minutes:seconds` as squeue writes it, which leaves out what is 0 on the left.
fn parse(text: &str) -> Option<Duration> {
    let (days, time) = match text.split_once('-') {
        Some((days, time)) => (days.parse::<u64>().ok()?, time),
        None => (0, text),
    };
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if parts.len() < 2 || parts.len() > 3 {
        return None;
    }
    let seconds = parts.iter().fold(0, |sum, part| sum * 60 + part);
    Some(Duration::from_secs(days * 86_400 + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_squeue() {
        for (text, seconds) in [("0:07", 7), ("12:30", 750), ("1:00:00", 3600), ("2-01:00:05", 176_405)] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "UNLIMITED", "INVALID", "7", "1:2:3:4", "1-x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
