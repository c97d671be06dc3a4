//! Processors' abilities: programs choose their instructions when they start.

use std::fs;

/// The abilities of this machine's processor.
pub fn processor() -> Vec<String> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text
        .lines()
        .find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.map_or(Vec::new(), |(_, flags)| {
        flags.split_whitespace().map(String::from).collect()
    })
}

/// The instructions and registers that programs could use on a processor with `all`, and that one with `flags` does not
/// have.
pub fn lacks<'a>(all: &'a [String], flags: &[String]) -> Vec<&'a str> {
    let used = [
        "sse", "avx", "fma", "bmi", "f16c", "aes", "sha", "vaes", "vpclmul", "pclmul", "amx", "xsave", "movbe",
    ];
    let matters =
        |flag: &&String| used.iter().any(|used| flag.starts_with(used)) || *flag == "popcnt" || *flag == "erms";
    let missing = all.iter().filter(matters).filter(|flag| !flags.contains(flag));
    missing.map(String::as_str).collect()
}
