//! Sizes and durations as people type them, and numbers as people read them.

use std::time::Duration;

pub use resurgo_wire::text::{one_line, parse_duration, parse_size, readable_size};

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
    fn numbers_to_read() {
        assert_eq!(grouped(18_204), "18,204");
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(readable_duration(Duration::from_millis(1440)), "1.4 s");
        assert_eq!(readable_duration(Duration::from_millis(12)), "12.0 ms");
    }
}
