//! Sizes and durations as people type and read them, and text of unknown origin in a form for them.

use std::time::Duration;

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

/// A duration from `3s`, `250ms`, `2.5m`, `1h`, `7d`, `10us`; without a unit, seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write a number and a unit, as in 250ms, 3s, 90m or 4h");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let seconds = match unit {
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
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

/// `18.2 MiB`.
pub fn readable_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "bytes" {
                format!("{bytes} bytes")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// Text of unknown origin as one line that a terminal shows as it is. It has no control characters, no invisible ones,
/// and none that change the direction of text.
pub fn one_line(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    text.replace(hidden, " ")
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
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "-1s", "3x", "1e400s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_to_read() {
        assert_eq!(readable_size(19_000_000), "18.1 MiB");
        assert_eq!(readable_size(7), "7 bytes");
    }

    #[test]
    fn text_of_unknown_origin_is_one_harmless_line() {
        let evil = "a\u{1b}[2Jb\r\nc\u{9b}d\u{7f}e\u{202e}f\u{200b}g\u{2028}h\0i\tj";
        assert_eq!(one_line(evil), "a [2Jb  c d e f g h i j");
        assert_eq!(one_line("./größe 3 «ü» 漢字"), "./größe 3 «ü» 漢字");
    }
}
