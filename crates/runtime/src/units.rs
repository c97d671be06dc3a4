//! Sizes and durations as people type them, and numbers as people read them.

use std::time::Duration;

pub use resurgo_wire::text::{one_line, readable_size};

/// Bytes from `64M`, `1.5GiB`, `4096`. Units are powers of 1024: K, M, G, T, also with B or iB.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write a number and a unit, as in 64M or 1.5GiB");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number * (1u64 << shift) as f64;
    if bytes < 0.0 || bytes > (1u64 << 53) as f64 {
        return Err(format!("{text:?} is out of range"));
    }
    Ok(bytes as u64)
}

/// A duration from `3s`, `250ms`, `2.5m`, `1h`, `10us`; without a unit, seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write a number and a unit, as in 250ms, 3s, 90m or 4h");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let seconds = match unit {
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{text:?} is out of range"))
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim_start()))
}

/// `18,204`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 restart`, `2 restarts`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// `1.4 s`, `12 ms`.
pub fn readable_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds >= 100.0 {
        format!("{seconds:.0} s")
    } else if seconds >= 0.1 {
        format!("{seconds:.1} s")
    } else {
        format!("{:.1} ms", seconds * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64kb", 64 << 10),
            ("1.5GiB", 3 << 29),
            ("2 M", 2 << 20),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1X", "1e9", "99999999T", "1.2.3"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("3s", 3000),
            ("250ms", 250),
            ("1.5m", 90_000),
            ("2", 2000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "-1s", "3x", "1e400s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_to_read() {
        assert_eq!(grouped(18_204), "18,204");
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(readable_duration(Duration::from_millis(1440)), "1.4 s");
        assert_eq!(readable_duration(Duration::from_millis(12)), "12.0 ms");
    }
}
